"""Journals of many jobs in a PostgreSQL database, as a state folder.

Its tables are in the first schema of the connection's ``search_path``. Some files stay on the machine that made them:
input read from standard input, spans, and rows of a table that is not complete yet.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.journal.journal import FolderFault, Journal, NoSuchJob, StateFolder, StoreError, checked_name
from actors.journal.postgres.connection import DatabaseConnection, ran, tell_slow
from actors.journal.postgres.dsn import conninfo_of, own_folder
from actors.journal.postgres.job_lock import BACK_S, hold, is_held, key_of
from actors.journal.postgres.key_values import DatabaseKeyValues
from actors.journal.postgres.migrations import bring_up, is_there
from actors.journal.postgres.reply_index import DatabaseReplyIndex
from actors.journal.postgres.storage import DatabaseStorage, made, size_bytes
from actors.journal.state_folder import advised

if TYPE_CHECKING:  # a missing psycopg is reported in one line
    from psycopg import Connection

_MAKING = "+"
"""Prefix of the name of an incomplete journal: no job name begins with it."""
_LINE = "+"
"""Prefix of the name of a line, which stays when jobs are removed."""
_ATTENDED = "attended"
"""Kind of the notes of jobs whose channel has shown that it lives."""
_ASK_AT_ONCE = 10_000
_NOTE = "SELECT value FROM cortex_notes WHERE kind = %s AND name = %s"


class DatabaseStateFolder(StateFolder):
    """``StateFolder`` in a database."""

    remote = True
    back_s = BACK_S

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        self._conninfo = conninfo_of(self.address, os.environ)
        self.path = own_folder(self.address, os.environ)
        self._link = DatabaseConnection(self._conninfo, self.address)
        weakref.finalize(self, self._link.close)
        self._schema = ""
        self._there = False

    def tell_waits(self, tell: Callable[[str], None]) -> None:
        """Tell of requests that take longer than ``SLOW_S``."""
        tell_slow(tell)

    def prepare(self) -> DatabaseStateFolder:
        """Create the tables, or migrate those of an older release. Raises ``StoreError``."""
        bring_up(self._link, self._conninfo)
        try:
            (self.path / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            text = f"cannot use {self.path} for files of this machine: {error.strerror}; set XDG_STATE_HOME"
            raise StoreError(text) from None
        return self

    def _ready(self) -> bool:
        """Return whether the tables exist. Raises ``StoreError`` for tables of another release."""
        if not self._there:
            self._there = is_there(self._link)
        return self._there

    def see_readable(self) -> None:
        """Ask the server for the tables, and whether it is a primary.

        A standby does not know which jobs run, since a session's locks are known to its own server alone
        (https://www.postgresql.org/docs/current/hot-standby.html, "Advisory locks").
        """
        try:
            standby = self._link.rows("SELECT pg_is_in_recovery()")[0][0]
        except StoreError as error:
            raise FolderFault("away", str(error)) from None
        if standby:
            text = f"{self.address} is a standby, which does not know which jobs run: give the address of the primary"
            raise FolderFault("read_only", text)
        if not self._ready():
            text = f"the database {self.address} has no tables of Cortex: correct --state; a first job makes them"
            raise FolderFault("empty", text)

    # -- journals --------------------------------------------------------------------------------------------------

    def journal(self, job: str, *, create: bool = False, forgotten_too: bool = False) -> Journal:
        """Return a job's journal, over a separate connection."""
        checked_name(job)
        if not self._ready():
            raise NoSuchJob(f"no job {job!r} in {self.address}; `{advised(self, 'jobs')}` lists what is there")
        if create:
            made(self._link, job)
        storage = DatabaseStorage(DatabaseConnection(self._conninfo, self.address), job)
        try:
            return Journal(storage, folder=self, forgotten_too=forgotten_too)
        except BaseException:
            storage.close()
            raise

    @contextlib.contextmanager
    def making(self, job: str) -> Iterator[Journal]:
        """Create the journal under a temporary name until it is complete."""
        name = _MAKING + checked_name(job)
        self._remove(name)
        made(self._link, name)
        new = Journal(DatabaseStorage(DatabaseConnection(self._conninfo, self.address), job, name), folder=self)
        try:
            yield new
            self._link.count("UPDATE cortex_jobs SET name = %s WHERE name = %s", (job, name))
        finally:
            new.close()
            self._remove(name)

    def has(self, job: str) -> bool:
        """Return whether the job has a row."""
        checked_name(job)
        return self._ready() and bool(self._link.rows("SELECT 1 FROM cortex_jobs WHERE name = %s", (job,)))

    def jobs(self) -> list[str]:
        """Return the names of all jobs, latest written first."""
        if not self._ready():
            return []
        asked = "SELECT name FROM cortex_jobs WHERE left(name, 1) <> %s ORDER BY changed_at DESC"
        return [str(name) for (name,) in self._link.rows(asked, (_MAKING,))]

    def changed_s(self, job: str) -> float:
        """Return the time of the job's last turn by the server's clock, in seconds since 1970."""
        asked = "SELECT extract(epoch FROM changed_at)::float8 FROM cortex_jobs WHERE name = %s"
        rows = self._link.rows(asked, (job,)) if self._ready() else []
        return float(rows[0][0]) if rows else 0.0

    def mark(self, job: str) -> Hashable:
        """Return the job's epoch and last turn."""
        asked = "SELECT id, epoch, seq FROM cortex_jobs WHERE name = %s"
        rows = self._link.rows(asked, (job,)) if self._ready() else []
        return tuple(rows[0]) if rows else ()

    def size_bytes(self, job: str) -> int:
        """Return the bytes of the job's turns and snapshots."""
        return size_bytes(self._link, job) if self._ready() else 0

    def free_bytes(self) -> int | None:
        """Return None: a server does not report its free disk space."""
        return None

    def remove(self, job: str) -> None:
        """Remove the job's rows and its notes."""
        self._remove(checked_name(job))
        self._link.count("DELETE FROM cortex_notes WHERE name = %s", (job,))

    def _remove(self, name: str) -> None:
        asked = "DELETE FROM cortex_turns WHERE job IN (SELECT id FROM cortex_jobs WHERE name = %s)"
        self._link.together([(asked, (name,)), ("DELETE FROM cortex_jobs WHERE name = %s", (name,))])

    def backup(self, to: Path) -> None:
        """Raise ``StoreError``: a database is copied with its server's tools."""
        raise StoreError(
            f"a database is copied by its own tools, with jobs running: pg_dump --format=custom --file={to} "
            f"'{self.address}', and pg_restore to bring it back"
        )

    # -- locks -----------------------------------------------------------------------------------------------------

    def hold(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Hold the job by a lock of a separate session."""
        return hold(self._conninfo, self.address, self._key(checked_name(job)), self._link if self.has(job) else None)

    def is_held(self, job: str) -> bool:
        """Return whether a session has the job's lock."""
        return is_held(self._link, self._key(job))

    def attend(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Show it by a second lock, of one more session."""
        self.put_note(_ATTENDED, checked_name(job), b"1")
        return hold(self._conninfo, self.address, self._key(f"{job} channel"))

    def is_attended(self, job: str) -> bool | None:
        """Return whether a session has that lock."""
        if self.note(_ATTENDED, checked_name(job)) is None:
            return None
        return is_held(self._link, self._key(f"{job} channel"))

    def _key(self, job: str) -> int:
        if not self._schema:
            self._schema = str(self._link.rows("SELECT coalesce(current_schema()::text, '')")[0][0])
        return key_of(self._schema, job)

    # -- replies ---------------------------------------------------------------------------------------------------

    def index(self) -> DatabaseReplyIndex:
        """Return the index of remembered replies."""
        return DatabaseReplyIndex(DatabaseConnection(self._conninfo, self.address))

    def whose(self, question: bytes) -> tuple[str, int]:
        """Return (job, turn) that paid for a reply."""
        asked = "SELECT job, seq FROM cortex_replies WHERE hash = %s"
        rows = self._link.rows(asked, (question,)) if self._ready() else []
        return (str(rows[0][0]), int(rows[0][1])) if rows else ("", 0)

    def unremember(self, jobs: Sequence[str]) -> None:
        """Remove the replies of these jobs from the index."""
        names = (list(jobs),)
        tables = ("cortex_replies", "cortex_indexed")
        self._link.together([(f"DELETE FROM {table} WHERE job = ANY(%s)", names) for table in tables])

    def remembered(self, questions: Sequence[bytes]) -> set[bytes]:
        """Return the questions with a remembered reply."""
        if not self._ready():
            return set()
        asked = "SELECT hash FROM cortex_replies WHERE hash = ANY(%s::bytea[])"
        parts = (list(questions[start : start + _ASK_AT_ONCE]) for start in range(0, len(questions), _ASK_AT_ONCE))
        return {bytes(hash_) for part in parts for (hash_,) in self._link.rows(asked, (part,))}

    def remembers(self) -> bool:
        """Return True if the index is not empty."""
        return self._ready() and bool(self._link.rows("SELECT 1 FROM cortex_replies LIMIT 1"))

    # -- shared by all jobs --------------------------------------------------------------------------------------------

    def register(self, kind: str) -> DatabaseKeyValues:
        """Return values stored in rows of the table of notes."""
        return DatabaseKeyValues(kind, lambda: DatabaseConnection(self._conninfo, self.address), self._ready)

    def add_line(self, kind: str, line: bytes) -> None:
        """Store the line as a row of the table of notes; once, however often it is sent."""
        self.put_note(kind, _LINE + blake2b(line, digest_size=16).hexdigest(), line)

    def lines(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """Return the rows stored by ``add_line``."""
        asked = "SELECT name, value FROM cortex_notes WHERE kind = %s ORDER BY changed_at, name"
        rows = self._link.rows(asked, (kind,)) if self._ready() else []
        return [(f"cortex_notes ({kind}, {name}) in {self.address}", bytes(value)) for name, value in rows]

    # -- notes -----------------------------------------------------------------------------------------------------

    def note(self, kind: str, name: str) -> bytes | None:
        """Return the value of a note's row."""
        rows = self._link.rows(_NOTE, (kind, name)) if self._ready() else []
        return bytes(rows[0][0]) if rows else None

    def note_mark(self, kind: str, name: str) -> Hashable:
        """Return the time of the note's last change."""
        asked = "SELECT extract(epoch FROM changed_at)::float8 FROM cortex_notes WHERE kind = %s AND name = %s"
        return tuple(self._link.rows(asked, (kind, name))) if self._ready() else ()

    def notes(self, kind: str) -> list[str]:
        """Return the names of rows of this kind."""
        asked = "SELECT name FROM cortex_notes WHERE kind = %s ORDER BY name"
        return [str(name) for (name,) in self._link.rows(asked, (kind,))] if self._ready() else []

    def put_note(self, kind: str, name: str, value: bytes) -> None:
        """Insert or replace the note's row."""
        self._link.count(
            "INSERT INTO cortex_notes (kind, name, value) VALUES (%s, %s, %s) ON CONFLICT (kind, name) "
            "DO UPDATE SET value = excluded.value, changed_at = clock_timestamp()", (kind, name, value),
        )  # fmt: skip

    def swap_note(self, kind: str, name: str, before: bytes | None, value: bytes) -> bool:
        """Replace the note's row only if it still has the expected value."""
        if before is None:
            swap = "INSERT INTO cortex_notes (value, kind, name) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        else:
            swap = (
                "UPDATE cortex_notes SET value = %s, changed_at = clock_timestamp() "
                "WHERE kind = %s AND name = %s AND value = %s"
            )
        given = (value, kind, name) if before is None else (value, kind, name, before)
        tries = 0

        def run(connection: Connection[Any]) -> bool:
            nonlocal tries
            tries += 1
            if ran(connection, swap, given).rowcount == 1:
                return True
            # An earlier attempt may have succeeded, and only its confirmation been lost.
            return tries > 1 and ran(connection, _NOTE, (kind, name)).fetchall() == [(value,)]

        return self._link.transaction(run)

    def drop_note(self, kind: str, name: str) -> None:
        """Remove the note's row."""
        if self._ready():
            self._link.count("DELETE FROM cortex_notes WHERE kind = %s AND name = %s", (kind, name))

    def place_of_note(self, kind: str, name: str) -> str:
        """Return the table's name."""
        return f"cortex_notes ({kind}) in {self.address}"
