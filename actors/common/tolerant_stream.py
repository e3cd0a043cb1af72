"""Standard error that never raises: a job does not end because its progress, notes or logs cannot be written.

A reader of standard error may leave (``2>&1 | head -1``), its disk may fill, or a daemon may start without one
(``2>&-``). Results on standard output stay strict: a result that cannot be written is an error.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from actors.common.terminal import StyledStream
from cortex.values.display import printable

ERRORS = (OSError, ValueError, AttributeError)
"""Errors of a write that nobody can read: a closed pipe or a full disk, a closed stream, and no stream at all."""


class TolerantStream(io.TextIOBase):
    """Text stream that drops what cannot be written. ``stream``: the stream to write to; None drops everything.

    Control characters, and characters that the encoding of the stream lacks, are written as escapes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream; ``utf-8`` without one."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Handler of characters that the encoding lacks."""
        return "backslashreplace"

    @property
    def rich_proxied_file(self) -> Any:
        """Stream for rich, whose own escape sequences pass: rich looks for this name (``Console.file``)."""
        return StyledStream(self, self.write_styled)

    def write(self, text: str) -> int:
        """Write ``text`` if the stream takes it. Return its length in either case."""
        return self.write_styled(printable(text))

    def write_styled(self, text: str) -> int:
        """Write ``text`` with its escape sequences."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            name = self.encoding
            self._try(self._stream.write, text.encode(name, "backslashreplace").decode(name))
        except ERRORS:
            pass
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it can be flushed."""
        self._try(lambda: self._stream.flush())

    def isatty(self) -> bool:
        """Return whether the stream is a terminal; False without a stream."""
        try:
            return bool(self._stream.isatty())
        except ERRORS:
            return False

    def writable(self) -> bool:
        """Return True: each write is accepted."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream. Raises ``OSError`` without one, as other streams do."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return int(self._stream.fileno())

    def close(self) -> None:
        """Keep the stream open: others write to it as well."""

    @staticmethod
    def _try(write: Any, *args: Any) -> None:
        try:
            write(*args)
        except ERRORS:
            pass


def tolerant(stream: TextIO | None) -> TextIO:
    """Return a stream that never raises and writes to ``stream``; ``stream`` itself if it is one already."""
    given: Any = stream
    made: Any = given if isinstance(given, TolerantStream) else TolerantStream(given)
    return made  # type: ignore[no-any-return]


def guard_standard_streams() -> None:
    """Make ``sys.stderr`` of this process tolerant, and occupy closed descriptors. Call before any file is opened.

    A closed descriptor 0, 1 or 2 is opened on the null device: the next file to be opened would get its number, and
    what C libraries and child processes write there would be written into that file (gnulib, ``stdopen``).
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, flags)
            if null != number:
                os.dup2(null, number)
                os.close(null)
    sys.stderr = tolerant(sys.stderr)
