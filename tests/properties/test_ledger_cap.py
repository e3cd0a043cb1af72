"""Money: known plus assumed plus reserved never passes the cap, and is never below what was truly spent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.limits import Limits
from cortex.program import Program
from cortex.state import State
from policies.price import parse_price
from policies.retry import RetryPolicy
from tests.stage import Flat
from tests.toys import Chaos, Planner, Voter, Watcher
from tests.world import World

PROGRAMS: dict[str, Program] = {
    "flat": Flat(texts=tuple("abcdefghij")),
    "planned": Planner(roots=("b", "h"), deep=3),
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


def test_a_raised_cap_holds_as_the_first_did():
    from cortex import events

    price = parse_price("input=3,output=15")
    caps = (3_000_000, 5_000_000, 20_000_000)
    world = World(PROGRAMS["flat"], 7, limits=Limits(output_tokens_max=64, max_cost_nusd=caps[0]), price=price, faults=0.4, late=True)
    world.watch = doubted
    ends = []
    for cap in caps:
        limits = Limits(output_tokens_max=64, max_cost_nusd=cap)
        world._heard(world.stage.turn(events.LimitsSet("ann", limits), events.Resumed("ann")))
        ends.append(world.run().outcome)
    assert ends == ["partial", "partial", "complete"]
    assert world.k.ledger.committed_nusd > caps[1]
