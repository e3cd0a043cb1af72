"""The index of remembered replies in a SQLite file, written without waiting for the disk.

What a job pays for is put down as it comes, some thousand replies in one row, and sorted in when somebody looks for a
question that may be among them: hashes are random keys, and most jobs pay for what nobody asks again. Who looks knows
the hashes of what it puts down itself; what others put down meanwhile is sorted in. It is sorted into a small table
first, which memory holds, and from there into the large one: there each random key would be a page to be read and
written, so many are sorted in together, as in a log-structured merge tree (O'Neil et al. 1996,
https://doi.org/10.1007/s002360050048).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from actors.journal.journal import DiskFull, StoreError
from actors.journal.sqlite.hash_set import HashSet
from actors.journal.sqlite.storage import FULL
from actors.journal.sqlite.wal import BUSY_S, write_ahead

_ASK_AT_ONCE = 500  # SQLite takes at most 999 variables in a statement on old builds
PUT_AT_ONCE = 4_096
"""Replies in one row of the unsorted, at the most."""
SORT_AT_ONCE = 131_072
"""So many replies are sorted in together: about a second, in which nobody else can write."""
LEARN_MAX = 64
"""Of so many unsorted rows that were there before a job looks it learns the hashes: half a second, some 16 MB."""
KNOWN_MAX = 1_024
"""A job that has put down more than so many rows since has them sorted in, and goes on without: some 75 MB."""

RECENT_MAX = 50_000
"""As many are in the small table before it is sorted into the large one: of a million there, each page gets five."""
_CACHE_KB = 4_096
"""What SQLite may keep of the file in memory: the small table, and as much of the large one."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS replies (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS recent (hash BLOB PRIMARY KEY, job TEXT, seq INTEGER, position INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (job TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unsorted (id INTEGER PRIMARY KEY, job TEXT, replies BLOB);
"""
_TABLES = ("recent", "replies")
"""What is sorted; of equal hashes, the first of these has the later."""
_SORTED = "SELECT 1 FROM replies UNION ALL SELECT 1 FROM recent LIMIT 1"
_ANYTHING = "SELECT 1 FROM replies UNION ALL SELECT 1 FROM recent UNION ALL SELECT 1 FROM unsorted LIMIT 1"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, int, int]]).decode


class FileReplyIndex:
    """As ``ReplyIndex`` has it."""

    def __init__(self, path: Path, db: sqlite3.Connection | None = None) -> None:
        """``db``: where it stands if not in a file at ``path``. Raises ``StoreError``."""
        self._looks = False
        self._known = HashSet()
        """What is unsorted, as long as ``_knows_all``."""
        self._last = self._left = 0
        """The number of the last row of that; how often rows had left by then."""
        self._any_sorted = True
        """Whether anything may be in the tables."""
        try:
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            if db is None:
                path.chmod(0o600)
            write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise unusable(path, error) from None

    def seq_of(self, job: str) -> int:
        """The last turn of a job that is in the index."""
        row = self._db.execute("SELECT seq FROM indexed WHERE job = ?", (job,)).fetchone()
        return int(row[0]) if row else 0

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return self._db.execute(_ANYTHING).fetchone() is None

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Add replies of a job."""
        with self._writing() as db:
            numbers = [
                db.execute(
                    "INSERT INTO unsorted (job, replies) VALUES (?, ?)", (job, _encode(rows[at : at + PUT_AT_ONCE]))
                ).lastrowid
                or 0
                for at in range(0, len(rows), PUT_AT_ONCE)
            ]
            db.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (job, seq))
        if numbers and numbers[0] == self._last + 1 and self._looks:  # else others have put down some
            self._known.add([hash_ for hash_, _, _ in rows])
            self._last = numbers[-1]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")  # a full disk leaves it open: nobody else could write the index
            raise StoreError(f"the index of replies: {error}") from None

    def _sort_in(self) -> None:
        """Some of what was put down unsorted, by whomever. The rest follows at the next looks; none of it is known."""
        self._known, self._last, self._any_sorted = HashSet(), 0, True
        self._left = _times_left(self._db)
        if self._db.execute("SELECT 1 FROM unsorted LIMIT 1").fetchone() is None:
            return
        with self._writing() as db:
            rows: list[tuple[bytes, str, int, int]] = []
            upto = 0
            for number, job, blob in db.execute("SELECT id, job, replies FROM unsorted ORDER BY id"):
                rows += ((hash_, job, seq, at) for hash_, seq, at in _decode(blob))
                upto = number
                if len(rows) >= SORT_AT_ONCE:
                    break
            rows.sort(key=_hash_of)  # neighbours share a page; of equal ones the last put down stays the last
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
            for number, blob in self._db.execute("SELECT id, replies FROM unsorted ORDER BY id"):
                self._known.add([hash_ for hash_, _, _ in _decode(blob)])
                self._last = number
            self._any_sorted = self._db.execute(_SORTED).fetchone() is not None

    def _knows_all(self) -> bool:
        """Whether nobody else has put anything down, or sorted it in: while no row leaves, numbers go up by one."""
        last = self._db.execute("SELECT coalesce(max(id), 0) FROM unsorted").fetchone()[0]
        return (last, _times_left(self._db)) == (self._last, self._left) and last <= KNOWN_MAX

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Those that are there."""
        if not self._looks:
            self._begin_to_look()
        new = self._known.among(hashes) if self._knows_all() else hashes
        if new:
            with contextlib.suppress(StoreError):  # a full disk: it is looked through as it is
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
        """Let go of the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()


