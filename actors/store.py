"""The journal on disk: one SQLite file a job, in one state folder, and an index of remembered replies beside them.

Write-ahead log, ``synchronous=FULL``, one commit a turn. Every append checks, inside its write transaction, that the
epoch is still the writer's own: an orphan of a killed run can append nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from actors.mounts import NETWORK_FILE_SYSTEMS, file_system
from actors.store_errors import DiskFull as DiskFull
from actors.store_errors import Fenced as Fenced
from actors.store_errors import Forgotten as Forgotten
from actors.store_errors import NoSuchJob as NoSuchJob
from actors.store_errors import StoreError as StoreError
from actors.store_errors import TextGone as TextGone
from cortex import events, journal

WAL_PAGES = 250
"""After so many pages (1 MB) the write-ahead log is folded in and written over from its beginning. To write over what
is there costs a disk half of what it costs to make a file longer, so the sooner it is there, the better; SQLite's own
1,000 pages make short chains of commits a tenth to a quarter slower."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(~[0-9]+)*")
_APPEND = "INSERT INTO turns SELECT ?, ? FROM meta WHERE key = 'epoch' AND value = ?"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, emitted INTEGER NOT NULL, blob BLOB NOT NULL);
"""


class Folder:
    """The state folder: private to its user, never under version control, never on a network file system."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(path)))

    def prepare(self) -> Folder:
        """Make the folder, with modes for its owner alone. Raises ``StoreError`` where it cannot serve."""
        kind = file_system(self.path)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreError(
                f"{self.path} is on a network file system ({kind}), where a journal is not safe: give a local --state"
            )
        try:
            (self.path / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise StoreError(f"cannot use {self.path} as state folder: {error.strerror}") from None
        return self

    def journal_path(self, job: str) -> Path:
        """Where a job's journal stands. Raises ``StoreError`` for a name that cannot be a file's."""
        if not _JOB_NAME.fullmatch(job):
            raise StoreError(f"job name {job!r}: use letters, digits, '.', '_' and '-', at most 100 of them")
        return self.path / "jobs" / f"{job}.sqlite"

    def journal(self, job: str, *, create: bool = False) -> Journal:
        """A job's journal; ``create``: made if there is none. Raises ``StoreError``."""
        return Journal(self.journal_path(job), create=create)

    def jobs(self) -> list[str]:
        """Names of all jobs, the latest written first."""
        found = (self.path / "jobs").glob("*.sqlite")
        return [path.stem for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


class Journal:
    """One job's journal. Open it to read; take the epoch to write."""

    def __init__(
        self, path: Path, *, create: bool = False, db: sqlite3.Connection | None = None, forgotten_too: bool = False
    ) -> None:  # fmt: skip
        """``db``: where it stands if not in a file at ``path``, which then only names it. Raises ``StoreError``; for a
        job that was forgotten ``Forgotten``, unless ``forgotten_too``."""
        if db is None and not create and not path.exists():
            raise NoSuchJob(f"no job {path.stem!r} in {path.parent.parent}; `cortex jobs` lists what is there")
        self.path = path
        self.epoch = 0
        try:
            if create and db is None:
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = db or sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
            self._db.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise _plain(error, path) from None
        self._check_format()
        if not forgotten_too and self.meta("forgotten") is not None:
            self.close()
            raise Forgotten(
                f"job {path.stem} was forgotten: its prompts and replies are gone, `cortex status {path.stem}` has its "
                f"figures, `cortex rm {path.stem}` makes its name free"
            )
        self._seq = self._last()

    def _last(self) -> int:
        last: int = self._db.execute("SELECT coalesce(max(seq), 0) FROM turns").fetchone()[0]
        return max(last, self.dropped())

    def _check_format(self) -> None:
        found = self.meta("format")
        if found is None:
            self.set_meta("format", str(journal.FORMAT).encode())
        elif int(found) > journal.FORMAT:
            raise StoreError(f"{self.path.stem} is of a newer release (format {int(found)}): upgrade to open it")
        elif int(found) < journal.FORMAT:
            raise StoreError(f"{self.path.stem} is of an older release (format {int(found)}): finish it with that one")

    @property
    def seq(self) -> int:
        """Number of the last turn; 0 before the first."""
        return int(self._seq)

    def close(self) -> None:
        """Fold the write-ahead log in and let go of the file."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    # -- small facts -----------------------------------------------------------------------------------------------

    def meta(self, key: str) -> bytes | None:
        """A small fact kept beside the turns."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return bytes(row[0]) if row else None

    def set_meta(self, key: str, value: bytes) -> None:
        """Keep a small fact."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def zero_what_goes(self) -> None:
        """What is deleted from now on is written over."""
        self._db.execute("PRAGMA secure_delete=ON")

    def drop(self, upto: int, shrink: bool = False) -> None:
        """Remove the turns up to this one, and the snapshots before it: the one of that very turn stands in for them.
        ``shrink``: no more will come, so the file may be made small. Raises ``Fenced``."""
        with self._writing():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            if row is None or int(row[0]) != self.epoch:
                raise Fenced(f"{self.path.stem}: another run has taken the job over")
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('first_at_s', ?)", (b"%r" % self.first_at_s(),))
            self._db.execute("DELETE FROM turns WHERE seq <= ?", (upto,))
            self._db.execute("DELETE FROM snapshots WHERE seq < ?", (upto,))
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('dropped', ?)", (b"%d" % upto,))
        with contextlib.suppress(sqlite3.Error):  # whoever reads at this moment is in the way: the next time, then
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if shrink:
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def forget(self, figures: bytes) -> None:
        """Remove all turns and snapshots from the file, not only from its tables; keep these figures. Whoever wrote
        before is fenced."""
        self._db.execute("PRAGMA secure_delete=ON")
        self.take_epoch(b"")
        with self._writing():
            for statement in ("DELETE FROM turns", "DELETE FROM snapshots", "DELETE FROM meta WHERE key NOT IN (?, ?)"):
                self._db.execute(statement, ("format", "epoch") if "meta" in statement else ())
            self._db.execute("INSERT INTO meta VALUES ('forgotten', ?)", (figures,))
        try:
            for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                self._db.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise _plain(error, self.path) from None

    # -- writing ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if isinstance(error, (sqlite3.Error, OSError)):
                raise _plain(error, self.path) from None
            raise

    def take_epoch(self, owner: bytes) -> int:
        """Become the only writer: whoever wrote before is fenced from here on. ``owner`` says who it is now."""
        with self._writing():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
            self.epoch = int(row[0]) + 1 if row else 1
            facts = [("epoch", str(self.epoch).encode()), ("owner", owner)]
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts)
            self._seq = self._last()
        return self.epoch

    def append(self, blobs: Sequence[bytes]) -> int:
        """Commit turns, on disk when this returns, and the last one's number. Raises ``Fenced`` or ``DiskFull``."""
        if len(blobs) != 1:
            with self._writing():
                seq = self._appended(blobs)
        else:  # a statement alone is a transaction of its own, and half the work of BEGIN, SELECT, INSERT, COMMIT
            try:
                seq = self._appended(blobs)
            except (sqlite3.Error, OSError) as error:
                raise _plain(error, self.path) from None
        self._seq = seq
        return seq

    def _appended(self, blobs: Sequence[bytes]) -> int:
        """The epoch is read under the write lock, by the statement that writes."""
        seq: int = self._seq
        for blob in blobs:
            seq += 1
            if self._db.execute(_APPEND, (seq, blob, b"%d" % self.epoch)).rowcount != 1:
                raise Fenced(f"{self.path.stem}: another run has taken the job over")
        return seq

    def snapshot(self, seq: int, emitted: int, blob: bytes) -> None:
        """Keep K as it was after turn ``seq``, when ``emitted`` results had been given out."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (seq, emitted, blob))

    # -- reading ---------------------------------------------------------------------------------------------------

    def turns(self, after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Turns after a number, with theirs, replies filled in where the journal refers to them."""
        rows = self._db.cursor().execute("SELECT seq, blob FROM turns WHERE seq > ? ORDER BY seq", (after,))
        before = after
        for seq, blob in rows:
            self._refuse_gap(before, seq)
            before = seq
            yield seq, self._filled(journal.decode_turn(blob))
        if before == after < self.dropped():
            self._refuse_gap(after, 0)

    def _refuse_gap(self, before: int, seq: int) -> None:
        if seq != before + 1 and self.dropped():
            raise TextGone(
                f"job {self.path.stem} keeps no text (--no-keep-text): what it asked and was answered left its journal "
                "when its results were on disk"
            )

    def first_at_s(self) -> float:
        """When the job's first turn was, also where it has left; 0 where there was none."""
        if (found := self.meta("first_at_s")) is not None:
            return float(found)
        row = self._db.execute("SELECT blob FROM turns ORDER BY seq LIMIT 1").fetchone()
        return journal.turn_head(row[0])[0] if row else 0.0

    def dropped(self) -> int:
        """Number of the last turn that left the journal; 0: none did."""
        found = self.meta("dropped")
        return int(found) if found else 0

    @contextlib.contextmanager
    def as_it_is(self) -> Iterator[None]:
        """All that is read meanwhile is of one moment, whoever writes."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def page(self, after: int, count: int) -> Iterator[tuple[int, events.Turn]]:
        """The next turns, at most so many. Nothing stays open between two pages, so that what was written meanwhile is
        seen: an open reading sees the journal as it was when it began."""
        query = "SELECT seq, blob FROM turns WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = self._db.execute(query, (after, count)).fetchall()
        if not rows and after < self.dropped():
            self._refuse_gap(after, 0)
        for seq, blob in rows:
            self._refuse_gap(after, seq)
            after = seq
            yield seq, self._filled(journal.decode_turn(blob))

    def reopenings(self) -> list[tuple[int, events.Reopened]]:
        """Where failed rows were opened again since the job was last opened: turn, and what was opened."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        found = []
        for seq in (number for number in numbers if number > self.opened_at()):
            row = self._db.execute("SELECT blob FROM turns WHERE seq = ?", (seq,)).fetchone()
            turn = journal.decode_turn(row[0]) if row else events.Turn(0.0, ())
            found += [(seq, event) for b in turn.batches for event in b if type(event) is events.Reopened]
        return found

    def will_reopen(self) -> None:
        """The next turn is to open failed rows again: whoever reads results looks there."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        self.set_meta("reopened", msgspec.json.encode(sorted({*numbers, self.seq + 1})))

    def turns_with(self, needles: Sequence[bytes], after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Those of the turns after a number whose bytes hold each of these: many need not be decoded."""
        holds = "".join(" AND instr(blob, ?) > 0" for _ in needles)
        asked = f"SELECT seq, blob FROM turns WHERE seq > ?{holds} ORDER BY seq"
        for seq, blob in self._db.cursor().execute(asked, (after, *needles)):
            yield seq, self._filled(journal.decode_turn(blob))

    def openings(self) -> Iterator[tuple[int, events.Turn]]:
        """The turns that opened the job."""
        for seq, turn in self.turns_with((b"opened",)):
            if journal.opening(turn) is not None:
                yield seq, turn

    def blobs(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """The first turns, with their numbers, as they stand on disk."""
        rows = self._db.cursor().execute("SELECT seq, blob FROM turns WHERE seq <= ? ORDER BY seq", (upto,))
        yield from ((seq, bytes(blob)) for seq, blob in rows)

    def heads(self, upto: int) -> Iterator[tuple[float, bytes]]:
        """When turns were and the accounts that they carry, from this turn back."""
        rows = self._db.cursor().execute("SELECT blob FROM turns WHERE seq <= ? ORDER BY seq DESC", (upto,))
        return (journal.turn_head(blob) for (blob,) in rows)

    def account(self, upto: int) -> bytes:
        """What the job had come to by this turn (``journal.Account``); empty where no turn says so."""
        return next((account for _, account in self.heads(upto) if account), b"")

    def _filled(self, turn: events.Turn) -> events.Turn:
        if not any(type(event) is events.Recalled and event.reply is None for b in turn.batches for event in b):
            return turn
        return msgspec.structs.replace(turn, batches=tuple(tuple(map(self._fill, b)) for b in turn.batches))

    def _fill(self, event: events.Event) -> events.Event:
        if type(event) is not events.Recalled or event.reply is not None:
            return event
        source = self.event(event.seq, event.position)
        if not isinstance(source, (events.Answered, events.Recalled)) or source.hash != event.hash:
            raise StoreError(f"{self.path.stem}: turn {event.seq} does not hold the reply that is referred to")
        return msgspec.structs.replace(event, reply=source.reply)

    def event(self, seq: int, position: int) -> events.Event | None:
        """One event by its address: the turn, and its place among all events of the turn."""
        row = self._db.execute("SELECT blob FROM turns WHERE seq = ?", (seq,)).fetchone()
        if row is None:
            return None
        flat = [event for batch in journal.decode_turn(row[0]).batches for event in batch]
        return flat[position] if position < len(flat) else None

    def latest_snapshot(self, emitted_max: int | None = None, upto: int | None = None) -> tuple[int, bytes] | None:
        """The newest snapshot since the job was last opened, not beyond so many results, nor after a turn."""
        ceilings = [1 << 62 if bound is None else bound for bound in (emitted_max, upto)]
        row = self._db.execute(
            "SELECT seq, blob FROM snapshots WHERE seq > ? AND emitted <= ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
            (self.opened_at(), *ceilings),
        ).fetchone()
        return (row[0], bytes(row[1])) if row else None

    def snapshots(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """K as it was kept after these turns, the latest first."""
        rows = self._db.cursor().execute(
            "SELECT seq, blob FROM snapshots WHERE seq > ? AND seq <= ? ORDER BY seq DESC", (after, upto)
        )
        yield from ((seq, bytes(blob)) for seq, blob in rows)

    def replay_from(self) -> int:
        """Number of the turn after which a replay begins: that of the newest snapshot, or of the opening."""
        opened_at = self.opened_at()
        row = self._db.execute("SELECT max(seq) FROM snapshots WHERE seq > ?", (opened_at,)).fetchone()
        return int(row[0] or opened_at)

    def opened_at(self) -> int:
        """Number of the turn before the one that last opened the job: replay starts after it."""
        return int(self.meta("opened_at") or 0)

    def size_bytes(self) -> int:
        """Bytes on disk, write-ahead log included."""
        paths = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(path.stat().st_size for path in paths if path.exists())


def _plain(error: Exception, path: Path) -> StoreError:
    said = str(error)
    if "disk is full" in said or "disk I/O error" in said or "No space left" in said:
        return DiskFull(f"the disk that holds {path} is full ({said}): make room, then resume")
    if "locked" in said:
        return StoreError(f"{path.stem} is locked by another run that does not answer")
    if "not a database" in said or "malformed" in said:
        return StoreError(f"{path} is no journal, or is damaged: {said}")
    return StoreError(f"cannot use {path}: {said}")


def replies_in(blobs: Iterable[tuple[int, events.Turn]]) -> Iterator[tuple[bytes, int, int]]:
    """(hash, seq, position) of every reply that these turns paid for: what the index of replies is rebuilt from."""
    for seq, turn in blobs:
        position = 0
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    yield event.hash, seq, position
                position += 1
