"""Ownership of the rows in an output, judged by its beginning: they are of a job, or of something else.

A results file has no mark of its job: CSV and JSON Lines have no place for one. A row of a job is known by its text,
since a results file is a projection of the journal: the same rows, byte for byte, in the same order.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from actors.files.sinks.results_recovery import GZIP_BITS

HEAD_BYTES: Final = 1 << 20
"""Bytes at the beginning of an output that are looked at."""
ROWS: Final = 100
"""Whole rows at the beginning of an output of which one must be a row of the job. A user may have taken out others."""
GZIP_MAGIC: Final = b"\x1f\x8b"
"""First bytes of a gzip file (RFC 1952, 2.3.1)."""
PARQUET_MAGIC: Final = b"PAR1"
"""First bytes of a Parquet file (github.com/apache/parquet-format, "File format")."""


def unpacked(head: bytes, packed: bool) -> bytes:
    """Return the beginning of a file, decompressed as far as it can be if it is ``packed`` (gzip).

    A beginning that is no gzip is returned as it is: it belongs to no job that compresses its results.
    """
    if not packed or not head.startswith(GZIP_MAGIC):
        return head
    found, rest = b"", head
    while rest and len(found) < HEAD_BYTES:
        unpacker = zlib.decompressobj(GZIP_BITS)
        try:
            found += unpacker.decompress(rest, HEAD_BYTES)
        except zlib.error:
            return found
        rest = unpacker.unused_data
    return found


def lines_are_of(head: bytes, lines: Sequence[bytes]) -> bool:
    """Return whether JSON Lines that begin with ``head`` may be rows of a job whose first results are ``lines``.

    A beginning without a whole line may be the torn first row of the job. A crash leaves NUL bytes in place of a block
    that was not written.
    """
    text = head.partition(b"\0")[0]
    *whole, torn = text.split(b"\n")
    if whole:
        return not set(whole[:ROWS]).isdisjoint(lines)
    return not torn or any(line.startswith(torn) for line in lines)


def csv_is_of(head: bytes, delimiter: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
    """Return whether CSV that begins with ``head`` may be the table of a job: ``header`` and its first ``rows``."""
    if not head:
        return True
    try:
        text = head.decode("utf-8", "replace")
        found = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        first = next(found, [])
        records = [tuple(record) for _, record in zip(range(ROWS), found, strict=False)]
    except csv.Error:
        return False
    if first != list(header):
        return False
    own = {tuple("" if cell is None else str(cell) for cell in row) for row in rows}
    return not records or not own.isdisjoint(records) or (len(records) == 1 and not text.endswith("\n"))


def is_header(head: bytes, delimiter: str, header: Sequence[str]) -> bool:
    """Return whether CSV that begins with ``head`` is empty, or is ``header`` without a record."""
    try:
        found = list(csv.reader(io.StringIO(head.decode("utf-8", "replace"), newline=""), delimiter=delimiter))
    except csv.Error:
        return False
    return found in ([], [list(header)])
