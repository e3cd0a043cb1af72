"""The control runtime under any commands and events: its invariants, and that a refusal changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.control import CommandRefused, ControlBounds, ControlState, TaskStatus, progression
from cortex.control.commands import KINDS
from cortex.control.machine import handle
from cortex.control.state import TRACE_MAX
from cortex.control.tasks import ENDED, MOVES
from tests.support.control_runner import ALL, cmd, started

BOUNDS = ControlBounds(depth_max=2, breadth_max=4, tasks_max=9, retries_max=1, shown_max=200)
NUMBERS = st.integers(0, 10)
TOOLS = st.lists(st.sampled_from(["read", "record", "erase"]), max_size=3)
CHILD = st.fixed_dictionaries(
    {"goal": st.sampled_from(["a", "b", ""])},
    optional={
        "tools": TOOLS, "grants": TOOLS, "items": st.lists(st.sampled_from("abc"), max_size=2),
        "commands": st.just(list(ALL)) | st.lists(st.sampled_from([*ALL, "fly"]), max_size=4),
        "returns": st.sampled_from(["text", "counts", "number", "poem"]),
        "stop": st.sampled_from([{}, {"on": "submit"}, {"on": "tool:read"}, {"covers": "record"}, {"turns_max": 0}]),
    },
)  # fmt: skip
FIELDS = {
    "push_subtasks": st.fixed_dictionaries({}, optional={"children": st.lists(CHILD, max_size=3), "at_most": NUMBERS}),
    "resume": st.fixed_dictionaries({"task": NUMBERS}), "drop": st.fixed_dictionaries({"task": NUMBERS}),
    "retry": st.fixed_dictionaries({"task": NUMBERS}, optional={"framing": st.text(max_size=4)}),
    "defer": st.fixed_dictionaries({}, optional={"task": NUMBERS}),
    "fork": st.fixed_dictionaries({"framings": st.lists(st.sampled_from(["x", "y", " "]), max_size=3)}),
    "merge": st.fixed_dictionaries({"how": st.sampled_from(["sum", "majority", "first", "list", "?"]), "group": NUMBERS}),
    "compare": st.fixed_dictionaries({"group": NUMBERS}), "restore": st.fixed_dictionaries({"name": st.sampled_from("ab")}),
    "checkpoint": st.fixed_dictionaries({"name": st.sampled_from(["a", "b", ""])}),
    "project": st.fixed_dictionaries(
        {"what": st.sampled_from(["task", "results", "failures", "deeds", "budget", "checkpoints", "approvals", "missing"])},
        optional={"of": st.lists(NUMBERS, max_size=2), "last": st.integers(-2, 3)},
    ),
    "request_approval": st.fixed_dictionaries({"subject": st.text(max_size=4)}),
    "submit": st.fixed_dictionaries({"value": st.sampled_from(["x", "", 3, "bug: 1", None])}),
    "degrade": st.fixed_dictionaries({"why": st.text(max_size=4)}),
}  # fmt: skip
COMMANDS = st.sampled_from(list(ALL)).flatmap(
    lambda name: FIELDS.get(name, st.just({})).map(lambda fields: ("command", cmd(name, **fields)))
)
JUNK = st.dictionaries(st.sampled_from(["command", "task", "x"]), st.none() | st.text(max_size=3) | NUMBERS, max_size=3)
EVENTS = st.one_of(
    COMMANDS, COMMANDS, COMMANDS, COMMANDS,
    JUNK.map(lambda given: ("command", given)),
    st.tuples(st.just("answer"), st.sampled_from(["x", "", "bug: 1", "3"])),
    st.tuples(st.just("fail"), st.just("bad")),
    st.tuples(st.just("did"), st.sampled_from("abc")),
    st.tuples(st.just("decide"), st.booleans()),
    st.tuples(st.just("mark"), NUMBERS),
)  # fmt: skip


def happens(c: ControlState, what: str, given: Any) -> ControlState:
    """One thing happens, as the loop has it happen. What is refused leaves the very same value."""
    if what == "decide":
        names = progression.open_approvals(c)
        return progression.decided(c, names[0], given) if names else c
    if what == "command":
        done = handle(c, given)
        assert not done.failed or done.control is c
        assert len(done.text) <= c.bounds.shown_max + 200
        return done.control
    if not c.active:
        return c
    c, _ = progression.pending_result(c)
    try:
        if what == "answer":
            return progression.answered(c, given)
        if what == "fail":
            return progression.failed(c, given)
        if what == "did":
            return progression.did(c, "record", {"item": given}, "ok")[0]
    except CommandRefused:
        return c
    return progression.marked(c, c.active, given)


def holds(c: ControlState) -> None:
    """What is true of every state."""
    active = [task.id for task in c.tasks.values() if task.status == TaskStatus.ACTIVE]
    assert active == ([c.active] if c.active else [])
    above = []
    at = c.tasks[c.active].parent if c.active else 0
    while at:
        above.append(at)
        at = c.tasks[at].parent
    waiting = {task.id for task in c.tasks.values() if task.status == TaskStatus.WAITING}
    if c.active:
        assert waiting == set(above)
    assert not c.ended or not any(task.live for task in c.tasks.values())
    if not c.active and not c.ended:
        assert any(task.status == TaskStatus.BLOCKED for task in c.tasks.values()), "nothing can go on"
    for task in c.tasks.values():
        assert task.depth <= c.bounds.depth_max
        assert len(task.children) <= c.bounds.breadth_max
        assert task.tries <= c.bounds.retries_max + 1
        if task.parent:
            parent = c.tasks[task.parent]
            assert task.depth == parent.depth + 1
            assert {*task.tools, *task.grants} <= {*parent.tools, *parent.grants}
            assert not (task.live and not parent.live), "a child outlives its parent"
        if task.status == TaskStatus.DONE:
            assert not any(child.live for child in c.children(task))
    assert len(c.tasks) <= c.bounds.tasks_max and sorted(c.tasks) == list(range(1, len(c.tasks) + 1))
    assert len(c.trace) <= min(TRACE_MAX, c.traced)
    assert all(c.tasks[number].live for number in c.inbox)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(c), type=ControlState) == c


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_whatever_is_commanded_and_happens_the_state_is_sound(happened: list[tuple[str, Any]]) -> None:
    c = started(BOUNDS, items=("a", "b", "c"))
    for what, given_ in happened:
        before = c
        c = happens(c, what, given_)
        holds(c)
        for number, task in before.tasks.items():
            after = c.tasks[number]
            if task.status in ENDED and after.status != task.status:
                assert ("retry", task.status) in MOVES and task.parent == before.active
        assert c.traced >= before.traced and set(before.degraded) <= set(c.degraded)


@given(
    st.sampled_from(sorted(KINDS)),
    st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=5), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_no_input_raises(name: str, fields: dict[str, Any]) -> None:
    c = started(BOUNDS)
    done = handle(c, {**fields, "command": name})
    assert not done.failed or (done.control is c and "\n" not in done.text)
