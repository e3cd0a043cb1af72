"""Servers of one model in K: which takes a call, and what a failure at one of them costs."""

from __future__ import annotations

import pytest

from cortex.calls.request import question_hash
from cortex.state import events
from cortex.values.limits import Limits, Route
from policies.failures.failure import FailureKind
from tests.support.state_machine_harness import Flat, Stage, failure, terms

BOUND = Limits(output_tokens_max=10)
SERVERS = tuple(Route(endpoint=name, model="m") for name in ("one", "two"))
FALLBACK = Route(endpoint="far", model="n")


def stage_of(*texts: str, fallback: bool = False, grants: tuple[int, ...] = (4, 4, 4), **more: object) -> Stage:
    """A job at three servers, of which the last two are further ones."""
    fallbacks = (*SERVERS, FALLBACK) if fallback else SERVERS
    stage = Stage(Flat(texts=texts), BOUND, permits=0, fallbacks=fallbacks, peers=2, **more)
    stage.turn(*(events.PermitsGranted(permits, route=place) for place, permits in enumerate(grants)))
    return stage


def at(stage: Stage) -> list[int]:
    """Servers of the calls in flight, by goal."""
    return [call.route for call in stage.calls.values()]


def test_work_goes_to_the_server_with_the_smallest_part_in_use() -> None:
    assert at(stage_of(*"abc")) == [0, 1, 2]
    assert at(stage_of(*"abcdefg", grants=(4, 2, 1))) == [0, 0, 1, 0, 0, 1, 2]
    assert at(stage_of(*"abcd", grants=(0, 3, 0))) == [1, 1, 1], "the others have no permits"


def test_a_server_is_asked_the_same_question_as_the_others() -> None:
    stage = stage_of(*"ab")
    one, two = stage.calls.values()
    assert (one.route, two.route) == (0, 1)
    assert two.hash == question_hash("sim", two.body, "0"), "the reply is found again, whichever server gave it"
    stage.answer(goal=2)
    stage.answer(goal=1)
    assert stage.k.outcome == "complete"


def test_a_fallback_is_used_when_no_server_has_permits() -> None:
    stage = stage_of(*"ab", fallback=True, grants=(0, 0, 0, 2))
    assert at(stage) == [3, 3]
    assert stage.k.moved
    stage.turn(events.PermitsGranted(1, route=1))
    assert not stage.k.moved


