"""Until when: the job's deadline, goals' own, and the timeout of every row; joins that are cut short, nested."""

from __future__ import annotations

import pytest

from cortex.loop.step import step
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.changes import Ask, Fail, Goal, Reopen, Resolve, RunTool, Wait
from cortex.state.program import Program
from cortex.values.limits import Limits
from policies.decisions.join import Join
from policies.failures.retry import RetryPolicy
from tests.support.sample_programs import read
from tests.support.state_machine_harness import Flat, Stage, fed, of, prompt, puppet

PASSED = "the goal's deadline passed before it was met"


def timed(*texts: str, timeout_s: float = 60.0, permits: int = 8, **limits: object) -> Stage:
    return Stage(Flat(texts=texts or ("a", "b")), Limits(goal_timeout_s=timeout_s, **limits), permits=permits)  # type: ignore[arg-type]


# -- the job's ---------------------------------------------------------------------------------------------------------


def test_at_the_jobs_deadline_nothing_new_starts_and_what_is_under_way_comes_home():
    stage = Stage(Flat(texts=tuple("abcd")), Limits(deadline_at_s=200.0), permits=2)
    assert stage.k.due_at_s() == 200.0
    assert len(of(stage.turn(stage.answered(stage.call(1)), at_s=199.9), commands.Call)) == 1
    assert of(stage.turn(stage.answered(stage.call(2)), at_s=200.0), commands.Call) == []
    assert (stage.k.outcome, stage.k.demand(), stage.k.due_at_s()) == ("", 1, None)
    stage.answer()
    assert (stage.k.outcome, stage.k.why) == ("partial", "deadline: 1970-01-01 00:03 UTC has passed")
    assert stage.statuses() == ["resolved"] * 3 + ["open"]


@pytest.mark.parametrize(("last_s", "ahead_s", "passed"), [(190.0, -20.0, False), (190.0, 5.0, True), (205.0, -20.0, True)])
def test_a_deadline_is_read_from_the_clock_as_it_is_set_now_and_stays_passed(last_s: float, ahead_s: float, passed: bool):
    """The clock may be set between two turns, far apart; the time until the first of them was by the clock before."""
    stage = Stage(Flat(texts=("a",)), Limits(deadline_at_s=200.0), permits=1)
    stage.turn(events.Ticked(), at_s=last_s)
    step(stage.k, stage.program, events.Turn(210.0, ((events.Ticked(),),), b"", ahead_s))
    assert stage.k.overdue == passed


def test_with_nothing_under_way_it_ends_at_its_deadline():
    stage = Stage(Flat(texts=("a",)), Limits(deadline_at_s=200.0), permits=0)
    stage.turn(events.Ticked(), at_s=200.0)
    assert stage.k.outcome == "partial"


def test_a_failure_after_the_deadline_is_not_tried_again():
    stage = Stage(Flat(texts=("a",)), Limits(deadline_at_s=200.0))
    stage.turn(stage.broke(stage.call(), "lost"), at_s=201.0)
    assert (stage.calls, stage.k.outcome, stage.statuses()) == ({}, "partial", ["open"])


def test_met_on_the_stroke_of_its_deadline_it_is_complete():
    stage = Stage(Flat(texts=("a",)), Limits(deadline_at_s=200.0))
    stage.turn(stage.answered(stage.call()), at_s=200.0)
    assert stage.k.outcome == "complete"


def test_it_goes_on_with_a_later_deadline_and_with_no_other():
    stage = Stage(Flat(texts=("a",)), Limits(deadline_at_s=200.0), permits=1)
    stage.turn(stage.broke(stage.call(), "lost"), at_s=201.0)
    stage.turn(events.Resumed("ann"))
    assert [end.outcome for end in stage.ended] == ["partial", "partial"]
    out = stage.turn(events.LimitsSet("ann", Limits(deadline_at_s=900.0)), events.Resumed("ann"))
    assert len(of(out, commands.Call)) == 1
    stage.answer()
    assert stage.k.outcome == "complete"


