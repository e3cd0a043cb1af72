"""Joins: what a goal that waits for its children gets, and when, and how it is labelled."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Abandon, Ask, Fail, Resolve, Wait
from cortex.state.state import Goal, Status
from policies.decisions.join import Join
from tests.support.state_machine_harness import Stage, of, prompt, puppet


def election(children: int, join: Join, deadline_s: float | None = None, rounds: int = 1) -> Stage:
    """A top goal waits for its votes, round after round; then it is resolved with their answers."""

    def select(k):
        for goal in k.open("top"):
            held = len(goal.children) // children if children else int(goal.partial or k.at_s > 101.0)
            if held < rounds:
                for index in range(children):
                    yield Goal("vote", f"{held}:{index}", parent=goal.id)
                yield Wait(goal, join, deadline_s)
                return
            yield Resolve(goal, [child.answer for child in k.children(goal) if child.status == Status.RESOLVED])
        for goal in k.open("vote"):
            yield Ask(goal, prompt(goal.value))

    def absorb(k, goal, reply):
        yield Fail(goal, "no") if reply.text == "no" else Resolve(goal, reply.text)

    return Stage(puppet(begin=lambda k: [Goal("top")], select=select, absorb=absorb), permits=16)


# join, children, what they say in order -> after how many the join is decided, partial, answers
CASES = [
    (Join("all"), "abc", 3, False, "abc"),
    (Join("all"), "ab-", 3, True, "ab"),
    (Join("all"), "---", 3, True, ""),
    (Join("any"), "abc", 1, False, "a"),
    (Join("any"), "--c", 3, False, "c"),
    (Join("any"), "---", 3, True, ""),
    (Join("majority"), "abc", 2, False, "ab"),
    (Join("majority"), "a-c", 3, False, "ac"),
    (Join("majority"), "--c", 3, True, "c"),
    (Join("majority"), "abcd", 3, False, "abc"),
    (Join("quorum", 2), "abc", 2, False, "ab"),
    (Join("quorum", 3), "ab-", 3, True, "ab"),
    (Join("quorum", 9), "ab", 2, True, "ab"),
]


@pytest.mark.parametrize(("join", "said", "after", "partial", "answers"), CASES)
def test_a_join_is_decided_at_the_earliest_and_labelled(join, said, after, partial, answers):
    stage = election(len(said), join)
    top = stage.goal(1)
    for index, text in enumerate(said, 1):
        assert top.status == Status.WAITING
        stage.answer("no" if text == "-" else text, goal=index + 1)
        if index == after:
            break
    assert (top.status, top.partial, top.answer) == (Status.RESOLVED, partial, list(answers))
    assert stage.k.outcome == "complete"
    assert all(goal.status != Status.ASKED for goal in stage.k.goals.values())


def test_a_met_join_abandons_the_rest_and_their_calls():
    stage = election(3, Join("any"))
    out = stage.answer("a", goal=3)
    assert stage.statuses() == ["resolved", "abandoned", "resolved", "abandoned"]
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(2, 1), commands.AbandonAttempt(4, 1)]


@pytest.mark.parametrize("where", ["join", "wait"])
@pytest.mark.parametrize(("said", "partial"), [("", True), ("a", True), ("abc", False)])
def test_a_deadline_closes_the_join_with_what_is_there(where, said, partial):
    stage = election(3, Join("all", deadline_s=30.0)) if where == "join" else election(3, Join("all"), 30.0)
    closes_at_s = stage.k.at_s + 30.0
    assert stage.k.due_at_s() == closes_at_s
    for index, text in enumerate(said):
        stage.answer(text, goal=index + 2)
    if partial:
        stage.turn(events.Ticked(), at_s=closes_at_s - 0.1)
        assert stage.goal(1).status == Status.WAITING
        stage.turn(events.Ticked(), at_s=closes_at_s)
    assert (stage.goal(1).answer, stage.goal(1).partial) == (list(said), partial)
    assert stage.k.due_at_s() is None, "what has ended wakes nobody"


def test_the_deadline_of_the_wait_is_the_one_that_holds():
    stage = election(2, Join("all", deadline_s=500.0), 5.0)
    assert stage.goal(1).join == Join("all", deadline_s=5.0)


def test_a_join_met_on_the_stroke_of_its_deadline_is_met():
    stage = election(1, Join("all", deadline_s=30.0))
    stage.turn(stage.answered(stage.call(2), "a"), at_s=stage.k.at_s + 30.0)
    assert (stage.goal(1).answer, stage.goal(1).partial) == (["a"], False)


@pytest.mark.parametrize(
    ("join", "said", "after"),
    [(Join("any"), "ab", [1, 1]), (Join("majority"), "abc", [2, 2]), (Join("quorum", 2), "abc", [2, 2]), (Join("all"), "ab", [2, 2])],
)  # fmt: skip
def test_each_round_has_a_join_of_its_own(join, said, after):
    """A second round of votes is not met by the first one's."""
    stage = election(len(said), join, rounds=2)
    for held in after:
        assert stage.goal(1).status == Status.WAITING
        for call in list(stage.calls.values())[:held]:
            stage.turn(stage.answered(call, "v"))
        stage.calls = {key: call for key, call in stage.calls.items() if stage.goal(call.goal).status == Status.ASKED}
    assert stage.goal(1).answer == ["v"] * sum(after)
    assert not stage.goal(1).partial


