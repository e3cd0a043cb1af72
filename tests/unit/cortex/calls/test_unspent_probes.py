"""A call that asked nobody spends no permission to begin: a probe of a blocked account goes on to the next row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cortex.state import commands, events
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from tests.support.state_machine_harness import Flat, Stage, of, other, reply

PROBE = events.PermitsGranted(1, starts=1, generation=2)


def stage_of(*texts: str, **more: object) -> Stage:
    return Stage(Flat(texts=texts), Limits(output_tokens_max=10), permits=0, **more)


def recalled(stage: Stage, call: commands.Call) -> events.Event:
    stage.calls.pop((call.goal, call.attempt), None)
    return events.ReplyRecalled(call.goal, call.sample, call.hash, reply("known"))


def failed(kind: str, sent: bool, status: int = 0) -> Callable[[Stage, commands.Call], events.Event]:
    return lambda stage, call: stage.broke(call, kind, sent=sent, status=status)


ENDS: dict[str, tuple[Callable[[Stage, commands.Call], events.Event], int]] = {
    # end of the probe: calls that may be begun after it under the same grant
    "remembered": (recalled, 1),
    "too large by the branch's count": (failed("too_large", False), 1),
    "cancelled before it was sent": (failed("cancelled", False), 1),
    "its time was over before it was sent": (failed("timed_out", False), 1),
    "answered": (lambda stage, call: stage.answered(call), 0),
    "too large by the provider's count": (failed("too_large", True, 413), 0),
    "cancelled under way": (failed("cancelled", True), 0),
    "timed out": (failed("timed_out", True), 0),
    "lost": (failed("lost", True), 0),
    "refused by the branch, which reports it": (failed("rejected", False), 0),
    "refused": (failed("rejected", True, 400), 0),
    "no connection, which is reported": (failed("transient", False), 0),
    "blocked": (failed("blocked", True, 402), 0),
    "no key": (failed("blocked", False), 0),
    "given back, by a breaker that has moved": (lambda stage, call: stage.given_back(call, 3), 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_only_a_probe_that_asked_somebody_is_spent(name: str) -> None:
    ended, left = ENDS[name]
    stage = stage_of("a", "b", "c")
    (first,) = of(stage.turn(PROBE), commands.Call)
    begun = of(stage.turn(ended(stage, first)), commands.Call)
    assert len(begun) == left
    assert (stage.k.shares[0].starts, stage.k.shares[0].in_flight) == (0, left)


@pytest.mark.parametrize("blocked", [False, True])
def test_one_probe_lets_all_remembered_rows_through_and_tests_the_account_with_the_first_other(blocked: bool) -> None:
    stage = stage_of(*"abcdefgh")
    if blocked:
        stage.turn(events.PermitsGranted(1))
        stage.fail(FailureKind.BLOCKED, "no credit")
        stage.turn(events.Resumed("ann"))
    stage.turn(PROBE)
    for row in range(6):
        assert len(stage.calls) == 1, row
        stage.turn(recalled(stage, stage.call()))
    assert stage.emitted == ["known"] * 6
    assert len(stage.calls) == 1, "one probe at a time"
    stage.answer()
    assert (len(stage.emitted), stage.calls) == (7, {})


LATER = {
    "withdrawn": events.PermitsGranted(0, starts=0, generation=2),
    "the lease ran out": events.PermitsGranted(0),
    "another probe": PROBE,
}


@pytest.mark.parametrize("name", LATER)
def test_under_a_later_grant_nothing_of_an_earlier_one_is_left(name: str) -> None:
    stage = stage_of("a", "b", "c")
    (first,) = of(stage.turn(PROBE), commands.Call)
    stage.turn(LATER[name])
    before = stage.k.shares[0].starts
    stage.turn(recalled(stage, first), at_s=stage.k.at_s)
    share = stage.k.shares[0]
    assert share.starts + share.in_flight == before if before > 0 else share.starts == before


def test_a_grant_without_bound_stays_without_bound() -> None:
    stage = stage_of("a", "b", "c")
    stage.turn(events.PermitsGranted(1))
    stage.turn(recalled(stage, stage.call()))
    assert stage.k.shares[0].starts == -1


def test_the_probe_of_a_fallback_is_its_own() -> None:
    stage = stage_of("a", "b", "c", fallbacks=(other(),))
    stage.turn(events.PermitsGranted(0, starts=0, generation=1), events.PermitsGranted(1, 1, starts=1, generation=2))
    stage.turn(recalled(stage, stage.call()))
    assert [(share.starts, share.in_flight) for share in stage.k.shares] == [(0, 0), (0, 1)]


WAYS = {"ends": {}, "goes to a fallback": {"fallbacks": (other(),)}, "waits": {"blocked_wait_s": 86_400.0}}
UNSENT = [name for name, (_, left) in ENDS.items() if left]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNSENT)
def test_a_probe_that_found_the_route_blocked_voids_what_others_of_its_grant_would_give_back(
    name: str, way: str
) -> None:
    more = dict(WAYS[way])
    limits = Limits(output_tokens_max=10, blocked_wait_s=more.pop("blocked_wait_s", 0.0))
    stage = Stage(Flat(texts=tuple("abcdefgh")), limits, permits=0, **more)
    first, second, third = of(stage.turn(events.PermitsGranted(3, starts=3, generation=2)), commands.Call)
    stage.turn(stage.broke(first, "blocked", sent=True, status=402))
    for call in (second, third):
        assert of(stage.turn(ENDS[name][0](stage, call)), commands.Call) == []
        assert stage.k.shares[0].starts == 0
    stage.turn(events.Resumed("ann"))
    assert len(of(stage.turn(PROBE), commands.Call)) == 1, "the next grant probes it"


@pytest.mark.parametrize("earlier", [events.PermitsGranted(2), events.PermitsGranted(2, starts=2, generation=1)])
@pytest.mark.parametrize("later_s", [0.0, 5.0, -5.0])
@pytest.mark.parametrize("name", UNSENT)
def test_a_call_gives_nothing_back_to_a_later_grant_whatever_the_clock_says(
    name: str, later_s: float, earlier: events.PermitsGranted
) -> None:
    """A grant may come in the instant of a call, and the time of the job stands while its clock is set back."""
    stage = stage_of(*"abcdefgh")
    first, _ = of(stage.turn(earlier), commands.Call)
    at_s = stage.k.at_s + later_s
    (probe,) = of(stage.turn(events.PermitsGranted(3, starts=1, generation=2), at_s=at_s), commands.Call)
    assert of(stage.turn(ENDS[name][0](stage, first), at_s=at_s), commands.Call) == []
    assert len(of(stage.turn(ENDS[name][0](stage, probe), at_s=at_s), commands.Call)) == 1, "its own is given back"


def test_a_second_attempt_at_a_slow_call_is_a_probe_like_any_other() -> None:
    limits = Limits(output_tokens_max=10, hedge_after_s=5.0)
    stage = Stage(Flat(texts=("a",)), limits, permits=0)
    stage.turn(events.PermitsGranted(3, starts=2, generation=2))
    (second,) = of(stage.turn(at_s=stage.k.at_s + 6.0), commands.Call)
    assert stage.k.shares[0].starts == 0
    stage.turn(stage.broke(second, "timed_out", sent=False))
    assert stage.k.shares[0].starts == 1