MOVED = {
    "throttled": (FailureKind.THROTTLED, {}),
    "overloaded": (FailureKind.OVERLOADED, {"status": 503}),
    "never sent": (FailureKind.TRANSIENT, {"sent": False}),
    "broken off": (FailureKind.TRANSIENT, {}),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_call_that_a_server_did_not_take_goes_to_another_at_once_and_counts_nothing(name: str) -> None:
    kind, more = MOVED[name]
    stage = stage_of("a")
    (call,) = stage.calls.values()
    stage.turn(stage.broke(call, kind, **more))
    again = stage.call()
    goal = stage.k.goals[1]
    assert (call.route, again.route, again.hash) == (0, 1, call.hash)
    assert (goal.broken, goal.throttles, stage.k.retries) == (0, 0, 0)
    stage.answer()
    assert (stage.k.outcome, stage.k.tally.answered) == ("complete", 1)


COUNTED = [FailureKind.TIMED_OUT, FailureKind.UNREADABLE]


@pytest.mark.parametrize("kind", COUNTED)
def test_a_failure_that_may_be_the_calls_own_counts(kind: FailureKind) -> None:
    stage = stage_of("a")
    stage.fail(kind)
    assert stage.k.goals[1].broken == 1
    assert not stage.calls, "it waits"


def test_a_request_that_ends_each_server_is_not_given_to_all_for_nothing() -> None:
    stage = stage_of("a")
    stage.fail(FailureKind.TRANSIENT)
    stage.fail(FailureKind.TRANSIENT)
    assert stage.call().route == 2
    stage.fail(FailureKind.TRANSIENT)
    assert stage.k.goals[1].broken == 1


def test_a_call_that_all_servers_refused_waits_and_counts() -> None:
    stage = stage_of("a")
    for _ in range(3):
        stage.fail(FailureKind.THROTTLED)
    goal = stage.k.goals[1]
    assert (goal.broken, goal.throttles, stage.calls) == (1, 1, {})
    assert goal.due_at_s > stage.k.at_s


def test_a_call_waits_for_another_server_rather_than_for_the_one_that_failed_it() -> None:
    stage = stage_of(*"abcd", grants=(1, 1, 1))
    stage.turn(stage.broke(stage.call(1), FailureKind.THROTTLED))
    assert [call.goal for call in stage.calls.values()] == [2, 3, 4], "its place is taken by one that it did not fail"
    stage.answer(goal=3)
    assert stage.call(1).route == 2


def test_one_call_alone_waits_for_another_server() -> None:
    stage = stage_of(*"ab", grants=(1, 1, 0))
    stage.turn(stage.broke(stage.call(1), FailureKind.THROTTLED))
    assert [call.goal for call in stage.calls.values()] == [2]
    assert (stage.k.wishes, stage.k.demand(), stage.k.outcome) == (True, 2, "")
    stage.answer(goal=2)
    assert stage.call(1).route == 1
    stage.answer(goal=1)
    assert stage.k.outcome == "complete"


def test_a_server_that_fails_gets_one_call_at_a_time_until_it_answers() -> None:
    stage = stage_of(*"abcdefghijkl", grants=(4, 2, 2))
    stage.turn(*(stage.broke(call, "transient", sent=False) for call in list(stage.calls.values()) if call.route == 0))
    assert stage.k.shares[0].doubted
    assert at(stage).count(0) == 1, "it is tried by one call, though four permits are free"
    stage.answer(goal=next(call.goal for call in stage.calls.values() if call.route == 0))
    assert not stage.k.shares[0].doubted
    assert at(stage).count(0) > 1


def test_a_job_of_one_server_doubts_nobody() -> None:
    stage = Stage(Flat(texts=tuple("abc")), BOUND)
    stage.fail("transient")
    assert not stage.k.shares[0].doubted


def test_what_servers_failed_a_call_is_forgotten_with_its_answer() -> None:
    stage = stage_of("a")
    stage.fail(FailureKind.THROTTLED)
    assert stage.k.goals[1].tried == 0b001
    stage.answer()
    assert stage.k.goals[1].tried == 0


def test_servers_change_between_runs() -> None:
    stage = stage_of("a")
    stage.fail(FailureKind.THROTTLED)
    stage.fail(FailureKind.THROTTLED)
    assert stage.k.goals[1].tried == 0b011
    stage.answer()
    more = (SERVERS[1], Route(endpoint="three", model="m"), FALLBACK)
    stage.turn(events.LimitsSet("ann", BOUND, None, more, peers=2))
    assert (stage.k.terms.peers, stage.k.terms.fallbacks) == (2, more)
    assert [share.permits for share in stage.k.shares] == [4, 4, 0, 0], "the state of a server that stays is kept"


@pytest.mark.parametrize("peers", [-1, 3])
def test_servers_are_among_the_fallbacks(peers: int) -> None:
    with pytest.raises(ValueError, match="further servers among 2 fallbacks"):
        terms(BOUND, fallbacks=SERVERS, peers=peers)


def test_a_blocked_server_holds_no_goal() -> None:
    stage = stage_of("a")
    stage.turn(stage.broke(stage.call(), "blocked", "no credit"))
    assert (stage.call().route, stage.k.paused) == (1, None)
    assert failure("blocked").kind is FailureKind.BLOCKED


def test_a_server_that_is_taken_out_gets_no_more_calls_and_keeps_its_place() -> None:
    stage = stage_of(*"abcdef", grants=(1, 1, 1))
    three = Route(endpoint="three", model="m")
    stage.turn(events.LimitsSet("ann", BOUND, None, (*SERVERS, three), peers=3, closed=("one",)))
    assert [share.permits for share in stage.k.shares] == [1, 0, 1, 0]
    assert [share.in_flight for share in stage.k.shares] == [1, 1, 1, 0], "its call ends there"
    stage.answer(goal=2)
    assert at(stage) == [0, 2], "none follows it"
    stage.turn(events.PermitsGranted(1, route=3))
    assert at(stage) == [0, 2, 3]
    stage.turn(events.LimitsSet("ann", BOUND, None, (*SERVERS, three), peers=3))
    stage.turn(events.PermitsGranted(1, route=1))
    assert at(stage) == [0, 2, 3, 1], "it is back"


def test_a_job_pauses_when_all_servers_that_are_left_are_blocked() -> None:
    stage = stage_of(*"ab", grants=(1, 1, 0))
    stage.turn(events.LimitsSet("ann", BOUND, None, SERVERS, peers=2, closed=("sim", "two")))
    stage.turn(stage.broke(stage.call(2), "blocked", "no credit"))
    assert stage.k.paused is not None
