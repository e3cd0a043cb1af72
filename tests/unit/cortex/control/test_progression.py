"""The control runtime: how tasks end, what they are shown, contexts, people, budgets and bad commands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortex.control import CommandRefused, ControlBounds, ControlState, StopRule, progression
from cortex.control.commands import KINDS, read, tool
from cortex.control.machine import handle
from cortex.control.state import Approval, over_budget
from tests.support.control_runner import ALL, NEXT, TWO, branched, cmd, push, refused, run, said, started, statuses

# -- return protocols and stop conditions ------------------------------------------------------------------------------

RETURNS = [
    ("text", " well ", "well"), ("text", "", CommandRefused), ("text", {"a": 1}, '{"a":1}'),
    ("number", "12", 12), ("number", "1e999", CommandRefused), ("number", "many", CommandRefused),
    ("counts", "bug: 2, wish: 0", {"bug": 2, "wish": 0}), ("counts", {"bug": 2}, {"bug": 2}), ("counts", "two bugs", CommandRefused),
    ("json", '{"a": [1]}', {"a": [1]}), ("json", "{", CommandRefused),
    ("choice:left|right", "Left.", "left"), ("choice:left|right", "up", CommandRefused),
    ("tally:record.label", "whatever", {"bug": 1, "wish": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), RETURNS)
def test_return_protocols(kind: str, text: Any, value: Any) -> None:
    c = started(returns=kind)
    for item, label in (("a", "wish"), ("b", "wish"), ("a", "bug")):
        c, _ = progression.did(c, "record", {"item": item, "label": label}, "ok")
    if value is CommandRefused:
        with pytest.raises(CommandRefused):
            progression.returned(c, text)
    else:
        assert progression.returned(c, text).root.value == value


def test_a_task_stops_as_it_is_told_to() -> None:
    submits = started(stop=StopRule(on="submit"))
    with pytest.raises(CommandRefused, match="End this task with the command submit"):
        progression.answered(submits, "well")
    assert run(cmd("submit", value="well"), c=submits).root.value == "well"
    assert "task 1 stops on answer" in refused(started(), cmd("submit", value="x"))
    uses = started(stop=StopRule(on="tool:record"), returns="number")
    with pytest.raises(CommandRefused, match="ends with a use of record"):
        progression.answered(uses, "well")
    assert progression.did(uses, "read", {}, "7")[0].ended == ""
    assert progression.did(uses, "record", {}, "seven") == (
        progression.did(uses, "record", {}, "seven")[0],
        "the result is no number: 'seven'",
    )
    assert progression.did(uses, "record", {}, "7")[0].root.value == 7


def test_what_is_to_be_covered_must_be_done_before_it_ends() -> None:
    c = started(items=("a", "b"), stop=StopRule(covers="record"))
    c, _ = progression.did(c, "record", {"item": "a"}, "ok")
    c, _ = progression.did(c, "read", {"item": "b"}, "ok")
    assert said(c, cmd("project", what="missing")) == "b"
    with pytest.raises(CommandRefused, match=r"^Not done yet: b$"):
        progression.answered(c, "done")
    c, _ = progression.did(c, "record", {"item": "b"}, "ok")
    assert progression.answered(c, "done").ended == "answered"


# -- contexts ----------------------------------------------------------------------------------------------------------


def test_project_returns_the_part_that_is_asked_for_and_no_more() -> None:
    c = branched("yes", "FAIL")
    c, _ = progression.did(c, "read", {"item": "a"}, "ok")
    assert said(c, cmd("project", what="results")) == "task 2 (view 0): yes\ntask 3 (view 1): failed: bad"
    assert said(c, cmd("project", what="results", of=[2])) == "task 2 (view 0): yes"
    assert said(c, cmd("project", what="results", last=1)) == "task 3 (view 1): failed: bad"
    assert said(c, cmd("project", what="failures")) == "task 3 (view 1): bad"
    assert said(c, cmd("project", what="deeds", of=[1])) == 'read {"item":"a"}'
    assert said(c, cmd("project", what="task")).startswith("task 1: all\nstatus: active")
    assert said(c, cmd("project", what="budget")).startswith("turns: 0 of 2000\ntokens: 0 of any")
    assert said(c, cmd("project", what="approvals")) == said(c, cmd("project", what="checkpoints")) == "nothing"
    assert "there is no task 9" in refused(c, cmd("project", what="results", of=[9]))
    assert "Invalid enum value" in refused(c, cmd("project", what="dreams"))


def test_what_is_shown_is_bounded() -> None:
    c = run(TWO, bounds=ControlBounds(shown_max=30))
    assert len(said(c, cmd("project", what="results"))) <= 30 + len(" (cut)")


def test_a_checkpoint_is_gone_back_to() -> None:
    c = run(push({}), NEXT)
    c = run(
        cmd("checkpoint", name="here", note="part 2 is done"),
        c=progression.pending_result(progression.answered(c, "x"))[0],
    )
    assert "no checkpoint 'here' in this context" in refused(c, cmd("restore", name="here"))  # its turn is not whole
    c = progression.marked(c, 1, 5)
    assert c.checkpoints["here"].turns == 5
    later, _ = progression.did(run(TWO, c=c), "read", {"item": "a"}, "ok")
    done = handle(later, cmd("restore", name="here"))
    assert (done.text, done.handed) == ("back at here. part 2 is done", True)
    assert (statuses(done.control), done.control.root.children, done.control.root.deeds) == (
        ["active", "done", "dropped", "dropped"], (2,), (),
    )  # fmt: skip
    assert "no checkpoint 'there'" in refused(c, cmd("restore", name="there"))
    assert "needs a name" in refused(c, cmd("checkpoint", name=" "))
    assert said(c, cmd("project", what="checkpoints")) == "here: part 2 is done"


def test_a_fresh_context_is_told_the_state_in_short() -> None:
    c = branched("yes", "no")
    c, _ = progression.did(msgspec.structs.replace(c), "read", {"item": "a"}, "ok")
    c = c.with_task(msgspec.structs.replace(c.root, items=("a", "b")))
    done = handle(c, cmd("fresh", note="b is hard"))
    assert (done.handed, done.control.root.life) == (True, 2)
    assert done.control.root.brief == (
        "1 uses of tools so far.\nDone so far: a\ntask 2 (view 0): yes\ntask 3 (view 1): no\nb is hard"
    )


# -- people, budgets, the record ---------------------------------------------------------------------------------------


def test_an_approval_waits_while_others_go_on() -> None:
    c = run(TWO, NEXT, cmd("request_approval", subject="to publish"))
    assert (c.active, statuses(c)) == (1, ["active", "blocked", "pending"])
    assert c.inbox == {1: "task 2 waits for the approval of task-2"}
    assert progression.open_approvals(c) == ["task-2"]
    c = progression.answered(run(NEXT, c=progression.pending_result(c)[0]), "x")
    done = handle(progression.pending_result(c)[0], NEXT)
    assert (done.handed, done.control.active, statuses(done.control)) == (True, 0, ["waiting", "blocked", "done"])
    c = progression.decided(done.control, "task-2", True)
    assert (c.active, progression.pending_result(c)[1]) == (2, "approved")
    with pytest.raises(CommandRefused, match="nothing named 'task-2'"):
        progression.decided(c, "task-2", True)
    c = run(cmd("request_approval", subject="once more"), c=progression.pending_result(c)[0])
    assert progression.open_approvals(c) == ["task-2-2"]


def test_denied_it_goes_on_and_the_run_is_marked() -> None:
    c = progression.blocked(started(), Approval(1, "record it", "record", {"item": "a"}))
    assert (c.active, progression.open_approvals(c)) == (0, ["record-1"])
    c = progression.decided(c, "record-1", False)
    assert (c.active, c.inbox, c.degraded) == (1, {1: "denied"}, ("record-1 was denied: record it",))


def test_what_is_decided_early_is_taken_up_when_its_turn_comes() -> None:
    """Task 2 of the first one waits; so does task 5, below task 3. The person decides on task 2 first."""
    c = run(TWO, NEXT, cmd("request_approval", subject="a"))
    c = run(NEXT, push({}), NEXT, cmd("request_approval", subject="b"), c=progression.pending_result(c)[0])
    c = run(NEXT, c=progression.pending_result(c)[0])
    assert (c.active, progression.open_approvals(c)) == (0, ["task-2", "task-4"])
    c = progression.decided(c, "task-2", True)
    assert c.active == 0  # those below it go on first
    c = progression.decided(c, "task-4", True)
    assert c.active == 4
    c = progression.pending_result(progression.answered(c, "four"))[0]
    c = progression.pending_result(progression.answered(c, "three"))[0]
    done = handle(c, NEXT)
    assert (done.handed, done.control.active, done.control.inbox) == (True, 2, {2: "approved"})


BUDGETS = [
    (ControlBounds(turns_max=2), "turns: 2 of 2"), (ControlBounds(tokens_max=15), "tokens: 20 of 15"),
    (ControlBounds(tools_max=1), "tools: 1 of 1"), (ControlBounds(seconds_max=5.0), "seconds: 6 of 5"),
    (ControlBounds(usd_max=1e-9), "USD: 4e-09 of 1e-09"), (ControlBounds(turns_max=3, tokens_max=21, tools_max=2), ""),
]  # fmt: skip


@pytest.mark.parametrize(("bounds", "told"), BUDGETS)
def test_budgets(bounds: ControlBounds, told: str) -> None:
    c = started(bounds)
    for seconds in (3.0, 6.0):
        c = progression.turned(c, 10, 2, seconds)
    assert over_budget(progression.used(c)) == told


def test_a_stop_is_labelled_and_ends_all() -> None:
    c = progression.stopped(run(TWO, NEXT), "over budget: tokens")
    assert (statuses(c), c.ended, c.degraded, c.active) == (
        ["dropped"] * 3,
        "over budget: tokens",
        ("over budget: tokens",),
        0,
    )
    assert "no task is active" in refused(c, NEXT)


def test_the_trace_and_the_mark() -> None:
    c = run(TWO, cmd("degrade", why="too few sources"))
    assert c.degraded == ("too few sources",)
    assert said(c, cmd("trace", last=2)) == "turn 0, task 1: degrade\nturn 0, task 1: trace"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "there is no command None"),
        ({"command": "fly"}, "there is no command 'fly'"),
        ({"command": ["next_task"]}, "there is no command"),
        (cmd("resume"), "resume: Object missing required field `task`"),
        (cmd("next_task", quickly=True), "unknown field `quickly`"),
        (cmd("push_subtasks"), "no children are given"),
        (cmd("push_subtasks", at_most=-1), "no items to be split"),
    ],
)
def test_bad_commands_are_one_line(given: dict[str, Any], why: str) -> None:
    assert why in refused(started(), given)


def test_a_task_gives_only_the_commands_that_it_has() -> None:
    c = started(commands=("next_task",))
    assert refused(c, TWO) == "push_subtasks is none of the commands of task 1: next_task"
    assert refused(started(commands=()), NEXT).endswith("it has none")


def test_the_tool_offers_what_the_task_has_and_its_schema_is_whole() -> None:
    some = tool(("next_task", "merge"))
    assert some.schema["properties"]["command"] == {"enum": ["next_task", "merge"]}
    assert set(some.schema["properties"]) == {"command", "how", "group"}
    every = tool(ALL)
    assert "$ref" not in msgspec.json.encode(every.schema).decode()
    fields = {field for kind in KINDS.values() for field in kind.__struct_fields__}
    assert set(every.schema["properties"]) == {"command", *fields}
    for name in ALL:
        assert f"{name}: " in every.description


def test_every_command_can_be_read_and_state_is_plain_data() -> None:
    assert read(NEXT) == KINDS["next_task"]()
    c = branched("yes", "no")
    assert msgspec.convert(msgspec.to_builtins(c, str_keys=False), ControlState, strict=False) == c
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(c), type=ControlState) == c


@pytest.mark.parametrize("name", ControlBounds.__struct_fields__)
def test_a_bound_below_zero_is_refused_at_birth(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 or more, not -1"):
        ControlBounds(**{name: -1})
