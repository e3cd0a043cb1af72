"""Rows of a table: CSV and JSON Lines a line at a time, Parquet a row group at a time; any size in flat memory.

CSV is read by the standard library, so CSV needs no further package; its cells are text and stay text. Parquet is read
by pyarrow (extra ``parquet``). A row is (its number from 1, its content).
"""

from __future__ import annotations

import base64
import csv
import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from actors.files.batch_request import LINE_BYTES_MAX, InvalidRow, not_utf8
from actors.files.errors import SourceError
from actors.files.format_hints import wrong_file
from actors.files.line_reader import InputFile, LineReader

CSV, JSONL, PARQUET = "csv", "jsonl", "parquet"
BOM: Final = b"\xef\xbb\xbf"
ROWS_AT_ONCE: Final = 2_000
DELIMITERS: Final = ",;\t|"
NO_PARQUET: Final = "Parquet is read and written by pyarrow: pip install 'cortex-bounded-calls[parquet]', or use CSV"
_ENDINGS: Final = {
    ".csv": CSV, ".tsv": CSV, ".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".parquet": PARQUET,
    ".pq": PARQUET,
}  # fmt: skip


def form_of(path: str) -> str:
    """Return the format by a file's suffix: ``csv``, ``jsonl``, ``parquet``; empty for another suffix."""
    name = path.lower().removesuffix(".gz")
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), "")


def misspelt_form(path: str) -> str:
    """Return the known suffix that a file's suffix is close to, ``.csv`` for ``labels.cvs``; empty if it is close to
    none.
    """
    ending = Path(path.lower().removesuffix(".gz")).suffix
    if form_of(path) or not ending:
        return ""
    return next(iter(difflib.get_close_matches(ending, _ENDINGS, n=1, cutoff=0.75)), "")


class BadRecord:
    """Piece that is not a row, with the reason."""

    def __init__(self, text: str) -> None:
        self.message = text


Piece = tuple[int, Any]
"""Number of a row, and its cells, its line or its values; or ``BadRecord``."""


class TableFile:
    """Table that can be read from any of its positions. ``columns``: names of the columns, unless the format is JSON
    Lines.
    """

    def __init__(self, path: str, spool: Path, stdin: BinaryIO | None = None, called: str = "") -> None:
        self._input = InputFile(path, spool, stdin)
        self.name = called or self._input.name
        self.form = form_of(path)
        self.columns: list[str] | None = None
        self.arrow: Any = None
        """Arrow schema of a Parquet file; None for other formats."""
        self.only: list[str] | None = None
        """Columns to read from Parquet; None: all."""
        self._delimiter = "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ""
        self._parquet: Any = None

    def open(self) -> None:
        """Open the table and determine its format. Raises ``SourceError``."""
        self._input.open()
        head = self._input.lines().head()
        self.form = self.form or _form_by_content(head)
        if self.form != PARQUET and (text := wrong_file(head)):
            raise SourceError(f"{self.name} {text}")
        if self.form == PARQUET:
            self._open_parquet()

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes whenever the file is written to."""
        return self._input.stamp()

    def digest(self) -> str:
        """Return the digest of the whole content."""
        return self._input.digest()

    def reading(self, position: int = 0, digest: Any = None) -> CsvReader | JsonReader | ParquetReader:
        """Return a reader of the rows from a position: bytes of text, or rows of Parquet."""
        if self.form == PARQUET:
            if digest is not None:
                self._feed(digest)
            return ParquetReader(self._parquet, self.name, position, self.only)
        lines = self._input.lines(position, digest)
        if self.form == JSONL:
            return JsonReader(lines)
        reading = CsvReader(lines, self._delimiter)
        if not position:
            self.columns = reading.header(self.name)
            self._delimiter = reading.delimiter
        reading.width = len(self.columns or ())
        return reading

    def close(self) -> None:
        """Close the file."""
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None
        self._input.close()

    def _open_parquet(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise SourceError(f"{self.name}: {NO_PARQUET}") from None
        try:
            self._parquet = pyarrow.parquet.ParquetFile(str(self._input.place))
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(self.name, error) from None
        counts = Counter(self._parquet.schema_arrow.names)
        if twice := next((name for name, count in counts.items() if count > 1), None):
            raise SourceError(f"{self.name} has two columns named {twice!r}: rename one")
        self.arrow = self._parquet.schema_arrow
        self.columns = list(self.arrow.names)

    def _feed(self, digest: Any) -> None:
        with open(self._input.place, "rb") as content:
            while some := content.read(1 << 20):
                digest.update(some)


def _form_by_content(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return PARQUET
    return JSONL if head.removeprefix(BOM).lstrip().startswith(b"{") else CSV


def _damaged(name: str, error: Exception) -> SourceError:
    text = " ".join(str(error).split())
    if "magic bytes" in text or "file size is" in text or "too small" in text or "larger than" in text:
        return SourceError(f"{name} was cut, or is no Parquet file: fetch or make it again")
    return SourceError(f"{name} is damaged and cannot be read as Parquet: fetch or make it again ({text[:120]})")


class JsonReader:
    """Reader of JSON Lines: a piece is a line, unchanged."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines
        self.position, self.number, self._row = lines.position, 0, 0

    def next(self) -> Piece | None:
        """Return the next line that is not blank; None after the last."""
        while (line := self._lines.next()) is not None:
            self.position = self._lines.position
            line = line.removeprefix(BOM)
            if line.isspace() or not line:
                continue
            self.number = self._lines.number
            self._row += 1
            return self._row, line
        self.position = self._lines.position
        return None

    def at_end(self) -> bool:
        """Return True if no line is left."""
        return self._lines.at_end()


