"""Failed rows are opened again: as a part of the same job, each of them once in the results, under the same cap."""

from __future__ import annotations

import msgspec
import pytest

from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.values.limits import Limits, Route
from policies.failures.failure import FailureKind
from tests.support.state_machine_harness import TAKEN_BACK, Stage, fed, of, row

WINDOW = Limits(concurrency=4, window_rows=4)


def stage(*keys: str, ordered: bool = False, limits: Limits = WINDOW) -> Stage:
    made = Stage(Batch(ordered=ordered), limits, permits=4, streams=True)
    made.turn(fed(*keys, ended=True))
    return made


def finished(made: Stage, failed: str) -> Stage:
    """All rows come home, those named fail."""
    while made.calls:
        call = next(iter(made.calls.values()))
        kind = "refused" if call.sample in failed else ""
        made.turn(made.broke(call, kind) if kind else made.answered(call))
    return made


def reopened(made: Stage, keys: str, edition: int = 1, **more: object) -> events.RowsReopened:
    lines = tuple(sorted(ids(made).index(key) for key in keys))
    ordered = made.program.ordered
    base, count = made.k.position, {FailureKind.REFUSED: len(keys)}
    return events.RowsReopened("ann", edition, tuple(keys), lines, count, base, ordered, **more)  # type: ignore[arg-type]


def again(made: Stage, keys: str, start: int | None = None, ended: bool = True) -> events.RowsRead:
    """These rows once more, by their places: a is the first."""
    start = made.k.position if start is None else start
    rows = tuple(msgspec.structs.replace(row(key), place=ord(key) - ord("a")) for key in keys)
    return events.RowsRead(rows, start, start + len(rows), ended)


def ids(made: Stage) -> list[str]:
    return ["?" if line is TAKEN_BACK else msgspec.json.decode(line)["custom_id"] for line in made.emitted]


def kinds(made: Stage) -> list[str]:
    return [msgspec.json.decode(line)["result"]["type"] for line in made.emitted]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_failed_row_is_asked_again_and_has_one_line_in_the_end(ordered):
    made = finished(stage("a", "b", "c", "d", ordered=ordered), "bc")
    assert (made.k.outcome, made.k.tally.failed, made.k.tally.failed_for_good) == ("complete", 2, {"refused": 2})
    made.turn(events.ResultsWritten(4, 400))
    before = made.k.ledger.attempts
    made.turn(reopened(made, "bc"))
    assert (made.k.outcome, made.k.tally.failed, made.k.tally.failed_for_good) == ("partial", 0, {})
    assert made.k.why == "retry: 2 rows that failed are to be asked again"
    assert (made.k.written_rows, made.k.written_bytes) == (0, 0)
    assert made.k.emitted == (1 if ordered else 2), "the list ends before the first that is missing"
    assert made.k.ledger.attempts == before, "opening asks nothing yet"
    made.turn(events.Resumed("ann"))
    made.turn(again(made, "bc"))
    finished(made, "")
    assert (made.k.outcome, made.k.tally.rows_read, made.k.tally.succeeded, made.k.emitted) == ("complete", 4, 4, 4)
    assert sorted(ids(made)) == ["a", "b", "c", "d"] and set(kinds(made)) == {"succeeded"}
    if ordered:
        assert ids(made) == ["a", "b", "c", "d"]


def test_in_order_the_list_of_a_job_that_rests_ends_before_the_first_that_is_missing():
    limits = msgspec.structs.replace(WINDOW, deadline_at_s=200.0)
    made = finished(stage("a", "b", "c", "d", ordered=True, limits=limits), "b")
    opens = (reopened(made, "b"), events.Resumed("ann"))
    assert of(made.turn(*opens, at_s=300.0), commands.EmitResult) == []
    assert (made.k.outcome, made.k.emitted) == ("partial", 1) and made.k.why.startswith("deadline")
    made.turn(events.LimitsSet("ann", WINDOW), events.Resumed("ann"))
    made.turn(again(made, "b"))
    finished(made, "")
    assert (made.k.outcome, made.k.emitted, ids(made)) == ("complete", 4, ["a", "b", "c", "d"])


def test_in_order_the_second_waits_for_the_first():
    made = finished(stage("a", "b", "c", "d", ordered=True), "bd")
    made.turn(reopened(made, "bd"), events.Resumed("ann"))
    made.turn(again(made, "bd"))
    second = next(call for call in made.calls.values() if call.sample == "d")
    out = made.turn(made.answered(second))
    assert of(out, commands.EmitResult) == [] and list(made.k.held) == [3] and made.k.emitted == 1
    out = made.turn(made.answered(made.call()))
    assert [command.index for command in of(out, commands.EmitResult)] == [1, 3] and made.k.emitted == 4


