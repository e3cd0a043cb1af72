"""Progress of a round of work on a folder, measured by a check that is code.

Only facts count: the state of the folder, and the output of the check. A model's own account of its progress is
ignored, and a diary that it writes into the folder changes nothing that a check counts.

A check that counts says so in its last line with a count: ``3 missing``, ``2 failed, 5 passed``, ``FAILED
(failures=2)``.
"""

import re
from hashlib import blake2b
from typing import Final

import msgspec

REMEMBERED: Final = 64
"""Number of folder states, and of outputs, that are remembered: a repetition later than that counts as new."""

_COUNT: Final = re.compile(
    r"\b(\d+)\s+(?:failed|failing|failures?|errors?|missing|wrong|remaining|left|unmet|to do|problems?)\b"
    r"|\b(?:failed|failing|failures?|errors?|missing|wrong|remaining|left|unmet|problems?)\s*[=:]\s*(\d+)\b",
    re.IGNORECASE,
)
_VARIES: Final = re.compile(r"\d+\.\d+|0x[0-9a-fA-F]+|\d\d:\d\d:\d\d")
"""Times and addresses: they differ between runs and carry no information about the work."""


class RoundFacts(msgspec.Struct, frozen=True):
    """Facts about the folder after a round."""

    folder: str
    """Hash of names and contents."""
    said: str
    """Hash of the check's output; empty if there was none."""
    failing: int | None = None
    """Count of what is still to do, if the check counts; otherwise None."""


class ProgressSoFar(msgspec.Struct, frozen=True):
    """Facts after all rounds so far."""

    best: int | None = None
    """Lowest count so far; None if the check does not count."""
    folders: tuple[str, ...] = ()
    """Latest folder states, at most `REMEMBERED`."""
    said: tuple[str, ...] = ()
    """Latest outputs of the check, at most `REMEMBERED`."""


def failing(output: str) -> int | None:
    """Return the count of what is still to do, from the last line of the output with a count; None if there is none."""
    for line in reversed(output.splitlines()):
        counts = [int(before or after) for before, after in _COUNT.findall(line)]
        if counts:
            return sum(counts)
    return None


def fingerprint(exit_code: int | None, output: str) -> str:
    """Return a hash of the check's exit code and output without times and addresses, 16 hex digits; empty for no
    output.
    """
    if not output.strip():
        return ""
    text = f"{exit_code} {_VARIES.sub('~', output)}"
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def progressed(reached: ProgressSoFar, found: RoundFacts) -> bool:
    """Return True if the round made progress.

    A folder state of an earlier round is never progress. If the check counts, only a lower count is progress. If the
    check only prints, its output must be new. If the check prints nothing, a new folder state is enough.
    """
    if found.folder in reached.folders:
        return False
    if reached.best is not None:
        return found.failing is not None and found.failing < reached.best
    return not found.said or found.said not in reached.said


def and_now(reached: ProgressSoFar, found: RoundFacts) -> ProgressSoFar:
    """Return the facts so far, this round included."""
    counts = [count for count in (reached.best, found.failing) if count is not None]
    lines = (*reached.said, found.said) if found.said else reached.said
    return ProgressSoFar(min(counts, default=None), (*reached.folders, found.folder)[-REMEMBERED:], lines[-REMEMBERED:])
