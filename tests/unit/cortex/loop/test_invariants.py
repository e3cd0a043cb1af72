"""``check`` can fail: every invariant of K, broken by hand and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cortex.loop.invariants import InvariantViolation, check
from cortex.state import events
from cortex.state.changes import Ask, Item, Observe, Resolve, Spawn, Wait
from cortex.state.program import tool
from cortex.state.state import ExternalRun, Goal, State, Status
from cortex.values.limits import Limits
from policies.decisions.join import Join
from tests.support.state_machine_harness import PRICE, Flat, Stage, failure, prompt, puppet


@tool()
def look() -> None:
    """Runs nowhere."""


def a_k() -> State:
    """A K with something of everything in it.

    Goals: 1 waits for 2 (asked) and 3 (resolved); 4 is open and delayed; 5 waits for a reading; 6 for a child job;
    7 has failed; 8 is open, asked once and given up for lost.
    """

    def select(k):
        for goal in k.open("top"):
            yield from (Goal("part", "p", parent=goal.id), Goal("part", "q", parent=goal.id), Wait(goal, Join(), 999.0))
        for goal in k.open("sees"):
            yield Observe(goal, "page", "look")
        for goal in k.open("spawns"):
            yield Spawn(goal, Flat())
        for kind in ("part", "plain"):
            yield from (Ask(goal, prompt(str(goal.value))) for goal in k.open(kind))

    begin = lambda k: [  # noqa: E731
        Goal("top"), Goal("plain", "delayed", due_at_s=9_999.0), Goal("sees"), Goal("spawns"), Goal("plain", "fails"),
        Goal("plain", "lost"), Item("note", "text"),
    ]  # fmt: skip
    limits = Limits(max_cost_nusd=10**9, output_tokens_max=10)
    stage = Stage(puppet(begin=begin, select=select, tools={"look": look}), limits, permits=8, price=PRICE)
    calls = {stage.goal(call.goal).value: call for call in stage.calls.values()}
    stage.turn(stage.answered(calls["q"]), stage.broke(calls["fails"], "rejected", status=400))
    stage.turn(stage.broke(calls["lost"], "timed_out"))
    assert sorted(stage.statuses()) == ["asked", "failed", "open", "open", "resolved", "waiting", "waiting", "waiting"]
    return stage.k


def by(k: State, value: object, kind: str = "") -> Goal:
    return next(goal for goal in k.goals.values() if goal.value == value and kind in ("", goal.kind))


def of(k: State, place: int) -> ExternalRun:
    """The errand of the goal that the docstring above names so."""
    goal = by(k, None, {5: "sees", 6: "spawns"}[place])
    task = k.errand_of(goal)
    assert task is not None
    return task


def add_to(k: State, name: str, amount: int = 1) -> None:
    setattr(k.ledger, name, getattr(k.ledger, name) + amount)


def rename(k: State) -> None:
    k.goals[99] = k.goals.pop(by(k, "fails").id)


BREAKS: dict[str, tuple[Callable[[State], object], str]] = {
    "live": (lambda k: setattr(k, "live", 3), "live says 3"),
    "open and not offered": (lambda k: k.open_by_kind["plain"].clear() or setattr(by(k, "lost"), "due_at_s", 0.0), "offered, delayed or parked"),
    "offered and not open": (lambda k: k.open_by_kind["part"].update({by(k, "p").id: None}), "offered, delayed or parked"),
    "offered under another kind": (lambda k: k.open_by_kind.update(other={by(k, "p").id: None}), "open_by_kind[other]"),
    "offered and gone": (lambda k: k.open_by_kind["part"].update({77: None}), "open_by_kind[part] names [77]"),
    "listed under another kind": (lambda k: k.goals_by_kind["top"].update({4: None}), "goals_by_kind[top]"),
    "nothing wakes it": (lambda k: k.delayed.clear(), "not in the heap of delayed goals"),
    "no heap": (lambda k: k.delayed.reverse(), "delayed is no heap"),
    "asked and no call": (lambda k: setattr(by(k, "p"), "question", b"x"), "no attempt makes its call"),
    "waits for nothing": (lambda k: setattr(k.goals[1], "join", None), "waits for exactly one of"),
    "waits for two things": (lambda k: setattr(by(k, None, "sees"), "join", Join()), "waits for exactly one of"),
    "a join that outlived": (lambda k: setattr(by(k, "p"), "join", Join()), "it does not wait and still has"),
    "an errand that outlived": (lambda k: setattr(by(k, None, "sees"), "status", Status.ABANDONED), "it does not wait and still has"),
    "an errand abandoned alone": (lambda k: setattr(of(k, 6), "abandoned", True), "waits for exactly one of"),
    "an errand awaited by nobody": (lambda k: setattr(by(k, None, "sees"), "tries", 5), "is not awaited by its goal"),
    "ended and awaiting": (lambda k: setattr(by(k, "q"), "question", b"x"), "still awaits something"),
    "resolved and failed": (lambda k: setattr(by(k, "q"), "failure", failure("lost")), "is resolved and has a failure"),
    "failed without a word": (lambda k: setattr(by(k, "fails"), "failure", None), "it has failed without a failure"),
    "a child forgotten": (lambda k: k.goals[1].children.pop(), "goals serve it"),
    "a child that is not there": (lambda k: k.goals[1].children.append(88), "goals serve it"),
    "a child of another depth": (lambda k: setattr(by(k, "p"), "depth", 5), "has another parent or a wrong depth"),
    "counts of children": (lambda k: setattr(k.goals[1], "children_resolved", 2), "it counts 2 and 0"),
    "merged before they ended": (lambda k: setattr(k.goals[1], "merged_resolved", 2), "merged children that have not"),
    "ended before its child": (lambda k: setattr(k.goals[1], "status", Status.ABANDONED), "a child has not"),
    "a parent that is not there": (lambda k: setattr(by(k, "fails"), "parent", 88), "its parent is not in K"),
    "a top goal with depth": (lambda k: setattr(by(k, "fails"), "depth", 1), "a top goal has no depth"),
    "a goal under another number": (rename, "stands under 99"),
    "more throttled than broken": (lambda k: setattr(by(k, "lost"), "throttles", 9), "9 throttled"),
    "an item listed nowhere": (lambda k: k.items_by_kind["note"].clear(), "item 1 must be listed"),
    "an item listed unread": (lambda k: k.items_by_kind.update(page={2: None}), "item 2 must be listed"),
    "an item that is not there": (lambda k: k.items_by_kind["note"].update({9: None}), "items_by_kind[note] names [9]"),
    "an item of no source": (lambda k: setattr(k.items[1], "sources", (7,)), "has sources (7,)"),
    "read for, and ended": (lambda k: k.reading.update({by(k, "fails").id: 1.0}), "still wait for readings"),
    "a flight under another number": (lambda k: k.flights.update({5: next(iter(k.flights.values()))}), "flight 5 is attempt"),
    "a flight of no attempt": (lambda k: setattr(by(k, "p"), "tries", 0), "flight of attempt 1"),
    "a flight that nobody awaits": (lambda k: setattr(next(iter(k.flights.values())), "hash", b"y"), "not awaited"),
    "an awaited one abandoned": (lambda k: setattr(next(iter(k.flights.values())), "abandoned", True), "no attempt makes"),
    "asking what no flight asks": (lambda k: k.asking.update({b"z": 3}), "asking names flight 3"),
    "an errand of another attempt": (lambda k: setattr(of(k, 5), "attempt", 9), "is attempt 9"),
    "an errand for an item that is not there": (lambda k: setattr(of(k, 5), "item", 9), "reads item 9"),
    "an abandoned errand without a bill": (lambda k: setattr(of(k, 5), "abandoned", True), "is no child job"),
    "under way after the end": (lambda k: setattr(k, "finished", True), "in progress"),
    "reserved money": (lambda k: add_to(k, "reserved_nusd"), "reserved:"),
    "reserved tokens": (lambda k: add_to(k, "reserved_tokens", -1), "reserved:"),
    "assumed money": (lambda k: setattr(k.ledger, "assumed_nusd", 0), "assumed:"),
    "a negative count": (lambda k: setattr(k.ledger, "reused_calls", -1), "ledger: reused_calls is -1"),
    "paid and never made": (lambda k: add_to(k, "paid_calls", 99), "calls paid of"),
    "a result held after its turn": (lambda k: k.held.update({0: "late"}), "results [0] are held"),
    "more results than counted": (lambda k: setattr(k, "emitted", 9), "9 results given out"),
    "an outcome that is none": (lambda k: setattr(k, "outcome", "fine"), "outcome 'fine'"),
    "stopping in no way": (lambda k: setattr(k, "stopping", "softly"), "stopping 'softly'"),
    "negative permits": (lambda k: setattr(k.shares[0], "permits", -1), "route 0 has -1 permits"),
    "tried and not blocked": (lambda k: setattr(k.shares[0], "trying", True), "is being tested and is not blocked"),
    "starts beyond none": (lambda k: setattr(k.shares[0], "starts", -2), "-2 starts"),
    "a flight that no route counts": (lambda k: setattr(k.shares[0], "in_flight", 0), "route 0 counts 0 in flight"),
    "a route without a share": (lambda k: k.shares.clear(), "0 shares of 1 routes"),
    "resting": (lambda k: setattr(k, "resting", 9), "resting says 9"),
    "a negative count of retries": (lambda k: setattr(k, "retries", -1), "retries -1"),
}  # fmt: skip


def test_a_whole_k_passes():
    check(a_k())


@pytest.mark.parametrize("name", BREAKS)
def test_check_names_what_is_broken(name):
    k = a_k()
    damage, text = BREAKS[name]
    damage(k)
    with pytest.raises(InvariantViolation) as caught:
        check(k)
    assert text in str(caught.value)


def test_it_names_all_at_once_and_tells_the_goals_story():
    k = a_k()
    k.live = 0
    k.goals[1].join = None
    with pytest.raises(InvariantViolation) as caught:
        check(k)
    assert len(str(caught.value).splitlines()) == 2
    assert "goal 1 (top) is waiting after 0 tries" in str(caught.value)


def test_check_takes_time_linear_in_k():
    """Ten times the goals, and of each goal it looks at as many others as before: counted, not timed."""

    def looks(children: int) -> int:
        begin = lambda k: [Goal("x", str(i), due_at_s=5e5 + i) for i in range(children)]  # noqa: E731
        stage = Stage(puppet(begin=begin, absorb=lambda k, g, r: [Resolve(g)]), permits=0)
        counted = Counting(stage.k.goals)
        stage.k.goals = counted
        check(stage.k)
        return counted.count

    assert looks(1_000) <= 11 * looks(100)
    assert events.Ticked() == events.Ticked()


class Counting(dict):
    """Counts how often it is looked into."""

    count = 0

    def __getitem__(self, key):
        self.count += 1
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.count += 1
        return super().get(key, default)
