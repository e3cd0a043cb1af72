"""Simulated disk: real journals over SQLite in memory, which outlive every life, and commits during which a life may
end.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from actors.journal.journal import Journal, NoSuchJob, StoreError
from actors.journal.reply_index import FLUSH_AT, ReplyCache
from actors.journal.sqlite.reply_index import FileReplyIndex
from actors.journal.sqlite.storage import FileStorage
from tests.simulation.loop import Killed, Life

_FOLDER = Path("/simulated")
CACHED_MAX = 60
"""Commits of a file that a disk which lies about flushes may hold in its cache, at most."""


class _Connection:
    """Connection of one life to a database shared by all lives. ``fatal`` commits kill the life, before or after the
    commit.
    """

    def __init__(self, name: str, life: Life, disk: Disk) -> None:
        self._name, self._db, self._life, self._disk = name, disk.db(name), life, disk

    def execute(self, sql: str, *args: Any) -> Any:
        alone = sql.startswith("INSERT") and not self._db.in_transaction  # such a statement is its own transaction
        if sql == "COMMIT" or alone:
            return self._commit(sql, *args)
        return self._db.execute(sql, *args)

    def _commit(self, sql: str, *args: Any) -> Any:
        when = self._disk.fatal.pop(self._life.name, "")
        done = None
        if when == "before":
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        elif when == "full":
            raise sqlite3.OperationalError("database or disk is full")
        else:
            done = self._db.execute(sql, *args)
            self._disk.cache(self._name)
        if when:
            self._life.at_death()
            raise Killed(*(("committed",) if done is not None and done.rowcount else ()))  # 0 rows: fenced
        return done

    def executemany(self, sql: str, rows: Any) -> Any:
        return self._db.executemany(sql, rows)

    def executescript(self, sql: str) -> Any:
        return self._db.executescript(sql)

    def cursor(self) -> Any:
        return self._db.cursor()

    def close(self) -> None:
        """Do nothing: committed data stays."""


class SimStorage(FileStorage):
    """Storage in a database whose name may be taken away while it is open."""

    disk: Any = None

    def see_stands(self) -> None:
        """Give the database its name again, if it has lost it. Raises ``StoreError`` then, as for a file."""
        if self.disk.named_again(self.job):
            raise StoreError(f"{self.path} was removed while the job ran: it was written there again, whole, then resume")


class SimJournal(Journal):
    """Journal that reports each append to the watch."""

    watch: Any = None

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        epoch = super().take_epoch(owner, least)
        self.watch.took(self.job, epoch)
        return epoch

    def append(self, blobs: Any) -> int:
        try:
            seq = super().append(blobs)
        except Killed as killed:
            if killed.args:  # killed after the commit, before the caller was told
                self.watch.appended(self.job, self.epoch, self.seq + len(blobs), blobs)
            raise
        self.watch.appended(self.job, self.epoch, seq, blobs)
        return seq


class Disk:
    """All databases of a world. ``fatal``: by an actor's name, the end of its next commit: before, after, full.

    ``lies``: the disk says that a commit is flushed while it is in its cache, which a loss of power empties. "Most
    consumer-grade mass storage devices lie about syncing", and in WAL mode such a sync "might result in loss of
    durability but not in a corrupt database file" (https://www.sqlite.org/howtocorrupt.html, section 3.1): each frame
    has a checksum that continues that of the frame before, and recovery ends at the first that is wrong
    (https://www.sqlite.org/fileformat2.html#walformat). So what is left of a file is a prefix of its whole commits. Each
    file loses its own number. A lie during a checkpoint can damage the file; that is what flipped bits stand for.
    """

    def __init__(self, watch: Any, lies: bool = False, index_flush_at: int = FLUSH_AT) -> None:
        self._dbs: dict[str, sqlite3.Connection] = {}
        self._watch, self.lies, self.index_flush_at = watch, lies, index_flush_at
        self._cached: dict[str, deque[bytes | None]] = {}
        """By file: its content before and after each of its last commits; None: it was not there yet."""
        self._left: list[sqlite3.Connection] = []
        """Files as machines without power have left them open."""
        self.fatal: dict[str, str] = {}
        self.flipped: dict[str, list[tuple[str, int, bytes, bytes]]] = {}
        """By job: table, row, and bytes before and after each bit that has flipped."""
        self.unnamed_s: dict[str, float] = {}
        """By job: time at which something took away the name of its journal."""

    def db(self, name: str) -> sqlite3.Connection:
        """Return a database by its name, created if there is none."""
        found = self._dbs.get(name)
        if found is None:
            found = self._dbs[name] = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        return found

    def store(self, life: Life) -> Store:
        """Return the state folder for one life."""
        return Store(self, life)

    def journal(self, job: str, life: Life) -> SimJournal:
        """Return a job's journal."""
        made = SimJournal.__new__(SimJournal)
        made.watch = self._watch
        db: Any = _Connection(job, life, self)
        storage = SimStorage(_FOLDER / f"{job}.sqlite", db=db)
        storage.disk = self
        made.__init__(storage)  # type: ignore[misc]
        return made

    def flip(self, job: str, draw: Callable[[], float]) -> str:
        """Flip one bit of a record, drawn at random. Return where."""
        tables = ("turns", "snapshots", "pieces")
        found = [self.db(job).execute(f"SELECT rowid, blob FROM {table} ORDER BY rowid").fetchall() for table in tables]
        table, rows = [pair for pair in zip(tables, found, strict=True) if pair[1]][int(draw() * sum(map(bool, found)))]
        row, blob = rows[int(len(rows) * draw())]
        place = int(8 * len(blob) * draw())
        after = bytearray(blob)
        after[place // 8] ^= 1 << place % 8
        self.flipped.setdefault(job, []).append((table, row, blob, bytes(after)))
        self._put(job, table, row, bytes(after))
        return f"bit {place} of record {row} of its {table}"

    def _put(self, job: str, table: str, row: int, blob: bytes) -> None:
        self.db(job).execute(f"UPDATE {table} SET blob = ? WHERE rowid = ?", (blob, row))

    @contextmanager
    def as_written(self, job: str) -> Iterator[None]:
        """Context in which the flipped bits of a job are as they were written, for the watch."""
        flips = self.flipped.get(job, [])
        for table, row, before, _ in reversed(flips):
            self._put(job, table, row, before)
        yield
        for table, row, _, after in flips:
            self._put(job, table, row, after)

    def unname(self, job: str, now_s: float) -> None:
        """Take away the name of a job's journal, as unlink(2) does: who has it open writes on."""
        self.unnamed_s[job] = now_s

    def named_again(self, job: str) -> bool:
        """Give a journal its name again. Return whether it had lost it."""
        return self.unnamed_s.pop(job, None) is not None

    # -- loss of power -------------------------------------------------------------------------------------------------

    def cache(self, name: str) -> None:
        """Note a commit that the disk may still lose."""
        if self.lies:
            self._cached.setdefault(name, deque((None,), CACHED_MAX + 1)).append(self._dbs[name].serialize())

    def lose_power(self, draw: Callable[[], int], whole: str = "") -> dict[str, int]:
        """Lose the last commits of each file but ``whole``, as many as are drawn for it. Return their numbers, by file."""
        lost = {}
        for name, cached in sorted(self._cached.items()):
            lost[name] = count = min(draw(), len(cached) - 1) if name != whole else 0
            for _ in range(count):
                cached.pop()
            while len(cached) > 1:  # what is left was flushed
                cached.popleft()
            self._left.append(self._dbs.pop(name))
            if cached[-1] is None:
                del self._cached[name]
                continue
            with closing(sqlite3.connect(":memory:")) as kept:
                kept.deserialize(cached[-1])
                kept.backup(self.db(name))
        return lost

    def stand(self, job: str) -> tuple[int, int]:
        """Return the newest epoch and the last turn of a job's journal; (0, 0) if there is none."""
        if job not in self._dbs:
            return 0, 0
        found = self.journal(job, Life("watch", None))
        return found.newest_epoch(), found.seq

    def jobs(self) -> list[str]:
        """Return the names of jobs that have a journal."""
        return [name for name in self._dbs if name != "replies"]

    def close(self) -> None:
        """Free the databases."""
        for db in (*self._dbs.values(), *self._left):
            db.close()


class Store:
    """State folder of a world."""

    def __init__(self, disk: Disk, life: Life) -> None:
        self._disk, self._life = disk, life

    def prepare(self) -> None:
        pass

    def journal(self, job: str, *, create: bool = False) -> Journal:
        if not create and job not in self._disk.jobs():
            raise NoSuchJob(f"no job {job!r}")
        return self._disk.journal(job, self._life)

    def jobs(self) -> list[str]:
        return self._disk.jobs()

    def memory(self, job: str) -> ReplyCache:
        db: Any = _Connection("replies", self._life, self._disk)
        return ReplyCache(self, job, FileReplyIndex(_FOLDER, db), self._disk.index_flush_at)