def test_it_may_fail_again_and_be_opened_again():
    made = finished(stage("a", "b", ordered=True), "ab")
    for edition, left in ((1, "b"), (2, "")):
        keys = "ab" if edition == 1 else "b"
        made.turn(reopened(made, keys, edition), events.Resumed("ann"))
        made.turn(again(made, keys))
        finished(made, left)
        assert made.k.tally.failed == len(left)
    assert kinds(made) == ["succeeded", "succeeded"] and made.k.edition == 2


def test_only_what_is_named_is_opened():
    made = finished(stage("a", "b", "c"), "bc")
    made.turn(reopened(made, "c"), events.Resumed("ann"))
    made.turn(again(made, "c"))
    finished(made, "")
    assert dict(zip(ids(made), kinds(made), strict=True)) == {"a": "succeeded", "b": "errored", "c": "succeeded"}
    assert made.k.tally.failed_for_good == {"refused": 1}


def test_the_same_message_twice_opens_once():
    made = finished(stage("a", "b"), "b")
    event = reopened(made, "b")
    made.turn(event)
    made.turn(event)
    assert (made.k.edition, made.k.tally.failed, made.k.emitted) == (1, 0, 1)


@pytest.mark.parametrize("ordered", [False, True])
def test_cancelled_in_the_middle_all_that_came_has_its_line(ordered):
    made = finished(stage("a", "b", "c", "d", ordered=ordered), "ac")
    made.turn(reopened(made, "ac"), events.Resumed("ann"))
    made.turn(again(made, "a", ended=False))
    made.turn(events.Stopped("ann", "cancel"))
    assert sorted(ids(made)) == ["a", "b", "d"], "c was not read again"
    assert made.k.outcome == "cancelled" and made.k.emitted == 3
    if ordered:
        assert ids(made) == ["a", "b", "d"]


def test_a_job_that_runs_or_has_more_to_read_opens_nothing():
    made = stage("a", "b")
    event = events.RowsReopened("ann", 1, ("a",), (0,), {"refused": 1}, made.k.position)
    made.turn(event)
    assert made.k.edition == 0
    made = Stage(Batch(), WINDOW, permits=2, streams=True)
    made.turn(fed("a", ended=False))
    made.fail("refused")
    made.turn(events.Stopped("ann", "drain"))
    made.turn(event)
    assert (made.k.outcome, made.k.edition) == ("partial", 0)


def test_the_cap_goes_on_counting():
    made = stage("a", "b", limits=Limits(concurrency=4, window_rows=4, max_job_tokens=1_000))
    finished(made, "b")
    spent = made.k.ledger.known_tokens
    assert spent
    cap = msgspec.structs.replace(made.k.terms.limits, max_job_tokens=spent + 1)
    made.turn(reopened(made, "b"), events.LimitsSet("ann", cap), events.Resumed("ann"))
    made.turn(again(made, "b"))
    assert (made.k.outcome, made.calls) == ("partial", {})
    assert made.k.why.startswith("over_budget")


def test_another_model_takes_the_jobs_own_place_once_nothing_is_left_of_the_one_before():
    other = Route(endpoint="elsewhere", model="n")
    made = finished(stage("a", "b"), "b")
    made.turn(reopened(made, "b", route=other, model="n"), events.PermitsGranted(4), events.Resumed("ann"))
    made.turn(again(made, "b"))
    assert made.k.terms.route == other and len(made.calls) == 1
    made = stage("a", "b")
    made.fail("refused")
    made.turn(events.Stopped("ann", "drain"))
    made.turn(made.broke(made.call(), "lost"))
    assert made.k.outcome == "partial" and made.k.live == 1
    event = events.RowsReopened("ann", 1, ("b",), (0,), {"refused": 1}, made.k.position, route=other, model="n")
    made.turn(event)
    assert made.k.edition == 0 and made.k.terms.route != other


def test_what_failed_before_is_forgiven():
    """A job that stopped for too many failures asks them all again, and stops only for what fails then."""
    made = finished(stage("a", "b", "c", "d", limits=Limits(concurrency=4, window_rows=4, max_failed=2.0)), "abcd")
    assert made.k.halted.startswith("max_failed")
    failed = "".join(ids(made))
    made.turn(reopened(made, failed), events.Resumed("ann"))
    assert (made.k.halted, made.k.outcome) == ("", "")
