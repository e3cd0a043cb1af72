"""Cause of a job's end, as one word of a closed list: a label of metrics, by which alerts tell ends apart."""

from __future__ import annotations

from typing import Final

from cortex.state.state import State
from policies.failures.failure import FailureKind

INTERRUPTED: Final = "interrupted"
"""Outcome of a job that has not ended, and that no process runs."""
OTHER: Final = "other"
DISK: Final = "disk"
"""Cause of an interruption that was found on a full disk: the journal could not take the reason."""
ROOM_MIN_BYTES: Final = 1 << 20
"""Free bytes below which a disk counts as full: a resume needs some pages of SQLite and its index at once."""
_CAUSES: Final = {
    "drain": "drain", "deadline": "deadline", "max_failed": "failures", "alike": "failures",
    FailureKind.OVER_BUDGET: "cap", FailureKind.BLOCKED: "blocked", FailureKind.UNAUTHORISED: "blocked",
    FailureKind.THROTTLED: "throttled", "condemned": "condemned", "waits for an answer": "answer", "retry": "retry",
}  # fmt: skip
"""Word before the colon of a reason (``cortex.loop.termination``) -> cause."""
CAUSES: Final = ("none", "cancel", "failed", INTERRUPTED, DISK, OTHER, *dict.fromkeys(_CAUSES.values()))
"""All causes."""


def cause_of(outcome: str, why: str) -> str:
    """Return the cause of an end: ``none`` of a complete job, else what ended it before its last row."""
    match outcome:
        case "complete":
            return "none"
        case "cancelled":
            return "cancel"
        case "failed" | "interrupted":
            return outcome
    return _CAUSES.get(why.partition(":")[0], OTHER)


def is_full(free_bytes: int | None) -> bool:
    """Return whether a disk with so many free bytes counts as full; None: unknown, which is not full."""
    return free_bytes is not None and free_bytes < ROOM_MIN_BYTES


def blocked_now(k: State) -> bool:
    """Return whether the job waits, or has ended, because its account, model or key is refused."""
    if k.outcome:
        return cause_of(k.outcome, k.why) == "blocked"
    return k.paused is not None and k.paused.kind in (FailureKind.BLOCKED, FailureKind.UNAUTHORISED)
