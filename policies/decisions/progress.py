"""Did a round of work on a folder get anywhere, by what a check written in code found there?

Facts alone count: the state of the folder, and what the check said of it. What a model says of its progress is not
looked at, and a diary that it writes into the folder changes nothing that a check counts.

A check that counts says so in its last such line: ``3 missing``, ``2 failed, 5 passed``, ``FAILED (failures=2)``.
"""

import re
from hashlib import blake2b
from typing import Final

import msgspec

REMEMBERED: Final = 64
"""States of the folder, and findings, that are remembered: what comes again later than that is taken for new."""

_COUNT: Final = re.compile(
    r"\b(\d+)\s+(?:failed|failing|failures?|errors?|missing|wrong|remaining|left|unmet|to do|problems?)\b"
    r"|\b(?:failed|failing|failures?|errors?|missing|wrong|remaining|left|unmet|problems?)\s*[=:]\s*(\d+)\b",
    re.IGNORECASE,
)
_VARIES: Final = re.compile(r"\d+\.\d+|0x[0-9a-fA-F]+|\d\d:\d\d:\d\d")
"""Times and addresses: they differ from run to run and say nothing of the work."""


class Found(msgspec.Struct, frozen=True):
    """What is true of the folder after a round."""

    folder: str
    """Hash over names and contents."""
    said: str
    """Hash over what the check said; empty where it said nothing."""
    failing: int | None = None
    """How much is still to do, where the check counts it."""


class Reached(msgspec.Struct, frozen=True):
    """What was true after any round so far."""

    best: int | None = None
    folders: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def failing(output: str) -> int | None:
    """How much is still to do, by the last line of the check's output that counts it; None where none does."""
    for line in reversed(output.splitlines()):
        counts = [int(before or after) for before, after in _COUNT.findall(line)]
        if counts:
            return sum(counts)
    return None


def fingerprint(exit_code: int | None, output: str) -> str:
    """What the check said, times and addresses apart, 16 hex digits; empty where it said nothing."""
    if not output.strip():
        return ""
    text = f"{exit_code} {_VARIES.sub('~', output)}"
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def progressed(reached: Reached, found: Found) -> bool:
    """Whether the round got anywhere.

    A folder as it was after some earlier round never is progress. Where the check counts, less to do is, and nothing
    else. Where it only speaks, it must say what it has not said before; where it is silent, a new folder will do.
    """
    if found.folder in reached.folders:
        return False
    if reached.best is not None:
        return found.failing is not None and found.failing < reached.best
    return not found.said or found.said not in reached.said


def and_now(reached: Reached, found: Found) -> Reached:
    """What was true so far, this round included."""
    counts = [count for count in (reached.best, found.failing) if count is not None]
    said = (*reached.said, found.said) if found.said else reached.said
    return Reached(
        min(counts, default=None), (*reached.folders, found.folder)[-REMEMBERED:], said[-REMEMBERED:]
    )
