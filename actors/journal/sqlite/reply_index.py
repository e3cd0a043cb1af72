"""Index of remembered replies in a SQLite file, written without waiting for the disk.

Replies that a job pays for are appended unsorted, some thousands in one row, and sorted only when a job looks for a
question that may be among them: hashes are random keys, and most questions are never asked again. A job that looks
keeps the hashes of its own unsorted replies in memory; unsorted replies of other jobs are sorted in. Sorting goes first
into a small table, which fits into memory, and from there into the large table. In the large table each random key
would be a page to read and write, so many are sorted in together, as in a log-structured merge tree (O'Neil et al.
1996, https://doi.org/10.1007/s002360050048).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from actors.files.local.new_files import touched
from actors.journal.journal import StoreError
from actors.journal.sqlite.disk import disk_error
from actors.journal.sqlite.hash_set import HashSet
from actors.journal.sqlite.wal import BUSY_S, write_ahead
from cortex.journal.seals import BadSeal, opened_value, sealed_value

_ASK_AT_ONCE = 500  # old builds of SQLite accept at most 999 variables in a statement
PUT_AT_ONCE = 4_096
"""Replies in one row of the unsorted table at most."""
SORT_AT_ONCE = 131_072
"""Replies that are sorted in together: about a second, in which no other job can write."""
LEARN_MAX = 64
"""Unsorted rows whose hashes a job reads at its first lookup, at most: half a second, some 16 MB."""
KNOWN_MAX = 1_024
"""Unsorted rows of a job whose hashes are kept in memory (some 75 MB); further rows are sorted in instead."""

RECENT_MAX = 50_000
"""Replies in the small table before they are sorted into the large one: in a large table of a million, five a page."""
_CACHE_KB = 4_096
"""Kilobytes of the file that SQLite keeps in memory: the small table, and as much of the large one."""

_UNREADABLE = (sqlite3.Error, BadSeal, msgspec.MsgspecError, UnicodeDecodeError)
"""Errors of reading a damaged index. The last is of SQLite's own error, which quotes the damaged structure."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recent (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (job TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unsorted (id INTEGER PRIMARY KEY, job TEXT, replies BLOB);
"""
_TABLES = ("recent", "replies")
"""Sorted tables. Of equal hashes, the first of these tables holds the later reply."""
_SORTED = "SELECT 1 FROM replies UNION ALL SELECT 1 FROM recent LIMIT 1"
_ANYTHING = "SELECT 1 FROM replies UNION ALL SELECT 1 FROM recent UNION ALL SELECT 1 FROM unsorted LIMIT 1"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, int, int]]).decode


class FileReplyIndex:
    """``ReplyIndex`` in a SQLite file."""

    def __init__(self, path: Path, db: sqlite3.Connection | None = None) -> None:
        """Open the index in the file ``path``, or in the open database ``db``. Raises ``StoreError``."""
        self._path, self._looks = path, False
        self._known = HashSet()
        """Hashes of the unsorted replies, complete while ``_knows_all``."""
        self._last = self._left = 0
        """Number of the last unsorted row in ``_known``, and the count of removals from the unsorted table by then."""
        self._any_sorted = True
        """False if the sorted tables are known to be empty."""
        try:
            if db is None:
                touched(path)
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise unusable(path, error) from None

    def seq_of(self, job: str) -> int:
        """Return the last turn of a job that is in the index."""
        with self._reading():
            row = self._db.execute("SELECT seq FROM indexed WHERE job = ?", (job,)).fetchone()
            return int(row[0]) if row else 0

    def empty(self) -> bool:
        """Return True if the index is empty."""
        with self._reading():
            return self._db.execute(_ANYTHING).fetchone() is None

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Append replies of a job, unsorted."""
        with self._writing() as db:
            numbers = [
                db.execute(
                    "INSERT INTO unsorted (job, replies) VALUES (?, ?)",
                    (job, sealed_value(job, _encode(rows[at : at + PUT_AT_ONCE]))),
                ).lastrowid
                or 0
                for at in range(0, len(rows), PUT_AT_ONCE)
            ]
            db.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (job, seq))
        if numbers and numbers[0] == self._last + 1 and self._looks:  # otherwise other jobs have appended rows
            self._known.add([hash_ for hash_, _, _ in rows])
            self._last = numbers[-1]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise ``StoreError``, one line, for what cannot be read, or was changed on the disk."""
        try:
            yield
        except (sqlite3.Error, BadSeal, msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError) as error:
            raise unusable(self._path, error) from None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except (sqlite3.Error, BadSeal, msgspec.MsgspecError) as error:
            with contextlib.suppress(sqlite3.Error):
                # after an error of a full disk the transaction is still open, and would block all writers
                self._db.execute("ROLLBACK")
            raise StoreError(f"the index of replies: {error}") from None

    def _sort_in(self) -> None:
        """Sort in some of the unsorted replies of all jobs. The next lookups sort in the rest; none of their hashes is
        known.
        """
        self._known, self._last, self._any_sorted = HashSet(), 0, True
        self._left = _times_left(self._db)
        if self._db.execute("SELECT 1 FROM unsorted LIMIT 1").fetchone() is None:
            return
        with self._writing() as db:
            rows: list[tuple[bytes, str, int, int]] = []
            upto = 0
            for number, job, blob in db.execute("SELECT id, job, replies FROM unsorted ORDER BY id"):
                rows += ((hash_, job, seq, at) for hash_, seq, at in _opened(job, blob))
                upto = number
                if len(rows) >= SORT_AT_ONCE:
                    break
            # neighbours share a page; the sort is stable, so of equal hashes the latest comes last
            rows.sort(key=_hash_of)
            db.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?, ?, ?)", rows)
            db.execute("DELETE FROM unsorted WHERE id <= ?", (upto,))
            left = _some_left(db)
            if db.execute("SELECT count(*) FROM recent").fetchone()[0] >= RECENT_MAX:
                db.execute("INSERT OR REPLACE INTO replies SELECT * FROM recent")
                db.execute("DELETE FROM recent")
        self._left = left

    def _begin_to_look(self) -> None:
        self._looks = True
        self._left = _times_left(self._db)
        if self._db.execute("SELECT count(*) FROM unsorted").fetchone()[0] <= LEARN_MAX:
            for number, job, blob in self._db.execute("SELECT id, job, replies FROM unsorted ORDER BY id"):
                self._known.add([hash_ for hash_, _, _ in _opened(job, blob)])
                self._last = number
            self._any_sorted = self._db.execute(_SORTED).fetchone() is not None

    def _knows_all(self) -> bool:
        """Return True if no other job has appended rows or sorted them in.

        Row numbers increase by one as long as no row is removed.
        """
        last = self._db.execute("SELECT coalesce(max(id), 0) FROM unsorted").fetchone()[0]
        return (last, _times_left(self._db)) == (self._last, self._left) and last <= KNOWN_MAX

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Yield the replies of the hashes that are in the index."""
        with self._reading():
            yield from self._find(hashes)

    def _find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        if not self._looks:
            self._begin_to_look()
        new = self._known.among(hashes) if self._knows_all() else hashes
        if new:
            with contextlib.suppress(StoreError):  # on a full disk the tables are searched as they are
                self._sort_in()
            wanted = set(new)
            for job, replies in unsorted(self._db):
                yield from ((hash_, job, seq, at) for hash_, seq, at in replies if hash_ in wanted)
        asked = hashes if self._any_sorted else new
        for start in range(0, len(asked), _ASK_AT_ONCE):
            some = asked[start : start + _ASK_AT_ONCE]
            for table in _TABLES:
                yield from self._db.execute(f"SELECT hash, job, seq, position FROM {table} WHERE {_among(some)}", some)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def _hash_of(row: tuple[bytes, str, int, int]) -> bytes:
    return row[0]


