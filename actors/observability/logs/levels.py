"""Log level of a job's end and of its pauses: by what a person must do.

``error``: the job cannot go on until somebody acts (credit, a key, room on a disk, a program that kills its process).
``warning``: a limit that somebody set has ended it, and somebody decides whether it is raised. ``info``: it is
complete, or was stopped on purpose.
"""

from __future__ import annotations

import logging
from typing import Final

from policies.failures.failure import FailureKind

_BY_REASON: Final = {
    "drain": logging.INFO, "cancel": logging.INFO, "waits": logging.INFO, "deadline": logging.WARNING,
    FailureKind.OVER_BUDGET: logging.WARNING, FailureKind.THROTTLED: logging.WARNING,
    FailureKind.BLOCKED: logging.ERROR, FailureKind.UNAUTHORISED: logging.ERROR, "condemned": logging.ERROR,
    "max_failed": logging.ERROR, "alike": logging.ERROR,
}  # fmt: skip
"""Level by the first word of the reason for which a job stopped or is paused."""


def level_of_end(outcome: str, why: str) -> int:
    """Return the level of the line that tells a job's end. A reason that is not in the table counts as ``warning``."""
    if outcome in ("complete", "cancelled"):
        return logging.INFO
    if outcome == "failed":
        return logging.ERROR
    return level_of_pause(why)


def level_of_pause(kind: str) -> int:
    """Return the level of the line that tells why a job is paused or partial; by its first word."""
    return _BY_REASON.get(kind.partition(":")[0].partition(" ")[0], logging.WARNING)
