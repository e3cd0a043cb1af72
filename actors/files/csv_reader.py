"""Reader of CSV records, one bad record at a time: a record that is no CSV, or too long, costs no row but its own."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from actors.files.bad_records import BOM, RAW_BYTES_MAX, BadRecord, RawRecord
from actors.files.batch_request import LINE_BYTES_MAX, not_utf8
from actors.files.dialects.csv_form import CsvForm, swallows_lines
from actors.files.dialects.dialect import NONE
from actors.files.dialects.quotes import LongRecord
from actors.files.errors import SourceError
from actors.files.line_reader import LineReader

TOO_LONG: Final = f"longer than {LINE_BYTES_MAX >> 20} MB, which no provider takes"
REPEATED: Final = "repeats the header: it is no row"
NEVER_CLOSED: Final = 'opens a quote that is never closed: double each quote that is text (""), or close it'
TEXT_AFTER: Final = "has text after a closing quote"
END_OF_RECORD: Final = 'x"\n'
"""Text that ends a record for the csv module in any state: ``x`` may be escaped, the quote may close a cell."""
SWALLOWED_MAX: Final = 100
"""Records that are examined of the lines that a quote has taken in."""
SWALLOWED_LINES_MAX: Final = 400
"""Lines of these records."""
SWALLOWED_SHARE: Final = 0.5
"""Least share of these that are rows by themselves, if the quote was opened by mistake: others may be bad as well."""


class CsvReader:
    """Reader of CSV: a piece is the cells of a record, which may extend over several lines.

    A record of several lines that is no CSV, or not as wide as the header, has a quote too few or too many. If the
    lines below its first are rows by themselves, the first line alone is the bad record, and they are read again.
    """

    def __init__(self, lines: LineReader, form: CsvForm) -> None:
        self._lines = lines
        lines.watch = self._see_long
        self._wrong = ""
        self._form = form
        self._line = b""
        self._unread = 0
        """Bytes at the end of ``_line``, which holds several lines that end in CR, that are not read yet."""
        self._fresh = True
        """True if the next line is the first of a record."""
        self._first = b""
        self._more: list[bytes] = []
        """Lines of the current record below its first."""
        self._size = 0
        """Bytes in ``_more``."""
        self._long: LongRecord | None = None
        """Current record, if it is too long."""
        self._records = form.reader(self._texts())
        self.width = 0
        self.titles: list[str] = []
        """Cells of the header: a record of the same cells is no row."""
        self.position, self.number, self._row = lines.position, 0, 0

    def _texts(self) -> Iterator[str]:
        read = self._lines.next
        while (line := read()) is not None:
            fresh = self._fresh
            if fresh:
                self._fresh = False
                self._first = line
            else:
                self._more.append(line)
                self._size += len(line)
            if len(line) > LINE_BYTES_MAX or self._size > LINE_BYTES_MAX:
                yield self._skim()
                continue
            if fresh:
                line = line.removeprefix(BOM)  # a mark within a cell stays
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                self._wrong = self._wrong or not_utf8(line, error.start)
                text = line.decode(errors="replace")
            if "\r" in text and text.find("\r") < len(text) - 2:
                yield from self._parts(line, text, fresh)
            else:
                yield text

    def _parts(self, line: bytes, text: str, fresh: bool) -> Iterator[str]:
        """Yield a line that holds CR in parts, each of which ends in one: outside of quotes, CR ends a record."""
        self._line, self._unread, self._fresh = line, len(line), fresh
        if not fresh:
            self._more.pop()
        for part, some in zip(io.StringIO(text, newline=""), line.splitlines(keepends=True), strict=True):
            self._unread -= len(some)
            if self._fresh:
                self._fresh, self._first = False, some
            else:
                self._more.append(some)
            yield part

    def header(
        self, name: str, refuse_encoding: Callable[[], None], numbered: bool = False
    ) -> tuple[list[str], list[str]]:
        """Return the cells of the first record, and the names of the columns: the cells, or, if ``numbered``,
        ``column_1`` and so on. Raises ``SourceError``.
        """
        piece = first = self.next()
        while numbered and piece is not None and isinstance(piece[1], BadRecord):
            piece = self.next()  # a bad first row is one bad row
        piece = piece or first
        if piece is None:
            raise SourceError(f"{name} is empty: a table has a header line with its columns' names, and rows")
        cells = piece[1]
        self._row = 0
        if isinstance(cells, BadRecord):
            refuse_encoding()
            what = "" if numbered else "its header, "
            raise SourceError(f"{name} line {self.number}, {what}{cells.message}")
        named = [""] * len(cells) if numbered else cells
        names = [cell.strip() or f"column_{place}" for place, cell in enumerate(named, 1)]
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise SourceError(f"{name}: its header names {twice!r} twice: give each column a name of its own")
        return cells, names

    def next(self) -> tuple[int, Any] | None:
        """Return the next record that is not blank; None after the last. Raises ``SourceError`` if quotes of the file
        are text.

        A line of white space alone is blank, as it is for pandas (``skip_blank_lines``).
        """
        lines = self._lines
        while True:
            before = lines.number - (1 if self._unread else 0)
            self._fresh = True
            if self._long is not None:
                self._long.close()
                self._long = None
            if self._more:
                self._more, self._size = [], 0
            try:
                cells: Any = next(self._records)
            except StopIteration:
                self.position = lines.position
                return None
            except csv.Error as error:
                cells = self._bad(str(error), before)
            self.position, self.number = lines.position - self._unread, before + 1
            if not cells:
                continue
            if type(cells) is list and len(cells) == self.width and not self._more and not self._wrong:
                if cells == self.titles:
                    cells = BadRecord(REPEATED, cells)
                elif self.width == 1 and self._first.isspace():
                    continue
            elif type(cells) is list and len(cells) == 1 and not self._more and self._first.isspace():
                continue
            else:
                cells = self._examined(cells, before)
                self.position = lines.position - self._unread
            self._row += 1
            return self._row, cells

    def raw(self, piece: Any) -> RawRecord:
        """Return place and bytes of the latest record."""
        if self._long is not None:
            return RawRecord.of(self.position - self._long.size, self._long.size, self._long.start)
        content = b"".join((self._first, *self._more))
        return RawRecord.of(self.position - len(content), len(content), content)

    def close(self) -> None:
        """Release what is held to be read again."""
        if self._long is not None:
            self._long.close()
        self._lines.close()

    def at_end(self) -> bool:
        """Return True if no line is left."""
        return self._lines.at_end() and not self._unread

    # -- bad records ---------------------------------------------------------------------------------------------------

    def _examined(self, cells: Any, before: int) -> Any:
        """Return the cells of a record, or ``BadRecord``, after which the lines that belong to other records are read
        again. Raises ``SourceError`` if a quote in a file of tabs swallows lines.
        """
        wrong, self._wrong = self._wrong, ""
        if self._long is not None:
            cells = None
        if self._more and type(cells) is list:
            self._refuse_swallowed(cells, before)
        if wrong:
            found = BadRecord(wrong, cells if type(cells) is list else self._sound_cells())
        elif type(cells) is not list:
            found = cells
        elif self.width and len(cells) != self.width:
            found = self._ragged(cells)
        elif cells == self.titles:
            return BadRecord(REPEATED, cells)
        else:
            return cells
        if self._more and (self._is_opened_twice(found) or self._are_rows(self._more, found.message == NEVER_CLOSED)):
            found = BadRecord(NEVER_CLOSED, self._sound_cells())
            self._read_again(b"".join(self._more) + self._line[len(self._line) - self._unread :])
        return found

    def _is_opened_twice(self, found: BadRecord) -> bool:
        """Return True if a record ends where a quote that would close its cell stands at the begin of another cell."""
        before, quote, _ = self._more[-1].decode(errors="replace").partition('"')
        return found.message.startswith(TEXT_AFTER) and bool(quote) and before.endswith(self._form.delimiter)

    def _are_rows(self, below: Iterable[bytes], never_closed: bool) -> bool:
        """Return True if the lines of a bad record below its first are rows by themselves.

        A row has the width of the header, and no quote within a cell that is not quoted (RFC 4180, section 2). Lines
        of one column alone say nothing: they are rows if the quote is never closed.
        """
        if not self.width or self._form.quoting == NONE:
            return False
        if self.width == 1:
            return never_closed
        some = [line.decode(errors="replace") for line in islice(below, SWALLOWED_LINES_MAX)]
        records = rows = at = 0
        reader = self._form.reader(iter(some))
        while at < len(some) and records < SWALLOWED_MAX:
            try:
                cells = next(reader)
            except csv.Error:
                cells = None
            lines, at = some[at : reader.line_num], reader.line_num
            if not lines[0].isspace():
                records += 1
                goes_on = cells is None and at == len(some)
                rows += self._opens_row(lines[0]) if goes_on else self._is_row(cells, "".join(lines))
        return rows > 0 and rows >= SWALLOWED_SHARE * records

    def _is_row(self, cells: list[str] | None, text: str) -> bool:
        """Return True if these are the cells of a row, with no quote in a cell that is not quoted."""
        if cells is None or len(cells) != self.width:
            return False
        return '""' in text or "\\" in text or not any('"' in cell for cell in cells)

    def _opens_row(self, line: str) -> bool:
        """Return True if a row may begin on the line, and goes on beyond the lines that are known."""
        delimiter, before = self._form.delimiter, line.partition('"')[0]
        return line.count(delimiter) >= self.width - 1 and (not before or before.endswith(delimiter))

    def _read_again(self, content: bytes) -> None:
        """Read bytes again that were read before."""
        count = len(content.splitlines()) if self._lines.universal else content.count(b"\n")
        if not self._lines.universal and not content.endswith(b"\n"):
            count += 1
        self._lines.give_back(io.BytesIO(content), len(content), count)
        self._more, self._size, self._unread = [], 0, 0
        self._records = self._form.reader(self._texts())

    def _see_long(self, some: bytes) -> None:
        """Receive a piece of a line that is too long to be held."""
        if self._long is None:
            self._long = LongRecord(self._form, self._lines.ends, RAW_BYTES_MAX)
            for line in () if self._fresh else (self._first, *self._more):
                self._long.feed(line)
        self._long.feed(some)

    def _skim(self) -> str:
        """Read to the end of a record that is too long, and return a text that ends the record for the csv module.

        The record ends where its quotes are closed. If they are not, and the lines below the first are rows by
        themselves, the first line alone is the record, and the lines below are read again.
        """
        if self._long is None:
            self._long = LongRecord(self._form, self._lines.ends, RAW_BYTES_MAX)
            for line in (self._first, *self._more):
                self._long.feed(line)
        long = self._long
        self._more, self._size = [], 0
        while long.is_open and (some := self._lines.next()) is not None:
            if len(some) <= LINE_BYTES_MAX:  # a longer one was seen in pieces
                long.feed(some)
        self._wrong = self._wrong or TOO_LONG
        if long.is_unclosed and self._are_rows(long.lines_below(SWALLOWED_LINES_MAX), long.is_open):
            self._wrong = NEVER_CLOSED
            self._lines.give_back(*long.below_first())
        return END_OF_RECORD

    def _ragged(self, cells: list[str]) -> BadRecord:
        has = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        why = f"a quote or a {self._form.delimiter_name} is out of place"
        return BadRecord(f"has {has}, the header has {self.width}: {why}", cells)

    def _bad(self, error: str, before: int) -> BadRecord:
        """Return a record that is no CSV. Raises ``SourceError`` if a quote in a file of tabs swallows lines."""
        if self._form.delimiter == "\t" and not self._form.quoting:
            if self._lines.number - before > 1:
                self._quotes_are_text(before, "opens a quote that takes in the lines below it")
            return BadRecord(f"{_wrong_csv(error)}, or give --quoting none if quotes are text", self._sound_cells())
        return BadRecord(_wrong_csv(error), self._sound_cells())

    def _sound_cells(self) -> list[str]:
        """Return the cells of a bad record that end before its first quote."""
        text = (self._long.start if self._long is not None else self._first).removeprefix(BOM).decode(errors="replace")
        return text.partition('"')[0].split(self._form.delimiter)[:-1]

    def _refuse_swallowed(self, cells: list[str], before: int) -> None:
        """Raise ``SourceError`` if a record of several lines is several records, in a file of tabs."""
        form = self._form
        if form.delimiter == "\t" and not form.quoting and swallows_lines(cells, "\t", self.width):
            self._quotes_are_text(before, "holds a quoted cell of several lines, each of which is a row by itself")

    def _quotes_are_text(self, before: int, what: str) -> None:
        ways = "give --quoting none if quotes are text, or --quoting minimal if cells have line breaks"
        raise SourceError(f"{self._lines.name} line {before + 1} {what}: {ways}")


def _wrong_csv(text: str) -> str:
    if "unexpected end" in text:
        return NEVER_CLOSED
    if "expected after" in text:
        return f'{TEXT_AFTER}: double each quote that is text ("")'
    return f"is no CSV: {text}"
