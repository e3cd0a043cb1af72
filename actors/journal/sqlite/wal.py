"""Switch a SQLite file to write-ahead logging."""

from __future__ import annotations

import sqlite3
import time

BUSY_S = 10.0
"""Seconds to wait for locks of other connections."""
AGAIN_S = 0.002
"""Seconds between two attempts."""


def write_ahead(db: sqlite3.Connection) -> None:
    """Set write-ahead logging for the file of this connection. Raises ``sqlite3.Error``.

    The attempt is repeated: a connection that changes the mode already holds a read lock, and SQLite then does not wait
    for other locks, whatever the connection's timeout is. Of two connections that open a new file at once, one would
    fail.
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
