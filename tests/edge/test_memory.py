"""The index of remembered replies: what cannot be written now is written later, and is in nobody's way."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from actors.memory import Memory
from actors.sqlite.index import FileIndex
from actors.store import Folder


def _kept(path: Path) -> set[str]:
    with sqlite3.connect(path / "replies.sqlite") as db:
        return {job for (job,) in db.execute("SELECT DISTINCT job FROM replies")}


class _Full:
    """A way to the index over which the next COMMIT finds no room; what was begun stays open, as SQLite leaves it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.full = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: object) -> object:
        if sql == "COMMIT" and self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return self._db.execute(sql, *args)


@pytest.mark.parametrize("closes", [False, True])
def test_a_full_disk_holds_up_neither_other_jobs_nor_this_one_later(tmp_path: Path, closes: bool) -> None:
    folder = Folder(tmp_path).prepare()
    db = _Full(sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, timeout=0.0))
    first = Memory(folder, "first", FileIndex(tmp_path, db))  # type: ignore[arg-type]
    first.note(1, [(b"a" * 16, 1, 0)])
    first.flush()
    assert _kept(tmp_path) == set()
    other = Memory(folder, "other", FileIndex(tmp_path, sqlite3.connect(tmp_path / "replies.sqlite", isolation_level=None, timeout=0.0)))
    other.note(1, [(b"b" * 16, 1, 0)])
    other.flush()
    assert _kept(tmp_path) == {"other"}, "the write lock was given back"
    db.full = False
    if closes:
        first.close()
    else:
        first.flush()
    assert _kept(tmp_path) == {"first", "other"}
    other.close()
