"""A database as the place of journals: what is different from a file, and what goes wrong there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from actors.journal.journal import DatabaseUnreachable, Fenced, JobHeld, Journal, StateFolder, StoreError
from actors.journal.postgres import connection, job_lock
from actors.journal.postgres.migrations import VERSION
from actors.runtime.ray_actor import process_class
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import Server


class Cable:
    """A line to the server that is cut where a test wants it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.cut_at = ""
        """``asked``: what the client sends next never arrives; ``answered``: it does, and the answer does not."""
        self.spared = 0
        """So many go through before."""
        self.cuts = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                for way in ((client, server, "asked"), (server, client, "answered")):
                    threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, when: str) -> None:
        with contextlib.suppress(OSError):
            while some := one.recv(1 << 16):
                if self.cut_at == when and self.spared:
                    self.spared -= 1
                elif self.cut_at == when:
                    self.cut_at = ""
                    self.cuts += 1
                    break
                other.sendall(some)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def cable(postgres: Server) -> Iterator[Cable]:
    made = Cable(postgres.port)
    yield made
    made.close()


@pytest.mark.parametrize("when", ["asked", "answered"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_turn_whose_commit_was_not_confirmed_is_there_once(
    postgres: Server, database: str, cable: Cable, when: str, count: int
) -> None:
    over = database.replace(f":{postgres.port}/", f":{cable.port}/")
    source = StateFolder(over).prepare().journal("j", create=True)
    source.take_epoch(b"{}")
    source.append([b"first"])
    cable.cut_at = when
    assert source.append([b"turn %d" % at for at in range(count)]) == 1 + count
    assert cable.cuts == 1
    there = [(1, b"first"), *((2 + at, b"turn %d" % at) for at in range(count))]
    assert list(source.blobs(99)) == there
    source.append([b"last"])
    assert list(source.blobs(99)) == [*there, (2 + count, b"last")]
    source.close()


def test_a_turn_that_was_committed_before_another_took_over_is_known_as_done(
    postgres: Server, database: str, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = database.replace(f":{postgres.port}/", f":{cable.port}/")
    source = StateFolder(over).prepare().journal("j", create=True)
    source.take_epoch(b"{}")
    lost: list[float] = []
    reconnect = connection.DatabaseConnection._connected

    def away(self: connection.DatabaseConnection) -> Any:
        if cable.cuts and not lost and self._connection is None:
            lost.append(1.0)
            raise DatabaseUnreachable("the cable is cut")
        return reconnect(self)

    monkeypatch.setattr(connection.DatabaseConnection, "_connected", away)
    cable.cut_at = "answered"
    with pytest.raises(DatabaseUnreachable):
        source.append([b"paid for"])
    other = StateFolder(database).journal("j")
    other.take_epoch(b"{}")
    other.append([b"of the other"])
    assert source.append([b"paid for"]) == 1, "it is there: nobody need know that it is over"
    with pytest.raises(Fenced):
        source.append([b"too late"])
    assert list(other.blobs(9)) == [(1, b"paid for"), (2, b"of the other")]
    source.close()
    other.close()


@pytest.mark.parametrize("when", ["asked", "answered"])
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_note_whose_swap_was_not_confirmed_is_known_as_done(
    postgres: Server, database: str, cable: Cable, when: str, before: bytes | None
) -> None:
    """Else a wish would be left, and obeyed, twice."""
    folder, near = (
        StateFolder(database.replace(f":{postgres.port}/", f":{cable.port}/")).prepare(),
        StateFolder(database),
    )
    if before is not None:
        near.put_note("control", "j", before)
    assert folder.note("control", "j") == before
    for spared in range(3):  # its begin, itself, its commit
        cable.cut_at, cable.spared = when, spared
        value = b"mine %d" % spared
        assert folder.swap_note("control", "j", before, value)
        assert near.note("control", "j") == value
        before = value
    assert cable.cuts == 3
    assert not folder.swap_note("control", "j", None, value), "the same, left by somebody else"


def test_what_is_on_its_way_when_another_takes_over_is_refused(database: str) -> None:
    """The write waits for the takeover, which is in the middle of its transaction, and then finds its epoch over."""
    source = StateFolder(database).prepare().journal("j", create=True)
    source.take_epoch(b"{}")
    parts: list[BaseException] = []

    def write() -> None:
        try:
            source.append([b"late"])
        except StoreError as error:
            parts.append(error)

    with psycopg.connect(database) as other:
        other.execute("UPDATE cortex_jobs SET epoch = epoch + 1 WHERE name = 'j'")
        writing = threading.Thread(target=write)
        writing.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        with psycopg.connect(database, autocommit=True) as looking:
            while not looking.execute(waiting).fetchone()[0]:  # type: ignore[index]
                time.sleep(0.005)
        other.commit()
    writing.join()
    assert [type(error) for error in parts] == [Fenced]
    assert list(source.blobs(9)) == []
    source.close()


def test_a_lock_that_went_with_its_session_is_taken_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.journal.postgres.job_lock.BEAT_S", 0.05)
    folder = StateFolder(database).prepare()
    with folder.hold("j"), psycopg.connect(database, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        end_s = time.monotonic() + PATIENCE_S
        while not folder.is_held("j"):
            assert time.monotonic() < end_s
            time.sleep(0.02)
    assert not folder.is_held("j")


def test_of_a_server_that_was_just_started_no_lock_is_said_to_be_free(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder has lost its session with the last server: it was told as interrupted, and another run could begin."""
    folder = StateFolder(database).prepare()
    folder.journal("j", create=True).close()
    asked: list[bool] = []
    real, back, taken = job_lock.DatabaseConnection.rows, threading.Event(), threading.Event()

    def rows(self: Any, statement: str, given: Any = ()) -> Any:
        found = real(self, statement, given)
        if "pg_postmaster_start_time" not in statement:
            return found
        asked.append(found[0][0])
        if len(asked) == 3:
            back.set()
            assert taken.wait(PATIENCE_S)  # before the looks are over, however long a new session takes
        age_s = job_lock.BACK_S - 0.5 + 0.01 * len(asked)
        return [(found[0][0], age_s)]

    monkeypatch.setattr(job_lock.DatabaseConnection, "rows", rows)
    monkeypatch.setattr(job_lock, "_LOOK_S", 0.01)

    def holder() -> None:
        back.wait()
        with job_lock.hold(folder._conninfo, folder.address, folder._key("j")):  # type: ignore[attr-defined]
            taken.set()
            over.wait()

    over, takes = threading.Event(), threading.Thread(target=holder)
    takes.start()
    try:
        assert folder.is_held("j"), "its holder came back"
        assert asked[:3] == [False] * 3
        with pytest.raises(JobHeld), folder.hold("j"):
            pass
    finally:
        over.set()
        takes.join()
    before = len(asked)
    assert not folder.is_held("j")
    assert len(asked) - before > 1, "it looks until a holder would have come back"


@pytest.mark.parametrize("age_s", [-3600.0, -0.001, 0.0, 3.0, 7.0])
def test_a_clock_of_the_server_that_was_set_back_keeps_nobody_waiting(
    age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start was then later than now, until the clock had caught up: every look at a free lock lasted so long."""
    now_s, asked = [1000.0], [0]

    class Link:
        def rows(self, statement: str, given: Any = ()) -> list[tuple[Any, ...]]:
            asked[0] += 1
            assert asked[0] < 1000, "it never ends"
            return [(False, age_s)]

    def sleep(time_s: float) -> None:
        now_s[0] += time_s

    monkeypatch.setattr(job_lock, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    assert not job_lock.is_held(Link(), 7)  # type: ignore[arg-type]
    waited_s = now_s[0] - 1000
    if 0 <= age_s < job_lock.BACK_S:  # that clock stands still, or is set back again and again
        assert job_lock.BACK_S <= waited_s < job_lock.BACK_S + 1
    else:
        assert waited_s == 0


def test_a_lock_that_somebody_else_had_for_a_moment_is_taken_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was started again, and `cortex set` was there before the run that goes on: not held, it would be taken
    for one at rest, and removed, or run a second time."""
    monkeypatch.setattr("actors.journal.postgres.job_lock.BEAT_S", 0.05)
    folder = StateFolder(database).prepare()
    locks = "FROM pg_locks WHERE locktype = 'advisory'"
    key = f"(SELECT (classid::bigint << 32) + objid::bigint {locks} AND granted)"
    with folder.hold("j"), contextlib.ExitStack() as open_:
        other, looking = (open_.enter_context(psycopg.connect(database, autocommit=True)) for _ in range(2))
        taking = threading.Thread(target=other.execute, args=(f"SELECT pg_advisory_lock({key})",))
        taking.start()  # whoever waits for it has it next
        while not looking.execute(f"SELECT 1 {locks} AND NOT granted").fetchall():
            time.sleep(0.005)
        looking.execute(f"SELECT pg_terminate_backend(pid) {locks} AND granted")
        taking.join()
        time.sleep(0.5)  # ten beats, at which it is not to be had
        other.execute("SELECT pg_advisory_unlock_all()")
        end_s = time.monotonic() + PATIENCE_S
        while not folder.is_held("j"):
            assert time.monotonic() < end_s, "it is not tried again"
            time.sleep(0.02)
    assert not folder.is_held("j")


def test_two_that_begin_at_once_make_the_tables_once(database: str) -> None:
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            StateFolder(database).prepare()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=begin) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    assert StateFolder(database).jobs() == []


def test_a_database_without_an_encoding_serves_as_any_other(postgres: Server, database: str) -> None:
    """What ``initdb`` makes where no locale is set. It stands beside ``database``, whose end closes what is left open."""
    postgres.does("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    folder = StateFolder(postgres.address("plain")).prepare()
    folder.journal("j", create=True).close()
    folder.put_note("live", "j", "é".encode())
    assert (folder.jobs(), folder.notes("live")) == (["j"], ["j"])


def test_tables_of_a_newer_release_are_refused(postgres: Server, database: str) -> None:
    StateFolder(database).prepare()
    postgres.does(f"UPDATE cortex_schema SET version_num = '{VERSION + 1}'", at=database)
    text = rf"is of a newer release \(schema {VERSION + 1}, this one knows {VERSION}\): upgrade to use it"
    for use in (lambda folder: folder.prepare(), lambda folder: folder.jobs(), lambda folder: folder.journal("j")):
        with pytest.raises(StoreError, match=text):
            use(StateFolder(database))


@pytest.mark.parametrize(
    "given", ["u:hush@h/d", "h/d?password=hush", "u:hush@[::1]/d", "u:hush@h:1,i:2/d", "h/d?sslpassword=hush"]
)
def test_a_password_in_the_address_is_refused_and_not_told(given: str) -> None:
    with pytest.raises(StoreError) as caught:
        StateFolder(f"postgresql://{given}")
    assert "the database holds a password" in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("role", ["cortex", "channel", "branch", "worker"])
def test_only_channels_and_the_cortex_keep_the_password_of_a_database(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    monkeypatch.setattr("actors.runtime.ray_runtime.make_host", lambda *given: None)
    process_class(role)((), role, role, (), "local")
    assert os.environ.get("PGPASSWORD") == ("hush" if role in ("channel", "cortex") else None)


class Frozen:
    """Connection of a database that does not answer a statement with these words until it is thawed."""

    def __init__(self, words: str) -> None:
        self._words, self.closed, self.asked, self.thawed = words, False, threading.Event(), threading.Event()
        self.info = SimpleNamespace(transaction_status=psycopg.pq.TransactionStatus.IDLE)
        self.statements: list[str] = []

    def execute(self, statement: Any, given: Any = ()) -> Any:
        text = statement if isinstance(statement, str) else statement.decode()
        self.statements.append(text)
        if self._words in text:
            self.asked.set()
            assert self.thawed.wait(2 * PATIENCE_S)
        return SimpleNamespace(fetchall=lambda: [(1,)], fetchone=lambda: (True,), rowcount=1)

    def cursor(self, binary: bool) -> Frozen:
        return self

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Frozen]]:
    """Connections that were made, each frozen at `FROZEN`."""
    made: list[Frozen] = []

    def connect(conninfo: str, autocommit: bool) -> Frozen:
        made.append(Frozen("FROZEN"))
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setattr(connection, "_idle", [])
    yield made
    for each in made:
        each.thawed.set()


def ends(do: Callable[[], None]) -> bool:
    """Whether it ends, while nothing else happens."""
    doing = threading.Thread(target=do, daemon=True)
    doing.start()
    doing.join(PATIENCE_S)
    return not doing.is_alive()


@pytest.mark.parametrize("pinned", [False, True])
def test_a_close_waits_for_no_request_of_another_thread_which_does_the_rest_itself(
    pinned: bool, frozen: list[Frozen]
) -> None:
    """A look that was cancelled goes on in its thread, and the event loop closed the journal meanwhile."""
    link = connection.DatabaseConnection("c", "db", begin=lambda made: None)

    def look() -> None:
        with link.pinned() if pinned else contextlib.nullcontext():
            link.rows("FROZEN")

    looking = threading.Thread(target=look)
    looking.start()
    while not frozen:
        time.sleep(0.001)
    assert frozen[0].asked.wait(PATIENCE_S)
    assert ends(link.close)
    assert not frozen[0].closed, "its thread uses it"
    frozen[0].thawed.set()
    looking.join()
    assert (len(frozen), frozen[0].closed) == (1, True)


def test_a_closed_connection_is_not_opened_again(frozen: list[Frozen]) -> None:
    used, unused = (connection.DatabaseConnection("c", "db", begin=lambda made: None) for _ in range(2))
    assert used.rows("SELECT 1") == [(1,)]
    for link in (used, unused):
        link.close()
        link.close()
        with pytest.raises(StoreError, match="the connection to the database db was closed: open the journal again"):
            link.rows("SELECT 1")
    assert [each.closed for each in frozen] == [True], "one that nobody would close"


def test_within_a_pinned_read_a_close_comes_after_it(frozen: list[Frozen]) -> None:
    link = connection.DatabaseConnection("c", "db", begin=lambda made: None)
    with link.pinned():
        link.close()
        assert link.rows("SELECT 1") == [(1,)]
        assert not frozen[0].closed
    assert frozen[0].closed and frozen[0].statements[-1] == "ROLLBACK"


def test_the_end_of_a_hold_does_not_wait_for_a_frozen_database(
    frozen: list[Frozen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lock, "END_S", 0.01)
    held: list[bool] = []

    def hold() -> None:
        with job_lock.hold("c", "db", 7):
            frozen[0]._words = "pg_advisory_unlock_all"
            held.append(True)

    assert ends(hold) and held


WRITES: dict[str, Callable[[Journal], object]] = {
    "a turn": lambda source: source.append([b"late"]),
    "two turns": lambda source: source.append([b"late", b"later"]),
    "a fact": lambda source: source.set_meta("fact", b"x"),
    "a piece": lambda source: source._storage.put_piece(1, 1, b"x", source.epoch),
    "the pieces that stay": lambda source: source._storage.keep_pieces([], source.epoch),
    "a snapshot": lambda source: source._storage.put_snapshot(1, 0, b"x", 1, source.epoch),
    "turns that go": lambda source: source._storage.drop(1, 0.0, False, source.epoch),
    "a look": lambda source: source.see_writable(),
    "a look at the epoch": lambda source: source.see_own(),
}


@pytest.mark.parametrize("again", [False, True])
def test_the_writer_of_a_job_that_was_removed_is_told_so(database: str, again: bool) -> None:
    """It was told that another run had taken the job over, and its user looked for that run."""
    folder = StateFolder(database).prepare()
    source = folder.journal("j", create=True)
    source.take_epoch(b"{}")
    source.append([b"turn"])
    source.see_writable()
    folder.remove("j")
    if again:  # another job by now has the name
        other = folder.journal("j", create=True)
        other.take_epoch(b"{}")
        other.close()
    for name, write in WRITES.items():
        with pytest.raises(StoreError) as caught:
            write(source)
        assert str(caught.value) == "job j was removed while it ran, with all that it had done: begin it again", name
    source.close()


def test_the_writer_of_a_job_that_was_taken_over_is_told_so(database: str) -> None:
    source = StateFolder(database).prepare().journal("j", create=True)
    source.take_epoch(b"{}")
    source.append([b"turn"])
    other = StateFolder(database).journal("j")
    other.take_epoch(b"{}")
    for write in WRITES.values():
        with pytest.raises(Fenced, match="another run has taken the job over"):
            write(source)
    source.close()
    other.close()
