"""The command line as given, for messages that show how to give it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

LENGTH_MAX = 400
"""Longest command, in characters, that a message shows."""
_HIDDEN = ("://", "--notify", "key", "cortex-job.toml")
"""Parts of arguments for which the command is not shown: addresses and keys may be secrets, and the user did not write
the job file of a command that was sent to the head of a cluster."""

_given: tuple[str, ...] = ()


def note(arguments: Sequence[str]) -> None:
    """Keep the arguments of the command that runs."""
    global _given
    _given = tuple(arguments)


def again(option: str) -> str:
    """Return the command with one more option, or words for it if the command is long or may hold a secret.

    An option that is given twice has its last value, so the further one replaces an earlier one.
    """
    text = shlex.join(["cortex", *_given])
    if not _given or len(text) > LENGTH_MAX or "\n" in text or any(part in each for each in _given for part in _HIDDEN):
        return f"the same command with {option}"
    return f"{text} {option}"
