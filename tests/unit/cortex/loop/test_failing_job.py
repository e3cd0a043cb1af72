"""A job that mostly fails is ended in time, partial and resumable, and says what to do."""

from __future__ import annotations

import pytest

from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.values.limits import Limits
from tests.support.state_machine_harness import Flat, Stage, fed, of


def flat(rows: int = 200, permits: int = 1, unreadable: int = 0, **limits: object) -> Stage:
    return Stage(
        Flat(texts=tuple(map(str, range(rows)))), Limits(rejected_alike_max=10**6, **limits), permits=permits,  # type: ignore[arg-type]
        rows_readable=rows if unreadable else 0, rows_unreadable=unreadable,
    )  # fmt: skip


def finish(stage: Stage, fates: str) -> None:
    """Rows that come home one by one: ``.`` good, ``x`` rejected, ``o`` malformed for good."""
    for fate in fates:
        if fate == ".":
            stage.answer()
        else:
            stage.fail("rejected" if fate == "x" else "refused", f"no {fate}", status=400)


ENDS = {
    "a count": ({"max_failed": 3.0}, "x.x.", "x"),
    "of any kinds": ({"max_failed": 3.0}, "x.o.", "x"),
    "one is the count": ({"max_failed": 1.0}, "....", "x"),
    "a share of twenty": ({"max_failed": 0.25}, "xxxxx" + "." * 14, "."),
    "a share that is reached later": ({"max_failed": 0.25}, "." * 60 + "x" * 19, "x"),
    "the first ones alike": ({"alike_first": 5}, "xxxx", "x"),
    "fifty by default": ({}, "x" * 49, "x"),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_at_that_row_and_not_before(name):
    limits, before, last = ENDS[name]
    stage = flat(**limits)
    finish(stage, before)
    assert stage.k.outcome == ""
    finish(stage, last)
    assert (stage.k.outcome, stage.calls) == ("partial", {})
    assert stage.statuses().count("open") == 200 - len(before) - 1


GOES_ON = {
    "no bound": ({"alike_first": 0}, "x" * 120),
    "one good row among the first": ({"alike_first": 5}, "xxx." + "x" * 60),
    "two kinds among the first": ({"alike_first": 5}, "xxxo" + "x" * 60),
    "a share of too few": ({"max_failed": 0.5}, "xxxxx" + "." * 14),
    "a share not reached": ({"max_failed": 0.5}, "x.." * 40),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_it_goes_on(name):
    limits, fates = GOES_ON[name]
    stage = flat(**limits)
    finish(stage, fates)
    assert (stage.k.outcome, len(stage.calls)) == ("", 1)


def test_it_says_what_failed_and_what_to_do():
    stage = flat(max_failed=2.0)
    finish(stage, "..ox")
    assert stage.k.why == (
        "max_failed: 2 of 4 finished rows failed (refused 1, rejected 1), 2 may; the last: 'no x'."
        " Look at them, then resume with a higher max_failed"
    )
    alike = flat(alike_first=3)
    finish(alike, "xxx")
    assert alike.k.why == (
        "alike: all of the first 3 rows failed alike, rejected: 'no x'."
        " Repair what is wrong with all of them, or resume to continue"
    )


def test_unreadable_records_count_as_failed_rows():
    stage = flat(max_failed=12.0, unreadable=10)
    finish(stage, "..x.")
    assert stage.k.outcome == ""
    finish(stage, "x")
    assert stage.k.why == (
        "max_failed: 2 of 5 finished rows failed (rejected 2) and 10 of 210 records of the input are unreadable, 12 may;"
        " the last: 'no x'. Look at them, then resume with a higher max_failed"
    )


@pytest.mark.parametrize("rule", [10.0, 0.04])
def test_where_they_reach_the_bound_alone_no_row_is_asked(rule):
    stage = flat(max_failed=rule, unreadable=10)
    assert (stage.k.outcome, stage.said[:-1], stage.k.ledger.attempts) == ("partial", [], 0)
    assert stage.k.why == (
        f"max_failed: 10 of 210 records of the input are unreadable, {rule:g} may."
        " Look at them, then resume with a higher max_failed"
    )
    more = Limits(rejected_alike_max=10**6, max_failed=0.9)
    assert len(of(stage.turn(events.LimitsSet("ann", more), events.Resumed("ann")), commands.Call)) == 1


def test_a_share_counts_the_unreadable_records_that_fall_to_the_finished_rows():
    stage = flat(max_failed=0.1, unreadable=10)
    finish(stage, "." * 60)
    assert stage.k.outcome == ""
    finish(stage, "xxx")
    assert stage.k.outcome == ""
    finish(stage, "x")
    assert stage.k.outcome == "partial"


def test_what_is_under_way_comes_home_first():
    stage = flat(permits=3, max_failed=1.0)
    out = stage.fail("rejected", goal=1, status=400)
    assert (of(out, commands.Call), stage.k.outcome, stage.k.demand()) == ([], "", 2)
    stage.answer()
    stage.answer()
    assert (stage.k.outcome, stage.k.tally.succeeded) == ("partial", 2)


def test_a_higher_bound_lets_it_go_on_and_the_same_does_not():
    stage = flat(max_failed=2.0)
    finish(stage, "xx")
    stage.turn(events.Resumed("ann"))
    assert [end.outcome for end in stage.ended] == ["partial", "partial"]
    more = Limits(rejected_alike_max=10**6, max_failed=4.0)
    assert len(of(stage.turn(events.LimitsSet("ann", more), events.Resumed("ann")), commands.Call)) == 1
    finish(stage, "xx")
    assert stage.k.outcome == "partial"


def test_resumed_after_failing_alike_the_count_begins_anew():
    stage = flat(alike_first=3)
    finish(stage, "xxx")
    stage.turn(events.Resumed("ann"))
    finish(stage, "xx")
    assert stage.k.outcome == ""
    finish(stage, "x")
    assert stage.k.outcome == "partial"
    stage.turn(events.Resumed("ann"))
    finish(stage, "." + "x" * 20)
    assert stage.k.outcome == ""


def test_the_first_rows_of_a_resumed_run_count_for_themselves():
    stage = flat(max_failed=2.0, alike_first=3)
    finish(stage, "..xx")
    more = Limits(rejected_alike_max=10**6, max_failed=50.0, alike_first=3)
    stage.turn(events.LimitsSet("ann", more), events.Resumed("ann"))
    finish(stage, "xxx")
    assert stage.k.why.startswith("alike: all of the first 3 rows failed alike")


def test_rows_that_the_input_spoiled_are_none_of_these():
    stage = Stage(Batch(), Limits(alike_first=2, max_failed=2.0), permits=1, streams=True)
    stage.turn(fed("!a", "!b", "!c", "d", "e"))
    assert (stage.k.tally.failed, len(stage.calls)) == (3, 1)
    stage.fail("rejected", status=400)
    assert stage.k.outcome == ""
    stage.fail("rejected", status=400)
    assert stage.k.outcome == "partial"
    assert stage.k.rows_wanted() == 0


def test_the_last_row_of_a_job_that_is_done_ends_it_complete():
    stage = flat(rows=3, max_failed=3.0)
    finish(stage, "xxx")
    assert stage.k.outcome == "complete"
