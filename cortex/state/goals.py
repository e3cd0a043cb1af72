"""Goals and the table of their state transitions."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from cortex.values.fast_setattr import fast_setattr
from cortex.values.ledger import Charge
from policies.decisions.join import Join
from policies.failures.failure import Failure


class Status(enum.IntEnum):
    """Status of a goal."""

    OPEN = 0
    """Select may ask for it, now or from ``due_at_s`` on."""
    ASKED = 1
    """A call for it is in flight."""
    WAITING = 2
    """Waits for children, a time, a tool, a child job, or an external answer."""
    RESOLVED = 3
    """Met: ``answer`` holds its answer."""
    FAILED = 4
    """Failed: ``failure`` says why."""
    ABANDONED = 5
    """Ended because its result is not needed any more."""


ENDED = frozenset({Status.RESOLVED, Status.FAILED, Status.ABANDONED})
"""Final statuses."""

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.OPEN: frozenset({Status.ASKED, Status.WAITING}) | ENDED,
    Status.ASKED: frozenset({Status.OPEN, Status.WAITING}) | ENDED,
    Status.WAITING: frozenset({Status.OPEN}) | ENDED,
    Status.RESOLVED: frozenset(),
    Status.FAILED: frozenset(),
    Status.ABANDONED: frozenset(),
}
"""Allowed transitions of a goal's status.

``asked -> open``: the attempt failed and may be repeated, the prompt did not fit, or the reply asks for another turn.
``waiting -> open``: the children met their join, the time came, or the goal was approved."""


class IllegalTransition(RuntimeError):
    """Transition that `TRANSITIONS` does not allow. Nothing was changed; the message holds the goal's story."""


class LostAttempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Attempt that was given up as lost. A reply that still arrives is kept: this record says what it asked on which
    route.
    """

    charge: Charge
    """Amount that is charged for the attempt."""
    question: bytes
    """Hash of the question."""
    route: int = 0
    """Index of the job's route; -1: the job has given up that route, and its price is no longer known."""
    output_max: int = 0
    """``max_tokens`` of the reply."""


LATE_MAX = 1_000
"""Attempts that were given up and whose goals have ended, for which a late reply is still settled: some 100 KB. A reply
of a dead branch comes within its outbox's time, minutes at most; what is older stays charged in full."""
NEVER = 0.0
"""Time value "never". A snapshot leaves out a field that is the default object itself, so all share this one zero."""
_FIRST_SAMPLE = "0".strip
"""Factory of the default sample. Equal texts are different objects, so this field is never left out of a snapshot. A
built-in method that returns its own text is the quickest factory there is."""


