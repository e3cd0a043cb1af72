"""Journal of one job in a SQLite file: write-ahead log, ``synchronous=FULL``, one commit a turn."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from actors.files.local.new_files import touched
from actors.files.local.os_errors import told
from actors.journal import fact_digests
from actors.journal.journal import Damaged, Fenced, NoSuchJob, StoreError
from actors.journal.sqlite.disk import disk_error
from actors.journal.sqlite.wal import BUSY_S, write_ahead
from actors.journal.state_folder import advised
from cortex.journal.seals import BadSeal
from cortex.journal.snapshots import HEAD_BYTES, PieceSpan

WAL_PAGES = 250
"""Pages (1 MB) after which the write-ahead log is checkpointed and overwritten from its beginning. To overwrite a file
costs a disk half of what it costs to extend it, so an early checkpoint pays; with SQLite's default of 1,000 pages short
chains of commits are a tenth to a quarter slower."""

_FLUSH_FAILED = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
_APPEND = "INSERT INTO turns SELECT ?, ? FROM meta WHERE key = 'epoch' AND value = ?"
_OLD_SNAPSHOTS = """
DELETE FROM snapshots WHERE seq < (SELECT min(seq) FROM (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?))
"""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, emitted INTEGER NOT NULL, blob BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pieces (place INTEGER PRIMARY KEY, blob BLOB NOT NULL);
"""


def _place(generation: int, number: int) -> int:
    """Return the key of a piece in its table; keys are in the order in which the pieces were made."""
    return generation << 32 | number


def _places(span: PieceSpan) -> tuple[int, int]:
    """Return the keys of the first and the last piece of a span."""
    return _place(span.generation, span.first), _place(span.generation, span.last)


