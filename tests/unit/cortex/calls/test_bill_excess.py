"""Bills above what was reserved, in K: reservations grow, and a route gets one call at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from cortex.admission.budget_slices import dearest_calls
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from cortex.values.limits import Limits, Route
from cortex.values.reply import Usage
from policies.estimates.bill_excess import KNOWN_AFTER, BillExcess, WorstRatio
from policies.estimates.price import COST_MAX_NUSD, worst_nusd
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


class Long(Flat, frozen=True):
    """Program whose questions have a bound of their own."""

    def select(self, k: State) -> Iterable[Any]:
        return (msgspec.structs.replace(each, output_tokens_max=1_000) for each in super().select(k))


@pytest.mark.parametrize(
    ("program", "route_max", "longest"),
    [(Flat(), None, 64), (Flat(), 32, 64), (Long(), None, 1_000), (Flat(), 4_000, 4_000), (Long(), 4_000, 4_000)],
)
def test_the_dearest_call_has_the_longest_reply_that_any_call_may_have(
    program: Flat, route_max: int | None, longest: int
) -> None:
    cap, window = 10**11, 10_000
    route = Route(endpoint="sim", model="m", context_window=window, price=PRICE, output_tokens_max=route_max)
    money = Stage(program, Limits(output_tokens_max=64, max_cost_nusd=cap), permits=1, route=route)
    assert len(money.calls) == 1
    bill_nusd = worst_nusd(PRICE, window, longest)
    assert dearest_calls(money.k, 0, BillExcess()) == cap // bill_nusd
    tokens = Stage(program, Limits(output_tokens_max=64, max_job_tokens=10**6), permits=1, route=route)
    assert dearest_calls(tokens.k, 0, BillExcess()) == 10**6 // (window + longest)


def test_what_is_reserved_is_at_most_what_one_call_may_cost() -> None:
    assert WorstRatio().after(1, 10**14).raised(10**6) == COST_MAX_NUSD


def lost_and_answered(bench: Stage, goal: int) -> tuple[commands.Call, list[commands.Command]]:
    """Lose the attempt at a goal, and have the next one answered. Return the first, and what followed."""
    first = bench.call(goal)
    bench.turn(bench.broke(first, "lost", sent=True))
    return first, bench.turn(bench.answered(bench.call(goal)))


def test_a_late_bill_of_a_goal_that_was_answered_meanwhile_is_paid_and_teaches_too():
    """Its reply is no use to anybody, and was paid for all the same: a cap may have been passed by it."""
    bench = Stage(Flat(texts=("a", "b")), CAPPED, permits=2, price=PRICE)
    first, _ = lost_and_answered(bench, 1)
    assert list(bench.k.late) == [flight_key(first.goal, first.attempt)] and _excess(bench.k) == [None]
    known, dropped = bench.k.ledger.known_nusd, bench.k.tally.dropped
    assert bench.k.ledger.assumed_nusd > 0
    bench.turn(bench.answered(first, usage=DEAR))
    ledger = bench.k.ledger
    assert (ledger.assumed_nusd, ledger.known_nusd) == (0, known + 5_000 * 3_000 + 2 * 15_000)
    assert bench.k.shares[0].excess.replies == 1 and bench.k.tally.dropped == dropped + 1
    known = ledger.known_nusd
    bench.turn(bench.answered(first, usage=DEAR))
    assert bench.k.ledger.known_nusd == known and not bench.k.late, "once"


def test_of_attempts_that_were_lost_for_good_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cortex.goals.lifecycle.LATE_MAX", 3)
    bench = Stage(Flat(texts=tuple("abcdefg")), CAPPED, permits=7, price=PRICE)
    for goal in range(1, 6):
        lost_and_answered(bench, goal)
    assert [key >> 20 for key in bench.k.late] == [3, 4, 5]
