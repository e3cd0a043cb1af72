"""Source of the lines of a file, for programs that read rows: each line unchanged, with its number as the key."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from actors.files.errors import SourceError
from actors.files.line_reader import InputFile, LineReader
from actors.files.sources.row_source import InputCheck, SourceWindow
from cortex.state.events import Row

WINDOW_BYTES_MAX: Final = 8_000_000
"""Bytes of lines after which a window ends."""


def _is_object(line: bytes) -> bool:
    try:
        return line.lstrip().startswith(b"{") and isinstance(msgspec.json.decode(line), dict)
    except (ValueError, RecursionError):
        return False


class LineSource:
    """Source with the interface of ``BatchSource``. No line is refused, since only the program knows the form of a row.
    """

    def __init__(self, path: str, *, spool: Path) -> None:
        self._file = InputFile(path, spool, dialect=None)
        self._lines: LineReader | None = None
        self._number = 0
        self._stamp = (0, 0)

    def check(self, objects: bool = False) -> InputCheck:
        """Read the whole file and return its figures.

        Raises ``SourceError`` if the file is missing, unreadable or empty, or, with ``objects``, if no line is a JSON
        object: another file was meant.
        """
        self._file.open()
        self._stamp = self._file.stamp()
        digest = hashlib.blake2b(digest_size=16)
        lines = self._file.lines(digest=digest)
        rows = 0
        while (line := lines.next()) is not None:
            rows += not line.isspace()
            objects = objects and not _is_object(line)
        if not rows:
            raise SourceError(f"{self._file.name} is empty: give it one row a line")
        if objects:
            raise SourceError(f"{self._file.name} holds no row: give a JSON object a line, its fields the parameters")
        return InputCheck(
            rows=rows, refused=0, problems=(), problems_more=0, unreadable=0, size_bytes=lines.position,
            digest=digest.hexdigest(),
        )  # fmt: skip

    def seek(self, position: int) -> None:
        """Continue at this position. The lines before are read again, so that line numbers stay correct."""
        self._file.open()
        self._stamp = self._file.stamp()
        self._lines = self._file.lines()
        while self._lines.position < position and self._lines.next() is not None:
            pass
        if self._lines.position != position:
            raise SourceError(f"{self._file.name} has changed since this job began: start another job")

    def read(self, rows_max: int) -> SourceWindow:
        """Return the next rows. Raises ``SourceError`` if the file was written to meanwhile."""
        if self._file.stamp() != self._stamp:
            raise SourceError(
                f"{self._file.name} has changed since it was checked: stop writing to it, then start again"
            )
        if self._lines is None:
            self.seek(0)
        lines = self._lines
        assert lines is not None
        rows: list[Row] = []
        size = 0
        while len(rows) < rows_max and size < WINDOW_BYTES_MAX:
            line = lines.next()
            if line is None:
                break
            size += len(line)
            if not line.isspace():
                rows.append(Row(str(lines.number), line.rstrip(b"\r\n")))
        return SourceWindow(tuple(rows), lines.position, lines.at_end())

    def close(self) -> None:
        """Close the file."""
        self._lines = None
        self._file.close()
