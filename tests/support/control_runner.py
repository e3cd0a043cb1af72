"""Runs of the control runtime, over plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.control import ControlBounds, ControlState, ControlTask, SubtaskTemplate, begun, progression
from cortex.control.commands import KINDS
from cortex.control.machine import handle

ALL = tuple(KINDS)
EACH = SubtaskTemplate("label {items}", tools=("read",), returns="counts")


def run(*given: dict[str, Any], c: ControlState | None = None, **root: Any) -> ControlState:
    """Return the state after these commands; none may be refused."""
    c = c or started(**root)
    for each in given:
        done = handle(c, each)
        assert not done.failed, done.text
        c = done.control
    return c


def started(bounds: ControlBounds | None = None, **root: Any) -> ControlState:
    fields: dict[str, Any] = {"goal": "all", "commands": ALL, "tools": ("read", "record"), "each": EACH, **root}
    return begun(ControlTask(1, **fields), bounds)


def cmd(command: str, **fields: Any) -> dict[str, Any]:
    return {"command": command, **fields}


def push(*children: dict[str, Any]) -> dict[str, Any]:
    return cmd("push_subtasks", children=[{"goal": "part", "commands": list(ALL), **each} for each in children])


NEXT, TWO = cmd("next_task"), push({}, {})


def statuses(c: ControlState) -> list[str]:
    return [str(task.status) for task in c.tasks.values()]


def said(c: ControlState, command: dict[str, Any]) -> str:
    done = handle(c, command)
    assert not done.failed, done.text
    return done.text


def refused(c: ControlState, command: dict[str, Any]) -> str:
    """Return the reason why a command is refused; assert that the state is unchanged."""
    done = handle(c, command)
    assert done.failed and not done.handed
    assert done.control is c
    assert "\n" not in done.text and done.text.startswith("refused: ")
    return done.text.removeprefix("refused: ")


def branched(*values: str, returns: str = "text") -> ControlState:
    c = run(cmd("fork", framings=[f"view {n}" for n in range(len(values))]), returns=returns)
    for value in values:
        c = run(NEXT, c=c)
        c = progression.pending_result(progression.answered(c, value) if value != "FAIL" else _fail_for_good(c))[0]
    return c


def _fail_for_good(c: ControlState) -> ControlState:
    return progression.failed(c.with_task(msgspec.structs.replace(c.task, tries=9)), "bad")
