"""Rows of a source, a window at a time, and ``batch`` over them: one line a row, in order if asked for."""

from __future__ import annotations

import msgspec
import pytest

from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.changes import Goal
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import Stage, fed, of, puppet, row

WINDOW = Limits(concurrency=4, window_rows=4)


def batch(*keys: str, ordered: bool = False, limits: Limits = WINDOW, ended: bool = True, permits: int = 2) -> Stage:
    stage = Stage(Batch(ordered=ordered), limits, permits=permits, streams=True)
    if keys:
        stage.turn(fed(*keys, ended=ended))
    return stage


def ids(stage: Stage) -> list[str]:
    return [msgspec.json.decode(line)["custom_id"] for line in stage.emitted]


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_job_with_a_source_waits_for_it():
    stage = batch()
    assert (stage.k.outcome, stage.k.rows_wanted()) == ("", 4)
    stage.turn(events.RowsRead((), 0, 0, True))
    assert stage.k.outcome == "complete"


def test_rows_are_wanted_as_far_as_the_window_has_room():
    stage = batch("a", "b", "c", ended=False)
    assert stage.k.rows_wanted() == 1
    stage.answer()
    assert stage.k.rows_wanted() == 2
    stage.turn(fed("d", start=30, ended=True))
    assert stage.k.rows_wanted() == 0, "there are no more"


@pytest.mark.parametrize("stop", ["drain", "cancel"])
def test_no_rows_are_wanted_by_a_job_that_stops(stop):
    stage = batch("a", ended=False)
    stage.turn(events.Stopped("ann", stop))
    assert stage.k.rows_wanted() == 0


