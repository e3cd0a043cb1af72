"""End of a CSV record that is too long to be held: where its quotes are closed."""

from __future__ import annotations

import codecs
import io
import os
import re
import tempfile
from typing import BinaryIO, Final, cast

from actors.files.dialects.csv_form import CsvForm
from actors.files.dialects.dialect import BACKSLASH, NONE

HELD_BYTES_MAX: Final = 1 << 24
"""Bytes of lines below the first that are held in memory; more are held in a temporary file."""
EXAMINED_BYTES: Final = 1 << 18
"""Bytes of these lines that are examined."""
_START, _PLAIN, _QUOTED, _QUOTE, _ESCAPED, _BROKEN = range(6)
"""States: start of a cell, within a cell without quotes, within quotes, after a quote within quotes, after a backslash
within quotes, and text after a closing quote. As the states of the csv module with ``strict``
(https://github.com/python/cpython/blob/3.11/Modules/_csv.c)."""


class QuoteState:
    """State of the quotes at a place of a record, by the bytes before it."""

    def __init__(self, form: CsvForm) -> None:
        self._delimiter = form.delimiter.encode()[-1]
        self._quotes = form.quoting != NONE
        self._escapes = form.quoting == BACKSLASH
        self._state = _START
        self._end_of_plain = re.compile(b"[\\r\\n" + re.escape(bytes([self._delimiter])) + b"]")
        self._end_of_quoted = re.compile(rb'["\\]' if self._escapes else b'"')

    @property
    def is_open(self) -> bool:
        """True if the next line belongs to the record."""
        return self._state in (_QUOTED, _ESCAPED)

    @property
    def is_broken(self) -> bool:
        """True if text follows a closing quote: the record is no CSV."""
        return self._state == _BROKEN

    def feed(self, some: bytes) -> None:
        """Go on over these bytes."""
        at, end = 0, len(some)
        while at < end and self._state != _BROKEN:
            if self._state in (_PLAIN, _QUOTED):
                found = (self._end_of_plain if self._state == _PLAIN else self._end_of_quoted).search(some, at)
                if found is None:
                    return
                at = found.start()
            self._state = self._after(some[at])
            at += 1

    def _after(self, byte: int) -> int:
        """Return the state after this byte."""
        state = self._state
        if state == _ESCAPED:
            return _QUOTED
        if state == _QUOTED:
            return _QUOTE if byte == 0x22 else _ESCAPED
        if byte == self._delimiter or byte in b"\r\n":
            return _START
        if state == _QUOTE:
            return _QUOTED if byte == 0x22 and not self._escapes else _BROKEN
        return _QUOTED if state == _START and byte == 0x22 and self._quotes else _PLAIN


class LongRecord:
    """Record that is too long to be held. Lines below its first are kept, as they may belong to other records.

    ``ends``: line ends. ``start_bytes``: bytes of the record that are held.
    """

    def __init__(self, form: CsvForm, ends: tuple[bytes, ...], start_bytes: int) -> None:
        self._quotes = QuoteState(form)
        self._ends = ends
        self._start_bytes = start_bytes
        self._below = tempfile.SpooledTemporaryFile(HELD_BYTES_MAX)  # noqa: SIM115 - read by the line reader
        self._size = self._first_size = 0
        self._in_first = True
        self.start = b""
        """First bytes of the record."""
        self.lines = 0
        """Lines that were fed."""

    def feed(self, some: bytes) -> None:
        """Add the next line, or the next piece of a line."""
        self._quotes.feed(some if self._size else some.removeprefix(codecs.BOM_UTF8))
        self._size += len(some)
        if len(self.start) < self._start_bytes:
            self.start += some[: self._start_bytes - len(self.start)]
        ends = some.endswith(self._ends)
        self.lines += ends
        if self._in_first:
            self._first_size, self._in_first = self._size, not ends
        else:
            self._below.write(some)

    @property
    def is_open(self) -> bool:
        """True if the next line belongs to the record."""
        return self._quotes.is_open

    @property
    def is_unclosed(self) -> bool:
        """True if the quotes are not closed, or closed within a cell."""
        return self._quotes.is_open or self._quotes.is_broken

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return self._size

    def lines_below(self, count: int) -> list[bytes]:
        """Return the first lines below the first one, in ``EXAMINED_BYTES`` at most."""
        self._below.seek(0)
        some = io.BytesIO(self._below.read(EXAMINED_BYTES))
        self._below.seek(0, os.SEEK_END)
        lines = some.getvalue().splitlines(keepends=True) if b"\r" in self._ends else some.readlines()
        return lines[:-1][:count] if len(lines) > 1 else lines

    def below_first(self) -> tuple[BinaryIO, int, int]:
        """Return the content below the first line, its bytes and its lines, and take them from the record."""
        size, content = self._size - self._first_size, self._below
        content.seek(0)
        self._below = tempfile.SpooledTemporaryFile()  # noqa: SIM115
        lines, self.lines = self.lines - 1, 1
        self._size, self.start = self._first_size, self.start[: self._first_size]
        return cast(BinaryIO, content), size, lines

    def close(self) -> None:
        """Release the lines."""
        self._below.close()
