"""The state of a controlled tool loop: tasks, budgets, branches, checkpoints, approvals, a trace. Plain data in K.

It replaces what a chat loop keeps in its conversation. ``cortex.control.machine`` alone makes a new one of an old one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.control.tasks import CommandRefused, ControlTask, TaskStatus
from cortex.control.transforms import known

TRACE_MAX = 400
"""Entries of the trace that are kept; how many there were in all is counted."""


class ControlBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run may do. 0 says that there is no bound; for depth that there are no subtasks.

    Raises ``ValueError`` at birth for a bound below zero.
    """

    depth_max: int = 3
    breadth_max: int = 12
    """Children of one task."""
    tasks_max: int = 200
    retries_max: int = 2
    """So often a task that failed is begun anew, and a task asked to be done again."""
    turns_max: int = 2_000
    tokens_max: int = 0
    """Input and output tokens of all its calls."""
    seconds_max: float = 0.0
    tools_max: int = 0
    """Runs of ordinary tools."""
    usd_max: float = 0.0
    """At the route's price; where none is known the run ends at its first reply, and says so."""
    shown_max: int = 2_000
    """Characters of one answer of ``control``."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


class DispatchRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dispatch-side control: what happens around the ordinary tools without the model's knowing.

    ``approve`` names tools whose every use needs an approval; ``retries`` says how often a tool that failed is run
    again before the model hears of it; ``transforms`` what is made of a result before it is told
    (``cortex.control.transforms``). Raises ``ValueError`` at birth for a transform that there is none of.
    """

    approve: tuple[str, ...] = ()
    retries: dict[str, int] = msgspec.field(default_factory=dict)
    transforms: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in (each for several in self.transforms.values() for each in several):
            known(each)


class RunUsage(msgspec.Struct, frozen=True):
    """What a run has used."""

    turns: int = 0
    tokens: int = 0
    tools: int = 0
    nusd: int = 0
    """Billionths of a US dollar."""
    seconds: float = 0.0


class TraceEntry(msgspec.Struct, frozen=True, array_like=True):
    """A line of the trace: at which turn of the run, of which task, what."""

    turn: int
    task: int
    what: str


class Approval(msgspec.Struct, frozen=True):
    """Something that a person must allow: what, for which task, and with which use of which tool, if it is one."""

    task: int
    what: str
    tool: str = ""
    given: dict[str, Any] = msgspec.field(default_factory=dict)
    granted: bool | None = None


class TaskCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of a task: how far its conversation and its children had come, and what was to be kept in mind."""

    task: int
    life: int
    children: tuple[int, ...]
    deeds: int
    note: str
    turns: int = -1
    """Turns of its conversation; the loop says how many, as soon as the one that asked for it is whole."""


class ControlState(msgspec.Struct, frozen=True):
    """A value. ``active`` is the task whose turn the next bounded call is; 0: all that lives waits for an approval."""

    tasks: dict[int, ControlTask]
    active: int
    bounds: ControlBounds = ControlBounds()
    rules: DispatchRules = DispatchRules()
    spent: RunUsage = RunUsage()
    checkpoints: dict[str, TaskCheckpoint] = msgspec.field(default_factory=dict)
    approvals: dict[str, Approval] = msgspec.field(default_factory=dict)
    inbox: dict[int, str] = msgspec.field(default_factory=dict)
    """What a task hears, which stopped at a use of ``control``, when it goes on."""
    degraded: tuple[str, ...] = ()
    """Why the run's answer is less than what was asked for."""
    trace: tuple[TraceEntry, ...] = ()
    traced: int = 0
    ended: str = ""
    """How it ended; empty while it runs."""

    @property
    def root(self) -> ControlTask:
        """The task that all others serve."""
        return self.tasks[1]

    @property
    def task(self) -> ControlTask:
        """The active one. Raises ``CommandRefused`` where there is none."""
        if not self.active:
            raise CommandRefused("no task is active")
        return self.tasks[self.active]

    def children(self, task: ControlTask) -> list[ControlTask]:
        """Those that count: a checkpoint that was gone back to has let go of what came after it."""
        return [self.tasks[child] for child in task.children]

    def with_task(self, *tasks: ControlTask, **changed: Any) -> ControlState:
        """With these in place of what they were."""
        return msgspec.structs.replace(self, tasks={**self.tasks, **{task.id: task for task in tasks}}, **changed)

    def noted(self, task: int, what: str) -> ControlState:
        """With a line more in the trace."""
        entry = TraceEntry(self.spent.turns, task, what[:300])
        return msgspec.structs.replace(self, trace=(*self.trace, entry)[-TRACE_MAX:], traced=self.traced + 1)

    def marked(self, why: str) -> ControlState:
        """Marked degraded, for this reason."""
        return self if why in self.degraded else msgspec.structs.replace(self, degraded=(*self.degraded, why[:300]))


def begun(root: ControlTask, bounds: ControlBounds | None = None, rules: DispatchRules | None = None) -> ControlState:
    """A run's first state: the root is active."""
    first = msgspec.structs.replace(root, id=1, parent=0, depth=0, status=TaskStatus.ACTIVE)
    return ControlState({1: first}, 1, bounds or ControlBounds(), rules or DispatchRules())


def over_budget(c: ControlState) -> str:
    """Which budget is used up; empty where none is."""
    spent, bounds = c.spent, c.bounds
    for name, used, most in (
        ("turns", spent.turns, bounds.turns_max), ("tokens", spent.tokens, bounds.tokens_max),
        ("tools", spent.tools, bounds.tools_max), ("seconds", spent.seconds, bounds.seconds_max),
        ("USD", spent.nusd / 1e9, bounds.usd_max),
    ):  # fmt: skip
        if most and used >= most:
            return f"{name}: {used:g} of {most:g}"
    return ""
