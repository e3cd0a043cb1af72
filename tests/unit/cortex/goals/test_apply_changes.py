"""The law of a goal's life, pair by pair; what a program yields is done whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cortex.goals import lifecycle
from cortex.goals.apply_changes import apply
from cortex.journal import codec
from cortex.loop.invariants import check
from cortex.state.changes import Abandon, Emit, Fail, Observe, Reopen, Resolve, RunTool, Spawn, Wait
from cortex.state.program import tool
from cortex.state.state import TRANSITIONS, Goal, IllegalTransition, Item, Status
from cortex.values.limits import Limits
from cortex.values.reply import Malformed
from policies.decisions.join import Join
from tests.support.state_machine_harness import Asker, Flat, Stage, puppet

# Written down again on purpose: a slip in the law itself would otherwise go unseen.
LAW = {
    "open": "asked waiting resolved failed abandoned",
    "asked": "open waiting resolved failed abandoned",
    "waiting": "open resolved failed abandoned",
    "resolved": "",
    "failed": "",
    "abandoned": "",
}
PAIRS = [(now.name.lower(), to.name.lower()) for now in Status for to in Status]


@tool(repeatable=True)
def look(**_: Any) -> None:
    """Runs nowhere: the core only asks for it."""


TOOLS = {"look": look}


def stage_with(status: str) -> Stage:
    """A K whose goal 1 stands at this status."""
    begin: Callable[[Any], list[Any]] = lambda k: [Goal("x", "v")]  # noqa: E731
    stage = Stage(puppet(begin=begin, tools=TOOLS), permits=1 if status == "asked" else 0)
    change: dict[str, Any] = {"resolved": Resolve, "abandoned": Abandon}
    goal = stage.goal(1)
    if status == "waiting":
        moves_to(stage, Goal("child", parent=1), Wait(goal))
    elif status == "failed":
        moves_to(stage, Fail(goal, "it could not be done"))
    elif status in change:
        moves_to(stage, change[status](goal))
    assert goal.status.name.lower() == status
    return stage


def moves_to(stage: Stage, *changed: Any, by: Goal | None = None) -> list[Any]:
    out: list[Any] = []
    apply(stage.k, changed, out, by=by, program=stage.program)
    return out


def test_the_law_is_the_one_written_here():
    facts = {now.name.lower(): {to.name.lower() for to in tos} for now, tos in TRANSITIONS.items()}
    assert facts == {now: set(tos.split()) for now, tos in LAW.items()}


@pytest.mark.parametrize(("now", "to"), PAIRS)
def test_every_pair_is_legal_or_raises_and_changes_nothing(now, to):
    stage = stage_with(now)
    goal, k = stage.goal(1), stage.k
    makers: dict[str, list[Any]] = {
        "open": [Reopen(goal)], "waiting": [Goal("child", parent=1), Wait(goal)], "resolved": [Resolve(goal, 1)],
        "failed": [Fail(goal, "why")], "abandoned": [Abandon(goal)],
    }  # fmt: skip
    if goal.status in (Status.RESOLVED, Status.FAILED, Status.ABANDONED):
        makers["waiting"] = [Wait(goal)]  # a child may not be added either
    before = codec.encode_state(k)
    if to in LAW[now].split():
        lifecycle.asked(k, goal) if to == "asked" else moves_to(stage, *makers[to])
        assert goal.status.name.lower() == to
        if to != "asked":  # an asked goal has a call, which only `ask` makes
            check(k)
        return
    with pytest.raises(IllegalTransition, match=rf"goal 1 \(x\) is {now}") as caught:
        lifecycle.asked(k, goal) if to == "asked" else moves_to(stage, *makers[to])
    assert now in str(caught.value)
    assert codec.encode_state(k) == before


def test_the_story_tells_tries_children_and_the_failure():
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")]), Limits(resamples_max=0), permits=1)
    stage.fail("rejected", "bad field")
    with pytest.raises(IllegalTransition) as caught:
        moves_to(stage, Resolve(stage.goal(1)))
    assert "goal 1 (x) is failed after 1 tries; rejected: bad field" in str(caught.value)


WAITING_CHANGES = {
    "wait": lambda goal: Wait(goal, Join("any"), deadline_s=5.0),
    "tool": lambda goal: RunTool(goal, "look", {"a": 1}),
    "observe": lambda goal: Observe(goal, "page", "look", trust_s=3),
    "spawn": lambda goal: Spawn(goal, Flat()),
}


@pytest.mark.parametrize("name", WAITING_CHANGES)
@pytest.mark.parametrize("now", ["open", "asked"])
def test_what_a_goal_may_wait_for(now, name):
    stage = stage_with(now)
    goal = stage.goal(1)
    moves_to(stage, WAITING_CHANGES[name](goal))
    assert goal.status == Status.WAITING
    assert (goal.join is not None) == (name == "wait")
    assert (stage.k.errand_of(goal) is not None) == (name != "wait")
    check(stage.k)


@pytest.mark.parametrize("name", WAITING_CHANGES)
def test_a_goal_that_waits_is_not_sent_away_again(name):
    stage = stage_with("waiting")
    before = codec.encode_state(stage.k)
    with pytest.raises(IllegalTransition, match="waiting -> waiting"):
        moves_to(stage, WAITING_CHANGES[name](stage.goal(1)))
    assert codec.encode_state(stage.k) == before


BAD: dict[str, tuple[type[Exception], Callable[[Stage], list[Any]]]] = {
    "an object as answer": (TypeError, lambda s: [Resolve(s.goal(1), object())]),
    "a number beyond 64 bits": (ValueError, lambda s: [Resolve(s.goal(1), 1 << 70)]),
    "half a surrogate pair": (ValueError, lambda s: [Emit("\ud800")]),
    "an object as result": (TypeError, lambda s: [Emit(object())]),
    "an object as a goal's value": (TypeError, lambda s: [Goal("y", object())]),
    "an object as an item": (TypeError, lambda s: [Item("y", object())]),
    "an item whose source is unknown": (IllegalTransition, lambda s: [Item("y", 1, sources=(9,))]),
    "a goal twice": (IllegalTransition, lambda s: [one := Goal("y"), one]),
    "an item twice": (IllegalTransition, lambda s: [one := Item("y", 1), one]),
    "a goal of K again": (IllegalTransition, lambda s: [s.goal(1)]),
    "a goal made by hand": (IllegalTransition, lambda s: [Goal("y", tries=3)]),
    "a child of nobody": (IllegalTransition, lambda s: [Goal("y", parent=77)]),
    "a goal that is not in K": (IllegalTransition, lambda s: [Resolve(Goal("y", id=77))]),
    "a child of one that ends here": (IllegalTransition, lambda s: [Fail(s.goal(1), "x"), Goal("y", parent=1)]),
    "ending twice": (IllegalTransition, lambda s: [Resolve(s.goal(1), 1), Fail(s.goal(1), "x")]),
    "no change at all": (TypeError, lambda s: ["resolve it, please"]),
    "an order given out": (ValueError, lambda s: [Emit(1, order=0), Emit(1, order=0)]),
    "a tool that is not there": (ValueError, lambda s: [RunTool(s.goal(1), "dig")]),
    "an observation by no tool": (ValueError, lambda s: [Observe(s.goal(1), "page", "dig")]),
    "less than no trust": (ValueError, lambda s: [Observe(s.goal(1), "page", "look", trust_s=-1.0)]),
    "no number of seconds": (ValueError, lambda s: [Wait(s.goal(1), deadline_s=float("nan"))]),
    "a child job that is no program": (TypeError, lambda s: [Spawn(s.goal(1), Flat)]),
    "a child job without money": (ValueError, lambda s: [Spawn(s.goal(1), Flat(), max_cost_nusd=0)]),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_change_and_none_is_made(name):
    """Good ones stand before and behind it; K keeps its bytes, and the objects can be yielded again."""
    stage = stage_with("asked")
    kind, bad = BAD[name]
    good = [Goal("good", 1), Item("good", "text"), Emit("line")]
    before = codec.encode_state(stage.k)
    with pytest.raises(kind):
        moves_to(stage, *good, *bad(stage), Goal("late"))
    assert codec.encode_state(stage.k) == before
    assert not any(getattr(one, "id", 0) for one in good)
    out = moves_to(stage, *good)
    assert (stage.k.live, len(stage.k.items), len(out)) == (2, 1, 1)
    check(stage.k)


def test_a_reply_may_plan_so_much_and_no_more():
    limits = Limits(plan_goals_max=3, depth_max=2)
    stage = Stage(puppet(begin=lambda k: [Goal("x", str(i)) for i in range(5)]), limits, permits=0)
    assert len(stage.k.goals) == 5, "what a program brings along is no plan"
    with pytest.raises(Malformed, match="a plan of 4 goals; at most 3"):
        moves_to(stage, *(Goal("y", parent=1) for _ in range(4)), by=stage.goal(1))
    moves_to(stage, *(Goal("y", parent=1) for _ in range(3)), by=stage.goal(1))
    moves_to(stage, Goal("z", parent=6))
    with pytest.raises(Malformed, match="nested deeper than 2"):
        moves_to(stage, Goal("deep", parent=9))
    check(stage.k)


def test_a_job_may_have_so_many_goals_and_no_more():
    stage = Stage(puppet(begin=lambda k: [Goal("x") for _ in range(3)]), Limits(goals_max=4), permits=0)
    moves_to(stage, Goal("x"))
    with pytest.raises(Malformed, match="more than 4 goals in one job"):
        moves_to(stage, Goal("x"))


# -- every change, done -----------------------------------------------------------------------------------------------


def test_a_goal_gets_its_number_depth_and_place():
    stage = stage_with("open")
    moves_to(stage, child := Goal("y", {"a": (1, 2)}, parent=1))
    assert (child.id, child.depth, child.value) == (2, 1, {"a": [1, 2]})
    assert stage.goal(1).children == [2]
    assert [goal.id for goal in stage.k.open("y")] == [2]


def test_a_goal_may_be_made_for_later():
    stage = stage_with("open")
    moves_to(stage, Goal("y", due_at_s=stage.k.at_s + 5.0))
    assert list(stage.k.open("y")) == []
    assert stage.k.due_at_s() == stage.k.at_s + 5.0
    check(stage.k)


def test_an_item_knows_its_size_its_sources_and_its_call():
    stage = stage_with("open")
    moves_to(stage, Item("note", "na\u00efve"), Item("raw", b"123"), Item("table", {"a": 1}))
    moves_to(stage, Item("summary", "n", sources=(1, 2), lossy=True), by=stage.goal(1))
    sizes = [(item.id, item.kind, item.size_bytes, item.call) for item in stage.k.items.values()]
    assert sizes == [(1, "note", 6, ""), (2, "raw", 3, ""), (3, "table", 7, ""), (4, "summary", 1, "j/1/0")]
    assert [item.id for item in stage.k.items_of("note")] == [1]
    assert stage.k.items[4].lossy and stage.k.items[4].sources == (1, 2)


def test_resolve_keeps_the_answer_and_forgets_what_failed_before():
    stage = stage_with("open")
    goal = stage.goal(1)
    moves_to(stage, Resolve(goal, (1, {"two"})))
    assert (goal.answer, goal.failure) == ([1, ["two"]], None)


def test_fail_says_why_and_counts_by_kind():
    stage = stage_with("failed")
    goal = stage.goal(1)
    assert goal.failure is not None
    assert (goal.failure.kind, goal.failure.message) == ("malformed", "it could not be done")
    assert stage.k.tally.failed_for_good == {"malformed": 1}


def test_the_end_of_a_goal_ends_what_serves_it():
    stage = stage_with("open")
    moves_to(stage, Goal("y", parent=1), Goal("y", parent=1))
    moves_to(stage, Goal("z", parent=2), Resolve(stage.goal(3), "done"))
    moves_to(stage, Abandon(stage.goal(1)))
    assert stage.statuses() == ["abandoned", "abandoned", "resolved", "abandoned"]
    assert stage.k.live == 0
    check(stage.k)


def test_changes_are_made_before_any_has_consequences():
    """A parent and its child resolved together are both resolved, whichever is named first."""
    for parent_first in (True, False):
        stage = stage_with("waiting")
        both = [Resolve(stage.goal(1), "parent"), Resolve(stage.goal(2), "child")]
        moves_to(stage, *(both if parent_first else reversed(both)))
        assert stage.statuses() == ["resolved", "resolved"]
        check(stage.k)


def test_a_wait_named_before_its_children_waits_for_them():
    stage = stage_with("open")
    moves_to(stage, Wait(stage.goal(1)), Goal("y", parent=1))
    assert stage.statuses() == ["waiting", "open"]


def test_siblings_that_a_met_join_abandons_may_be_changed_in_the_same_breath():
    stage = stage_with("open")
    moves_to(stage, Goal("y", parent=1), Goal("y", parent=1), Goal("y", parent=1), Wait(stage.goal(1), Join("any")))
    moves_to(stage, Resolve(stage.goal(2), 1), Fail(stage.goal(3), "no"))
    assert stage.statuses() == ["open", "resolved", "failed", "abandoned"]
    check(stage.k)


def test_reopen_offers_the_goal_again_and_may_take_the_next_sample():
    stage = stage_with("asked")
    goal = stage.goal(1)
    moves_to(stage, Reopen(goal, resample=True))
    assert (goal.status, goal.sample, goal.question) == (Status.OPEN, "1", b"")
    goal.sample = "row-7"
    lifecycle.asked(stage.k, goal)
    with pytest.raises(ValueError, match="sample 'row-7' has no next number"):
        moves_to(stage, Reopen(goal, resample=True))


def test_emit_counts_and_numbers_results():
    stage = stage_with("open")
    out = moves_to(stage, Emit("a"), Emit({"b": {2, 1}}, failed=True))
    assert [(one.index, one.value) for one in out] == [(0, "a"), (1, {"b": [1, 2]})]
    assert (stage.k.tally.succeeded, stage.k.tally.failed) == (1, 1)


def test_ordered_results_wait_for_their_turn():
    stage = stage_with("open")
    first = moves_to(stage, Emit("c", order=2), Emit("b", order=1))
    assert first == [] and sorted(stage.k.held) == [1, 2]
    assert [one.value for one in moves_to(stage, Emit("a", order=0))] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="result 1 of the input was emitted already"):
        moves_to(stage, Emit("again", order=1))
    unordered = moves_to(stage, Emit("x"), Emit("e", order=4), Emit("d", order=3))
    assert [(one.index, one.value) for one in unordered] == [(3, "x"), (4, "d"), (5, "e")]


def test_a_top_goals_answer_is_a_result_where_the_program_says_so():
    assert Asker.rows_are_goals
    stage = stage_with("open")
    moves_to(stage, Goal("y", parent=1), Goal("x", 2))
    child, top = stage.goal(2), stage.goal(3)
    out = moves_to(stage, Resolve(child, "inner"), Resolve(top, "outer"))
    assert [one.value for one in out] == ["outer"]
    moves_to(stage, Abandon(stage.goal(1)))
    assert (stage.k.tally.succeeded, stage.k.tally.failed) == (1, 1)


def test_ended_goals_leave_memory_where_the_program_keeps_none():
    stage = Stage(puppet(begin=lambda k: [Goal("x"), Goal("x")], keeps=False), permits=0)
    moves_to(stage, Goal("y", parent=1), Goal("z", parent=1))
    moves_to(stage, Goal("w", parent=3), Resolve(stage.goal(1), "done"))
    assert list(stage.k.goals) == [2]
    assert not any(stage.k.goals_by_kind.values())
    with pytest.raises(IllegalTransition, match="goal 1 is not in K"):
        moves_to(stage, Fail(Goal("x", id=1), "late"))
    check(stage.k)
