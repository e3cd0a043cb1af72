"""What one process wants of a job that another one runs: a small file beside the journal, which its driver looks for.

It names the run that is meant, so that one who comes later does not obey what was said to another. There is one at a
time: whoever comes second waits until the first was obeyed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec

from actors.opening import Owner
from actors.store import Folder


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """``how``: ``drain``, ``cancel``, ``set`` or ``answer``; ``who`` wants it; of which run."""

    how: str
    who: str
    owner: Owner
    limits: dict[str, Any] = msgspec.field(default_factory=dict)
    """With ``set``: fields of ``cortex.limits.Limits``, and what they shall be."""
    answers: dict[str, Any] = msgspec.field(default_factory=dict)
    """With ``answer``: what was waited for, by name."""

    def is_for(self, owner: Owner) -> bool:
        """Whether this run is meant."""
        theirs = self.owner
        return (theirs.host, theirs.pid, theirs.started) == (owner.host, owner.pid, owner.started)


def path_of(folder: Folder, job: str) -> Path:
    """Where it stands until it has been obeyed."""
    return folder.journal_path(job).with_suffix(".control")


def leave(folder: Folder, job: str, wanted: Wanted) -> Path | None:
    """Leave a wish for a job's driver; it appears whole or not at all. None where another one still waits there.

    Raises ``OSError``.
    """
    path = path_of(folder, job)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(msgspec.json.encode(wanted))
    try:
        os.link(part, path)
    except FileExistsError:
        if _read(path, wanted.owner) is not None:
            return None
        os.replace(part, path)  # it was for a run that is over, or is none
    finally:
        part.unlink(missing_ok=True)
    return path


def read(folder: Folder, job: str, owner: Owner) -> Wanted | None:
    """What is wanted of this run, if anything."""
    return _read(path_of(folder, job), owner)


def _read(path: Path, owner: Owner) -> Wanted | None:
    try:
        wanted = msgspec.json.decode(path.read_bytes(), type=Wanted)
    except (OSError, msgspec.DecodeError):
        return None
    return wanted if wanted.is_for(owner) else None


def obeyed(folder: Folder, job: str) -> None:
    """It is in the journal: whoever waits for it may see that."""
    with contextlib.suppress(OSError):
        path_of(folder, job).unlink()