def test_past_its_deadline_no_rows_are_wanted():
    stage = Stage(Batch(), Limits(deadline_at_s=200.0), streams=True)
    stage.turn(fed("a"))
    assert stage.k.rows_wanted() > 0
    stage.turn(events.Ticked(), at_s=200.0)
    assert stage.k.rows_wanted() == 0


# -- a row's -----------------------------------------------------------------------------------------------------------


def test_a_row_fails_typed_when_its_time_is_up_and_its_attempt_is_abandoned():
    stage = timed()
    assert stage.k.due_at_s() == stage.k.at_s + 60.0
    first = stage.call(1)
    stage.turn(stage.answered(stage.call(2)), at_s=120.0)
    out = stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, 1)]
    bad = stage.goal(1).failure
    assert (bad.kind, bad.message, stage.k.tally.failed_for_good) == ("timed_out", PASSED, {"timed_out": 1})
    reserved = stage.k.ledger.reserved_tokens
    assert stage.k.outcome == "complete" and reserved == 0, "nobody waits for it: it stays charged in full"
    stage.turn(stage.answered(first))
    assert (stage.goal(1).status.name, stage.k.tally.dropped) == ("FAILED", 1)


def test_the_clock_runs_over_all_attempts_and_waits():
    stage = timed("a", retry=RetryPolicy(base_s=1e-9, cap_s=1e-9, attempts_max=100))
    due_at_s = stage.k.due_at_s()
    for _ in range(3):
        stage.fail("lost")
    assert stage.goal(1).timeout_at_s == due_at_s
    stage.fail("throttled", status=429, retry_after_s=500.0)
    stage.turn(events.Ticked(), at_s=due_at_s)
    assert stage.goal(1).failure.kind == "timed_out"


def test_it_begins_with_the_first_attempt_and_not_in_the_queue():
    stage = timed("a", "b", permits=1)
    assert stage.goal(2).timeout_at_s == 0.0
    stage.turn(stage.answered(stage.call(1)), at_s=150.0)
    assert stage.goal(2).timeout_at_s == 210.0


def test_a_tool_runs_on_the_clock_and_a_goals_parts_have_none_of_their_own():
    def select(k):
        for goal in k.open():
            if goal.kind == "part" or goal.children:
                yield RunTool(goal, "read")
            else:
                yield from (Goal("part", parent=goal.id), Wait(goal, Join("any"), 30.0))

    begin = lambda k: [Goal("top")]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=select, tools={"read": read}), Limits(goal_timeout_s=60.0))
    due_at_s = stage.goal(1).timeout_at_s
    assert stage.goal(2).timeout_at_s == 0.0
    stage.turn(events.Ticked(), at_s=due_at_s - 30.0)
    assert stage.goal(2).status.name == "ABANDONED", "by the join's deadline, not by a clock of its own"
    stage.turn(events.Ticked(), at_s=due_at_s)
    assert stage.goal(1).failure.kind == "timed_out"
    alone = Stage(
        puppet(begin=begin, select=lambda k: [RunTool(g, "read") for g in k.open()], tools={"read": read}),
        Limits(goal_timeout_s=60.0),
    )
    alone.turn(events.Ticked(), at_s=alone.goal(1).timeout_at_s or 9e9)
    assert alone.statuses() == ["failed"]


def test_those_who_share_an_attempt_have_clocks_of_their_own():
    stage = timed("same", "same")
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    assert stage.statuses() == ["failed", "failed"]


def test_a_batch_row_that_timed_out_has_its_line():
    stage = Stage(Batch(), Limits(goal_timeout_s=5.0), streams=True)
    stage.turn(fed("a", ended=True))
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    (line,) = stage.emitted
    assert b'"errored"' in line and b'"timeout_error"' in line
    assert (stage.k.outcome, stage.k.goals) == ("complete", {})


