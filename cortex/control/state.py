"""State of a controlled tool loop: tasks, budgets, branches, checkpoints, approvals, a trace. Plain data in K.

It replaces what a chat loop keeps in its conversation. Only ``cortex.control.machine`` and
``cortex.control.progression`` derive new states.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.control.tasks import CommandRefused, ControlTask, TaskStatus
from cortex.control.transforms import known

TRACE_MAX = 400
"""Number of trace entries that are kept; the total number is counted."""


class ControlBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a run. 0: no limit; for depth 0 means no subtasks.

    Raises ``ValueError`` for a limit below zero.
    """

    depth_max: int = 3
    """Depth of subtasks."""
    breadth_max: int = 12
    """Children of one task."""
    tasks_max: int = 200
    """Tasks of the run."""
    retries_max: int = 2
    """Number of times that a failed task is begun again, and that a parent may ask for a task again."""
    turns_max: int = 2_000
    """Turns of all tasks together."""
    tokens_max: int = 0
    """Input and output tokens of all calls."""
    seconds_max: float = 0.0
    """Duration of the run in seconds."""
    tools_max: int = 0
    """Runs of ordinary tools."""
    usd_max: float = 0.0
    """Cost in USD at the route's price; if no price is known the run ends at its first reply, with that reason."""
    shown_max: int = 2_000
    """Characters of one answer of ``control``."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


class DispatchRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Treatment of ordinary tools that is hidden from the model.

    ``approve`` names tools whose every use needs an approval; ``retries`` is the number of times that a failed tool is
    run again before the model is told; ``transforms`` are applied to a result before the model sees it
    (``cortex.control.transforms``). Raises ``ValueError`` for an unknown transform.
    """

    approve: tuple[str, ...] = ()
    retries: dict[str, int] = msgspec.field(default_factory=dict)
    transforms: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in (each for several in self.transforms.values() for each in several):
            known(each)


class RunUsage(msgspec.Struct, frozen=True):
    """Usage of a run."""

    turns: int = 0
    tokens: int = 0
    tools: int = 0
    nusd: int = 0
    """Cost in 1e-9 USD."""
    seconds: float = 0.0


class TraceEntry(msgspec.Struct, frozen=True, array_like=True):
    """Entry of the trace: turn of the run, task, and text."""

    turn: int
    task: int
    what: str


class Approval(msgspec.Struct, frozen=True):
    """Request for a person's approval: subject, task, and the tool use, if it is one."""

    task: int
    what: str
    tool: str = ""
    given: dict[str, Any] = msgspec.field(default_factory=dict)
    granted: bool | None = None


class TaskCheckpoint(msgspec.Struct, frozen=True):
    """Checkpoint of a task: the state of its conversation and its children, and a note."""

    task: int
    life: int
    children: tuple[int, ...]
    deeds: int
    note: str
    turns: int = -1
    """Turns of its conversation; set by the loop when the turn with the checkpoint is complete."""


class ControlState(msgspec.Struct, frozen=True):
    """State of a run, as an immutable value. ``active`` is the task of the next turn; 0: all live tasks wait for
    approvals.
    """

    tasks: dict[int, ControlTask]
    active: int
    bounds: ControlBounds = ControlBounds()
    rules: DispatchRules = DispatchRules()
    spent: RunUsage = RunUsage()
    checkpoints: dict[str, TaskCheckpoint] = msgspec.field(default_factory=dict)
    approvals: dict[str, Approval] = msgspec.field(default_factory=dict)
    inbox: dict[int, str] = msgspec.field(default_factory=dict)
    """Messages for tasks that stopped at a use of ``control``, for when they continue."""
    degraded: tuple[str, ...] = ()
    """Reasons why the run's answer is less than what was asked for."""
    trace: tuple[TraceEntry, ...] = ()
    traced: int = 0
    ended: str = ""
    """Outcome of the run; empty while it runs."""

    @property
    def root(self) -> ControlTask:
        """Task that all others serve."""
        return self.tasks[1]

    @property
    def task(self) -> ControlTask:
        """Active task. Raises ``CommandRefused`` if there is none."""
        if not self.active:
            raise CommandRefused("no task is active")
        return self.tasks[self.active]

    def children(self, task: ControlTask) -> list[ControlTask]:
        """Return the children that count: children made after a checkpoint that was restored are not among them."""
        return [self.tasks[child] for child in task.children]

    def with_task(self, *tasks: ControlTask, **changed: Any) -> ControlState:
        """Return the state with these tasks replaced or added."""
        return msgspec.structs.replace(self, tasks={**self.tasks, **{task.id: task for task in tasks}}, **changed)

    def noted(self, task: int, what: str) -> ControlState:
        """Return the state with another trace entry."""
        entry = TraceEntry(self.spent.turns, task, what[:300])
        return msgspec.structs.replace(self, trace=(*self.trace, entry)[-TRACE_MAX:], traced=self.traced + 1)

    def marked(self, why: str) -> ControlState:
        """Return the state marked as degraded, for this reason."""
        return self if why in self.degraded else msgspec.structs.replace(self, degraded=(*self.degraded, why[:300]))


def begun(root: ControlTask, bounds: ControlBounds | None = None, rules: DispatchRules | None = None) -> ControlState:
    """Return the first state of a run: the root task is active."""
    first = msgspec.structs.replace(root, id=1, parent=0, depth=0, status=TaskStatus.ACTIVE)
    return ControlState({1: first}, 1, bounds or ControlBounds(), rules or DispatchRules())


def over_budget(c: ControlState) -> str:
    """Return the budget that is used up; empty if none is."""
    spent, bounds = c.spent, c.bounds
    for name, used, most in (
        ("turns", spent.turns, bounds.turns_max), ("tokens", spent.tokens, bounds.tokens_max),
        ("tools", spent.tools, bounds.tools_max), ("seconds", spent.seconds, bounds.seconds_max),
        ("USD", spent.nusd / 1e9, bounds.usd_max),
    ):  # fmt: skip
        if most and used >= most:
            return f"{name}: {used:g} of {most:g}"
    return ""
