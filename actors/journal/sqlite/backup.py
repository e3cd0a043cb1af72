"""Copy of a whole state folder while its jobs run; the copy is a state folder.

Each database is copied as of one moment, despite concurrent writers (``VACUUM INTO``). The order of the copies makes
them consistent: first the index of replies, which may lack replies but names none that a later copy of a journal does
not hold; then each job's journal before those of its child jobs, so that every child that a parent began is present;
then budgets and bills, which never record less than the journals; at last all other files. A file of rows that is ahead
of its journal is truncated when the job is resumed.

https://www.sqlite.org/lang_vacuum.html#vacuuminto
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from actors.journal.journal import StoreError
from actors.journal.sqlite.storage import error_line
from actors.journal.sqlite.wal import read_structure

OF_THE_LIVING = (".lock", ".channel", ".control", ".part", "-wal", "-shm", "-journal", ".json.part")
"""Suffixes of files that describe running processes or requests to them, or are incomplete: not copied."""
_BUSY_S = 30.0


def backup(source: Path, to: Path) -> None:
    """Copy the state folder; ``to`` exists whole at the end, or not at all. Raises ``StoreError``."""
    if not (source / "jobs").is_dir():
        raise StoreError(f"there is no state folder {source}")
    if to.exists():
        raise StoreError(f"{to} is there already: name a folder that is not")
    if source == to or source in to.parents:
        raise StoreError(f"{to} is in the state folder itself: name one outside, best on another disk")
    making = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        making.mkdir(mode=0o700, parents=True)
        try:
            _copy(source, making)
            os.rename(making, to)
            _sync(to.parent)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"cannot copy to {to}: {error.strerror}") from None


def _copy(source: Path, to: Path) -> None:
    done: set[Path] = set()
    for path in _in_order(source):
        if path in done:
            continue
        done.add(path)
        copy = to / path.relative_to(source)
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.suffix == ".sqlite":
            _database(path, copy)
        else:
            with contextlib.suppress(FileNotFoundError):  # the file was removed meanwhile
                shutil.copyfile(path, copy)
        if copy.exists():
            copy.chmod(0o600)
            _sync(copy)
    for folder in (to, *(path for path in to.rglob("*") if path.is_dir())):
        _sync(folder)


def _in_order(source: Path) -> Iterator[Path]:
    """Yield the files in the order of copying. Each folder is listed only after the files before it were copied."""
    yield from source.glob("replies.sqlite")
    jobs = source / "jobs"
    for path in sorted(jobs.glob("*.sqlite")):
        if "~" not in path.name:
            yield path
    yield from sorted(jobs.glob("*~*.sqlite"), key=lambda path: (path.name.count("~"), path.name))
    yield from sorted(source.glob("*.sqlite"))
    for path in sorted(source.rglob("*")):
        alive = path.name.endswith(OF_THE_LIVING) or path.is_relative_to(source / "live")
        if path.is_file() and path.suffix != ".sqlite" and not alive:
            yield path


def _database(path: Path, copy: Path) -> None:
    try:
        db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_S)
        with closing(db):
            read_structure(db)
            db.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        if path.exists():  # otherwise the job was removed meanwhile
            raise error_line(error, path) from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