def test_a_blocked_account_times_no_row_out():
    """The clock stands still while the job is paused, and begins anew when the row is asked again."""
    stage = Stage(Flat(texts=("a",)), Limits(goal_timeout_s=60.0, blocked_wait_s=9_000.0))
    stage.fail("blocked", status=400)
    stage.turn(events.Ticked(), at_s=5_000.0)
    assert stage.statuses() == ["open"]
    stage.turn(events.PermitsGranted(1, starts=1), at_s=5_001.0)
    assert stage.goal(1).timeout_at_s == 5_061.0


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_that_lay_still_times_no_row_out_when_it_is_resumed(waits):
    def select(k):
        for goal in k.open():
            yield from (
                [Goal("part", "p", parent=goal.id), Wait(goal)]
                if goal.kind == "top" and waits
                else [Ask(goal, prompt("q"))]
            )

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select), Limits(goal_timeout_s=60.0))
    stage.fail("blocked", status=400)
    assert stage.k.outcome == "partial"
    stage.turn(events.Resumed("ann"), at_s=9_000.0)
    assert (stage.goal(1).status.name, stage.goal(1).timeout_at_s) == ("WAITING" if waits else "ASKED", 9_060.0)


def test_what_has_ended_leaves_no_timer_behind():
    """However many rows finish in time, and whichever first."""
    stage = Stage(Batch(), Limits(goal_timeout_s=1e6), permits=50, streams=True)
    longest = 0
    for start in range(0, 600, 50):
        stage.turn(fed(*map(str, range(start, start + 50)), start=start * 10, ended=start == 550))
        stage.turn(*[stage.answered(call) for call in list(stage.calls.values())[1:]])
        longest = max(longest, len(stage.k.deadlines))
    assert longest <= 64 + 4 * 52
    stage.answer()
    assert stage.k.deadlines == [] or len(stage.k.deadlines) <= 64


# -- a goal's own ------------------------------------------------------------------------------------------------------


def ending(begin: list[Goal], **methods: object) -> Stage:
    """A job of these goals, made anew for each K."""

    def made(k):
        return [Goal(one.kind, one.value, deadline_at_s=one.deadline_at_s, due_at_s=one.due_at_s) for one in begin]

    return Stage(puppet(begin=made, tools={"read": read}, **methods))


WAITS = {
    "a reply": lambda goal: [Ask(goal, prompt("q"))],
    "children": lambda goal: [Goal("idle", due_at_s=9e9, parent=goal.id), Wait(goal)],
    "a tool": lambda goal: [RunTool(goal, "read")],
    "its turn": lambda goal: [],
}


@pytest.mark.parametrize("name", WAITS)
def test_a_goals_deadline_holds_whatever_it_waits_for(name):
    select = lambda k: [change for goal in k.open("x") for change in WAITS[name](goal)]  # noqa: E731
    stage = ending([Goal("x", deadline_at_s=500.0)], select=select)
    stage.turn(events.Ticked(), at_s=499.0)
    assert stage.goal(1).failure is None
    out = stage.turn(events.Ticked(), at_s=500.0)
    assert stage.goal(1).failure.kind == "timed_out"
    assert len(of(out, commands.AbandonAttempt)) == (name in ("a reply", "a tool"))
    assert stage.k.outcome == "complete"


def test_a_goal_that_is_not_open_before_its_deadline_is_never_asked():
    stage = ending([Goal("x", "v", due_at_s=600.0, deadline_at_s=500.0), Goal("x", "w")])
    stage.turn(events.Ticked(), at_s=500.0)
    assert stage.statuses() == ["failed", "asked"]


def test_met_in_time_it_is_met_and_its_deadline_is_nothing():
    stage = ending([Goal("x", "v", deadline_at_s=500.0), Goal("x", "w")])
    stage.turn(stage.answered(stage.call(1)), at_s=500.0)
    assert stage.goal(1).answer == "ok"
    stage.turn(events.Ticked(), at_s=501.0)
    assert stage.statuses() == ["resolved", "asked"]


def test_the_program_may_answer_with_what_there_is_and_not_keep_it_alive():
    failed = lambda k, goal, failure: [Resolve(goal, "a part") if goal.value == "v" else Reopen(goal)]  # noqa: E731
    stage = ending([Goal("x", "v", deadline_at_s=500.0), Goal("x", "w", deadline_at_s=500.0)], failed=failed)
    stage.turn(events.Ticked(), at_s=500.0)
    assert (stage.goal(1).answer, stage.statuses()) == ("a part", ["resolved", "failed"])
    assert stage.goal(2).failure.kind == "timed_out"


