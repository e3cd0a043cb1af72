"""A file whose transactions go into a write-ahead log first."""

from __future__ import annotations

import sqlite3
import time

BUSY_S = 10.0
"""How long a lock of others is waited for."""
AGAIN_S = 0.002


def write_ahead(db: sqlite3.Connection) -> None:
    """Have the file of this connection keep such a log. Raises ``sqlite3.Error``.

    Whoever changes a file's mode has read it by then, and for one that holds a lock SQLite waits for no other, whatever
    the connection's timeout is: of two that open a new file at once one would be told that it is locked.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
        time.sleep(AGAIN_S)