class FileStorage:
    """``Storage`` in a SQLite file."""

    remote = False

    def __init__(self, path: Path, *, create: bool = False, db: sqlite3.Connection | None = None) -> None:
        """Open the journal in the file ``path``, or in the open database ``db``, where ``path`` only names the job.

        Raises ``StoreError``.
        """
        if db is None and not create and not path.exists():
            jobs = advised(path.parent.parent, "jobs")
            raise NoSuchJob(f"no job {path.stem!r} in {path.parent.parent}; `{jobs}` lists what is there")
        self.path = path
        self.job = path.stem
        self._lock = threading.Lock()
        """Lock of writers: a channel may commit in a thread while its event loop stores notices."""
        self._failed: StoreError | None = None
        """Error of a flush that failed, after which nothing is written any more."""
        try:
            if create and db is None:
                touched(path)
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            self._stat = path.stat() if db is None else None
            write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA fullfsync=ON")  # macOS: without it, flushed data may still be in the disk's cache
            self._db.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise error_line(error, path) from None

    def close(self) -> None:
        """Checkpoint the write-ahead log and close the file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._db.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self, epoch: int = 0) -> Iterator[None]:
        with self._lock:
            if self._failed is not None:
                raise self._failed
            try:
                self._db.execute("BEGIN IMMEDIATE")
                if epoch and self.meta("epoch") != b"%d" % epoch:
                    raise self._fenced()
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                if isinstance(error, (sqlite3.Error, OSError)):
                    raise self._noted(error) from None
                raise

    def _noted(self, error: sqlite3.Error | OSError) -> StoreError:
        """Return the error of a write in words, and note that of a failed flush.

        What was to be flushed may be on the disk or not, and a later flush that succeeds does not say
        (https://wiki.postgresql.org/wiki/Fsync_Errors). SQLite would write the next transaction over this one, and the
        rest of this one behind it would look like turns that were damaged.
        """
        found = error_line(error, self.path)
        if getattr(error, "sqlite_errorcode", 0) in _FLUSH_FAILED:
            self._failed = found
        return found

    def _fenced(self) -> Fenced:
        return Fenced(f"{self.job}: another run has taken the job over")

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """Take the next epoch under the write lock."""
        with self._writing():
            found = self.meta("epoch")
            epoch = max(least, int(found) + 1 if found is not None else 1)
            facts = {"epoch": b"%d" % epoch, "owner": owner}
            if self.meta("sealed") is None:
                facts["sealed"] = b"%d %d" % (max(self.last(), int(self.meta("dropped") or 0)) + 1, epoch)
            self._put_facts(facts)
        return epoch

    def _put_facts(self, facts: Mapping[str, bytes]) -> None:
        """Store facts and their checksums, within a transaction."""
        digests = self.facts()
        if digests is None:
            try:
                digests = fact_digests.of(self._rows("SELECT key, value FROM meta", (), at_once=True))
            except BadSeal:
                raise self._damaged("one of its facts") from None
        digests |= fact_digests.of(facts.items())
        rows = [*facts.items(), (fact_digests.DIGESTS, fact_digests.encoded(digests))]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def newest_epoch(self) -> int:
        """Return the newest epoch that was taken; 0: none."""
        return int(self.meta("epoch") or 0)

    def append(self, epoch: int, seq: int, blobs: Sequence[bytes]) -> None:
        """Commit turns, on disk on return."""
        if len(blobs) != 1:
            with self._writing():
                self._appended(epoch, seq, blobs)
        else:  # a single statement is a transaction, and half the work of BEGIN, SELECT, INSERT, COMMIT
            try:
                # otherwise the statement might join another thread's transaction, and not be on disk yet
                with self._lock:
                    if self._failed is not None:
                        raise self._failed
                    self._appended(epoch, seq, blobs)
            except (sqlite3.Error, OSError) as error:
                raise self._noted(error) from None

    def _appended(self, epoch: int, first: int, blobs: Sequence[bytes]) -> None:
        """Insert turns. The inserting statement itself checks the epoch, under the write lock."""
        for seq, blob in enumerate(blobs, first):
            if self._db.execute(_APPEND, (seq, blob, b"%d" % epoch)).rowcount != 1:
                raise self._fenced()

    def put_snapshot(self, seq: int, emitted: int, blob: bytes, keep: int, epoch: int) -> None:
        """Store a snapshot and remove old ones; the next snapshot reuses their space."""
        with self._writing(epoch):
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (seq, emitted, blob))
            if keep:
                self._db.execute(_OLD_SNAPSHOTS, (keep,))

    def put_piece(self, generation: int, number: int, blob: bytes, epoch: int) -> None:
        """Store a piece."""
        with self._writing(epoch):
            self._db.execute("INSERT OR REPLACE INTO pieces VALUES (?, ?)", (_place(generation, number), blob))

    def keep_pieces(self, spans: Sequence[PieceSpan], epoch: int) -> None:
        """Remove all other pieces."""
        others = "".join(" AND NOT place BETWEEN ? AND ?" for _ in spans)
        with self._writing(epoch):
            self._db.execute(f"DELETE FROM pieces WHERE TRUE{others}", [*chain.from_iterable(map(_places, spans))])

    def set_meta(self, key: str, value: bytes, epoch: int) -> None:
        """Store a fact."""
        with self._writing(epoch):
            self._put_facts({key: value})

    # -- removing --------------------------------------------------------------------------------------------------

    def zero_what_goes(self) -> None:
        """Overwrite rows that are deleted from now on."""
        self._db.execute("PRAGMA secure_delete=ON")

    def drop(self, upto: int, first_at_s: float, shrink: bool, epoch: int) -> None:
        """Remove turns; with ``shrink``, give their disk space back."""
        with self._writing():
            if self.meta("epoch") != b"%d" % epoch:
                raise self._fenced()
            self._db.execute("DELETE FROM turns WHERE seq <= ?", (upto,))
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (upto,))
            self._db.execute("DELETE FROM pieces")
            first = {} if self.meta("first_at_s") is not None else {"first_at_s": b"%r" % first_at_s}
            self._put_facts({**first, "dropped": b"%d" % upto})
        with contextlib.suppress(sqlite3.Error):  # a reader may block the checkpoint; the next one succeeds
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if shrink:
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def forget(self, figures: bytes, epoch: int) -> None:
        """Remove all turns and snapshots from the tables and from the file."""
        with self._writing(epoch):
            for table in ("turns", "snapshots", "pieces"):
                self._db.execute(f"DELETE FROM {table}")
            self._db.execute("DELETE FROM meta WHERE key NOT IN ('format', 'epoch')")
            self._put_facts({"forgotten": figures})
        try:
            for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                self._db.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise error_line(error, self.path) from None

    # -- reading ---------------------------------------------------------------------------------------------------

    def _row(self, asked: str, given: Sequence[Any] = ()) -> Any:
        """Return the first row, or None. Raises ``StoreError``."""
        try:
            return self._db.execute(asked, given).fetchone()
        except sqlite3.Error as error:
            raise error_line(error, self.path) from None

    def _rows(self, asked: str, given: Sequence[Any], at_once: bool = False) -> Iterator[Any]:
        """Yield all rows; ``at_once``: read all before the first is yielded. Raises ``StoreError``."""
        try:
            if at_once:
                yield from self._db.execute(asked, given).fetchall()
            else:
                yield from iter(self._db.cursor().execute(asked, given).fetchone, None)  # leaves no cursor open
        except sqlite3.Error as error:
            raise error_line(error, self.path) from None

    def meta(self, key: str) -> bytes | None:
        """Return a fact; None if it is not set."""
        asked = "SELECT key, value FROM meta WHERE key IN (?, ?)"  # at one moment, despite a concurrent writer
        found = dict(self._rows(asked, (key, fact_digests.DIGESTS), at_once=True))
        try:
            digests = fact_digests.decoded(found.get(fact_digests.DIGESTS))
        except BadSeal:
            raise self._damaged("the list of its facts") from None
        try:
            return fact_digests.checked(digests, key, found.get(key))
        except BadSeal:
            raise self._damaged(f"its fact {key!r}") from None

    def facts(self) -> dict[str, int] | None:
        """Return the checksums of the facts."""
        row = self._row("SELECT value FROM meta WHERE key = ?", (fact_digests.DIGESTS,))
        try:
            return fact_digests.decoded(row[0] if row else None)
        except BadSeal:
            raise self._damaged("the list of its facts") from None

    def _damaged(self, what: str) -> Damaged:
        return Damaged(f"{self.path} is damaged: {what} is not what was written")

    def see_structure(self) -> None:
        """Check the pages and trees of the file (https://www.sqlite.org/pragma.html#pragma_integrity_check)."""
        found = [str(text) for (text,) in self._rows("PRAGMA integrity_check(3)", ())]
        if found != ["ok"]:
            raise Damaged(f"{self.path} is damaged: {' '.join(' '.join(found).split())}")

    def see_stands(self) -> None:
        """Check that the path still names the file that is open; write it again if something has removed it.

        A process goes on writing to a file without a name (unlink(2)), and what it writes is gone when it ends. Any
        other error of the look, as of a network file system for a moment (EIO, ESTALE, EACCES), proves nothing: the
        file is open, and a disk that fails fails the next turn.
        """
        if self._stat is None:
            return
        try:
            if os.path.samestat(self.path.stat(), self._stat):
                return
            there = True
        except (FileNotFoundError, NotADirectoryError):
            there = False
        except OSError:
            return
        what = f"{self.path} was {'replaced by another file' if there else 'removed'} while the job ran"
        try:
            to = self._rescued(there)
        except (sqlite3.Error, OSError) as error:
            why = told(error) if isinstance(error, OSError) else str(error)
            raise StoreError(f"{what}, and could not be written again ({why}): bring back a backup") from None
        if there:
            raise StoreError(f"{what}: put {to}, which holds the job, in its place, then resume")
        raise StoreError(f"{what}: it was written there again, whole: look what removes files there, then resume")

    def _rescued(self, there: bool) -> Path:
        """Write the journal again, under its name if that is free, and return its path."""
        to = self.path.with_name(f"{self.path.name}.rescued") if there else self.path
        part = to.with_name(f"{to.name}.part")
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        to.parent.parent.chmod(0o700)
        part.unlink(missing_ok=True)
        with self._lock:
            self._db.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
        if not there:  # a log that belongs to the file without a name would be taken for the new file's
            for end in ("-wal", "-shm"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        os.replace(part, to)
        return to

    def idle_s(self) -> None:
        """Return None: the clock is that of the machine."""

    def last(self) -> int:
        """Return the largest number of a turn; 0: none."""
        found: int = self._row("SELECT coalesce(max(seq), 0) FROM turns")[0]
        return found

    def turns(
        self, after: int, upto: int | None = None, *, down: bool = False, count: int | None = None,
        holding: Sequence[bytes] = (),
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        """Yield turns one by one, as of the moment when the first is requested."""
        where = "seq > ?" + (" AND seq <= ?" if upto is not None else "") + " AND instr(blob, ?) > 0" * len(holding)
        asked = f"SELECT seq, blob FROM turns WHERE {where} ORDER BY seq{' DESC' if down else ''}"
        given = (after, *(() if upto is None else (upto,)), *holding)
        if count is not None:
            return self._rows(f"{asked} LIMIT ?", (*given, count), at_once=True)
        return self._rows(asked, given)

    def snapshots(self, after: int, upto: int, emitted_max: int, count: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots, latest first."""
        asked = "SELECT seq, blob FROM snapshots WHERE seq > ? AND seq <= ? AND emitted <= ? ORDER BY seq DESC LIMIT ?"
        rows = self._rows(asked, (after, upto, emitted_max, -1 if count is None else count))
        return ((seq, blob) for seq, blob in rows)

    def heads(self, after: int) -> list[tuple[int, bytes]]:
        """Return the first bytes of snapshots."""
        asked = f"SELECT seq, substr(blob, 1, {HEAD_BYTES}) FROM snapshots WHERE seq > ? ORDER BY seq DESC"
        return list(self._rows(asked, (after,)))

    def piece(self, generation: int, number: int) -> bytes | None:
        """Return a piece; None if it does not exist."""
        row = self._row("SELECT blob FROM pieces WHERE place = ?", (_place(generation, number),))
        return row[0] if row else None

    def count_pieces(self, span: PieceSpan | None) -> int:
        """Return the number of pieces."""
        where, given = ("WHERE place BETWEEN ? AND ?", _places(span)) if span is not None else ("", ())
        found: int = self._row(f"SELECT count(*) FROM pieces {where}", given)[0]
        return found

    @contextlib.contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Return a context in which all reads see one moment."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def size_bytes(self) -> int:
        """Return the bytes on disk, write-ahead log included."""
        paths = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(path.stat().st_size for path in paths if path.exists())


_DAMAGED = ("not a database", "malformed", "Could not decode")
"""Error texts of SQLite for a file whose structure, or whose text, is not what it wrote."""


def error_line(error: Exception, path: Path) -> StoreError:
    """Return the error for a journal's file, as one line."""
    text = str(error)
    if (disk := disk_error(error, path)) is not None:
        return disk
    if "locked" in text:
        return StoreError(f"{path.stem} is locked by another run that does not answer")
    if any(words in text for words in _DAMAGED):
        return Damaged(f"{path} is no journal, or is damaged: {text}")
    return StoreError(f"cannot use {path}: {text}")