def _hash_of(row: tuple[bytes, str, int, int]) -> bytes:
    return row[0]


def _times_left(db: sqlite3.Connection) -> int:
    """How often unsorted rows have left: the numbers of those may come again."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _some_left(db: sqlite3.Connection) -> int:
    """To be said in the same transaction; how often they have left now."""
    left = _times_left(db) + 1
    db.execute(f"PRAGMA user_version={left}")
    return left


def _among(hashes: Sequence[bytes]) -> str:
    return f"hash IN ({','.join('?' * len(hashes))})"


def _there(db: sqlite3.Connection) -> list[str]:
    """The sorted tables that an index has: one that an earlier release made may have fewer."""
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in _TABLES if table in found]


def whose(path: Path, question: bytes) -> tuple[str, int]:
    """The job that has paid for a reply, and in which turn; nothing is made where no index is."""
    try:
        with contextlib.closing(_read_only(path, 2.0)) as db:
            for job, replies in unsorted(db):
                for hash_, seq, _ in replies:
                    if hash_ == question:
                        return job, seq
            for table in _there(db):
                for job, seq in db.execute(f"SELECT job, seq FROM {table} WHERE hash = ?", (question,)):
                    return str(job), int(seq)
    except sqlite3.Error:
        pass
    return "", 0


def known(path: Path, questions: Sequence[bytes]) -> set[bytes]:
    """Those of the questions that are in the index; none where there is no index, or it cannot be read."""
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
    except sqlite3.Error:
        return set()
    return found


def anything(path: Path) -> bool:
    """Whether anything is in the index."""
    try:
        with contextlib.closing(_read_only(path, 10.0)) as db:
            sorted_in = (db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in _there(db))
            return any(sorted_in) or next(unsorted(db), None) is not None
    except sqlite3.Error:
        return False


def unsorted(db: sqlite3.Connection) -> Iterator[tuple[str, list[tuple[bytes, int, int]]]]:
    """What was put down and nobody has looked for yet, the latest first; for those who only read."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'unsorted'").fetchone() is None:
        return  # an index that no release after 0.1 has opened
    for job, blob in db.execute("SELECT job, replies FROM unsorted ORDER BY id DESC"):
        yield str(job), _decode(blob)


def _read_only(path: Path, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=timeout_s)


def unremember(path: Path, jobs: Sequence[str]) -> None:
    """Take the replies of these jobs out of the index. Raises ``StoreError``."""
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


def unusable(path: Path, error: sqlite3.Error) -> StoreError:
    """What is wrong with the index, as one line."""
    if any(word in str(error) for word in FULL):
        return DiskFull(f"the disk that holds {path} is full ({error}): make room, then resume")
    return StoreError(f"cannot use {path}: {error}; it is only an index and may be removed")
