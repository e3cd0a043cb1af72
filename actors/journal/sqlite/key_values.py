"""Small values of a state folder in a SQLite file, whose transactions serialize their writers."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from actors.files.local.new_files import touched
from actors.journal.journal import StoreError
from actors.journal.sqlite.wal import BUSY_S, write_ahead
from cortex.journal.seals import SET, BadSeal, opened_set, sealed_set, sealed_value

T = TypeVar("T")

LISTED = 1
"""Version in the header of a file (https://sqlite.org/pragma.html#pragma_user_version) whose values are listed in a row
``SET``. The header is in another page than the values, so that no fault of one page hides that there were some."""


class FileKeyValues:
    """``KeyValues`` in a SQLite file. The file and its table have the same name; the first write creates them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = path.stem

    def read(self) -> dict[str, bytes]:
        """Return all values by name."""
        if not self._path.exists():
            return {}
        with self._open() as db:
            return self._read(db)

    def now_s(self) -> float:
        """Return the time of this machine."""
        return time.time()

    def change(self, how: Callable[[dict[str, bytes]], tuple[Mapping[str, bytes | None], T]]) -> T:
        """Apply ``how`` under the write lock."""
        with self._open() as db, _writing(db):
            there = self._read(db)
            changed, answer = how(dict(there))
            put = f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)"
            for name, value in changed.items():
                if value is None:
                    there.pop(name, None)
                    db.execute(f"DELETE FROM {self._table} WHERE name = ?", (name,))
                else:
                    there[name] = value
                    db.execute(put, (name, sealed_value(name, value)))
            if changed:
                db.execute(put, (SET, sealed_set(there)))
                db.execute(f"PRAGMA user_version = {LISTED}")  # in the transaction, as all of page 1
            return answer

    def _read(self, db: sqlite3.Connection) -> dict[str, bytes]:
        rows = db.execute(f"SELECT name, blob FROM {self._table} ORDER BY name")
        try:
            return opened_set(rows, listed=_version(db) != 0)
        except BadSeal as error:
            what = f"{self._path} is damaged at {error}: restore it from a backup"
            raise StoreError(f"{what}, or remove it and set its {self._table} again") from None

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        table = f"{self._table} (name TEXT PRIMARY KEY, blob BLOB NOT NULL)"
        try:
            touched(self._path)
            with contextlib.closing(sqlite3.connect(self._path, isolation_level=None, timeout=BUSY_S)) as db:
                write_ahead(db)
                db.execute("PRAGMA synchronous=FULL")
                if not _version(db):  # a file that has a version lost its table, and must not get an empty one
                    db.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
                yield db
        except (sqlite3.Error, OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot use {self._path}: {error}") from None


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
