"""What one process wants of a job that another one runs: a note beside the journal, which its driver looks for.

It names the run that is meant, so that one who comes later does not obey what was said to another. There is one at a
time: whoever comes second waits until the first was obeyed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from actors.common.process_owner import Owner
from actors.journal.journal import StateFolder, StoreError


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``how``: ``drain``, ``cancel``, ``set`` or ``answer``; ``who`` wants it; of which run."""

    how: str
    who: str
    owner: Owner
    limits: dict[str, Any] = msgspec.field(default_factory=dict)
    """With ``set``: fields of ``cortex.values.limits.Limits``, and what they shall be."""
    answers: dict[str, Any] = msgspec.field(default_factory=dict)
    """With ``answer``: what was waited for, by name."""

    def is_for(self, owner: Owner) -> bool:
        """Whether this run is meant."""
        theirs = self.owner
        return (theirs.host, theirs.pid, theirs.started) == (owner.host, owner.pid, owner.started)


_KIND = "control"


def leave(folder: StateFolder, job: str, wanted: ControlRequest) -> bool:
    """Leave a wish for a job's driver; it appears whole or not at all. False where another one still waits there.

    Raises ``StoreError``.
    """
    before = folder.note(_KIND, job)
    if _meant(before, wanted.owner) is not None:
        return False  # else it was for a run that is over, or is none
    return folder.swap_note(_KIND, job, before, msgspec.json.encode(wanted))


def waits(folder: StateFolder, job: str) -> bool:
    """Whether a wish stands there that nobody has obeyed yet."""
    return folder.note(_KIND, job) is not None


def read(folder: StateFolder, job: str, owner: Owner) -> ControlRequest | None:
    """What is wanted of this run, if anything."""
    try:
        return _meant(folder.note(_KIND, job), owner)
    except StoreError:
        return None  # it is looked for again


def _meant(blob: bytes | None, owner: Owner) -> ControlRequest | None:
    try:
        wanted = msgspec.json.decode(blob or b"", type=ControlRequest)
    except msgspec.DecodeError:
        return None
    return wanted if wanted.is_for(owner) else None


def obeyed(folder: StateFolder, job: str) -> None:
    """It is in the journal: whoever waits for it may see that."""
    with contextlib.suppress(StoreError):
        folder.drop_note(_KIND, job)
