"""Write-ahead log of a SQLite file: how it is switched on, and whether it is whole."""

from __future__ import annotations

import sqlite3
import struct
import time
from pathlib import Path

BUSY_S = 10.0
"""Seconds to wait for locks of other connections."""
AGAIN_S = 0.002
"""Seconds between two attempts."""
_HEAD, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_BIG_ENDIAN = 0x377F0683
"""Magic number of a log whose checksums read words with the most significant byte first; one less: last."""


def write_ahead(db: sqlite3.Connection) -> None:
    """Set write-ahead logging for the file of this connection. Raises ``sqlite3.Error``.

    The attempt is repeated: a connection that changes the mode already holds a read lock, and SQLite then does not wait
    for other locks, whatever the connection's timeout is. Of two connections that open a new file at once, one would
    fail.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            read_structure(db)
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
        time.sleep(AGAIN_S)


def read_structure(db: sqlite3.Connection) -> None:
    """Read the structure of the file. Raises ``sqlite3.Error``.

    SQLite's own error quotes what is damaged, and need not be text then.
    """
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except UnicodeDecodeError:
        raise sqlite3.DatabaseError("malformed database schema") from None


class CutLog(ValueError):
    """Write-ahead log that is damaged: committed transactions behind the damage would be lost without a word."""


def see_whole(path: Path, same_boot: bool = False) -> None:
    """Raise ``CutLog`` if the write-ahead log of a database that nobody writes to is damaged.

    SQLite applies a log up to the first frame with a wrong checksum, and ignores the rest without a word
    (https://www.sqlite.org/fileformat2.html#walformat): to it, a damaged log is one whose end was being written at a
    power cut. That can only be the last transaction, since the next is begun once it is on the disk
    (``synchronous=FULL``); and if the machine has not been started again since (``same_boot``), not even that. So a
    later transaction of the same log proves that something else has happened. Nothing is changed.
    """
    log = path.read_bytes()
    if len(log) <= _HEAD.size or not any(log):
        return
    magic, _, size, _, *salts, sum1, sum2 = _HEAD.unpack_from(log)
    order = ">" if magic == _BIG_ENDIAN else "<"
    if magic not in (_BIG_ENDIAN, _BIG_ENDIAN - 1) or _sums(log[:24], order, 0, 0) != (sum1, sum2) or not size:
        raise CutLog
    at, whole, ended = _HEAD.size, True, False
    while at + _FRAME.size + size <= len(log):
        _, commits, salt1, salt2, frame1, frame2 = _FRAME.unpack_from(log, at)
        mine = [salt1, salt2] == salts
        if whole and mine:
            sum1, sum2 = _sums(log[at : at + 8], order, sum1, sum2)
            sum1, sum2 = _sums(log[at + _FRAME.size : at + _FRAME.size + size], order, sum1, sum2)
        whole = whole and mine and (sum1, sum2) == (frame1, frame2)
        if not whole and mine:
            if ended or (commits and same_boot):
                raise CutLog
            ended = bool(commits)
        at += _FRAME.size + size


def _sums(blob: bytes, order: str, sum1: int, sum2: int) -> tuple[int, int]:
    """Return the checksum of SQLite's write-ahead log over these bytes, continued from another."""
    words = struct.unpack(f"{order}{len(blob) // 4}I", blob)
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum1 = (sum1 + first + sum2) & 0xFFFFFFFF
        sum2 = (sum2 + second + sum1) & 0xFFFFFFFF
    return sum1, sum2
