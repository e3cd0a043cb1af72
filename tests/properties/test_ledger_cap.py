"""Money: known plus assumed plus reserved never passes the cap, and is never below what was truly spent."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import Limits
from cortex.values.reply import Usage
from policies.estimates.price import parse_price
from policies.failures.retry import RetryPolicy
from tests.support.fault_injection import World
from tests.support.sample_programs import Chaos, Elector, Planner, Voter, Watcher
from tests.support.state_machine_harness import Flat, Stage, other

PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=tuple("abcdefghij")),
    "planned": Planner(roots=("b", "h"), deep=3),
    "voted on": Elector(),
    "any of three": Voter(questions=("p", "q", "r"), kind="any"),
    "watching": Watcher(asks=9, trust_s=0.7),
    "chaos": Chaos(seed=4),
}
RATES = st.decimals("0", "75", places=3)
PRICES = st.builds(lambda a, b: parse_price(f"input={a},output={b}"), RATES, RATES)


def within(k: State) -> None:
    limits, ledger = k.terms.limits, k.ledger
    if limits.max_cost_nusd is not None:
        assert ledger.committed_nusd <= limits.max_cost_nusd
    if limits.max_job_tokens is not None:
        assert ledger.committed_tokens <= limits.max_job_tokens


def doubted(world: World) -> None:
    """After each turn: within the caps, and not below the truth."""
    within(world.k)
    assert world.k.ledger.committed_nusd >= world.true_nusd
    assert world.k.ledger.committed_tokens >= world.true_tokens


@pytest.mark.parametrize("name", PROGRAMS)
@given(
    seed=st.integers(0, 10**9),
    price=PRICES,
    calls=st.integers(1, 30),
    by_tokens=st.booleans(),
    faults=st.sampled_from([0.0, 0.3, 0.7]),
    permits=st.integers(1, 9),
)
@settings(max_examples=30)
def test_the_cap_holds_whatever_dies_and_however_late(name, seed, price, calls, by_tokens, faults, permits):
    limits = Limits(
        output_tokens_max=64,
        max_cost_nusd=calls * 2_000_000,
        max_job_tokens=calls * 300 if by_tokens else None,
        retry=RetryPolicy(base_s=0.5, cap_s=2.0, attempts_max=4),
    )
    world = World(
        PROGRAMS[name], seed, limits=limits, permits=permits, faults=faults, late=True, together=3, price=price
    )
    world.watch = doubted
    doubted(world)
    for _ in range(300):
        if world.k.outcome:
            break
        world.turn()
    for event in world.overdue:  # what comes after the end is counted as well
        world.stage.turn(event)
        doubted(world)
    if world.k.outcome:
        assert world.k.ledger.reserved_nusd == world.k.ledger.reserved_tokens == 0


@pytest.mark.parametrize("name", PROGRAMS)
@given(
    seed=st.integers(0, 10**9),
    prices=st.tuples(PRICES, PRICES),
    calls=st.integers(1, 30),
    by_tokens=st.booleans(),
    faults=st.sampled_from([0.0, 0.3]),
    hedge_after_s=st.sampled_from([None, 0.01, 1.0]),
)
@settings(max_examples=30)
def test_the_cap_holds_over_fallbacks_of_another_price_hedges_and_deaths(
    name, seed, prices, calls, by_tokens, faults, hedge_after_s
):
    limits = Limits(
        output_tokens_max=64,
        max_cost_nusd=calls * 2_000_000,
        max_job_tokens=calls * 300 if by_tokens else None,
        retry=RetryPolicy(base_s=0.5, cap_s=2.0, attempts_max=4),
        hedge_after_s=hedge_after_s,
        goal_timeout_s=30.0,
    )
    own, dear = prices
    world = World(
        PROGRAMS[name], seed, limits=limits, permits=5, faults=faults, late=True, together=3, price=own, unrest=0.3,
        fallbacks=(other("n", price=dear, endpoint="far"),),
    )  # fmt: skip
    world.watch = doubted
    for _ in range(200):
        if world.k.outcome:
            break
        world.turn()
    for event in world.overdue:
        world.stage.turn(event)
        doubted(world)
    if world.k.outcome:
        assert world.k.ledger.reserved_nusd == world.k.ledger.reserved_tokens == 0


def test_that_property_is_worth_it():
    """It meets calls of both routes, hedges that win and lose, and attempts that died with their channel."""
    met: dict[str, int] = {"fallback": 0, "hedge": 0, "paid again": 0, "lost": 0}
    for seed in range(20):
        limits = Limits(output_tokens_max=64, hedge_after_s=0.01)
        fallbacks = (other("n", price=parse_price("input=9,output=9"), endpoint="far"),)
        world = World(
            PROGRAMS["flat"], seed, limits=limits, permits=5, late=True, together=3, unrest=0.3, fallbacks=fallbacks,
            price=parse_price("input=3,output=15"),
        )  # fmt: skip
        for _ in range(200):
            if world.k.outcome:
                break
            world.turn()
            met["hedge"] += any(goal.hedge for goal in world.k.goals.values())
        met["fallback"] += any(isinstance(one, commands.Call) and one.route for one in world.stage.said)
        met["paid again"] += world.k.ledger.paid_again
        met["lost"] += world.k.tally.failures.get("lost", 0)
    assert min(met.values()) > 5, met


def test_what_is_known_is_the_price_table_to_the_cent():
    """Every reply at the price of the route that gave it, cached tokens at theirs; rounded up once a call, to a nano-USD."""
    own, dear = parse_price("input=3,output=15,cache_read=0.3,cache_creation=3.75"), parse_price("input=30,output=150")
    stage = Stage(Flat(texts=tuple(map(str, range(200)))), permits=0, price=own, fallbacks=(other("n", price=dear),))
    stage.turn(events.PermitsGranted(50), events.PermitsGranted(50, route=1))
    usd = Decimal(0)
    usage = Usage(1_201, 377, 10_000, 501)
    while stage.calls:
        call = stage.call()
        if call.route:
            usd += Decimal(1_201 + 10_000) * 30 + Decimal(501) * Decimal("37.5") + 377 * 150
        else:
            usd += Decimal(1_201) * 3 + Decimal(10_000) * Decimal("0.3") + Decimal(501) * Decimal("3.75") + 377 * 15
        stage.turn(stage.answered(call, usage=usage))
    assert {share.in_flight for share in stage.k.shares} == {0} and stage.k.outcome == "complete"
    assert Decimal(stage.k.ledger.known_nusd) / 10**9 == pytest.approx(usd / 10**6, abs=Decimal("0.01"))
    assert stage.k.ledger.known_nusd == usd * 1_000


def test_a_raised_cap_holds_as_the_first_did():
    price = parse_price("input=3,output=15")
    caps = (3_000_000, 5_000_000, 20_000_000)
    world = World(
        PROGRAMS["flat"],
        7,
        limits=Limits(output_tokens_max=64, max_cost_nusd=caps[0]),
        price=price,
        faults=0.4,
        late=True,
    )
    world.watch = doubted
    ends = []
    for cap in caps:
        limits = Limits(output_tokens_max=64, max_cost_nusd=cap)
        world._heard(world.stage.turn(events.LimitsSet("ann", limits), events.Resumed("ann")))
        ends.append(world.run().outcome)
    assert ends == ["partial", "partial", "complete"]
    assert world.k.ledger.committed_nusd > caps[1]
