"""A job's routes: what is granted of each, which one a call takes, and what it costs there."""

from __future__ import annotations

import msgspec
import pytest

from cortex.calls.request import question_hash
from cortex.state import commands, events
from cortex.state.changes import Ask
from cortex.state.program import Program
from cortex.state.route_share import RouteShare
from cortex.state.state import Goal
from cortex.values.limits import Limits
from cortex.values.prompt import with_model
from policies.estimates.price import parse_price
from policies.failures.failure import Failure, FailureKind
from tests.support.state_machine_harness import PRICE, Flat, Stage, of, other, prompt, puppet, reply, terms

BOUND = Limits(output_tokens_max=10)
DEAR = parse_price("input=30,output=150")


def stage_of(*texts: str, program: Program | None = None, window: int = 200_000, **more: object) -> Stage:
    """A job with a fallback ten times as dear; nothing granted yet."""
    fallbacks = (other("n", price=DEAR, window=window, endpoint="far"),)
    return Stage(program or Flat(texts=texts), BOUND, permits=0, price=PRICE, fallbacks=fallbacks, **more)


FREE = {
    "none": (RouteShare(), 0),
    "all": (RouteShare(permits=3), 3),
    "some in use": (RouteShare(permits=3, in_flight=2), 1),
    "fewer than are in use": (RouteShare(permits=1, in_flight=2), 0),
    "a probe": (RouteShare(permits=3, starts=1), 1),
    "the probe is out": (RouteShare(permits=3, starts=0, in_flight=1), 0),
    "more starts than permits": (RouteShare(permits=2, starts=5, in_flight=1), 1),
    "held": (RouteShare(permits=3, hold_until_s=100.5), 0),
    "no longer held": (RouteShare(permits=3, hold_until_s=100.0), 3),
}


@pytest.mark.parametrize("name", FREE)
def test_how_many_may_be_begun(name):
    share, free = FREE[name]
    assert share.free(100.0) == free


def test_a_grant_takes_the_place_of_the_one_before_on_its_route_alone():
    stage = stage_of("a")
    stage.turn(events.PermitsGranted(3, why="fewer", memo=b"m", generation=4, again_s=7.0))
    stage.turn(events.PermitsGranted(2, route=1, starts=2, generation=7))
    one, two = stage.k.shares
    assert (one.permits, one.starts, one.generation, one.why, one.memo) == (3, -1, 4, "fewer", b"m")
    assert (two.permits, two.starts, two.generation, two.why, two.memo) == (2, 2, 7, "", b"")
    assert (one.again_at_s, two.again_at_s) == (stage.turns[-2].at_s + 7.0, 0.0)
    assert stage.k.permits == 5


@pytest.mark.parametrize("place", [-1, 2, 99])
def test_a_grant_of_a_route_that_is_none_of_the_jobs_changes_nothing(place):
    stage = stage_of("a")
    before = [msgspec.structs.replace(share) for share in stage.k.shares]
    assert of(stage.turn(events.PermitsGranted(9, route=place)), commands.Call) == []
    assert stage.k.shares == before


def test_a_call_takes_the_first_route_that_has_a_permit_free():
    stage = stage_of(*"abcd")
    stage.turn(events.PermitsGranted(1, route=1), events.PermitsGranted(2, generation=5))
    assert [(call.route, call.generation) for call in stage.calls.values()] == [(0, 5), (0, 5), (1, 0)]
    assert [share.in_flight for share in stage.k.shares] == [2, 1]
    stage.answer(goal=1)
    assert stage.call(4).route == 0


def test_the_fallback_is_asked_by_its_own_name_at_its_own_price():
    stage = stage_of("a")
    stage.turn(events.PermitsGranted(1, route=1))
    call = stage.call()
    assert msgspec.json.decode(call.body)["model"] == "n"
    assert call.hash == question_hash("far", call.body, "0")
    worst = stage.k.ledger.reserved_nusd
    stage.answer()
    assert stage.k.ledger.known_nusd == 10 * 60_000
    straight = stage_of("a")
    straight.turn(events.PermitsGranted(1))
    assert worst == 10 * straight.k.ledger.reserved_nusd


def test_a_request_that_was_given_whole_changes_its_model_and_nothing_else():
    body = b'{"max_tokens": 5,  "model":"m", "x": 1e5, "messages":[ ]}'
    assert with_model(body, "n\u00e9") == b'{"max_tokens":5,"model":"n\xc3\xa9","x":1e5,"messages":[ ]}'
    select = lambda k: [Ask(goal, body=body, output_tokens_max=5) for goal in k.open("x")]  # noqa: E731
    stage = stage_of(program=puppet(begin=lambda k: [Goal("x")], select=select))
    stage.turn(events.PermitsGranted(1, route=1))
    assert stage.call().body == with_model(body, "n")
    with pytest.raises(ValueError, match="no JSON object"):
        with_model(b"[]", "n")