@pytest.mark.parametrize(
    "times", [{"deadline_at_s": float("nan")}, {"due_at_s": float("inf")}, {"deadline_at_s": -1.0}]
)
def test_times_that_are_none_are_refused(times):
    stage = Stage(puppet(begin=lambda k: [Goal("x", **times)]))
    assert "a goal's times are seconds since 1970" in stage.k.why


def test_a_deadline_in_the_past_fails_the_goal_at_once():
    stage = ending([Goal("x", "v", deadline_at_s=1.0)])
    assert (stage.statuses(), stage.calls) == (["failed"], {})


# -- joins, nested -----------------------------------------------------------------------------------------------------


def tree(within: dict[int, float | None]) -> Program:
    """A root over two nodes over two leaves each; each join has the deadline of its depth. What is merged says whether
    it is a part."""

    def select(k):
        for goal in k.open("node"):
            if goal.depth == 2:
                yield Ask(goal, prompt(f"leaf {goal.id}"))
            elif goal.children:
                met = [child.answer for child in k.children(goal) if child.answer is not None]
                yield Resolve(goal, ("part" if goal.partial else "all", met)) if met else Fail(goal, "nothing came")
            else:
                yield from (Goal("node", parent=goal.id), Goal("node", parent=goal.id))
                yield Wait(goal, Join(deadline_s=within[goal.depth]))

    return puppet(begin=lambda k: [Goal("node")], select=select, absorb=lambda k, g, r: [Resolve(g, r.text)])


def at_deadline(stage: Stage) -> None:
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())


def test_an_inner_join_cut_short_labels_its_own_merge_and_the_outer_is_whole():
    """The outer one has all its children: that one of them is a part, that one says."""
    stage = Stage(tree({0: None, 1: 30.0}))
    for goal in (4, 6, 7):
        stage.answer("x", goal=goal)
    at_deadline(stage)
    assert stage.goal(1).answer == ["all", [["part", ["x"]], ["all", ["x", "x"]]]]
    assert stage.goal(5).status.name == "ABANDONED"


def test_an_outer_join_cut_short_abandons_the_inner_one_with_what_it_had():
    stage = Stage(tree({0: 30.0, 1: None}))
    for goal in (4, 6, 7):
        stage.answer("x", goal=goal)
    at_deadline(stage)
    assert stage.goal(1).answer == ["part", [["all", ["x", "x"]]]]
    assert [stage.goal(i).status.name for i in (2, 5)] == ["ABANDONED", "ABANDONED"]


def test_where_nothing_came_the_inner_one_fails_and_the_outer_merges_the_rest():
    stage = Stage(tree({0: None, 1: 30.0}))
    for goal in (6, 7):
        stage.answer("x", goal=goal)
    at_deadline(stage)
    assert stage.goal(1).answer == ["part", [["all", ["x", "x"]]]]
    assert stage.goal(2).failure.message == "nothing came"


def test_an_inner_part_reaches_the_outer_merge_before_that_one_is_cut_short():
    stage = Stage(tree({0: 30.0, 1: 29.0}))
    for goal in (4, 6):
        stage.answer("x", goal=goal)
    at_deadline(stage)
    assert stage.goal(1).answer == ["all", [["part", ["x"]], ["part", ["x"]]]]
    assert stage.k.outcome == "complete"


def test_the_jobs_deadline_leaves_waiting_goals_as_they_are():
    stage = Stage(tree({0: None, 1: None}))
    stage.turn(events.LimitsSet("ann", Limits(deadline_at_s=150.0)))
    for goal in (4, 5, 6, 7):
        stage.turn(stage.answered(stage.call(goal)), at_s=160.0)
    assert (stage.k.outcome, stage.goal(1).status.name) == ("partial", "WAITING")
    stage.turn(events.LimitsSet("ann", Limits()), events.Resumed("ann"))
    assert stage.k.outcome == "complete"
