"""Tasks of a controlled tool loop: goal, available tools and commands, stop condition, result.

The lifecycle is a table. A move that is not in it raises, and changes nothing.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class CommandRefused(ValueError):
    """The command is not allowed now. The message is one line for the model. Nothing has changed."""


class TaskStatus(enum.StrEnum):
    """Status of a task."""

    PENDING = "pending"
    """Pushed, and not begun."""
    ACTIVE = "active"
    """The next bounded call is the task's own. At most one task is active."""
    WAITING = "waiting"
    """A child of the task has the loop."""
    SUSPENDED = "suspended"
    """Suspended by itself, until its parent resumes it."""
    BLOCKED = "blocked"
    """Waits for an approval."""
    DEFERRED = "deferred"
    """Deferred until nothing else is pending."""
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


ENDED = frozenset({TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.DROPPED})
"""Final statuses."""
BEGUN = frozenset({TaskStatus.WAITING, TaskStatus.SUSPENDED, TaskStatus.BLOCKED, TaskStatus.DEFERRED})
"""Statuses of tasks that are not active and have been, or may have been, begun."""

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
"""(event, status) -> new status."""


class StopRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop condition: ``on`` an ``answer`` (a reply without a tool use), on ``submit``, or on ``tool:NAME``.

    The last is the first successful use of that tool. After ``turns_max`` turns the task has failed. ``covers`` names a
    tool: the task does not end before every item was in a successful use of it.
    """

    on: str = "answer"
    turns_max: int = 60
    covers: str = ""


class SubtaskTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Template of the children that code makes of a task's items; ``{items}`` in the goal stands for a child's items.
    """

    goal: str
    tools: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    stop: StopRule = StopRule()
    returns: str = "text"
    apart: bool = False


class CompletedToolUse(msgspec.Struct, frozen=True):
    """Successful use of an ordinary tool."""

    tool: str
    given: dict[str, Any]


class ControlTask(msgspec.Struct, frozen=True):
    """Task, as an immutable value; the state replaces it."""

    id: int
    goal: str
    parent: int = 0
    depth: int = 0
    status: TaskStatus = TaskStatus.PENDING
    items: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Ordinary tools that are offered to its calls."""
    grants: tuple[str, ...] = ()
    """Further tools that it may give to its children. A child has only tools of its parent and these."""
    commands: tuple[str, ...] = ()
    """Commands that its calls may give; without any, ``control`` is not offered to them."""
    stop: StopRule = StopRule()
    returns: str = "text"
    """Return protocol; see ``cortex.control.result_types``."""
    each: SubtaskTemplate | None = None
    framing: str = ""
    apart: bool = False
    """True if it is a job of its own, with its own journal and budget."""
    shows: tuple[int, ...] = ()
    """Tasks whose results are shown at the beginning of each of its contexts; no other results are."""
    group: int = 0
    """Fork that it is a branch of; 0: none."""
    children: tuple[int, ...] = ()
    life: int = 1
    """Number of its context: a retry and a fresh start begin a new one."""
    tries: int = 1
    turns: int = 0
    """Turns in this context."""
    brief: str = ""
    """Summary of earlier contexts for the next one."""
    deeds: tuple[CompletedToolUse, ...] = ()
    """Successful tool uses."""
    value: Any = None
    why: str = ""
    """Reason why it failed, or was put aside."""

    @property
    def live(self) -> bool:
        """True if the task has not ended."""
        return self.status not in ENDED

    def moved(self, what: str, **changed: Any) -> ControlTask:
        """Return the task after this event. Raises ``CommandRefused``."""
        status = MOVES.get((what, self.status))
        if status is None:
            raise CommandRefused(f"task {self.id} is {self.status}: it cannot {what}")
        return msgspec.structs.replace(self, status=status, **changed)

    def missing(self) -> list[str]:
        """Return the items that are not done, by its stop condition."""
        if not self.stop.covers:
            return []
        done = {
            value for deed in self.deeds if deed.tool == self.stop.covers for value in map(str, deed.given.values())
        }
        return [item for item in self.items if item not in done]
