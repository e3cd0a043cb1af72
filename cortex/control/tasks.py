"""A task of a controlled tool loop: its goal, what its bounded calls may use, when it stops, what it returns.

Its lifecycle is a table. A move that is not in it raises, and changes nothing.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class CommandRefused(ValueError):
    """A command that may not be done now: one line for the model that gave it. Nothing has changed."""


class TaskStatus(enum.StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    """Pushed; nobody has worked on it."""
    ACTIVE = "active"
    """The next bounded call is its own. At most one task is."""
    WAITING = "waiting"
    """A child of it has the loop."""
    SUSPENDED = "suspended"
    """Put aside by itself, until its parent resumes it."""
    BLOCKED = "blocked"
    """Waits for an approval."""
    DEFERRED = "deferred"
    """Put off until nothing else is pending."""
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


ENDED = frozenset({TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.DROPPED})
BEGUN = frozenset({TaskStatus.WAITING, TaskStatus.SUSPENDED, TaskStatus.BLOCKED, TaskStatus.DEFERRED})
"""Not active, but somebody has worked on it, or may have."""

MOVES: dict[tuple[str, TaskStatus], TaskStatus] = {
    ("begin", TaskStatus.PENDING): TaskStatus.ACTIVE,
    ("begin", TaskStatus.DEFERRED): TaskStatus.ACTIVE,
    ("wait", TaskStatus.ACTIVE): TaskStatus.WAITING,
    ("go on", TaskStatus.WAITING): TaskStatus.ACTIVE,
    ("suspend", TaskStatus.ACTIVE): TaskStatus.SUSPENDED,
    ("resume", TaskStatus.SUSPENDED): TaskStatus.ACTIVE,
    ("block", TaskStatus.ACTIVE): TaskStatus.BLOCKED,
    ("decide", TaskStatus.BLOCKED): TaskStatus.ACTIVE,
    ("defer", TaskStatus.ACTIVE): TaskStatus.DEFERRED,
    ("defer", TaskStatus.PENDING): TaskStatus.DEFERRED,
    ("return", TaskStatus.ACTIVE): TaskStatus.DONE,
    ("fail", TaskStatus.ACTIVE): TaskStatus.FAILED,
    ("retry", TaskStatus.DONE): TaskStatus.PENDING,
    ("retry", TaskStatus.FAILED): TaskStatus.PENDING,
    **{("drop", status): TaskStatus.DROPPED for status in TaskStatus if status not in ENDED},
}
"""(what happens, where it stands) -> where it stands then."""


class StopRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a task ends: ``on`` an ``answer`` (words instead of a use of a tool), on ``submit``, or on ``tool:NAME``.

    The last is the first use of that tool that succeeds. After ``turns_max`` turns it has failed. ``covers`` names a
    tool: before every item of the task was in a use of it that succeeded, the task does not end.
    """

    on: str = "answer"
    turns_max: int = 60
    covers: str = ""


class SubtaskTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the children are that code makes of a task's items: ``{items}`` in the goal stands for a child's own."""

    goal: str
    tools: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    stop: StopRule = StopRule()
    returns: str = "text"
    apart: bool = False


class CompletedToolUse(msgspec.Struct, frozen=True):
    """A use of an ordinary tool that succeeded."""

    tool: str
    given: dict[str, Any]


class ControlTask(msgspec.Struct, frozen=True):
    """A value; the state that holds it replaces it."""

    id: int
    goal: str
    parent: int = 0
    depth: int = 0
    status: TaskStatus = TaskStatus.PENDING
    items: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Ordinary tools that its calls are offered."""
    grants: tuple[str, ...] = ()
    """Further ones that it may give to its children. A child has no tool but of its parent's and these."""
    commands: tuple[str, ...] = ()
    """Commands that its calls may give; without any they are not offered ``control`` at all."""
    stop: StopRule = StopRule()
    returns: str = "text"
    """Its return protocol; see ``cortex.control.result_types``."""
    each: SubtaskTemplate | None = None
    framing: str = ""
    apart: bool = False
    """Whether it is a job of its own, with its own journal and budget."""
    shows: tuple[int, ...] = ()
    """Tasks whose results each context of its own begins with: what is projected into it, and nothing else is."""
    group: int = 0
    """The fork that it is a branch of."""
    children: tuple[int, ...] = ()
    life: int = 1
    """Counts its contexts: a retry and a fresh start begin a new one."""
    tries: int = 1
    turns: int = 0
    """In this life."""
    brief: str = ""
    """What its next context is told of what was before."""
    deeds: tuple[CompletedToolUse, ...] = ()
    value: Any = None
    why: str = ""
    """Why it failed, or was put aside."""

    @property
    def live(self) -> bool:
        """Whether it may still come to something."""
        return self.status not in ENDED

    def moved(self, what: str, **changed: Any) -> ControlTask:
        """After this has happened to it. Raises ``CommandRefused``."""
        status = MOVES.get((what, self.status))
        if status is None:
            raise CommandRefused(f"task {self.id} is {self.status}: it cannot {what}")
        return msgspec.structs.replace(self, status=status, **changed)

    def missing(self) -> list[str]:
        """Items that its stop condition says are not done."""
        if not self.stop.covers:
            return []
        done = {
            value for deed in self.deeds if deed.tool == self.stop.covers for value in map(str, deed.given.values())
        }
        return [item for item in self.items if item not in done]
