"""``toolloop``: a tool loop with explicit control through one extra tool, ``control``, whose state is in K.

The task is that of ``chatloop``: read notes, label each, count the labels; with the same model and the same two tools.
The conversation no longer is the scheduler: the model gives commands to ``control``, and a state machine in K splits
the notes into subtasks, runs them one after the other, each in a fresh conversation with its own tools, stop condition
and return protocol, and adds up their results.

    cortex run toolloop -p count=30 -p at_most=8
    cortex run toolloop -p count=4 -p 'rules={"approve": ["record"]}'        cortex approve JOB record-1
    cortex run toolloop -p count=30 -p 'bounds={"tokens_max": 5000}'

For other tasks: call ``cortex.control.run`` in a flow, with a ``ControlTask`` and a ``ToolKit``.
"""

from __future__ import annotations

from typing import Any

import msgspec

import cortex
from cortex import control
from cortex.control import ControlBounds, ControlState, ControlTask, DispatchRules, StopRule, SubtaskTemplate, ToolKit
from cortex.programs.parts import label_task
from cortex.programs.parts.label_task import READ, RECORD, read, record
from cortex.values.reply import ToolUse

STEPS = """Do these steps:
1. call control with {{"command": "push_subtasks", "at_most": {at_most}}}
2. call control with {{"command": "next_task"}}, until it says "no task is left"
3. call control with {{"command": "merge", "how": "sum"}}

Then answer with what the last call said, and nothing else."""
NO_BOUNDS, NO_RULES = ControlBounds(), DispatchRules()
COMMANDS = ("push_subtasks", "next_task", "merge", "retry", "project")


@cortex.flow
async def toolloop(
    ctx: cortex.Context, count: int = 12, at_most: int = 6, seed: int = 0, notes: dict[str, str] | None = None,
    apart: bool = False, bounds: ControlBounds = NO_BOUNDS, rules: DispatchRules = NO_RULES, task: ControlTask
    | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Label ``count`` generated notes, or ``notes`` (text by name), ``at_most`` in a subtask, and count the labels.

    ``apart``: each subtask is a job of its own. ``bounds`` and ``rules`` are those of ``cortex.control``; ``task``
    replaces the first task.
    """
    if at_most < 1:
        raise ValueError(f"at_most must be 1 or more, not {at_most}")
    items = list(notes) if notes else label_task.names(count, seed)
    if task is None and bounds.breadth_max * at_most < len(items):
        bounds = msgspec.structs.replace(bounds, breadth_max=-(-len(items) // at_most))

    def job_of(c: ControlState) -> cortex.Program:
        return toolloop(notes=notes, task=control.alone(c), bounds=_left(c), rules=rules)

    def adds(use: ToolUse) -> dict[str, str]:
        return {"text": label_task.own_text(use.input.get("item"), notes)}

    kit = ToolKit((read, record), {"read": READ, "record": RECORD}, adds, job_of)
    done = await control.run(ctx, control.begun(task or first_task(items, at_most, apart), bounds, rules), kit)
    spent = {name: getattr(done.spent, name) for name in ("turns", "tokens", "tools", "nusd")}
    facts: dict[str, Any] = {
        "answer": done.root.value, "ended": done.ended, "degraded": list(done.degraded), "tasks": len(done.tasks),
        "spent": spent,
    }  # fmt: skip
    return facts if notes or task else {**facts, "right": done.root.value == label_task.truth(items)}


def first_task(items: list[str], at_most: int, apart: bool = False) -> ControlTask:
    """Return the first task of this program."""
    each = SubtaskTemplate(
        label_task.task(["{items}"]), tools=("read", "record"), returns="counts", apart=apart,
        stop=StopRule(covers="record", turns_max=4 * at_most + 20),
    )  # fmt: skip
    return ControlTask(
        1, STEPS.format(at_most=at_most), items=tuple(items), grants=("read", "record"), commands=COMMANDS,
        returns="counts", each=each,
    )  # fmt: skip


def _left(c: ControlState) -> ControlBounds:
    """Limits of a job of its own: what is left of this run's limits."""
    bounds, spent = c.bounds, c.spent
    return msgspec.structs.replace(
        bounds,
        depth_max=max(0, bounds.depth_max - c.task.depth),
        turns_max=max(1, bounds.turns_max - spent.turns) if bounds.turns_max else 0,
        tokens_max=max(1, bounds.tokens_max - spent.tokens) if bounds.tokens_max else 0,
        tools_max=max(1, bounds.tools_max - spent.tools) if bounds.tools_max else 0,
        usd_max=max(1e-9, bounds.usd_max - spent.nusd / 1e9) if bounds.usd_max else 0,
    )
