"""Who works on a job at this moment: an advisory lock of a session that lives as long as its holder.

The server lets go of it when that process ends, however it ends, and within half a minute when its host is gone. Where
the session itself is lost, because the server was started again, it is taken again as soon as that answers; the epoch
keeps writers apart meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import psycopg

from actors.postgres.link import Link
from actors.store import Held, StoreError

BEAT_S = 5.0
"""How often the holder looks whether its session still lives."""
_TRIES = 20
_TRY_AGAIN_S = 0.05  # the session of a process that has just died ends a moment later
_HELD = """
SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
AND classid = %s::bigint::oid AND objid = %s::bigint::oid
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def key_of(schema: str, job: str) -> int:
    """The number of a job's lock: those of a database are shared by all that use it."""
    return int.from_bytes(blake2b(f"cortex {schema} {job}".encode(), digest_size=8).digest(), "big", signed=True)


@contextlib.contextmanager
def hold(conninfo: str, address: str, key: int) -> Iterator[None]:
    """Hold it as long as the block runs. Raises ``Held``, or ``StoreError``."""
    first = True

    def take(connection: psycopg.Connection[Any]) -> None:
        for _ in range(_TRIES if first else 1):
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
            if row is not None and row[0]:
                return
            time.sleep(_TRY_AGAIN_S if first else 0)
        if first:
            connection.close()
            raise Held

    link = Link(conninfo, address, begin=take)
    link.rows("SELECT 1")
    first = False
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(StoreError):
                link.rows("SELECT 1")

    beating = threading.Thread(target=beat, name="cortex-hold", daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        link.close("SELECT pg_advisory_unlock_all()")


def is_held(link: Link, key: int) -> bool:
    """Whether somebody holds it now."""
    return bool(link.rows(_HELD, ((key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF)))
