"""Connection to the database, re-established after a loss.

Every statement may be sent twice, so it must be idempotent: it only reads, or sets fixed values, or checks whether it
was done.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from actors.journal.journal import DatabaseUnreachable, StoreError
from actors.journal.postgres.errors import error_line

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
Given = Sequence[Any] | Mapping[str, Any]

AGAIN_S = 1.0
"""Seconds without a new attempt after the database could not be reached: meanwhile requests fail at once."""
_IDLE_MAX = 4
"""Idle connections kept at most."""
_ABOUT_US = """
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false), set_config('idle_in_transaction_session_timeout', '60s', false),
       CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""Session settings: the server releases locks and transactions within half a minute after this host is gone, and a
commit is durable."""

SLOW_S = 5.0
"""Seconds that a request may take before a command says so: a frozen server, or a locked table, refuses nothing, and a
command would wait for it without a word. A large answer, or a slow network, takes as long: the cause is not known."""
_tell_slow: list[Callable[[str], None]] = []
"""Function that is told of the first slow request of this process; empty: none, or it was told."""

_known: set[str] = set()
"""Databases (conninfo) that have answered this process before: their failures may be temporary."""
_idle: list[tuple[int, str, psycopg.Connection[Any]]] = []
"""Idle connections, with their process and conninfo: looking at a job opens its journal several times. The connection
that was returned last is reused first."""
_idle_alone = threading.Lock()


class DatabaseConnection:
    """Connection that is opened at first use, and never again once it was closed.

    ``conninfo``: for libpq; ``address``: for messages. ``begin`` is run on each new connection, which is then not
    shared.
    """

    def __init__(
        self, conninfo: str, address: str, begin: Callable[[psycopg.Connection[Any]], None] | None = None
    ) -> None:
        self.address = address
        self._conninfo = conninfo
        self._begin = begin
        self._alone = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._pinned = False
        self._closed, self._last = False, ""
        self._unreachable: tuple[float, str] | None = None

    def rows(self, statement: str, given: Given = ()) -> Rows:
        """Return the rows of a statement. Raises ``StoreError``."""
        return self._asked(lambda connection: ran(connection, statement, given).fetchall())

    def count(self, statement: str, given: Given = ()) -> int:
        """Return the number of rows that a statement has changed, durably. Raises ``StoreError``."""
        return self._asked(lambda connection: ran(connection, statement, given).rowcount)

    def together(self, statements: Sequence[tuple[str, Given]]) -> list[int]:
        """Run these statements in one transaction; return the number of rows changed by each. Raises ``StoreError``."""

        return self.transaction(
            lambda connection: [ran(connection, statement, given).rowcount for statement, given in statements]
        )

    def transaction(self, run: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Call ``run`` in a transaction and return its result. It may be called twice. Raises ``StoreError``."""

        def whole(connection: psycopg.Connection[Any]) -> T:
            with connection.transaction():
                return run(connection)

        return self._asked(whole)

    def _asked(self, ask: Callable[[psycopg.Connection[Any]], T]) -> T:
        try:
            with self._alone, _told_if_slow(self.address) if _tell_slow else contextlib.nullcontext():
                for last in (False, True):
                    connection = self._connected()
                    try:
                        return ask(connection)
                    except psycopg.Error as error:
                        if connection.closed:
                            self._connection = None
                        if last or self._pinned or not connection.closed:
                            raise error_line(error, self.address, self._conninfo in _known) from None
            raise AssertionError("one of the two has ended it")
        finally:
            if self._closed:
                self._let_go()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is not None:
            return self._connection
        if self._pinned:
            raise DatabaseUnreachable(f"the connection to the database {self.address} was lost during a read")
        if self._closed:  # as in a thread whose caller was cancelled, and begins only now
            raise StoreError(f"the connection to the database {self.address} was closed: open the journal again")
        if self._begin is None and (idle := _taken(self._conninfo)) is not None:
            self._connection = idle
            return idle
        if self._unreachable is not None and time.monotonic() < self._unreachable[0]:
            raise DatabaseUnreachable(self._unreachable[1])
        try:
            made = psycopg.connect(self._conninfo, autocommit=True)
            made.execute(_ABOUT_US)
            if self._begin is not None:
                self._begin(made)
        except psycopg.Error as error:
            wrong = error_line(error, self.address, self._conninfo in _known)
            if isinstance(wrong, DatabaseUnreachable):
                self._unreachable = (time.monotonic() + AGAIN_S, str(wrong))
            raise wrong from None
        self._connection, self._unreachable = made, None
        _known.add(self._conninfo)
        return made

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Return a context in which all reads see one moment. Raises ``DatabaseUnreachable`` if the connection is lost
        meanwhile.
        """
        try:
            with self._alone:
                self._asked(lambda connection: ran(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
                self._pinned = True
                try:
                    yield
                finally:
                    if self._connection is not None:
                        with contextlib.suppress(StoreError):
                            self._asked(lambda connection: ran(connection, "ROLLBACK"))
                    self._pinned = False
        finally:
            if self._closed:
                self._let_go()

    def close(self, last: str = "") -> None:
        """Close the connection, or return it to the idle ones; ``last``: statement to run before, if still connected.

        No request is waited for that is under way in another thread, as one of a caller that was cancelled: a frozen
        database would hold up the event loop that closes. That thread does the rest at the end of its request.
        """
        self._closed, self._last = True, last or self._last
        self._let_go()

    def _let_go(self) -> None:
        """Do what a close requires, unless a request is under way, after which it is done."""
        if not self._alone.acquire(blocking=False):
            return
        try:
            if self._pinned:
                return
            connection, self._connection = self._connection, None
        finally:
            self._alone.release()
        if connection is None:
            return
        with contextlib.suppress(psycopg.Error):
            if self._last:
                ran(connection, self._last)
        if self._begin is None and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            with _idle_alone:
                _idle.append((os.getpid(), self._conninfo, connection))
                for _, _, oldest in _idle[:-_IDLE_MAX]:
                    oldest.close()
                del _idle[:-_IDLE_MAX]
        else:
            connection.close()


def tell_slow(tell: Callable[[str], None]) -> None:
    """Have ``tell`` called, from another thread, with one line about the first slow request of this process. It costs a
    thread a request, which a command that looks can afford and a job cannot."""
    _tell_slow[:] = [tell]


@contextlib.contextmanager
def _told_if_slow(address: str) -> Iterator[None]:
    def tell() -> None:
        try:
            say = _tell_slow.pop()
        except IndexError:
            return  # said already, perhaps a moment ago by the timer of another thread
        late = f"the database {address} has not answered for {SLOW_S:g} s"
        say(f"{late}: it may be frozen, its tables locked (pg_locks), or the answer large; the command waits for it")

    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _taken(conninfo: str) -> psycopg.Connection[Any] | None:
    mine = (os.getpid(), conninfo)
    with _idle_alone:
        place = next((at for at in reversed(range(len(_idle))) if _idle[at][:2] == mine), None)
        return None if place is None else _idle.pop(place)[2]


def ran(connection: psycopg.Connection[Any], statement: str, given: Given = ()) -> psycopg.Cursor[Any]:
    """Run one statement. Raises ``psycopg.Error``."""
    cursor = connection.cursor(binary=True)
    return cursor.execute(statement.encode(), given or None)


@atexit.register
def close_idle() -> None:
    """Close all idle connections."""
    while _idle:
        pid, _, connection = _idle.pop()
        if pid == os.getpid():
            connection.close()