WINDOWS = {
    "the same again": (fed("a", "b"), 2, 20),
    "one that began before": (fed("b", "c", start=10), 2, 20),
    "one that begins later": (fed("d", start=30), 2, 20),
    "the next": (fed("c", start=20), 3, 30),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_read_once_and_in_its_turn(name):
    again, rows, position = WINDOWS[name]
    stage = batch("a", "b", ended=False)
    stage.turn(again)
    assert (stage.k.tally.rows_read, stage.k.position) == (rows, position)


def test_nothing_is_read_beyond_the_end():
    stage = batch("a", ended=True)
    stage.turn(fed("b", start=10))
    assert stage.k.tally.rows_read == 1


@pytest.mark.parametrize("outcome", ["cancelled", "failed"])
def test_a_job_that_ended_for_good_reads_no_more(outcome):
    stage = batch("a", ended=False)
    if outcome == "cancelled":
        stage.turn(events.Stopped("ann", "cancel"), fed("b", start=10))
    else:
        stage.k.outcome = stage.shadow.outcome = "failed"
        stage.turn(fed("b", start=10))
    assert stage.k.tally.rows_read == 1
    assert len(stage.k.goals) == (0 if outcome == "cancelled" else 1)


def test_a_window_full_of_goals_that_wait_is_told_and_not_waited_for():
    """Each row's goal waits for the last row, and the window holds no more rows."""
    program = puppet(read=lambda k, row: [Goal("row", row.key)], select=lambda k: [], keeps=True)
    stage = Stage(program, Limits(concurrency=2, window_rows=2), streams=True)
    stage.turn(fed("a", "b"))
    assert stage.k.outcome == "failed"
    assert stage.k.why == "2 goals wait, and window_rows (2) admits no more rows: raise it"


def test_a_read_that_raises_stops_the_job():
    stage = Stage(puppet(read=lambda k, row: 1 / 0), streams=True)
    stage.turn(fed("a", "b"))
    assert stage.k.why == "the program's read raised ZeroDivisionError: division by zero"
    assert stage.k.tally.rows_read == 1


def test_by_default_a_row_is_a_goal_and_a_refused_row_is_none():
    stage = Stage(puppet(), streams=True)
    stage.turn(fed("a", "!b", "c", ended=True))
    assert [goal.kind for goal in stage.k.goals.values()] == ["row", "row"]
    assert (stage.k.tally.rows_read, stage.k.tally.rows_refused) == (3, 1)


def test_what_the_sink_holds_is_noted():
    stage = batch("a")
    stage.turn(events.ResultsWritten(7, 700))
    assert (stage.k.written_rows, stage.k.written_bytes) == (7, 700)


# -- batch -------------------------------------------------------------------------------------------------------------


def test_each_row_is_asked_as_it_stands_under_its_own_name():
    stage = batch("a", "b")
    one, two = stage.calls.values()
    assert (one.sample, two.sample, one.body) == ("a", "b", row("a").body)
    assert one.hash != two.hash, "equal rows stay separate questions"
    assert (one.output_tokens_max, stage.k.tally.calls) == (8, 2)


def test_a_message_goes_through_to_the_byte_whatever_its_stop_reason():
    stage = batch("a")
    message = b'{ "id": "m", "content": [], "stop_reason": "refusal" }'
    call = stage.call()
    event = stage.answered(call)
    stage.turn(msgspec.structs.replace(event, reply=msgspec.structs.replace(event.reply, body=message)))
    assert stage.emitted == [b'{"custom_id":"a","result":{"type":"succeeded","message":' + message + b"}}"]


LINES = {
    "rejected": "invalid_request_error",
    "too_large": "invalid_request_error",
    "transient": "api_error",
    "unreadable": "api_error",
    "timed_out": "timeout_error",
    "lost": "api_error",
    "overloaded": "overloaded_error",
    "throttled": "rate_limit_error",
}


@pytest.mark.parametrize("kind", LINES)
def test_a_row_that_failed_for_good_has_its_line(kind):
    once = RetryPolicy(attempts_max=1, throttled_attempts_max=1)
    stage = batch("a", limits=Limits(retry=once))
    stage.fail(kind, "so it is", status=400)
    (line,) = map(msgspec.json.decode, stage.emitted)
    error = {"type": "error", "error": {"type": LINES[kind], "message": "so it is"}}
    assert line == {"custom_id": "a", "result": {"type": "errored", "error": error}}
    assert (stage.k.tally.succeeded, stage.k.tally.failed, stage.k.outcome) == (0, 1, "complete")


@pytest.mark.parametrize("kind", ["blocked", "unauthorised", "over_budget"])
def test_a_row_that_the_account_or_the_cap_stopped_has_none(kind):
    stage = batch("a")
    stage.fail(kind, status=402)
    assert (stage.emitted, stage.k.outcome) == ([], "partial")
    stage.turn(events.Resumed("ann"))
    stage.answer()
    assert ids(stage) == ["a"]


def test_a_cancelled_row_is_canceled():
    stage = batch("a", "b", "c")
    stage.answer(goal=1)
    stage.turn(events.Stopped("ann", "cancel"))
    results = [msgspec.json.decode(line)["result"]["type"] for line in stage.emitted]
    assert results == ["succeeded", "canceled", "canceled"]


def test_a_refused_row_has_its_line_without_a_call():
    stage = batch("!a", "b")
    assert ids(stage) == ["a"]
    assert [call.sample for call in stage.calls.values()] == ["b"]
    assert stage.k.tally.rows_refused == 1


def test_a_finished_row_leaves_memory():
    stage = batch("a", "b", "c")
    stage.answer_all()
    assert (stage.k.goals, stage.k.flights, stage.k.held) == ({}, {}, {})
    assert not any(stage.k.open_by_kind.values()) and stage.k.goals_by_kind == {}


# -- in order ----------------------------------------------------------------------------------------------------------


def test_as_they_finish():
    stage = batch("a", "b", "c", permits=3)
    for goal in (3, 1, 2):
        stage.answer(goal=goal)
    assert ids(stage) == ["c", "a", "b"]


def test_in_the_order_of_the_input():
    stage = batch("a", "!b", "c", "d", ordered=True, permits=4)
    for goal, given in ((3, []), (1, ["a", "b"]), (2, ["a", "b", "c", "d"])):
        stage.answer(goal=goal)
        assert ids(stage) == given
    assert stage.k.outcome == "complete"


def test_results_that_wait_for_their_turn_take_room_in_the_window():
    stage = batch("a", "b", "c", "d", ordered=True, ended=False)
    for goal in (2, 3, 4):
        stage.answer(goal=goal)
    assert (stage.k.live, len(stage.k.held), stage.k.rows_wanted()) == (1, 3, 0)
    stage.answer(goal=1)
    assert (ids(stage), stage.k.rows_wanted()) == (["a", "b", "c", "d"], 4)


def test_cancelled_in_order_every_row_has_its_line_in_its_place():
    stage = batch("a", "b", "c", "d", ordered=True)
    stage.answer(goal=2)
    out = stage.turn(events.Stopped("ann", "cancel"))
    assert ids(stage) == ["a", "b", "c", "d"]
    assert of(out, commands.EmitResult)[-1].index == 3
    assert out[-1] == commands.FinishJob("cancelled", "cancel: by ann")


def test_what_was_paid_for_reaches_the_user_though_its_turn_never_comes():
    """A job that failed gives out the results that waited, in order, before it says that it has ended."""
    stage = batch("a", "b", "c", "d", ordered=True, limits=Limits(faulty_in_row_max=1))
    stage.answer(goal=2)
    stage.answer(goal=3)
    assert ids(stage) == []
    stage.fail("faulty", goal=1)  # has a line of its own, in its place
    assert ids(stage) == ["a", "b", "c"]
    other = batch("a", "b", "c", ordered=True)
    other.answer(goal=2)
    from cortex.calls.program_hooks import stop

    stop(other.k, "it cannot go on")
    stop(other.shadow, "it cannot go on")
    out = other.turn(events.Ticked())
    assert ids(other) == ["b"] and isinstance(out[-1], commands.FinishJob)


def test_partial_in_order_keeps_them_for_the_resumed_run():
    stage = batch("a", "b", ordered=True)
    stage.answer(goal=2)
    stage.fail("blocked", goal=1, status=402)
    assert (ids(stage), stage.k.outcome, len(stage.k.held)) == ([], "partial", 1)
    stage.turn(events.Resumed("ann"))
    stage.answer()
    assert ids(stage) == ["a", "b"]


def test_every_kind_of_failure_has_a_line_or_none():
    assert {kind.value for kind in FailureKind} - set(LINES) == {
        "blocked", "unauthorised", "over_budget", "cancelled", "malformed", "refused", "faulty", "cut",
        "paused", "empty", "tool_use", "expired",
    }  # fmt: skip
