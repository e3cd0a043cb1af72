"""What the journals of a state folder tell of their jobs, read without touching them and without a runtime."""

from __future__ import annotations

import msgspec

from actors.joblock import is_held
from actors.opening import Owner
from actors.store import Folder, Journal
from cortex import journal
from cortex.limits import Terms


def last_owner(folder: Folder, job: str) -> Owner | None:
    """Who began the latest run of a job; None for a job that never began."""
    path = folder.journal_path(job)
    if not path.exists():
        return None
    source = Journal(path)
    try:
        blob = source.meta("owner")
    finally:
        source.close()
    return msgspec.json.decode(blob, type=Owner) if blob else None


def last_terms(folder: Folder, job: str) -> Terms | None:
    """The terms under which a job was last opened; None for one that never was."""
    path = folder.journal_path(job)
    if not path.exists():
        return None
    source = Journal(path)
    try:
        for _, turn in source.turns(source.opened_at()):
            return journal.opening(turn)
        return None
    finally:
        source.close()


def in_use(folder: Folder, job: str) -> str:
    """Who works on a job now, as one line that says what to do; empty where nobody does."""
    return said_in_use(folder, job) if is_held(folder, job) else ""


def said_in_use(folder: Folder, job: str) -> str:
    """The line for a job that another run holds."""
    owner = last_owner(folder, job)
    whom = (
        f"process {owner.pid} on {owner.host}" if owner is not None else "another run that is just beginning"
    )
    return f"job {job} is in use by {whom}: wait for it, end it with `cortex cancel {job}`, or give another --job"
