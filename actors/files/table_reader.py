"""Rows of a table: CSV and JSON Lines a line at a time, Parquet a row group at a time; any size in flat memory.

CSV is read by the standard library, so CSV needs no further package; its cells are text and stay text. Parquet is read
by pyarrow (extra ``parquet``). A row is (its number from 1, its content).
"""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from actors.files.arrow_values import JsonForm, bytes_are_text, to_json_values
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
        self.texts: frozenset[str] = frozenset()
        """Columns of Parquet whose bytes are all UTF-8, and are read as text."""
        self.exact = False
        """Whether a value of Parquet that could not be written again ends the reading."""
        self._are_text: dict[str, bool] = {}
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
            return ParquetReader(self._parquet, self, position)
        lines = self._input.lines(position, digest)
        if self.form == JSONL:
            return JsonReader(lines)
        reading = CsvReader(lines, self._delimiter)
        if not position:
            self.columns = reading.header(self.name)
            self._delimiter = reading.delimiter
        reading.width = len(self.columns or ())
        return reading

    def is_text(self, name: str) -> bool:
        """Return whether all bytes within a column of Parquet are UTF-8. Raises ``SourceError``."""
        import pyarrow

        if name not in self._are_text:
            try:
                groups = range(self._parquet.metadata.num_row_groups)
                some = chain.from_iterable(_batches(self._parquet, group, [name]) for group in groups)
                self._are_text[name] = all(bytes_are_text(batch.column(name)) for batch in some)
            except (pyarrow.ArrowException, OSError) as error:
                raise _damaged(self.name, error) from None
        return self._are_text[name]

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
    if isinstance(error, NotImplementedError):
        return SourceError(f"{name} is Parquet of a kind that pyarrow does not read: write it anew ({text[:120]})")
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
    """Reader of Parquet: a piece is a row's values by name, in the JSON form of ``actors.files.arrow_values``.

    Which columns are read, and how, is taken from the table with the first row: the check sets it between.
    """

    def __init__(self, file: Any, table: TableFile, position: int) -> None:
        self._file = file
        self._table = table
        self._name = table.name
        self._rows = self._all(position)
        self.position = self.number = position
        self._count = file.metadata.num_rows
        if position > self._count:
            raise SourceError(f"{self._name} is shorter than when it was read before: put back what it held")

    def _all(self, skip: int) -> Iterator[dict[str, Any]]:
        import pyarrow

        try:
            for group in range(self._file.metadata.num_row_groups):
                rows = self._file.metadata.row_group(group).num_rows
                if skip >= rows:
                    skip -= rows
                    continue
                for batch in _batches(self._file, group, self._table.only):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield from self._rows_of(batch.slice(skip))
                    skip = 0
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(self._name, error) from None

    def _rows_of(self, batch: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a batch. Raises ``SourceError``, with the column, for a value that has no JSON form."""
        names, columns, table = batch.schema.names, [], self._table
        for name, column in zip(names, batch.columns, strict=True):
            form = JsonForm(text=name in table.texts, exact=table.exact)
            try:
                columns.append(to_json_values(column, form))
            except (NotImplementedError, OverflowError, TypeError, ValueError) as error:  # some are pyarrow's
                text = "its text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:120]
                row = self.position + 1 + _first_bad(column, form)
                wrong = f"{self._name} row {row}, column {name!r}: {' '.join(text.split())}"
                raise SourceError(f"{wrong}: correct the value, or leave the column out") from None
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

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


def _batches(file: Any, group: int, only: list[str] | None) -> Iterator[Any]:
    """Yield a row group of Parquet in batches.

    pyarrow reads some nested columns in batches alone, and others (nested dictionaries) as a whole row group alone
    (https://github.com/apache/arrow/issues/21526).
    """
    import pyarrow

    rows = 0
    try:
        for batch in file.iter_batches(ROWS_AT_ONCE, [group], only):
            yield batch
            rows += batch.num_rows
    except pyarrow.ArrowNotImplementedError:
        yield from file.read_row_group(group, only).slice(rows).to_batches(ROWS_AT_ONCE)


def _first_bad(column: Any, form: JsonForm) -> int:
    """Return the place of the first value of a column that has no JSON form."""
    for place in range(len(column)):
        try:
            to_json_values(column.slice(place, 1), form)
        except (NotImplementedError, OverflowError, TypeError, ValueError):
            return place
    return 0


__all__ = [
    "CSV",
    "JSONL",
    "PARQUET",
    "BadRecord",
    "InvalidRow",
    "TableFile",
    "form_of",
]
