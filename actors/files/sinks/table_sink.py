"""Sink that writes results as a table: CSV or Parquet, whole or not at all, to any target that ``fsspec`` writes to.

Neither format can be truncated and continued. Therefore rows are first kept as JSON Lines in a row file (hidden beside
the table, or in the state folder for a remote table), which is truncated and resumed like any file of results. At the
end of a run the table is made from the row file in one piece and renamed into place. A kill at any moment loses only
that work: the next run makes the table again.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from actors.files.arrow_values import vector_size
from actors.files.columns import NUMBER, VECTOR, Columns, arrow_columns, arrow_schema, cell, flat
from actors.files.dialects.csv_form import allow_large_cells
from actors.files.errors import SinkError, SinkFailed
from actors.files.local.new_files import is_dangling, opened_new
from actors.files.local.os_errors import told
from actors.files.object_store import head, modified_s, opened, put, there, try_out
from actors.files.paths import adopt, is_remote, rows_of_others
from actors.files.sinks.jsonl_sink import FileSink, is_written, line_of, why
from actors.files.sinks.ownership import (
    HEAD_BYTES,
    PARQUET_MAGIC,
    csv_is_of,
    is_header,
    lines_are_of,
    unpacked,
)
from actors.files.sinks.table_changes import is_as_made, is_part, note_made, rows_are_first
from actors.files.table_reader import CSV, NO_PARQUET, PARQUET, form_of
from cortex.values.template import as_written, holds_minus_zero, values_as_written

ROWS_AT_ONCE: Final = 20_000
VECTORS_AT_ONCE: Final = 2_000
"""Rows with vectors at once: one of 3,072 numbers has 16 KB as text."""
OWNER: Final = b"cortex"
"""Metadata key that identifies a Parquet file as the output of a job."""


class _LineFeeds:
    """File of CSV records that end with a line feed. The writer makes records that end with CR LF."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, record: str) -> int:
        return self._file.write(record[:-2] + "\n")


def csv_writer(file: IO[str], delimiter: str) -> Any:
    """Return a writer of CSV records that end with a line feed and whose cells with a lone CR are quoted.

    The csv module quotes a cell for a line break only if the break is in its line terminator (Python 3.11 and 3.12).
    With ``\\n`` alone a cell with CR is written bare, and any reader takes the rest of the cell for another record.
    """
    return csv.writer(_LineFeeds(file), delimiter=delimiter, lineterminator="\r\n")


