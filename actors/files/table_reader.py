"""Rows of a table: CSV and JSON Lines a line at a time, Parquet a row group at a time; any size in flat memory.

CSV is read by the standard library, so CSV needs no further package; its cells are text and stay text. Parquet is read
by pyarrow (extra ``parquet``). A row is (its number from 1, its content).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from actors.files.arrow_values import DictionaryEntries, JsonForm, bytes_are_text, to_json_values
from actors.files.bad_records import BOM, BadRecord, RawRecord
from actors.files.batch_request import InvalidRow
from actors.files.csv_reader import CsvReader
from actors.files.dialects.csv_form import SAMPLE_BYTES, CsvForm, UnclearForm, header_below
from actors.files.dialects.csv_form import form_of as csv_form_of
from actors.files.dialects.dialect import DETECTED, Dialect
from actors.files.dialects.json_form import closes_array, element_of, is_array_of_lines, way_to_lines, wrong_json
from actors.files.errors import SourceError
from actors.files.format_hints import misnamed, wrong_file
from actors.files.json_rows import given_of, read_cell
from actors.files.line_reader import PARQUET_MAGIC, InputFile, LineReader

CSV, JSONL, PARQUET = "csv", "jsonl", "parquet"
ROWS_AT_ONCE: Final = 2_000
HEAD_BYTES: Final = 512
"""Bytes at the start of a file by which its format is recognized."""
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


_encode: Final = msgspec.json.Encoder(enc_hook=lambda flaw: f"<{flaw.message}>").encode
"""Encode the values of a bad row; those that have no form are shown by the reason."""
CELLS: Final = b"cortex.cells"
"""Metadata key of a column of text that holds cells of several types (``actors.files.json_rows.cell_text``)."""

Piece = tuple[int, Any]
"""Number of a row, and its cells, its line or its values; or ``BadRecord``."""


class TableFile:
    """Table that can be read from any of its positions. ``columns``: names of the columns, unless the format is JSON
    Lines. ``dialect``: properties of the file that the user gives.
    """

    def __init__(
        self, path: str, spool: Path, stdin: BinaryIO | None = None, called: str = "", dialect: Dialect = DETECTED
    ) -> None:
        self._input = InputFile(path, spool, stdin, dialect)
        self.name = called or self._input.name
        self.form = form_of(path)
        self.columns: list[str] | None = None
        self.arrow: Any = None
        """Arrow schema of a Parquet file; None for other formats."""
        self.only: list[str] | None = None
        """Columns to read from Parquet; None: all."""
        self.texts: frozenset[str] = frozenset()
        """Columns of Parquet whose bytes are all UTF-8, and are read as text."""
        self.entries = DictionaryEntries()
        self.cells: frozenset[str] = frozenset()
        """Columns of Parquet that hold cells of several types."""
        self.exact = False
        """Whether a value of Parquet that could not be written again ends the reading."""
        self._are_text: dict[str, bool] = {}
        self.wanted: Collection[str] = ()
        """Columns that the table must have."""
        self._dialect = dialect
        self._tabs = path.lower().removesuffix(".gz").endswith((".tsv", ".tab"))
        self._csv_form = CsvForm()
        self._header: list[str] = []
        """Cells of the header, which are no row where they are repeated."""
        self._in_array = False
        """True if the lines of JSON are the elements of an array."""
        self._parquet: Any = None

    def open(self) -> None:
        """Open the table and determine its format. Raises ``SourceError``."""
        self._input.open()
        head = self._input.start(HEAD_BYTES)
        self.form = self.form or _form_by_content(head)
        if self.form != PARQUET and (text := wrong_file(head)):
            raise SourceError(f"{self.name} {text}")
        self._refuse_options()
        if self.form == PARQUET:
            self._open_parquet()
        elif self.form == CSV:
            self._open_csv()
        else:
            self._open_json()

    def _open_csv(self) -> None:
        sample = self._input.start(SAMPLE_BYTES)
        cut = len(sample) == SAMPLE_BYTES
        try:
            form = csv_form_of(sample, self._dialect, cut=cut, tabs=self._tabs, wanted=self.wanted)
        except UnclearForm as error:
            raise SourceError(f"{self.name} {error}") from None
        self._csv_form, self._input.universal = form, form.universal
        if self._dialect.no_header:
            self.columns = self._numbered_columns()

    def _open_json(self) -> None:
        sample = self._input.start(SAMPLE_BYTES)
        self._input.universal = b"\r" in sample and b"\n" not in sample
        self._in_array = is_array_of_lines(sample)
        if not self._in_array and (text := wrong_json(sample, len(sample) == SAMPLE_BYTES)):
            raise SourceError(f"{self.name} {text}")

    def _refuse_options(self) -> None:
        """Raise ``SourceError`` for an option of a dialect that this form of table has not."""
        kind = {PARQUET: "Parquet", JSONL: "JSON Lines"}.get(self.form, "")
        given = self._dialect.of_csv if kind else []
        if self.form == PARQUET and self._dialect.encoding:
            given = ["--encoding", *given]
        if given:
            raise SourceError(f"{self.name} is {kind}: leave out {given[0]}")

    def refuse_encoding(self) -> None:
        """Raise ``SourceError`` if a text file is surely not UTF-8, as ``InputFile.refuse_encoding``."""
        if self.form != PARQUET:
            self._input.refuse_encoding()

    def refuse_given(self, *, failed: bool, bad: bool) -> None:
        """Raise ``SourceError`` if the given encoding is surely wrong, as ``InputFile.refuse_given``."""
        if self.form != PARQUET:
            self._input.refuse_given(failed=failed, bad=bad)

    def way_out(self, columns: Collection[str]) -> str:
        """Return the option that would make these columns exist; empty if none is known."""
        if self.form == JSONL:
            return way_to_lines(self._input.start(SAMPLE_BYTES))
        if self.form != CSV or self._dialect.no_header:
            return ""
        if all(each.startswith("column_") for each in columns):
            return "give --no-header if its first line is a row"
        sample = self._input.start(SAMPLE_BYTES)
        if text := misnamed(sample):
            return text
        if above := header_below(sample, len(sample) == SAMPLE_BYTES, columns, self._csv_form):
            return f"line {above + 1} names {'it' if len(columns) == 1 else 'them'}: give --skip-lines {above}"
        if any(each.strip().isdigit() for each in self._header):
            return "give --no-header if its first line is a row, and call its columns column_1, column_2 and so on"
        return ""

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
            return JsonReader(lines, self._in_array)
        reading = CsvReader(lines, self._csv_form)
        if not position:
            self._begin(reading, lines)
        reading.width, reading.titles = len(self.columns or ()), self._header
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

    def _begin(self, reading: CsvReader, lines: LineReader) -> None:
        """Read what stands above the first row, and find the columns. Raises ``SourceError``."""
        for _ in range(self._csv_form.skip_lines):
            lines.next()
        if self._dialect.no_header:
            return
        self._header, names = reading.header(self.name, self.refuse_encoding)
        self.columns = names

    def _numbered_columns(self) -> list[str]:
        """Return names for the columns of a file without a header."""
        lines = self._input.lines()
        for _ in range(self._csv_form.skip_lines):
            lines.next()
        return CsvReader(lines, self._csv_form).header(self.name, self.refuse_encoding, numbered=True)[1]

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
        self.cells = frozenset(field.name for field in self.arrow if CELLS in (field.metadata or ()))

    def _feed(self, digest: Any) -> None:
        with open(self._input.place, "rb") as content:
            while some := content.read(1 << 20):
                digest.update(some)


def _form_by_content(head: bytes) -> str:
    if head.startswith(PARQUET_MAGIC):
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
    """Reader of JSON Lines: a piece is a line, unchanged; ``in_array``: without what makes it an element of an array.

    An array that was cut between two lines lacks its closing bracket: the reading then ends in ``SourceError``.
    """

    def __init__(self, lines: LineReader, in_array: bool = False) -> None:
        self._lines = lines
        self._in_array = in_array
        self._line = b""
        self._may_end = not in_array or bool(lines.position)
        """Whether the file may end here. A reading from a later position is of a file that was read to its end."""
        self.position, self.number, self._row = lines.position, 0, 0

    def next(self) -> Piece | None:
        """Return the next line that is not blank; None after the last."""
        while (line := self._lines.next()) is not None:
            self.position = self._lines.position
            self._line = line
            line = line.removeprefix(BOM)
            if self._in_array:
                self._may_end = closes_array(line) or (self._may_end and line.isspace())
                line = element_of(line)
            if line.isspace() or not line:
                continue
            self.number = self._lines.number
            self._row += 1
            return self._row, line
        self.position = self._lines.position
        if not self._may_end:
            where = f"{self._lines.name}: its JSON array has no closing ']'"
            raise SourceError(f"{where}: it was cut; fetch or make it again")
        return None

    def raw(self, piece: Any) -> RawRecord:
        """Return place and bytes of the latest line; for a row from Python, which is in no file, its ``repr``."""
        given = given_of(self._line)
        return self._lines.raw(self._line) if given is None else RawRecord.of(None, len(given), given)

    def close(self) -> None:
        """Do nothing: lines of JSON are not read twice."""

    def at_end(self) -> bool:
        """Return True if no line is left."""
        return self._lines.at_end()


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
                found = to_json_values(column, form)
                if hasattr(column, "dictionary"):
                    table.entries.add(name, column, form)
                columns.append(list(map(read_cell, found)) if name in table.cells else found)
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

    def raw(self, piece: Any) -> RawRecord:
        """Return the values of the latest row, as JSON."""
        text = _encode(piece[1])
        return RawRecord.of(None, len(text), text)

    def close(self) -> None:
        """Do nothing: rows of Parquet are not read twice."""

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
