"""Bills above what was reserved, in K: reservations grow, and a route gets one call at a time."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.limits import Limits
from cortex.values.reply import Usage
from policies.estimates.bill_excess import KNOWN_AFTER, WorstRatio
from policies.estimates.price import COST_MAX_NUSD
from tests.support.state_machine_harness import PRICE, Flat, Stage, of, other

CAPPED = Limits(output_tokens_max=64, max_cost_nusd=10**12)
DEAR = Usage(5_000, 2)
"""Usage of a reply that costs many times what its call was bound by."""


def stage(limits: Limits = CAPPED, permits: int = 4, **more: object) -> Stage:
    return Stage(Flat(texts=tuple(f"t{index}" for index in range(60))), limits, permits=permits, price=PRICE, **more)


def test_after_the_first_dear_bill_one_call_is_in_flight_until_the_bills_are_known():
    bench = stage()
    first = list(bench.calls.values())
    out = bench.turn(bench.answered(first[0], usage=DEAR))
    assert not of(out, commands.Call)
    for call in first[1:]:
        out = bench.turn(bench.answered(call, usage=DEAR))
    in_flight = []
    while len(in_flight) < 2 * KNOWN_AFTER:
        in_flight.append(len(bench.calls))
        bench.turn(bench.answered(bench.call(), usage=DEAR))
    assert in_flight[: KNOWN_AFTER - 3] == [1] * (KNOWN_AFTER - 3)  # three of the first had confirmed it
    assert in_flight[-1] == 4


def test_what_is_reserved_grows_with_the_worst_bill_seen():
    bench = stage(permits=1)
    before = next(iter(bench.k.flights.values())).charge
    bench.turn(bench.answered(bench.call(), usage=DEAR))
    after = next(iter(bench.k.flights.values())).charge
    assert before.bound is None and after.bounds == (before.nusd, before.tokens)
    assert after.nusd >= 5_000 * 3_000 + 2 * 15_000 and after.tokens >= 5_002
    assert bench.k.ledger.reserved_nusd == after.nusd
    bench.turn(bench.answered(bench.call(), usage=DEAR))
    assert bench.k.shares[0].excess.replies == 1  # the second had room


def test_answers_of_one_turn_are_noted_alike_on_both_paths():
    """The bench compares K of the fast path and of the general one, to the byte."""
    bench = stage(permits=10)
    first = list(bench.calls.values())
    bench.turn(*[bench.answered(call, usage=Usage(100 * place + 1, 2)) for place, call in enumerate(first)])
    excess = bench.k.shares[0].excess
    assert excess.replies > 5 and excess.within == 0


def test_a_job_without_a_cap_is_not_held_back():
    bench = stage(Limits(output_tokens_max=64))
    bench.turn(bench.answered(bench.call(), usage=DEAR))
    assert len(bench.calls) == 4 and bench.k.shares[0].excess is None


def test_a_cap_in_tokens_is_guarded_without_a_price():
    limits = Limits(output_tokens_max=64, max_job_tokens=100_000)
    bench = Stage(Flat(texts=("a", "b", "c")), limits, permits=1)
    bench.turn(bench.answered(bench.call(), usage=DEAR))
    assert next(iter(bench.k.flights.values())).charge.tokens >= 5_002


def test_another_route_keeps_its_calls():
    bench = stage(permits=2, fallbacks=(other("n", price=PRICE, endpoint="far"),))
    bench.turn(events.PermitsGranted(3, route=1))
    assert len(bench.calls) == 5
    own = [call for call in bench.calls.values() if call.route == 0]
    for call in own:
        bench.turn(bench.answered(call, usage=DEAR))
    by_route = [call.route for call in bench.calls.values()]
    assert by_route.count(0) == 1 and by_route.count(1) == 3
    assert bench.k.shares[1].excess is None


def test_a_late_bill_is_noted_too():
    bench = stage(permits=1)
    call = bench.call()
    bench.turn(bench.broke(call, "lost", sent=True))
    bench.turn(bench.answered(call, usage=DEAR))
    assert bench.k.shares[0].excess.replies == 1


@pytest.mark.parametrize("limits", [CAPPED, Limits(output_tokens_max=64, max_cost_nusd=10**12, hedge_after_s=2.0)])
def test_calls_within_their_bounds_are_asked_as_before(limits):
    bench = stage(limits)
    bench.answer_all()
    assert _excess(bench.k) == [None] and bench.k.outcome == "complete"


def _excess(k: State) -> list[object]:
    return [share.excess for share in k.shares]


def test_what_is_reserved_is_at_most_what_one_call_may_cost() -> None:
    assert WorstRatio().after(1, 10**14).raised(10**6) == COST_MAX_NUSD
