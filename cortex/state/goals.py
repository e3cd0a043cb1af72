"""A goal: a thing to achieve, and the law of its life."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from cortex.values.fast_setattr import quick_to_set
from cortex.values.ledger import Charge
from policies.decisions.join import Join
from policies.failures.failure import Failure


class Status(enum.IntEnum):
    """Where a goal stands."""

    OPEN = 0
    ASKED = 1
    WAITING = 2
    RESOLVED = 3
    FAILED = 4
    ABANDONED = 5


ENDED = frozenset({Status.RESOLVED, Status.FAILED, Status.ABANDONED})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.OPEN: frozenset({Status.ASKED, Status.WAITING}) | ENDED,
    Status.ASKED: frozenset({Status.OPEN, Status.WAITING}) | ENDED,
    Status.WAITING: frozenset({Status.OPEN}) | ENDED,
    Status.RESOLVED: frozenset(),
    Status.FAILED: frozenset(),
    Status.ABANDONED: frozenset(),
}
"""The law of a goal's life. ``asked -> open``: the attempt failed and may be repeated, did not fit, or its reply asks
for another turn. ``waiting -> open``: its children met their join, its time came, or it was approved."""


class IllegalTransition(RuntimeError):
    """A goal was asked to go where its life does not lead. Nothing was changed; the message tells the goal's story."""


class Missing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that was given up for lost. Its reply is welcome still: what it asked, of which route."""

    charge: Charge
    question: bytes
    route: int = 0
    """Its place in the job's routes; -1: the job has given that route up, and its price is known no more."""


NEVER = 0.0
"""A time that is none. A snapshot leaves out what is the default itself, the very object: hence one zero for all."""
_FIRST_SAMPLE = "0".strip
"""Texts that are equal are many objects, so this one is never left out. A built-in method that gives its own text: the
quickest factory that there is."""


@quick_to_set
class Goal(msgspec.Struct, omit_defaults=True, gc=False):
    """A thing to achieve. A program makes one with ``kind``, ``value`` and ``parent``; the loop fills in the rest.

    ``due_at_s`` may be given too: the goal is open from then on. And ``deadline_at_s``: it fails, TIMED_OUT, where it
    is not met by then. Both are seconds since 1970, as ``k.at_s`` is.
    """

    # K may keep a million of these, and each look for garbage among them would take a second. Values are plain data: no
    # cycle goes through a goal.
    kind: str
    value: Any = None
    parent: int = 0
    """Id of the goal that this one serves; 0 for a top goal."""
    id: int = 0
    status: Status = Status.OPEN
    depth: int = 0
    sample: str = msgspec.field(default_factory=_FIRST_SAMPLE)
    """Which sample of the question is asked; a resample takes the next number."""
    tries: int = 0
    """Attempts made so far, over all samples."""
    broken: int = 0
    """Attempts of this sample that failed, as the retry policy counts them; ``throttles`` of them by the rate limit."""
    throttles: int = 0
    lane: int = 0
    """Which of the job's lanes it was asked on last, or waits for (``Terms.roles``)."""
    question: bytes = b""
    """Hash of what was asked last and is not yet absorbed: a reply to anything else comes too late."""
    hedge: int = 0
    """An earlier attempt at the same question that is awaited besides the latest; 0: none."""
    resamples: int = 0
    refused: str = ""
    """Why its latest reply was refused: a program may say so when it asks again."""
    too_large: int = 0
    """How often its prompt was found too large: select sees it and must ask for less."""
    constructor: str = ""
    """The framing of the prompt that was sent last."""
    due_at_s: float = NEVER
    """An open goal is not offered to select before this time."""
    deadline_at_s: float = NEVER
    """When it fails unless it was met; 0: never."""
    timeout_at_s: float = NEVER
    """The same, by the job's ``goal_timeout_s``; 0 before its first attempt."""
    join: Join | None = None
    expects: str | None = None
    """Name of the answer from outside that it waits for; empty where it waits for its program itself."""
    partial: bool = False
    """The join it waited for could not be met in full, or its deadline passed: what is there is a part."""
    children: list[int] = msgspec.field(default_factory=list)
    children_resolved: int = 0
    children_failed: int = 0
    merged_resolved: int = 0
    """Children that earlier joins have merged already: a new wait is for the others."""
    merged_failed: int = 0
    answer: Any = None
    failure: Failure | None = None
    ended: int = 0
    """Its number among the goals of the job that have ended, where the program is traced; 0 while it lives."""
    ended_at_s: float = NEVER
    kept: Any = None
    """What its program set down at its last checkpoint."""
    row: str = ""
    """Key of the row of the source that it was made for, where it was."""
    assumed: dict[int, Missing] | None = None
    """Attempts given up for lost, and what is charged for each until its reply turns up."""

    @property
    def joined(self) -> bool:
        """Whether it has children and all of them have ended."""
        return bool(self.children) and self.children_resolved + self.children_failed == len(self.children)

    def story(self) -> str:
        """One line for an error: what is known of this goal's life."""
        said = f"goal {self.id} ({self.kind}) is {self.status.name.lower()} after {self.tries} tries"
        if self.children:
            said += f", {self.children_resolved} of {len(self.children)} children resolved"
        if self.failure is not None:
            said += f"; {self.failure.kind}: {self.failure.message}"
        return said


TRIES_MAX = (1 << 20) - 1
"""Attempts that one goal may ever make, so that a goal and an attempt are one number."""


def flight_key(goal: int, attempt: int) -> int:
    """One number for an attempt: goals fill the upper bits, a goal's tries the lower twenty."""
    return goal << 20 | attempt
