"""What one process wants of a job that another one runs: a small file beside the journal, which its driver looks for.

It names the run that is meant, so that one who comes later does not obey what was said to another.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from actors.opening import Owner
from actors.store import Folder


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """``how``: ``drain`` or ``cancel``; ``who`` wants it; of which run."""

    how: str
    who: str
    owner: Owner


def path_of(folder: Folder, job: str) -> Path:
    """Where it stands until it has been obeyed."""
    return folder.journal_path(job).with_suffix(".control")


def leave(folder: Folder, job: str, wanted: Wanted) -> Path:
    """Leave a wish for a job's driver; it appears whole or not at all. Raises ``OSError``."""
    path = path_of(folder, job)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(msgspec.json.encode(wanted))
    os.replace(part, path)
    return path


def read(folder: Folder, job: str, owner: Owner) -> Wanted | None:
    """What is wanted of this run, if anything."""
    try:
        wanted = msgspec.json.decode(path_of(folder, job).read_bytes(), type=Wanted)
    except (OSError, msgspec.DecodeError):
        return None
    theirs, ours = wanted.owner, owner
    return (
        wanted if (theirs.host, theirs.pid, theirs.started) == (ours.host, ours.pid, ours.started) else None
    )


def obeyed(folder: Folder, job: str) -> None:
    """It is in the journal: whoever waits for it may see that."""
    with contextlib.suppress(OSError):
        path_of(folder, job).unlink()
