"""The index of remembered replies in a SQLite file, written without waiting for the disk."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from actors.store import StoreError

_ASK_AT_ONCE = 500  # SQLite takes at most 999 variables in a statement on old builds

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (job TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
"""


class FileIndex:
    """As ``Index`` has it."""

    def __init__(self, path: Path, db: sqlite3.Connection | None = None) -> None:
        """``db``: where it stands if not in a file at ``path``. Raises ``StoreError``."""
        try:
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            if db is None:
                path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise unusable(path, error) from None

    def seq_of(self, job: str) -> int:
        """The last turn of a job that is in the index."""
        row = self._db.execute("SELECT seq FROM indexed WHERE job = ?", (job,)).fetchone()
        return int(row[0]) if row else 0

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return self._db.execute("SELECT 1 FROM replies LIMIT 1").fetchone() is None

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Add replies of a job."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", _of(job, rows))
            self._db.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (job, seq))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")  # a full disk leaves it open: nobody else could write the index
            raise StoreError(f"the index of replies: {error}") from None

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Those that are there."""
        for start in range(0, len(hashes), _ASK_AT_ONCE):
            some = hashes[start : start + _ASK_AT_ONCE]
            marks = ",".join("?" * len(some))
            yield from self._db.execute(f"SELECT hash, job, seq, position FROM replies WHERE hash IN ({marks})", some)

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def _of(job: str, rows: Sequence[tuple[bytes, int, int]]) -> Iterator[tuple[bytes, str, int, int]]:
    return ((hash_, job, seq, position) for hash_, seq, position in rows)


def whose(path: Path, question: bytes) -> tuple[str, int]:
    """The job that has paid for a reply, and in which turn; nothing is made where no index is."""
    try:
        with contextlib.closing(_read_only(path, 2.0)) as db:
            row = db.execute("SELECT job, seq FROM replies WHERE hash = ?", (question,)).fetchone()
    except sqlite3.Error:
        return "", 0
    return (str(row[0]), int(row[1])) if row else ("", 0)


def known(path: Path, questions: Sequence[bytes]) -> set[bytes]:
    """Those of the questions that are in the index; none where there is no index, or it cannot be read."""
    found: set[bytes] = set()
    try:
        with contextlib.closing(_read_only(path, 10.0)) as db:
            for start in range(0, len(questions), _ASK_AT_ONCE):
                some = questions[start : start + _ASK_AT_ONCE]
                rows = db.execute(f"SELECT hash FROM replies WHERE hash IN ({','.join('?' * len(some))})", some)
                found.update(bytes(hash_) for (hash_,) in rows)
    except sqlite3.Error:
        return set()
    return found


def anything(path: Path) -> bool:
    """Whether anything is in the index."""
    try:
        with contextlib.closing(_read_only(path, 10.0)) as db:
            return db.execute("SELECT 1 FROM replies LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False


def _read_only(path: Path, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=timeout_s)


def unremember(path: Path, jobs: Sequence[str]) -> None:
    """Take the replies of these jobs out of the index. Raises ``StoreError``."""
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.execute("PRAGMA secure_delete=ON")
            for table in ("replies", "indexed"):
                db.executemany(f"DELETE FROM {table} WHERE job = ?", [(name,) for name in jobs])
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unusable(path, error) from None


def unusable(path: Path, error: sqlite3.Error) -> StoreError:
    """What is wrong with the index, as one line."""
    return StoreError(f"cannot use {path}: {error}; it is only an index and may be removed")
