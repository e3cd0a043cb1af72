"""Lock of a running job: an advisory lock of a database session that lives as long as its holder.

The server releases the lock when the process ends for any reason, and within half a minute when its host is gone. If
the session is lost because the server restarted, the lock is taken again as soon as the server answers, or another
holder releases the lock; until then the epoch keeps writers apart.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import psycopg

from actors.journal.journal import JobHeld, StoreError
from actors.journal.postgres.connection import DatabaseConnection

BEAT_S = 5.0
"""Seconds between two checks by the holder that its session still has the lock."""
BACK_S = BEAT_S + 2.0
"""Seconds after the start of a server before which a free lock proves nothing: its holder has lost its session with the
last server, and takes the lock again at its next check."""
END_S = 1.0
"""Seconds for which the end of a hold waits until its lock is free. A database that is frozen frees it when it finds
that the session has ended."""
_LOOK_S = 0.1
_TRIES = 20
_TRY_AGAIN_S = 0.05  # the session of a process that has just died ends a moment later
_TAKE = "SELECT pg_try_advisory_lock(%s)"
_HELD = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND classid = %s::bigint::oid AND objid = %s::bigint::oid
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8
"""


def key_of(schema: str, job: str) -> int:
    """Return the key of a job's lock. Advisory locks are shared by all users of a database."""
    return int.from_bytes(blake2b(f"cortex {schema} {job}".encode(), digest_size=8).digest(), "big", signed=True)


@contextlib.contextmanager
def hold(conninfo: str, address: str, key: int, before: DatabaseConnection | None = None) -> Iterator[None]:
    """Hold the lock until the block ends. ``before``: connection by which to wait until an earlier holder has come back
    to a server that was just started; None: there can be none. Raises ``JobHeld``, or ``StoreError``."""
    if before is not None:
        is_held(before, key)
    first, ours = True, False

    def take(connection: psycopg.Connection[Any]) -> None:
        nonlocal ours
        ours = False  # locks of an earlier session ended with it
        for _ in range(_TRIES if first else 1):
            row = connection.execute(_TAKE, (key,)).fetchone()
            ours = row is not None and bool(row[0])
            if ours:
                return
            time.sleep(_TRY_AGAIN_S if first else 0)
        if first:
            connection.close()
            raise JobHeld

    link = DatabaseConnection(conninfo, address, begin=take)
    link.rows("SELECT 1")
    first = False
    over = threading.Event()

    def beat() -> None:
        nonlocal ours
        while not over.wait(BEAT_S):
            with contextlib.suppress(StoreError):
                if ours:
                    link.rows("SELECT 1")
                else:  # another process has taken the lock
                    ours = bool(link.rows(_TAKE, (key,))[0][0])

    beating = threading.Thread(target=beat, name="cortex-hold", daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        ending = threading.Thread(target=link.close, args=("SELECT pg_advisory_unlock_all()",), daemon=True)
        ending.start()
        for each in (ending, beating):
            each.join(END_S)


def is_held(link: DatabaseConnection, key: int) -> bool:
    """Return whether a session holds the lock. Waits for its holder if the server was started less than ``BACK_S`` ago,
    by the server's clock, and at most ``BACK_S`` by the clock of this process: the server's may have been set.
    """
    end_s = time.monotonic() + BACK_S
    while True:
        held, age_s = link.rows(_HELD, ((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF))[0]
        if held or not 0 <= age_s < BACK_S or time.monotonic() >= end_s:
            return bool(held)
        time.sleep(_LOOK_S)