class TableSink:
    """Sink with the interface of ``FileSink``.

    ``rows_path``: row file that is kept until the table is made. ``job``: name of the job. ``copy``: the table is a
    copy of results, not the job's own output. A link is kept, as by ``FileSink``: the table is made at its target.
    """

    cuts_back = True

    def __init__(
        self, path: str, rows_path: Path, columns: Columns, *, job: str, flatten: bool = False, overwrite: bool = False,
        keep_off: Iterable[str] = (), copy: bool = False,
    ) -> None:  # fmt: skip
        self.name = path
        self._remote = path if is_remote(path) else ""
        near = rows_path.with_name(rows_path.name + "-" + Path(path).name)
        self._path = near if self._remote else Path(os.path.realpath(path))
        self._dangling = not self._remote and is_dangling(path)
        self._rows_path = rows_path
        self._columns = columns
        self._job = job
        self._flatten = flatten
        self._overwrite = overwrite
        self._form = form_of(path)
        self._rows = FileSink(str(rows_path), overwrite=True, hidden=True)
        self._target = FileSink(str(self._path), overwrite=overwrite, keep_off=keep_off)
        self._open = self._tried = False
        self._vectors = [name for name, kind in columns.names if kind == VECTOR]
        self._at_once = VECTORS_AT_ONCE if self._vectors else ROWS_AT_ONCE
        self._seen: tuple[int, ...] = ()
        self._copy = copy
        self._keeps_changes = False

    def check(self) -> None:
        """Raise ``SinkError`` if nothing can be written."""
        if self._form == PARQUET:
            self._check_types()
        if self._remote:
            if not self._tried:
                try_out(self._remote)
            self._tried = True
            return
        self._target.check()
        if self._path.exists() and not self._target.cuts_back:
            raise SinkError(f"{self.name} is no regular file: a table can be written to one alone")

    def _check_types(self) -> None:
        """Raise ``SinkError`` if pyarrow is missing, or does not write a type of the columns: before anything is asked.
        """
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError:
            raise SinkError(f"{self.name}: {NO_PARQUET}") from None
        for field in arrow_schema(self._columns):
            try:
                pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
            except (pa.ArrowException, ValueError, TypeError):
                wrong = f"{self.name}: column {field.name!r} is of type {field.type}, which Parquet cannot hold"
                raise SinkError(f"{wrong}: write .jsonl or .csv, or leave the column out") from None

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Open the row file, as ``FileSink.open``. Raises ``SinkError``, also for a table that was changed since this
        job made it of these rows."""
        self.check()
        if not own and not self._overwrite and self.taken():
            raise SinkError(f"{self.name} exists: give --overwrite to write over it, or name another output")
        if own:
            adopt(self._rows_path)
            self._refuse_changed()
        else:
            self.see_alone()
            for other in rows_of_others(self._rows_path):
                other.unlink(missing_ok=True)
        self._seen = self._stamp()
        self._rows_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = self._rows.open(rows if own else 0, size_bytes if own else 0, True)
        self._open = True
        return kept

    def _refuse_changed(self) -> None:
        if self._remote or self._overwrite:
            return
        try:
            changed = not is_as_made(self._rows_path, self._path)
        except OSError as error:
            raise SinkError(f"{self.name} cannot be read: {told(error)}") from None
        if changed:
            raise self._changed()

    def _changed(self) -> SinkError:
        return SinkError(
            f"{self.name} was changed since job {self._job} wrote it: move it away to have it written anew, or give "
            "--overwrite"
        )

    def keep_changes(self) -> None:
        """Make ``close`` refuse to write over a local table that holds anything but rows of the new one, unless the
        user permits it: for a table that this job has finished, of which nothing else is recorded."""
        self._keeps_changes = True

    def finished(self) -> bool:
        """Return whether the job has finished a table: it is there, and its row file is gone."""
        adopt(self._rows_path)
        return not self._remote and self._path.exists() and not self._rows_path.exists()

    def compare(self) -> None:
        """Raise ``SinkError`` if the local table holds anything but rows of that which the rows written so far make."""
        self._rows.flush()
        part = self._path.with_name(f".{self._path.name}.part")
        try:
            self._make(part)
            self._see_changes(part)
        except OSError as error:
            raise SinkFailed(f"{self.name} cannot be compared: {told(error)}") from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _see_changes(self, part: Path) -> None:
        if self._remote or self._overwrite or not self._path.exists():
            return
        if not (rows_are_first if self._form == PARQUET else is_part)(self._path, part):
            raise self._changed()

    def begun(self) -> bool:
        """Return whether this job may continue the table: a row file exists, or no table does.

        The owner of a table without a row file is unknown.
        """
        adopt(self._rows_path)
        return self._rows_path.exists() or not self.there()

    def see_alone(self) -> None:
        """Check that no other job makes a table of this name; with ``overwrite``, only that none is being written.

        Raises ``SinkError``.
        """
        for other in rows_of_others(self._rows_path):
            if is_written(other):
                raise SinkError(f"{self.name} is being written by another job: name another output")
            if not self._overwrite:
                raise SinkError(
                    f"{self.name} is the output of another job, which has not ended: resume that, name another output, "
                    "or give --overwrite"
                )

    def taken(self) -> bool:
        """Return whether something has the name of the table already, also a link whose target was missing. Raises
        ``SinkError`` if a store refuses.
        """
        return self._dangling or self.there()

    def there(self) -> bool:
        """Return whether the table exists already. Raises ``SinkError`` if a store refuses."""
        return there(self._remote) if self._remote else self._path.exists()

    def _stamp(self) -> tuple[int, ...]:
        """Return a value that changes when something else writes the table; empty without a table.

        An object has no stamp that all stores know: there, only one that is new is noticed.
        """
        if self._remote:
            return (1,) if self.there() else ()
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def write(self, values: Sequence[Any]) -> None:
        """Append rows to the row file. Raises as ``FileSink.write``."""
        self._rows.write([flat(value) for value in values] if self._flatten else values)

    def flush(self) -> tuple[int, int]:
        """Flush the row file, as ``FileSink.flush``."""
        return self._rows.flush()

    def close(self) -> None:
        """Make the table from the row file. Raises ``SinkError``; the row file is kept, so that the table can be made
        again.
        """
        if not self._open:
            return
        self._open = False
        self._rows.close()
        part = self._path.with_name(f".{self._path.name}.part")
        try:
            self._make(part)
            with part.open("rb+") as whole:
                os.fsync(whole.fileno())
            if self._stamp() not in ((), self._seen) and not self._overwrite:
                raise SinkFailed(f"{self.name} was written by something else meanwhile: move it away, then resume")
            if self._keeps_changes:
                self._see_changes(part)
            if self._remote:
                put(part, self._remote)
            else:
                os.replace(part, self._path)
                if not self._copy:
                    with contextlib.suppress(OSError):  # a change is then not noticed
                        note_made(self._rows_path, self._path)
        except OSError as error:
            raise SinkFailed(f"{self.name} cannot be written: {told(error)}") from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            if self._copy:  # a copy is made again from the journal
                self.forget()

    def abandon(self) -> None:
        """Close the row file without making a table. A table that exists already is left unchanged."""
        self._open = False
        self._rows.close()
        if self._copy:
            self.forget()

    def forget(self) -> None:
        """Delete the row file: the job has ended."""
        with contextlib.suppress(OSError):
            self._rows_path.unlink(missing_ok=True)

    def holds(self, rows: int) -> bool:
        """Return whether the table exists, is this job's, and has this number of rows. For a remote table: whether it
        exists.
        """
        if self._remote:
            return self.there()
        if not self._path.exists():
            return False
        try:
            if self._form == PARQUET:
                import pyarrow.parquet

                found = pyarrow.parquet.ParquetFile(str(self._path)).metadata
                return found.num_rows == rows and (found.metadata or {}).get(OWNER) == self._job.encode()
            return self._csv_holds(rows)
        except (OSError, ValueError, csv.Error, EOFError):
            return False

    def kept(self) -> bool:
        """Return whether the table exists and has a row, or the row file of this job has one."""
        adopt(self._rows_path)
        if self._rows.kept():
            return True
        if not self.there():
            return False
        if self._form == PARQUET:
            found = self._parquet_facts()
            return found is None or found[0] > 0
        text, names = self._head(), [name for name, _ in self._columns.names]
        return not is_header(text, _delimiter(self._path), names) if self._form == CSV else bool(text)

    def is_of(self, values: Sequence[Any]) -> bool:
        """Return whether the table may be that of a job whose first results are ``values``; True without a table."""
        if not self.there():
            return True
        if self._form == PARQUET:
            found = self._parquet_facts()
            # a Parquet file that was cut has lost its metadata, which stand at its end, and is of no use to its owner
            return self._head().startswith(PARQUET_MAGIC) if found is None else found[1] == self._job
        lines = [line_of(flat(value) if self._flatten else value)[:-1] for value in values]
        if self._form != CSV:
            return lines_are_of(self._head(), lines)
        names = [name for name, _ in self._columns.names]
        rows = ([cell(row.get(name)) for name in names] for row in map(values_as_written, lines))
        return csv_is_of(self._head(), _delimiter(self._path), names, rows)

    def replace(self) -> None:
        """Permit to replace a table that another job, or something else, has written."""
        self._overwrite = True
        self._target.replace()

    def older_than(self, at_s: float) -> bool:
        """Return whether the table was last written before this Unix time."""
        return modified_s(self._remote) < at_s if self._remote else self._target.older_than(at_s)

    def _parquet_facts(self) -> tuple[int, str] | None:
        with opened(self._remote) if self._remote else self._path.open("rb") as file:
            return parquet_facts(file)

    def _head(self) -> bytes:
        """Return the beginning of the table, decompressed."""
        packed = self._path.name.lower().endswith(".gz")
        if self._remote:
            return unpacked(head(self._remote, HEAD_BYTES), packed)
        with self._path.open("rb") as file:
            return unpacked(file.read(HEAD_BYTES), packed)

    def _csv_holds(self, rows: int) -> bool:
        width, last = len(self._columns.names), ""

        def texts(file: Iterable[str]) -> Iterator[str]:
            nonlocal last
            for last in file:  # noqa: UP028 - how the last one ends is looked at below
                yield last

        allow_large_cells()
        with _opened(self._path, "rt") as file:
            found = [len(cells) == width for cells in csv.reader(texts(file), delimiter=_delimiter(self._path))]
        return len(found) == rows + 1 and all(found) and last.endswith("\n")

    def _make(self, part: Path) -> None:
        make: Callable[[Path], None] = {CSV: self._csv, PARQUET: self._parquet}.get(self._form, self._lines)
        make(part)

    def _chunks(self) -> Iterator[list[dict[str, Any]]]:
        with self._rows_path.open("rb") as lines:
            while some := [values_as_written(line) for line in islice(lines, self._at_once)]:
                yield some

    def _chunks_by_column(self, names: list[str]) -> Iterator[dict[str, list[Any]]]:
        """Yield the rows in chunks, as values by column; null if a row lacks the column."""
        rename = {f"c{place}": name for place, name in enumerate(dict.fromkeys(names))}
        numbers = {name for name, kind in self._columns.names if kind == NUMBER}
        fields = [(each, float | str | None if name in numbers else Any, None) for each, name in rename.items()]
        try:
            row = msgspec.defstruct("Row", fields, rename=rename, gc=False)
        except ValueError:  # msgspec accepts no quote, backslash or control character in a name
            for rows in self._chunks():
                yield {name: [each.get(name) for each in rows] for name in names}
            return
        hook = None if self._columns.arrow else as_written  # numbers of Arrow are floats
        decode = msgspec.json.Decoder(row, float_hook=hook).decode

        def read(line: bytes) -> Any:
            if not holds_minus_zero(line):
                return decode(line)
            found = values_as_written(line)
            return row(*[_float(found.get(name)) if name in numbers else found.get(name) for name in rename.values()])

        takers = [(name, attrgetter(each)) for each, name in rename.items()]
        with self._rows_path.open("rb") as lines:
            while some := list(map(read, islice(lines, self._at_once))):
                yield {name: list(map(taken, some)) for name, taken in takers}

    def _csv(self, part: Path) -> None:
        names = [name for name, _ in self._columns.names]
        with _made(part, "wt", self._path) as file:
            table = csv_writer(file, _delimiter(self._path))
            table.writerow(names)
            for rows in self._chunks():
                table.writerows([[cell(row.get(name)) for name in names] for row in rows])

    def _parquet(self, part: Path) -> None:
        size = self._vector_size()
        try:
            self._write_parquet(part, arrow_schema(self._columns, vector_size=size))
        except _NullFound:  # a row without its input, in a column that had no null
            self._write_parquet(part, arrow_schema(self._columns, nullable=True, vector_size=size))

    def _vector_size(self) -> int:
        """Return the numbers of the first vector among the rows; 0 without vectors."""
        if not self._vectors:
            return 0
        chunks = self._chunks_by_column(self._vectors)
        return vector_size(text for values in chunks for text in values[self._vectors[0]])

    def _write_parquet(self, part: Path, schema: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = (schema.metadata or {}) | {OWNER: self._job.encode()}
        required = [field.name for field in schema if not field.nullable]
        with pq.ParquetWriter(part, schema.with_metadata(metadata), compression="zstd") as table:
            for values in self._chunks_by_column(schema.names):
                if any(None in values[name] for name in required):
                    raise _NullFound
                try:
                    columns = arrow_columns(self._columns, schema, values)
                except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
                    text = " ".join(str(error).split())[:200]
                    raise SinkError(f"{self.name}: a value does not fit its column: {text}; write .jsonl") from None
                table.write_table(pa.Table.from_arrays(columns, schema=schema))

    def _lines(self, part: Path) -> None:
        with self._rows_path.open("rb") as lines, _made(part, "wb", self._path) as file:
            shutil.copyfileobj(lines, file)


def resembles(path: Path, content: bytes) -> bool:
    """Return whether a results file may be an earlier state of the results file ``content`` of the same name.

    True without a file, and for one without rows. Raises ``SinkError`` if the file cannot be read.
    """
    try:
        now = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {why(error)}") from None
    if form_of(path.name) == PARQUET:
        found, new = (parquet_facts(io.BytesIO(each)) for each in (now, content))
        return found is None or new is None or not found[0] or found[1] == new[1]
    packed = path.name.lower().endswith(".gz")
    before, after = unpacked(now, packed), unpacked(content, packed)
    if form_of(path.name) != CSV:
        return lines_are_of(before, after.split(b"\n"))
    header, *rows = csv.reader(io.StringIO(after.decode("utf-8", "replace"), newline=""), delimiter=_delimiter(path))
    return csv_is_of(before, _delimiter(path), header, rows)


def parquet_facts(file: Any) -> tuple[int, str] | None:
    """Return the rows of a Parquet file and the job that it names; None if the file is no whole Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found = pq.ParquetFile(file).metadata
        return found.num_rows, (found.metadata or {}).get(OWNER, b"").decode()
    except (pa.ArrowException, OSError, ValueError):
        return None


def _float(value: Any) -> Any:
    return float(bytes(value)) if type(value) is msgspec.Raw else value


class _NullFound(Exception):
    """A column that allows no null has one."""


def _delimiter(path: Path) -> str:
    return "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","


def _made(part: Path, mode: str, named: Path) -> Any:
    """Make the file, in place of what has its name, and open it as ``named``. A planted link is not followed."""
    os.close(opened_new(part))
    return _opened(part, mode, named)


def _opened(path: Path, mode: str, named: Path | None = None) -> Any:
    """Open the file; gzip if its name, or the final name ``named``, ends in .gz."""
    text = {} if mode.endswith("b") else {"encoding": "utf-8", "newline": ""}
    if (named or path).name.lower().endswith(".gz"):
        return gzip.open(path, mode, **text)  # type: ignore[call-overload]
    return open(path, mode, **text)  # type: ignore[call-overload]
