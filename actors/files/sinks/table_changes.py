"""Changes to a table since a job made it: whoever edits one, in a spreadsheet for instance, must not lose that."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from actors.files.sinks.ownership import PARQUET_MAGIC

_READ_BYTES: Final = 1 << 20
_ROWS_AT_ONCE: Final = 10_000
_MADE_BYTES_MAX: Final = 256
_BEGINNING: Final = b'\n{"made":'


class MadeTable(msgspec.Struct, frozen=True, tag_field="made", tag="table"):
    """Table as a run made it. The record stands behind the rows of the row file: a run that goes on with these cuts it
    off."""

    size_bytes: int
    changed_ns: int
    """Time of the last change, Unix time in 1e-9 s."""
    checksum: int
    """CRC-32 of the file."""


def note_made(rows_path: Path, table: Path) -> None:
    """Record the table behind the rows that it was made of. Raises OSError."""
    found = table.stat()
    made = MadeTable(found.st_size, found.st_mtime_ns, _checksum(table))
    with rows_path.open("ab") as rows:
        rows.write(b"\n" + msgspec.json.encode(made))


def is_as_made(rows_path: Path, table: Path) -> bool:
    """Return whether a table is as it was made of the rows in this file; True where that is not known, and without a
    table. Raises OSError."""
    made = _made_of(rows_path)
    if made is None or not table.exists():
        return True
    found = table.stat()
    if found.st_size != made.size_bytes:
        return False
    return found.st_mtime_ns == made.changed_ns or _checksum(table) == made.checksum


def _made_of(rows_path: Path) -> MadeTable | None:
    try:
        with rows_path.open("rb") as rows:
            rows.seek(max(0, rows.seek(0, os.SEEK_END) - _MADE_BYTES_MAX))
            _, begins, text = rows.read().rpartition(_BEGINNING)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(begins.lstrip() + text, type=MadeTable) if begins else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while some := file.read(_READ_BYTES):
            found = zlib.crc32(some, found)
    return found


def is_part(kept: Path, made: Path) -> bool:
    """Return whether a file of lines or CSV has lines of another alone, in their order; the last one may be torn.

    Such a file is an earlier state of the other, or rows were taken away. Both are compressed if the name of the first
    ends in .gz. Raises OSError.
    """
    packed = kept.name.lower().endswith(".gz")
    with _opened(kept, packed) as one, _opened(made, packed) as other:
        try:
            for line in one:
                torn = not line.endswith(b"\n")
                if not any(each == line or (torn and each.startswith(line)) for each in other):
                    return False
        except EOFError:
            return True  # cut short
        except (zlib.error, gzip.BadGzipFile):
            return False
    return True


def rows_are_first(kept: Path, made: Path) -> bool:
    """Return whether the rows of a Parquet file are the first ones of another. One that was cut short is of no use to
    its owner, and counts as such. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(kept) as one, pq.ParquetFile(made) as other:
            if one.schema_arrow.names != other.schema_arrow.names or one.metadata.num_rows > other.metadata.num_rows:
                return False
            batches = zip(one.iter_batches(_ROWS_AT_ONCE), other.iter_batches(_ROWS_AT_ONCE), strict=False)
            return all(_first(*both) for both in batches)
    except (pa.ArrowException, ValueError):
        with kept.open("rb") as file:
            return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _first(one: Any, other: Any) -> bool:
    return all(a.equals(b.slice(0, len(a))) for a, b in zip(one.columns, other.columns, strict=True))


def _opened(path: Path, packed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")
