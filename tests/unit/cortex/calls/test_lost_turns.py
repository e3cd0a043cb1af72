"""Calls of turns that the journal has lost: their numbers are not given again, and their replies answer nothing else."""

from __future__ import annotations

import pytest

from actors.common.process_owner import this_owner
from actors.jobs.opening import Opening, resuming_batch
from actors.messaging.inbox import DurableTurn
from cortex.calls import lost_turns
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.changes import Ask, RunTool
from cortex.state.goals import Goal, Status
from cortex.values.limits import Limits
from tests.support.state_machine_harness import Flat, Stage, fed, of, prompt, puppet, reply, terms


def rejoined(stage: Stage, *held: tuple[int, int], epoch: int = 2, permits: int = 8) -> list[commands.Command]:
    """A new channel begins, whose branches hold these calls."""
    batch, _ = resuming_batch(stage.k, None, epoch, held)
    return stage.turn(*batch, events.PermitsGranted(permits))


def foreign(goal: int, attempt: int, hash_: bytes = b"?" * 16) -> events.Answered:
    """The reply to a call of a lost turn."""
    return events.Answered(goal, "0", attempt, hash_, reply("of another"))


def test_goals_are_numbered_beyond_those_that_branches_hold():
    stage = Stage(Batch(), streams=True)
    stage.turn(fed("a", "b"))
    rejoined(stage, (1, 1), (5, 1), (4, 3))
    stage.turn(foreign(5, 1), foreign(4, 3), fed("c", "d", start=20, ended=True))
    assert sorted(stage.k.goals) == [1, 2, 6, 7]
    assert stage.k.tally.dropped == 2
    stage.answer_all()
    assert stage.k.outcome == "complete" and len(stage.emitted) == 4


def test_what_an_earlier_channel_found_is_found_by_the_next_as_well():
    stage = Stage(Flat(), permits=0)
    rejoined(stage, (1, 2), (9, 1), permits=0)
    assert lost_turns.unasked(stage.k, ((1, 2), (9, 1))) == ()
    rejoined(stage, (1, 2), (9, 1), (12, 1), epoch=3, permits=0)
    assert stage.k.next_goal == 13


def test_a_goal_that_was_not_asked_begins_with_a_later_attempt():
    stage = Stage(Flat(texts=("a", "b")), permits=0)
    out = rejoined(stage, (1, 2))
    assert [(call.goal, call.attempt) for call in of(out, commands.Call)] == [(1, 3), (2, 1)]
    stage.turn(foreign(1, 2))
    assert stage.goal(1).status == Status.ASKED and stage.k.tally.retries == 0
    stage.answer_all()
    assert stage.goal(1).answer == "ok" and (stage.goal(1).tries, stage.goal(1).unsent) == (3, 2)


def test_the_next_attempt_of_a_goal_that_awaits_one_is_a_later_one():
    stage = Stage(Flat())
    rejoined(stage, (1, 1), (1, 4))
    assert not [key for key in stage.k.flights if key & 0xFF == 4], "the attempt under way keeps its number"
    stage.fail("lost")
    stage.turn(foreign(1, 4))
    assert [call.attempt for call in stage.calls.values()] == [5]
    stage.answer_all()
    assert stage.goal(1).answer == "ok"


def test_the_call_after_a_tool_run_is_a_later_attempt():
    program = puppet(
        begin=lambda k: [Goal("q", "a")],
        absorb=lambda k, goal, answer: [RunTool(goal, "deed", {})],
        absorbed=lambda k, goal, value: [],
        select=lambda k: [Ask(goal, prompt(f"{goal.value} {goal.tries}")) for goal in k.open()],
        tools={"deed": lambda: None},
    )
    stage = Stage(program, tells_begun=True)
    stage.answer()
    rejoined(stage, (1, 4))
    assert [run.attempt for run in of(stage.said, commands.StartToolRun)] == [2, 5], "it is run anew, as it never began"
    rejoined(stage, (1, 6), epoch=3)
    stage.turn(events.ToolRunBegun(1, 7), events.Observed(1, 7, 7, 0.0))
    stage.turn(foreign(1, 6))
    assert [call.attempt for call in stage.calls.values()] == [8]


def test_a_job_that_has_made_no_goal_yet_asks_for_a_permit_beyond_them():
    stage = Stage(puppet(satisfied=lambda k: False, select=lambda k: [Goal("q", "a")]), permits=0)
    assert stage.k.demand() == 1
    rejoined(stage, (3, 1), permits=0)
    assert stage.k.demand() == 1


def test_a_job_that_begins_anew_numbers_beyond_them():
    opening = Opening(terms=terms(), owner=this_owner("c"))
    ((opened,), anew) = resuming_batch(None, opening, 1, ((7, 1), (3, 2)))
    assert anew and (opened.first_goal, opened.unmet) == (8, False)
    ((opened,), _) = resuming_batch(None, opening, 1, (), unmet=True)
    assert (opened.first_goal, opened.unmet) == (1, True)


# -- a branch that does not say what it holds ---------------------------------------------------------------------------


def unmet(texts: tuple[str, ...] = ("a",)) -> Stage:
    return Stage(Flat(texts=texts), opened=events.Opened(terms(Limits()), 1, unmet=True))


def test_a_reply_to_another_question_is_dropped_and_the_call_goes_on():
    stage = unmet()
    turn = events.Turn(0.0, ((foreign(1, 1),),))
    stage.turn(foreign(1, 1))
    assert stage.goal(1).status == Status.ASKED and len(stage.k.flights) == 1 and stage.k.tally.dropped == 1
    assert DurableTurn(1, turn).settled(stage.k) == [], "its branch is still looked after"
    stage.answer()
    assert stage.goal(1).answer == "ok" and stage.k.outcome == "complete"
    assert DurableTurn(1, turn).settled(stage.k) == [1 << 20 | 1]


def test_a_reply_to_the_same_question_is_taken_whoever_asked():
    stage = unmet()
    stage.turn(foreign(1, 1, stage.call().hash))
    assert stage.goal(1).answer == "of another"


@pytest.mark.parametrize("ended", [False, True])
def test_a_lost_attempt_is_not_settled_by_the_reply_to_another_question(ended):
    stage = unmet()
    first = stage.call()
    stage.turn(stage.broke(first, "lost"))
    if ended:
        stage.answer()
    stage.turn(foreign(1, 1))
    assert stage.k.tally.dropped == 1 and stage.k.ledger.known_tokens == 12 * ended
    stage.turn(stage.answered(first))
    assert stage.k.ledger.known_tokens == 12 + 12 * ended


def test_it_is_known_of_later_channels_too():
    stage = Stage(Flat())
    assert not stage.k.unmet
    stage.turn(*resuming_batch(stage.k, None, 2, ((1, 1),), unmet=True)[0])
    stage.turn(*resuming_batch(stage.k, None, 3, ((1, 1),))[0])
    assert stage.k.unmet
    stage.turn(foreign(1, 1))
    assert stage.goal(1).status == Status.ASKED