def test_a_failure_in_one_round_does_not_spoil_the_next():
    stage = election(2, Join("all"), rounds=2)
    stage.answer("a", goal=2)
    stage.answer("no", goal=3)
    assert stage.goal(1).status == Status.WAITING
    stage.answer("b", goal=4)
    stage.answer("c", goal=5)
    assert (stage.goal(1).answer, stage.goal(1).partial) == (["a", "b", "c"], False)


def test_a_wait_for_no_children_is_a_wait_for_its_deadline():
    stage = election(0, Join("all"), 30.0)
    assert stage.goal(1).status == Status.WAITING
    stage.turn(events.Ticked(), at_s=stage.k.at_s + 30.0)
    assert (stage.goal(1).status, stage.goal(1).partial) == (Status.RESOLVED, False)


def test_a_wait_for_no_children_without_a_deadline_is_over_at_once():
    waited = []

    def select(k):
        for goal in k.open("top"):
            waited.append(goal.partial)
            yield Wait(goal) if len(waited) % 2 else Resolve(goal, "on")

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select))
    assert stage.goal(1).answer == "on"


def test_children_added_while_one_waits_belong_to_the_join():
    def absorb(k, goal, reply):
        if goal.value == "0:0":
            yield Goal("vote", "more", parent=goal.parent)
        yield Resolve(goal, reply.text)

    def select(k):
        for goal in k.open("top"):
            if goal.children:
                yield Resolve(goal, [child.answer for child in k.children(goal)])
            else:
                yield from (Goal("vote", "0:0", parent=goal.id), Wait(goal))
        yield from (Ask(goal, prompt(goal.value)) for goal in k.open("vote"))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select, absorb=absorb))
    stage.answer("a")
    assert stage.goal(1).status == Status.WAITING
    stage.answer("b")
    assert stage.goal(1).answer == ["a", "b"]


def test_abandoned_children_count_as_failed():
    def absorb(k, goal, reply):
        yield Resolve(goal, reply.text)
        if goal.id == 2:
            yield Abandon(k.goals[3])

    def select(k):
        for goal in k.open("top"):
            if goal.children:
                yield Resolve(goal, goal.partial)
            else:
                yield from (Goal("vote", "a", parent=goal.id), Goal("vote", "b", parent=goal.id), Wait(goal))
        yield from (Ask(goal, prompt(goal.value)) for goal in k.open("vote"))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select, absorb=absorb))
    stage.answer("a", goal=2)
    assert (stage.goal(1).answer, stage.goal(1).children_failed) == (True, 1)


def test_joins_nest():
    """The inner join resolves its goal, which counts for the outer one, in the same turn."""

    def select(k):
        for goal in k.open("node"):
            if goal.depth == 2:
                yield Ask(goal, prompt(f"leaf {goal.id}"))
            elif goal.children:
                yield Resolve(goal, sum(child.answer for child in k.children(goal)))
            else:
                yield from (Goal("node", parent=goal.id), Goal("node", parent=goal.id), Wait(goal))

    program = puppet(begin=lambda k: [Goal("node")], select=select, absorb=lambda k, g, r: [Resolve(g, int(r.text))])
    stage = Stage(program)
    assert len(stage.k.goals) == 7
    stage.answer_all("1")
    assert (stage.goal(1).answer, stage.k.outcome) == (4, "complete")


def test_a_retry_that_was_due_does_not_close_a_later_join():
    """The moment for which a failed attempt was to be repeated passes after a late reply has planned children."""

    def absorb(k, goal, reply):
        if goal.kind == "top":
            yield Goal("vote", "v", parent=goal.id)
            yield Wait(goal)
        else:
            yield Resolve(goal, reply.text)

    def select(k):
        for goal in k.open():
            yield Resolve(goal, "merged") if goal.children else Ask(goal, prompt(goal.kind))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select, absorb=absorb))
    first = stage.call()
    stage.turn(stage.broke(first, "timed_out"), at_s=110.0)
    due_at_s = stage.goal(1).due_at_s
    assert due_at_s > 110.0
    stage.turn(stage.answered(first, "a plan"), at_s=110.0)
    assert stage.goal(1).status == Status.WAITING
    stage.turn(events.Ticked(), at_s=due_at_s + 1.0)
    assert (stage.goal(1).status, stage.goal(2).status) == (Status.WAITING, Status.ASKED)
    stage.answer()
    assert stage.k.outcome == "complete"
