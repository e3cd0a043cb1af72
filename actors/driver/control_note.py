"""Request of one process to a job that another process runs: a note in the state folder, which the job's driver polls.

The note names the run that is meant, so that a later run does not obey it. There is one note at a time: a second
request waits until the first was obeyed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from actors.common.process_owner import Owner
from actors.journal.journal import StateFolder, StoreError


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a run. ``how``: ``drain``, ``cancel``, ``set``, ``servers`` or ``answer``; ``who``: its author;
    ``owner``: the run."""

    how: str
    who: str
    owner: Owner
    limits: dict[str, Any] = msgspec.field(default_factory=dict)
    """For ``set``: new values of fields of ``cortex.values.limits.Limits``."""
    answers: dict[str, Any] = msgspec.field(default_factory=dict)
    """For ``answer``: answers to waiting goals, by name."""
    servers: tuple[str, ...] = ()
    """For ``servers``: addresses of all servers that share the work from now on."""
    taken: bool = False
    """True once the run keeps the order, which its channel does not have yet."""

    def is_for(self, owner: Owner) -> bool:
        """Return whether the request is meant for this run."""
        theirs = self.owner
        return (theirs.host, theirs.pid, theirs.started) == (owner.host, owner.pid, owner.started)


_KIND = "control"


def leave(folder: StateFolder, job: str, wanted: ControlRequest) -> bool:
    """Leave a request for a job's driver, atomically. Return False if another request still waits. Raises
    ``StoreError``.
    """
    before = folder.note(_KIND, job)
    if _meant(before, wanted.owner) is not None:
        return False  # otherwise the note was for an earlier run, or is invalid
    return folder.swap_note(_KIND, job, before, msgspec.json.encode(wanted))


def waits(folder: StateFolder, job: str) -> bool:
    """Return whether a request waits that was not obeyed yet."""
    return folder.note(_KIND, job) is not None


def read(folder: StateFolder, job: str, owner: Owner) -> ControlRequest | None:
    """Return the request to this run, if any."""
    try:
        return _meant(folder.note(_KIND, job), owner)
    except StoreError:
        return None  # the driver polls again


def _meant(blob: bytes | None, owner: Owner) -> ControlRequest | None:
    try:
        wanted = msgspec.json.decode(blob or b"", type=ControlRequest)
    except msgspec.DecodeError:
        return None
    return wanted if wanted.is_for(owner) else None


def take(folder: StateFolder, job: str, wanted: ControlRequest) -> bool:
    """Note that the run keeps this order until its channel has it. Return False if the order waits no more."""
    with contextlib.suppress(StoreError):
        before = folder.note(_KIND, job)
        if _meant(before, wanted.owner) == wanted:
            kept = msgspec.structs.replace(wanted, taken=True)
            return folder.swap_note(_KIND, job, before, msgspec.json.encode(kept))
    return False


def obeyed(folder: StateFolder, job: str, wanted: ControlRequest | None = None) -> None:
    """Remove the request: its effect is in the journal, where its author can see it. ``wanted``: what was obeyed; None
    removes any. Another request stays, whose author came after that of the first had gone."""
    with contextlib.suppress(StoreError):
        there = None if wanted is None else _meant(folder.note(_KIND, job), wanted.owner)
        if wanted is None or (there is not None and _asked(there) == _asked(wanted)):
            folder.drop_note(_KIND, job)


def _asked(wanted: ControlRequest) -> ControlRequest:
    return msgspec.structs.replace(wanted, taken=False)
