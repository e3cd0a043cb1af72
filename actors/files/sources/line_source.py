"""Lines of a file as rows for a program that reads rows: the line as it stands, under its number."""

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


def _is_object(line: bytes) -> bool:
    try:
        return line.lstrip().startswith(b"{") and isinstance(msgspec.json.decode(line), dict)
    except (ValueError, RecursionError):
        return False


class LineSource:
    """The same face as ``BatchSource``; nothing is refused here, since only the program knows what a row is."""

    def __init__(self, path: str, *, spool: Path) -> None:
        self._file = InputFile(path, spool)
        self._lines: LineReader | None = None
        self._number = 0
        self._stamp = (0, 0)

    def check(self, objects: bool = False) -> InputCheck:
        """Read all of it. Raises ``SourceError`` where it is not there, not readable or empty; or where rows should be
        ``objects`` and none is: then it is another file that was meant.
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
        """Go on there. Lines before are read again, so that the others keep their numbers."""
        self._file.open()
        self._stamp = self._file.stamp()
        self._lines = self._file.lines()
        while self._lines.position < position and self._lines.next() is not None:
            pass
        if self._lines.position != position:
            raise SourceError(f"{self._file.name} has changed since this job began: start another job")

    def read(self, rows_max: int) -> SourceWindow:
        """The next rows. Raises ``SourceError`` where the file has been written to meanwhile."""
        if self._file.stamp() != self._stamp:
            raise SourceError(f"{self._file.name} has changed since it was checked: let it rest, then start again")
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
        """Let go of the file."""
        self._lines = None
        self._file.close()