def test_a_window_is_that_of_the_route_that_is_asked():
    stage = stage_of("a", "b", window=5_000)
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(1, route=1))
    assert [call.prompt_tokens_max for call in stage.calls.values()] == [199_990, 4_990]


def test_a_whole_request_that_may_be_too_large_for_a_fallback_waits_for_the_jobs_own_route():
    big = b'{"model":"m","messages":"' + b"x" * 6_000 + b'"}'
    begin = lambda k: [Goal("x", big), Goal("x", b"{}")]  # noqa: E731
    select = lambda k: [Ask(goal, body=goal.value) for goal in k.open("x")]  # noqa: E731
    stage = stage_of(program=puppet(begin=begin, select=select), window=5_000)
    stage.turn(events.PermitsGranted(4, route=1))
    assert [call.goal for call in stage.calls.values()] == [2]
    stage.answer()
    assert (stage.k.outcome, stage.statuses()) == ("", ["open", "resolved"]), "it is not stuck: it waits"
    stage.turn(events.PermitsGranted(1))
    stage.answer()
    assert stage.k.outcome == "complete"


def test_a_late_reply_of_the_first_route_serves_the_goal_that_asks_the_fallback_now():
    """At its own price; the attempt that replaced it is cancelled, and the question is one call throughout."""
    stage = stage_of("a")
    stage.turn(events.PermitsGranted(1))
    first = stage.call()
    stage.turn(stage.broke(first, "lost"), events.PermitsGranted(0), events.PermitsGranted(1, route=1))
    second = stage.call()
    assert (second.route, second.attempt, first.hash == second.hash) == (1, 2, False)
    out = stage.turn(stage.answered(first, "late"))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 2)]
    assert (stage.goal(1).answer, stage.k.ledger.known_nusd, stage.k.tally.calls) == ("late", 60_000, 1)


def test_a_late_reply_of_a_fallback_is_paid_at_the_fallbacks_price():
    stage = stage_of("a")
    stage.turn(events.PermitsGranted(1, route=1))
    first = stage.call()
    worst = stage.k.ledger.reserved_nusd
    stage.turn(stage.broke(first, "lost"), events.PermitsGranted(1), events.PermitsGranted(0, route=1))
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.reserved_nusd) == (worst, worst // 10)
    stage.turn(stage.answered(first, "late"))
    ledger = stage.k.ledger
    assert (stage.goal(1).answer, ledger.known_nusd) == ("late", 600_000)
    assert ledger.assumed_nusd == worst // 10, "that of the attempt which replaced it, cancelled at the end"


def test_a_remembered_reply_of_a_fallback_settles_it():
    stage = stage_of("a")
    stage.turn(events.PermitsGranted(1, route=1))
    call = stage.call()
    stage.turn(events.ReplyRecalled(call.goal, call.sample, call.hash, reply("known")))
    assert (stage.emitted, stage.k.shares[1].in_flight, stage.k.ledger.attempts) == (["known"], 0, 0)


def test_equal_questions_share_an_attempt_whichever_route_it_took():
    stage = stage_of("same", "same")
    stage.turn(events.PermitsGranted(1, route=1))
    stage.turn(events.PermitsGranted(1))
    assert len(stage.k.flights) == 1
    stage.answer("one")
    assert stage.emitted == ["one", "one"]


def test_retry_after_holds_its_own_route_back_and_no_other():
    stage = stage_of("a", "b")
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(1, route=1))
    stage.turn(stage.broke(stage.call(1), "throttled", status=429, retry_after_s=30.0), at_s=200.0)
    assert [share.hold_until_s for share in stage.k.shares] == [230.0, 0.0]
    assert stage.k.hold_until_s == 230.0
    stage.turn(stage.answered(stage.call(2)), at_s=201.0)
    stage.turn(events.Ticked(), at_s=231.9)
    assert [call.route for call in stage.calls.values()] == [0]


def test_probes_are_begun_and_no_more_until_the_next_grant():
    stage = stage_of("a", "b", "c")
    out = stage.turn(events.PermitsGranted(3, starts=1, generation=2))
    assert [call.generation for call in of(out, commands.Call)] == [2]
    assert of(stage.answer(), commands.Call) == []
    assert len(of(stage.turn(events.PermitsGranted(2, starts=2, generation=2)), commands.Call)) == 2


# -- what the job could use --------------------------------------------------------------------------------------------


