"""Recovery of a results file: the whole rows in it, up to the number that the journal records."""

from __future__ import annotations

import os
import zlib
from typing import Final

import msgspec

READ_BYTES: Final = 1 << 20

GZIP_BITS: Final = 31
"""`wbits` for zlib with the header and trailer of gzip (zlib.h, deflateInit2)."""


class _CompleteRows(msgspec.Struct):
    """Whole rows from the start of the file, their bytes, and whether a torn row follows."""

    rows: int = 0
    size_bytes: int = 0
    torn: bool = False


def held(fd: int, rows: int, size_bytes: int, packed: bool) -> tuple[int, int] | None:
    """Return (rows, bytes) to keep of a file of which the journal records `rows` in the first `size_bytes`.

    - All of them if the file holds them.
    - If the file was truncated: the whole rows before the cut (in gzip the whole members).
    - (0, 0) if the file ends too early, but with a whole row: unknown rows were removed.
    - None if the first `size_bytes` hold anything else than these rows: the file is not this job's.

    Raises OSError.
    """
    size = os.fstat(fd).st_size
    found = (_members if packed else _lines)(fd, min(size, size_bytes), size < size_bytes)
    if (found.rows, found.size_bytes) == (rows, size_bytes):
        return rows, size_bytes
    if found.rows > rows or (size >= size_bytes and not found.torn):
        return None
    return (found.rows, found.size_bytes) if found.torn else (0, 0)


def checksum_of(fd: int, size_bytes: int) -> int:
    """Return the CRC-32 of the first `size_bytes` of a file. Raises OSError."""
    at = found = 0
    while at < size_bytes and (some := os.pread(fd, min(READ_BYTES, size_bytes - at), at)):
        found = zlib.crc32(some, found)
        at += len(some)
    return found


def _lines(fd: int, end: int, short: bool) -> _CompleteRows:
    """Return the whole lines. A crash leaves NUL bytes in place of an unwritten block; JSON contains none."""
    found = _CompleteRows()
    at = 0
    while at < end and (some := os.pread(fd, min(READ_BYTES, end - at), at)):
        if (hole := some.find(b"\0")) >= 0:
            found.torn = True
            some = some[:hole]
        if breaks := some.count(b"\n"):
            found.rows += breaks
            found.size_bytes = at + some.rindex(b"\n") + 1
        if found.torn:
            return found
        at += len(some)
    if short and found.size_bytes < end:
        found.torn = not _is_json(fd, found.size_bytes, end)
    return found


def _is_json(fd: int, start: int, end: int) -> bool:
    try:
        msgspec.json.decode(os.pread(fd, end - start, start), type=msgspec.Raw)
    except ValueError:
        return False
    return True


def _members(fd: int, end: int, short: bool) -> _CompleteRows:
    """Return the whole gzip members, by the length and checksum at the end of each."""
    found = _CompleteRows()
    at = 0
    while at < end:
        rows = _member(fd, at, end)
        if rows is None:
            found.torn = True
            return found
        found.rows += rows[0]
        at = found.size_bytes = rows[1]
    return found


def _member(fd: int, at: int, end: int) -> tuple[int, int] | None:
    """Return (rows, position of the end) of the member that begins at this position; None if the member is not whole.
    """
    unpacker = zlib.decompressobj(GZIP_BITS)
    rows = 0
    packed = b""
    try:
        while not unpacker.eof:
            if not packed:
                packed = os.pread(fd, min(READ_BYTES, end - at), at)
                if not packed:
                    return None
                at += len(packed)
            rows += unpacker.decompress(packed, READ_BYTES).count(b"\n")
            packed = unpacker.unconsumed_tail
    except zlib.error:
        return None
    return rows, at - len(unpacker.unused_data)
