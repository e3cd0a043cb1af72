"""Taking jobs off the disk: all of them, or what they say and not what they came to.

What a file system, its snapshots or a backup keep of blocks that were freed is beyond us; no file of the state folder
holds it any more.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors import costs, live
from actors.budgets import FolderBooks
from actors.errors import ClearError
from actors.files.place import kept_rows
from actors.joblock import Held, hold
from actors.observing.exporters import traces_of
from actors.records import last_terms, said_in_use
from actors.store import Folder, Journal, StoreError

BESIDE = (".sqlite-wal", ".sqlite-shm", ".input", ".input.part", ".control", ".lock")
"""What may stand beside a journal, ``NAME.sqlite``; the lock goes last."""


KEPT = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".lock")
"""What stays of a job that was forgotten: its figures."""


def family(folder: Folder, job: str) -> list[str]:
    """A job and the child jobs that worked for it."""
    return [job, *sorted(name for name in folder.jobs() if name.startswith(f"{job}~"))]


def files_of(folder: Folder, job: str) -> list[Path]:
    """All files of a job alone, the journal first."""
    path = folder.journal_path(job)
    found = [path, *live.files_of(folder, job), *traces_of(folder.path, job), *_rows_of(folder, job)]
    found += [path.with_suffix(suffix) for suffix in BESIDE]
    return [each for each in found if each.exists()]


def _rows_of(folder: Folder, job: str) -> list[Path]:
    """Rows of a table that was never made whole: nothing can make one of them when the job has gone."""
    try:
        terms = last_terms(folder, job)
    except (ClearError, ValueError):
        return []
    output = terms.places.get("output", "") if terms is not None else ""
    return kept_rows(folder.path, output) if output not in ("", "-") else []


def size_bytes(folder: Folder, job: str) -> int:
    """Bytes that a job and its child jobs take on disk."""
    total = 0
    for name in family(folder, job):
        for path in files_of(folder, name):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total


def remove(folder: Folder, job: str) -> None:
    """Remove a job that nobody runs, its child jobs, and what is remembered of them; what it spent stays in the folder
    (``actors.costs``). Raises ``StoreError``."""
    names = family(folder, job)
    with _alone(folder, names):
        FolderBooks(folder).part(names)
        costs.note_removal(folder, job)
        for name in reversed(names):
            for path in files_of(folder, name):
                path.unlink(missing_ok=True)
        _unremember(folder, names)


def forget(folder: Folder, job: str, figures: dict[str, Any]) -> None:
    """Remove what a job that nobody runs asked and was answered; ``figures`` stay. Raises ``StoreError``."""
    names = family(folder, job)
    with _alone(folder, names):
        gone = [path for name in reversed(names) for path in files_of(folder, name) if name != job or _goes(path)]
        source = Journal(folder.journal_path(job), forgotten_too=True)
        try:
            source.forget(msgspec.json.encode(figures))
        finally:
            source.close()
        for path in gone:
            path.unlink(missing_ok=True)
        _unremember(folder, names)


def _goes(path: Path) -> bool:
    """Whether it holds more than a job's figures."""
    return path.suffix not in KEPT


@contextlib.contextmanager
def _alone(folder: Folder, names: Sequence[str]) -> Iterator[None]:
    """Nobody works on these jobs meanwhile."""
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                stack.enter_context(hold(folder, name))
            except Held:
                raise StoreError(said_in_use(folder, name)) from None
        yield


def _unremember(folder: Folder, names: Sequence[str]) -> None:
    """Take the replies of these jobs out of the index."""
    path = folder.path / "replies.sqlite"
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.execute("PRAGMA secure_delete=ON")
            for table in ("replies", "indexed"):
                db.executemany(f"DELETE FROM {table} WHERE job = ?", [(name,) for name in names])
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise StoreError(f"cannot use {path}: {error}; it is only an index and may be removed") from None