class CsvReader:
    """Reader of CSV: a piece is the cells of a record, which may extend over several lines."""

    def __init__(self, lines: LineReader, delimiter: str) -> None:
        self._lines = lines
        self._wrong = ""
        self.delimiter = delimiter or _delimiter(lines.peek())
        csv.field_size_limit(LINE_BYTES_MAX)
        self._records = csv.reader(self._texts(), delimiter=self.delimiter, strict=True)
        self.width = 0
        self.position, self.number, self._row = lines.position, 0, 0

    def _texts(self) -> Iterator[str]:
        read = self._lines.next
        while (line := read()) is not None:
            line = line.removeprefix(BOM)
            if len(line) > LINE_BYTES_MAX:
                self._wrong = f"longer than {LINE_BYTES_MAX >> 20} MB, which no provider takes"
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                self._wrong = self._wrong or not_utf8(line, error.start)
                yield line.decode(errors="replace")

    def header(self, name: str) -> list[str]:
        """Return the column names in the first record. Raises ``SourceError``."""
        piece = self.next()
        if piece is None:
            raise SourceError(f"{name} is empty: a table has a header line with its columns' names, and rows")
        cells = piece[1]
        self._row = 0
        if isinstance(cells, BadRecord):
            raise SourceError(f"{name} line {self.number}, its header, {cells.message}")
        names = [cell.strip() or f"column_{place}" for place, cell in enumerate(cells, 1)]
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise SourceError(f"{name}: its header names {twice!r} twice: give each column a name of its own")
        return names

    def next(self) -> Piece | None:
        """Return the next record that is not blank; None after the last."""
        lines = self._lines
        while True:
            before = lines.number
            try:
                cells: Any = next(self._records)
            except StopIteration:
                self.position = lines.position
                return None
            except csv.Error as error:
                cells = BadRecord(_wrong_csv(str(error)))
            self.position, self.number = lines.position, before + 1
            if not cells:
                continue
            self._row += 1
            if self._wrong:
                cells, self._wrong = BadRecord(self._wrong), ""
            elif type(cells) is list and len(cells) != self.width and self.width:
                has = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                cells = BadRecord(f"has {has}, its header {self.width}: a quote or a comma is out of place")
            return self._row, cells

    def at_end(self) -> bool:
        """Return True if no line is left."""
        return self._lines.at_end()


def _delimiter(head: bytes) -> str:
    """Return the delimiter that is most frequent in the first line."""
    line = head.split(b"\n", 1)[0].decode(errors="replace")
    return max(DELIMITERS, key=line.count)


def _wrong_csv(text: str) -> str:
    if "unexpected end" in text:
        return 'opens a quote that is never closed: double each quote that is text (""), or close it'
    if "expected after" in text:
        return 'has text after a closing quote: double each quote that is text ("")'
    return f"is no CSV: {text}"


class ParquetReader:
    """Reader of Parquet: a piece is a row's values by name; times, decimals and the like as text."""

    def __init__(self, file: Any, name: str, position: int, only: list[str] | None) -> None:
        self._file = file
        self._only = only
        self._name = name
        self._rows = self._all(position)
        self.position = self.number = position
        self._count = file.metadata.num_rows
        if position > self._count:
            raise SourceError(f"{name} is shorter than when it was read before: put back what it held")

    def _all(self, skip: int) -> Iterator[dict[str, Any]]:
        import pyarrow

        try:
            for group in range(self._file.metadata.num_row_groups):
                rows = self._file.metadata.row_group(group).num_rows
                if skip >= rows:
                    skip -= rows
                    continue
                for batch in self._file.iter_batches(ROWS_AT_ONCE, [group], self._only):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield from rows_of(batch.slice(skip))
                    skip = 0
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(self._name, error) from None
        except (OverflowError, ValueError) as error:  # a time in a list or a struct, beyond Python's years
            text = " ".join(str(error).split())[:120]
            wrong = f"{self._name} holds a value out of range: leave its column out ({text})"
            raise SourceError(wrong) from None

    def next(self) -> Piece | None:
        """Return the next row; None after the last."""
        row = next(self._rows, None)
        if row is None:
            return None
        self.position += 1
        self.number = self.position
        return self.position, row

    def at_end(self) -> bool:
        """Return True if no row is left."""
        return self.position >= int(self._count)


def rows_of(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow table or batch, with JSON values."""
    names = batch.schema.names
    for values in zip(*[to_json_values(column) for column in batch.columns], strict=True):
        yield dict(zip(names, values, strict=True))


def to_json_values(column: Any) -> list[Any]:
    """Return a column as JSON values: times and decimals as text, bytes as base64, NaN and infinities as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return [None if each is None else str(each) for each in column.to_pylist()]
        return to_json_values(column.cast(kind.storage_type))
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_finite(column), column, None)
    elif pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif is_bytes(kind):
        return [None if each is None else base64.b64encode(each).decode() for each in column.to_pylist()]
    found: list[Any] = column.to_pylist()
    return found


def is_bytes(kind: Any) -> bool:
    """Return whether values of this Arrow type are bytes."""
    import pyarrow as pa

    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(each(kind) for each in kinds)


__all__ = [
    "CSV",
    "JSONL",
    "PARQUET",
    "BadRecord",
    "InvalidRow",
    "TableFile",
    "form_of",
    "is_bytes",
    "rows_of",
    "to_json_values",
]