@fast_setattr
class Goal(msgspec.Struct, omit_defaults=True, gc=False):
    """Unit of work with a status. A program makes a goal with ``kind``, ``value`` and ``parent``; the loop sets the
    rest.

    A program may also set ``due_at_s``, from which the goal is open, and ``deadline_at_s``, at which it fails as
    TIMED_OUT unless it is met. Both are in seconds since 1970, as ``k.at_s`` is.
    """

    # K may hold a million goals, and each garbage collection over them would take a second. Values are plain data, so
    # no reference cycle goes through a goal.
    kind: str
    """Kind of the goal, chosen by the program."""
    value: Any = None
    """Plain data of the program."""
    parent: int = 0
    """Id of the goal that this goal serves; 0 for a top goal."""
    id: int = 0
    """Number of the goal in its job, from 1; 0 until it is added."""
    status: Status = Status.OPEN
    """Status, set by the loop."""
    depth: int = 0
    """Number of ancestors."""
    sample: str = msgspec.field(default_factory=_FIRST_SAMPLE)
    """Sample number of the question; a resample takes the next number."""
    tries: int = 0
    """Attempts made so far, over all samples."""
    broken: int = 0
    """Failed attempts of this sample, as the retry policy counts them."""
    throttles: int = 0
    """Number of these that failed by the rate limit."""
    lane: int = 0
    """Lane of the job on which the goal was last asked, or for which it waits (``JobTerms.roles``)."""
    question: bytes = b""
    """Hash of the latest question that is not yet absorbed; a reply to another question is out of date."""
    hedge: int = 0
    """Earlier attempt at the same question that is awaited besides the latest; 0: none."""
    resamples: int = 0
    """Number of resamples after refused replies."""
    refused: str = ""
    """Reason why the latest reply was refused, for the program's next prompt."""
    too_large: int = 0
    """Number of times that the prompt was too large: select must then ask for less."""
    constructor: str = ""
    """Framing of the prompt that was sent last."""
    due_at_s: float = NEVER
    """Time before which an open goal is not offered to select."""
    deadline_at_s: float = NEVER
    """Time at which the goal fails unless it is met; 0: never."""
    timeout_at_s: float = NEVER
    """Time at which the goal fails by the job's ``goal_timeout_s``; 0 before its first attempt."""
    join: Join | None = None
    """Join that the goal waits for; None: no wait for children."""
    expects: str | None = None
    """Name of the external answer that the goal waits for; empty if it waits for the program itself; None: for
    neither."""
    partial: bool = False
    """True if the awaited join could not be met in full, or its deadline passed: the result is a part."""
    children: list[int] = msgspec.field(default_factory=list)
    """Ids of its children, in order of creation."""
    children_resolved: int = 0
    """Number of resolved children."""
    children_failed: int = 0
    """Number of failed or abandoned children."""
    merged_resolved: int = 0
    """Resolved children that earlier joins have merged: a new wait is for the other children."""
    merged_failed: int = 0
    """Failed children that earlier joins have merged."""
    answer: Any = None
    """Answer of a resolved goal, as plain data."""
    failure: Failure | None = None
    """Failure of a failed goal, or of its latest call."""
    ended: int = 0
    """Number of the goal among the ended goals of the job, if the program is traced; 0 while the goal is live."""
    ended_at_s: float = NEVER
    """Time at which the goal ended, if the program is traced."""
    kept: Any = None
    """Value of the program's latest checkpoint."""
    row: str = ""
    """Key of the source row that the goal was made for; empty if none."""
    assumed: dict[int, LostAttempt] | None = None
    """Attempts given up as lost, and the charge for each until its reply arrives."""
    unsent: int = 0
    """Number of the `tries` that were taken back before anything was sent: they count as none."""
    tried: int = 0
    """Routes of equal rank that failed the latest question, as bits by place (``policies.failures.peers``)."""
    given: int = 0
    """Highest number of an attempt that a branch holds from a turn that the journal has lost; 0: none is known."""

    @property
    def next_attempt(self) -> int:
        """Number of the next attempt: no branch holds another under it."""
        return max(self.tries, self.given) + 1

    def count_attempt(self) -> int:
        """Begin the next attempt, and return its number. The numbers that it leaves out count as no attempts."""
        attempt = self.next_attempt
        self.unsent += attempt - 1 - self.tries
        self.tries = attempt
        return attempt

    @property
    def joined(self) -> bool:
        """True if the goal has children and all of them have ended."""
        return bool(self.children) and self.children_resolved + self.children_failed == len(self.children)

    def story(self) -> str:
        """Return the goal's state in one line, for an error message."""
        text = f"goal {self.id} ({self.kind}) is {self.status.name.lower()} after {self.tries} tries"
        if self.children:
            text += f", {self.children_resolved} of {len(self.children)} children resolved"
        if self.failure is not None:
            text += f"; {self.failure.kind}: {self.failure.message}"
        return text


TRIES_MAX = (1 << 20) - 1
"""Maximum number of attempts of one goal, so that a goal and an attempt fit into one number."""


def flight_key(goal: int, attempt: int) -> int:
    """Return a number that identifies an attempt: the goal in the upper bits, the attempt in the lower twenty."""
    return goal << 20 | attempt
