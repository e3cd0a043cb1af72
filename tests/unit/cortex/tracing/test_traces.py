"""Waits for a person or for the program itself, checkpoints, lines of a log, and goals that are written down."""

from __future__ import annotations

from typing import ClassVar

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Checkpoint, Expect, Log, Resolve, RunTool, Wait
from cortex.state.program import Program
from cortex.state.state import Goal, Status
from cortex.values.reply import Malformed
from tests.support.state_machine_harness import Stage, of, prompt, puppet


class Traced(Program, frozen=True):
    """Writes down what it makes."""

    traced: ClassVar[bool] = True

    def begin(self, k):
        yield Goal("a", ["here", "one"])
        yield Goal("b", 2)

    def select(self, k):
        for goal in k.open("a"):
            yield Expect(goal, "word")
        for goal in k.open("b"):
            yield Wait(goal, None)

    def absorbed(self, k, goal, value):
        yield Resolve(goal, value)
        yield Log(f"heard {value}")
        yield from (Resolve(other) for other in k.goals_of("b"))


def test_a_goal_waits_for_an_answer_of_a_name():
    stage = Stage(Traced())
    assert stage.goal(1).expects == "word"
    assert stage.k.awaited() == ["word"]
    assert (stage.k.outcome, stage.k.why) == ("partial", "waits for an answer: word")
    stage.turn(events.AnswerGiven("ann", "other", 1))
    assert stage.goal(1).status == Status.WAITING
    out = stage.turn(events.AnswerGiven("ann", "word", (1, 2)))
    assert [command.text for command in of(out, commands.LogLine)] == ["heard [1, 2]"]
    assert stage.goal(1).answer == [1, 2]
    assert stage.k.awaited() == []


def test_nobody_answers_a_job_that_is_over():
    stage = Stage(Traced())
    stage.turn(events.Stopped("ann", "cancel"))
    stage.turn(events.AnswerGiven("ann", "word", 1))
    assert stage.goal(1).status == Status.ABANDONED or stage.goal(1).status == Status.FAILED
    assert stage.k.outcome == "cancelled"


def test_what_a_traced_program_makes_is_written_down_and_what_ends_is_numbered():
    stage = Stage(Traced())
    made = of(stage.said, commands.RecordGoal)
    assert [(each.goal, each.kind, each.value) for each in made] == [(1, "a", ["here", "one"]), (2, "b", 2)]
    stage.turn(events.AnswerGiven("ann", "word", 1))
    assert [(goal.ended, goal.ended_at_s) for goal in stage.k.goals.values()] == [(1, stage.k.at_s), (2, stage.k.at_s)]


@pytest.mark.parametrize(("event", "differs"), [
    (events.GoalMade(1, "a", ["here", "one"]), False),
    (events.GoalMade(1, "a", ["here", "two"]), True),
    (events.GoalMade(1, "b", ["here", "one"]), True),
    (events.GoalMade(9, "a", 1), True),
])  # fmt: skip
def test_a_replay_that_makes_another_goal_is_noticed(event, differs):
    stage = Stage(Traced())
    stage.turn(event)
    assert bool(stage.k.differs) is differs


def test_the_first_difference_is_the_one_that_is_told():
    stage = Stage(Traced())
    stage.turn(events.GoalMade(1, "first", None))
    stage.turn(events.GoalMade(1, "second", None))
    assert "first" in stage.k.differs


def _family(checkpoint):
    """A goal with three children, of which the first two end at once; then it makes its checkpoint."""

    def select(k):
        top = k.goals[1]
        if not top.children:
            yield Wait(top, None)
            yield from (Goal("child", n, parent=1) for n in range(3))
            return
        if top.kept is None and all(k.goals[child].status == Status.OPEN for child in top.children):
            yield Resolve(k.goals[2], "x")
            yield Resolve(k.goals[3], "y")
            return
        if top.kept is None:
            yield checkpoint(top)

    return Stage(puppet(begin=lambda k: [Goal("top")], select=select))


def test_a_checkpoint_keeps_a_value_and_the_first_children():
    stage = _family(lambda top: Checkpoint(top, {"at": (1, 2)}, 1))
    top = stage.goal(1)
    assert (top.kept, top.children) == ({"at": [1, 2]}, [2])
    assert (top.children_resolved, top.children_failed) == (1, 0)
    assert sorted(stage.k.goals) == [1, 2]
    assert stage.k.live == 1


@pytest.mark.parametrize("bad", [
    lambda top: Checkpoint(top, 1, 4), lambda top: Checkpoint(top, 1, -1), lambda top: Checkpoint(top, object()),
    lambda top: Checkpoint(Goal("never made"), 1), lambda top: Wait(top, None, 5.0), lambda top: Expect(top, ""),
])  # fmt: skip
def test_what_makes_no_sense_stops_the_job_and_changes_nothing(bad):
    stage = _family(bad)
    assert stage.k.outcome == "failed"
    assert stage.goal(1).kept is None
    assert len(stage.k.goals) == 4


def test_why_a_reply_was_refused_stands_at_its_goal():
    def absorb(k, goal, reply):
        if reply.text == "bad":
            raise Malformed("not so " * 500)
        yield Resolve(goal, reply.text)

    stage = Stage(puppet(begin=lambda k: [Goal("ask", "a")], absorb=absorb))
    stage.answer("bad")
    assert stage.goal(1).refused.startswith("not so not so")
    assert len(stage.goal(1).refused) == 1_000
    stage.answer("good")
    assert stage.goal(1).answer == "good"


def _then_asks(k):
    """A tool, then a call: the goals that it asks are made by select alone."""
    for goal in k.open("run"):
        yield Wait(goal, None)
    for goal in k.open("tool"):
        yield RunTool(goal, "measure")
    if not k.live - 1 and not list(k.goals_of("ask")):
        yield Goal("ask", "what?", parent=1)
    yield from (Ask(goal, prompt(goal.value)) for goal in k.open("ask"))


def test_what_only_select_can_make_wants_one_permit_and_a_job_that_merely_waits_none():
    """Else a parent and the child job that it waits for would hand one permit to and fro."""
    begin = lambda k: [Goal("run"), Goal("tool", parent=0)]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=_then_asks, tools={"measure": len}, keeps=True))
    (run,) = of(stage.said, commands.StartToolRun)
    for quiet in (events.PermitsGranted(0), events.PermitsGranted(0, generation=1), events.ResultsWritten(0, 0)):
        stage.turn(quiet)
        assert stage.k.demand() == 0
    stage.turn(events.Observed(run.goal, run.attempt, 7, 1.0))
    assert stage.k.demand() == 1
    stage.turn(events.PermitsGranted(0, generation=2))
    assert stage.k.demand() == 1
    assert len(of(stage.turn(events.PermitsGranted(1, generation=3)), commands.Call)) == 1