def test_demand_is_what_could_be_in_flight_now():
    stage = Stage(Flat(texts=tuple("abcde")), Limits(concurrency=4), permits=0)
    assert stage.k.demand() == 4
    stage.turn(events.PermitsGranted(2))
    assert (len(stage.k.flights), stage.k.demand()) == (2, 4)
    stage.turn(stage.broke(stage.call(1), "timed_out"), events.PermitsGranted(0))
    assert stage.k.demand() == 4, "what waits to be asked again counts"
    stage.turn(events.PermitsGranted(8))
    assert len(stage.k.flights) == stage.k.demand() == 4, "at most what its user allows, whatever is granted"


def test_over_all_routes_no_more_is_in_flight_than_its_user_allows():
    fallbacks = (other("n"),)
    stage = Stage(Flat(texts=tuple("abcdef")), Limits(concurrency=3), permits=0, fallbacks=fallbacks)
    stage.turn(events.PermitsGranted(2), events.PermitsGranted(2, route=1))
    assert [call.route for call in stage.calls.values()] == [0, 0, 1]
    stage.turn(events.LimitsSet("ann", Limits(concurrency=1)))
    assert of(stage.answer(), commands.Call) == of(stage.answer(), commands.Call) == []
    assert len(of(stage.answer(), commands.Call)) == 1


def test_goals_that_the_program_does_not_ask_are_no_demand():
    select = lambda k: [Ask(goal, prompt(goal.value)) for goal in k.open("x") if goal.value != "later"]  # noqa: E731
    stage = Stage(puppet(begin=lambda k: [Goal("x", "now"), Goal("x", "later")], select=select), permits=0)
    assert stage.k.demand() == 2, "nobody knows yet"
    stage.turn(events.PermitsGranted(5))
    assert stage.k.demand() == 1


@pytest.mark.parametrize("stop", ["drain", "cancel"])
def test_a_job_that_stops_wants_what_is_under_way(stop):
    stage = Stage(Flat(texts=("a", "b", "c")), permits=2)
    stage.turn(events.Stopped("ann", stop))
    assert stage.k.demand() == len(stage.k.flights)
    stage.answer_all()
    assert (stage.k.outcome, stage.k.demand()) == ("cancelled" if stop == "cancel" else "partial", 0)


def test_the_longest_that_an_attempt_may_take():
    stage = Stage(Flat(texts=("a" * 4_000,)), permits=0)
    before = stage.k.longest_timeout_s
    assert before > 30.0
    stage.turn(events.PermitsGranted(1))
    assert stage.k.longest_timeout_s == stage.call().timeout_s > before


def test_a_fallback_that_leads_back_is_refused():
    with pytest.raises(ValueError, match="a fallback must be another route: sim\\|\\|m is named twice"):
        terms(fallbacks=(other("n"), other("m")))


NO_ROAD = Failure(FailureKind.TRANSIENT, "no connection", sent=False)


def test_a_route_that_does_not_reply_is_known_from_its_first_failure_to_its_next_reply():
    stage = stage_of("a", "b", "c")
    stage.turn(events.PermitsGranted(2), events.PermitsGranted(1, route=1))
    (first, second, far), own, other_ = [*stage.calls.values()], stage.k.shares[0], stage.k.shares[1]
    stage.turn(events.AttemptFailed(first.goal, "0", first.attempt, NO_ROAD), at_s=120.0)
    stage.turn(events.Answered(far.goal, "0", far.attempt, far.hash, reply("x")), at_s=130.0)
    timed_out = Failure(FailureKind.TIMED_OUT, "no whole answer in time")
    stage.turn(events.AttemptFailed(second.goal, "0", second.attempt, timed_out), at_s=140.0)
    assert (own.failing, own.failing_s) == (timed_out, 120.0), (
        "the last error, and since when; a reply elsewhere is none"
    )
    assert (other_.failing, other_.failing_s) == (None, 0.0)
    stage.turn(at_s=320.0)
    again = next(each for key, each in stage.calls.items() if key[1] > 1 and each.route == 0)
    stage.turn(events.Answered(again.goal, "0", again.attempt, again.hash, reply("y")), at_s=321.0)
    assert (own.failing, own.failing_s) == (None, 0.0)


def test_what_is_wrong_with_a_row_is_not_wrong_with_its_route():
    stage = stage_of("a", "b")
    stage.turn(events.PermitsGranted(1))
    (call,) = stage.calls.values()
    stage.turn(events.AttemptFailed(call.goal, "0", call.attempt, Failure(FailureKind.REJECTED, "no", 400)))
    assert stage.k.shares[0].failing is None