def _times_left(db: sqlite3.Connection) -> int:
    """Return the count of removals from the unsorted table. After a removal, row numbers may be reused."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _some_left(db: sqlite3.Connection) -> int:
    """Increment the count of removals, within the transaction that removes; return the new count."""
    left = _times_left(db) + 1
    db.execute(f"PRAGMA user_version={left}")
    return left


def _among(hashes: Sequence[bytes]) -> str:
    return f"hash IN ({','.join('?' * len(hashes))})"


def _there(db: sqlite3.Connection) -> list[str]:
    """Return the sorted tables of an index: an index of an earlier release may lack some."""
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in _TABLES if table in found]


def whose(path: Path, question: bytes) -> tuple[str, int]:
    """Return (job, turn) that paid for a reply; no index is created."""
    try:
        with contextlib.closing(_read_only(path, 2.0)) as db:
            for job, replies in unsorted(db):
                for hash_, seq, _ in replies:
                    if hash_ == question:
                        return job, seq
            for table in _there(db):
                for job, seq in db.execute(f"SELECT job, seq FROM {table} WHERE hash = ?", (question,)):
                    return str(job), int(seq)
    except _UNREADABLE:
        pass
    return "", 0


def known(path: Path, questions: Sequence[bytes]) -> set[bytes]:
    """Return the questions that are in the index; none if the index is missing or unreadable."""
    found: set[bytes] = set()
    try:
        with contextlib.closing(_read_only(path, 10.0)) as db:
            wanted = set(questions)
            for _, replies in unsorted(db):
                found.update(hash_ for hash_, _, _ in replies if hash_ in wanted)
            for start in range(0, len(questions), _ASK_AT_ONCE):
                some = questions[start : start + _ASK_AT_ONCE]
                for table in _there(db):
                    rows = db.execute(f"SELECT hash FROM {table} WHERE {_among(some)}", some)
                    found.update(bytes(hash_) for (hash_,) in rows)
    except _UNREADABLE:
        return set()
    return found


def anything(path: Path) -> bool:
    """Return True if the index is not empty."""
    try:
        with contextlib.closing(_read_only(path, 10.0)) as db:
            sorted_in = (db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in _there(db))
            return any(sorted_in) or next(unsorted(db), None) is not None
    except _UNREADABLE:
        return False


def unsorted(db: sqlite3.Connection) -> Iterator[tuple[str, list[tuple[bytes, int, int]]]]:
    """Yield the unsorted replies, latest first, without sorting them in."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'unsorted'").fetchone() is None:
        return  # an index of release 0.1
    for job, blob in db.execute("SELECT job, replies FROM unsorted ORDER BY id DESC"):
        yield str(job), _opened(job, blob)


def _opened(job: str, blob: bytes) -> list[tuple[bytes, int, int]]:
    """Return the replies of an unsorted row. Raises ``BadSeal`` for one that was changed on the disk."""
    return _decode(opened_value(job, blob))


def _read_only(path: Path, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=timeout_s)


def unremember(path: Path, jobs: Sequence[str]) -> None:
    """Remove the replies of these jobs from the index. Raises ``StoreError``."""
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10.0)) as db:
            db.execute("PRAGMA secure_delete=ON")
            db.executescript(_SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            for table in (*_TABLES, "unsorted", "indexed"):
                db.executemany(f"DELETE FROM {table} WHERE job = ?", [(name,) for name in jobs])
            _some_left(db)
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise unusable(path, error) from None


def unusable(path: Path, error: Exception) -> StoreError:
    """Return the error for an unusable index, as one line."""
    if isinstance(error, sqlite3.Error | OSError):
        if (disk := disk_error(error, path)) is not None:
            return disk
        return StoreError(f"cannot use {path}: {error}; it is only an index and may be removed")
    return StoreError(f"{path} is damaged; it is only an index and may be removed: a job that is resumed adds its own")
