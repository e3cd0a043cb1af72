"""Remembered replies: an index over the hashes of all questions that the journals of a state folder hold answers to.

It stays out of the commit that absorbs and can be rebuilt from the journals, so it is written lazily, without waiting
for the disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence

from actors.store import Folder, Journal, StoreError, replies_in
from cortex import events
from cortex.reply import Reply

_FLUSH_AT = 4_096
_ASK_AT_ONCE = 500  # SQLite takes at most 999 variables in a statement on old builds

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (job TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
"""


def remembered(folder: Folder, hashes: Sequence[bytes]) -> frozenset[int]:
    """Which of these questions a reply is remembered to, by their places; as far as the index knows."""
    path = folder.path / "replies.sqlite"
    if not path.exists():
        return frozenset()
    places: dict[bytes, int] = {hash_: place for place, hash_ in enumerate(hashes)}
    found: set[int] = set()
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10.0)) as db:
            for start in range(0, len(hashes), _ASK_AT_ONCE):
                some = hashes[start : start + _ASK_AT_ONCE]
                marks = ",".join("?" * len(some))
                rows = db.execute(f"SELECT hash FROM replies WHERE hash IN ({marks})", some)
                found.update(places[bytes(hash_)] for (hash_,) in rows)
    except sqlite3.Error:  # it is only an index
        return frozenset()
    return frozenset(found)


def any_remembered(folder: Folder) -> bool:
    """Whether the index holds anything."""
    path = folder.path / "replies.sqlite"
    if not path.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10.0)) as db:
            return db.execute("SELECT 1 FROM replies LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False


class Found:
    """Where a remembered reply stands, and the reply."""

    __slots__ = ("job", "position", "reply", "seq")

    def __init__(self, job: str, seq: int, position: int, reply: Reply) -> None:
        self.job, self.seq, self.position, self.reply = job, seq, position, reply


class Memory:
    """The index of one state folder, as one job's channel sees it."""

    def __init__(self, folder: Folder, job: str, db: sqlite3.Connection | None = None) -> None:
        """``db``: where the index stands if not in a file of the folder. Raises ``StoreError``."""
        self._folder = folder
        self._job = job
        self._pending: dict[bytes, tuple[int, int]] = {}
        self._seq = 0
        self._journals: dict[str, Journal] = {}
        path = folder.path / "replies.sqlite"
        try:
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            if db is None:
                path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"cannot use {path}: {error}; it is only an index and may be removed") from None

    def catch_up(self, own: Journal) -> None:
        """Take in what this job's journal holds and the index does not: its last run may have been killed."""
        row = self._db.execute("SELECT seq FROM indexed WHERE job = ?", (self._job,)).fetchone()
        after = int(row[0]) if row else 0
        if after < own.seq:
            self.note(own.seq, replies_in(own.turns(after)))

    def empty(self) -> bool:
        """Whether nothing is remembered at all: then there is no use in looking."""
        return not self._pending and self._db.execute("SELECT 1 FROM replies LIMIT 1").fetchone() is None

    def note(self, seq: int, paid: Iterable[tuple[bytes, int, int]]) -> None:
        """These replies stand in this job's journal now, whose last turn is ``seq``."""
        for hash_, where, position in paid:
            self._pending[hash_] = (where, position)
        self._seq = seq
        if len(self._pending) >= _FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Write the index. A failure costs only speed later: the journals hold the truth."""
        rows = [(hash_, self._job, seq, position) for hash_, (seq, position) in sorted(self._pending.items())]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", rows)
            self._db.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (self._job, self._seq))
            self._db.execute("COMMIT")
            self._pending.clear()
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")  # a full disk leaves it open: nobody else could write the index

    def find(self, hashes: list[bytes], own: Journal) -> dict[bytes, Found]:
        """The remembered replies among these questions."""
        places = {h: (self._job, *self._pending[h]) for h in hashes if h in self._pending}
        for start in range(0, len(hashes), _ASK_AT_ONCE):
            some = hashes[start : start + _ASK_AT_ONCE]
            marks = ",".join("?" * len(some))
            rows = self._db.execute(f"SELECT hash, job, seq, position FROM replies WHERE hash IN ({marks})", some)
            for hash_, job, seq, position in rows:
                places.setdefault(bytes(hash_), (job, seq, position))
        found = {}
        for hash_, (job, seq, position) in places.items():
            reply = self._read(job, seq, position, hash_, own)
            if reply is not None:
                found[hash_] = Found(job, seq, position, reply)
        return found

    def _read(self, job: str, seq: int, position: int, hash_: bytes, own: Journal) -> Reply | None:
        """The reply itself, or None where that journal is gone or was made anew: then it is asked again."""
        try:
            source = own if job == self._job else self._journal(job)
            event = source.event(seq, position)
        except (StoreError, sqlite3.Error):
            return None
        if isinstance(event, events.Answered) and event.hash == hash_:
            return event.reply
        return None

    def _journal(self, job: str) -> Journal:
        if job not in self._journals:
            self._journals[job] = self._folder.journal(job)
        return self._journals[job]

    def close(self) -> None:
        """Write what is pending and let go of the files."""
        self.flush()
        for other in self._journals.values():
            other.close()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
