"""Standard output of a command: what cannot be written is recorded, and becomes the exit code at the end.

A command that fails to write does its work to the end all the same: a job that was cancelled is cancelled, whether its
figures could be printed or not. A write that fails is never silent, as in the tools of GNU (gnulib, ``close_stdout``):
one line says why, and the exit code is not 0. A reader that has read enough (``cortex jobs | head``) is no failure.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from typing import Any

from actors.common.terminal import StyledStream
from actors.common.tolerant_stream import ERRORS
from cortex.values.display import printable

CLOSED = "is closed"
"""Reason of a failure where the process began without a standard output (``>&-``)."""


class OutputClosed(Exception):
    """The reader of standard output has closed it. Raised for commands that only print, to end them early.

    No ``BrokenPipeError``, which the parser of the command line would turn into an exit code of its own.
    """


class ResultStream(io.TextIOBase):
    """Text stream over ``stream``; None: standard output is closed.

    Control characters, and characters that the encoding of the stream lacks, are written as escapes. ``stops``: a
    reader that is gone raises ``OutputClosed``.
    """

    def __init__(self, stream: Any, *, stops: bool = False) -> None:
        self.inner = stream
        """Stream that raises the errors of its writes, for sinks, whose results may not be lost; may be None."""
        self.failure = ""
        """Reason why a write failed, in words for users; empty if none did."""
        self.gone = False
        """True if the reader closed the stream."""
        self._stops = stops
        self._binary = _Binary(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream; ``utf-8`` without one."""
        return getattr(self.inner, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Handler of characters that the encoding lacks."""
        return "backslashreplace"

    @property
    def buffer(self) -> io.BufferedIOBase:
        """Binary stream below, with the same failures."""
        return self._binary

    @property
    def rich_proxied_file(self) -> Any:
        """Stream for rich, whose own escape sequences pass: rich looks for this name (``Console.file``)."""
        return StyledStream(self, self.write_styled)

    def write(self, text: str) -> int:
        """Write ``text``, or record why it cannot be written. Return its length in either case."""
        return self.write_styled(printable(text))

    def write_styled(self, text: str) -> int:
        """Write ``text`` with its escape sequences."""
        self.carry(lambda: self._written(text))
        return len(text)

    def write_data(self, text: str) -> None:
        """Write ``text`` to the letter for another program; printable on a terminal."""
        self.write(text) if self.isatty() else self.write_styled(text)

    def flush(self) -> None:
        """Flush the stream, or record why it cannot be flushed."""
        if self.inner is not None:
            self.carry(self.inner.flush)

    def isatty(self) -> bool:
        """Return whether the stream is a terminal; False without a stream."""
        try:
            return bool(self.inner.isatty())
        except ERRORS:
            return False

    def writable(self) -> bool:
        """Return True: each write is accepted."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream. Raises ``OSError`` without one, as other streams do."""
        if self.inner is None:
            raise io.UnsupportedOperation("fileno")
        return int(self.inner.fileno())

    def close(self) -> None:
        """Keep the stream open: others write to it as well."""

    def carry(self, act: Any) -> None:
        """Write or flush by ``act`` unless an earlier write has failed; record a failure."""
        if self.failure:
            return
        try:
            act()
        except BrokenPipeError:
            self.failure, self.gone = "was closed by its reader", True
        except ERRORS as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.failure = f"cannot be written: {reason}" if self.inner is not None else CLOSED
        if self.failure:
            to_null(self.inner)
            if self.gone and self._stops:
                raise OutputClosed

    def _written(self, text: str) -> None:
        try:
            self.inner.write(text)
        except UnicodeEncodeError:
            self.inner.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))


class _Binary(io.BufferedIOBase):
    """Binary side of a ``ResultStream``."""

    def __init__(self, text: ResultStream) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, some: Any) -> int:
        """Write bytes, or record why they cannot be written. Return their number in either case. A terminal gets
        printable text.
        """
        if self._text.isatty():
            self._text.write(self._decoder.decode(bytes(some)))
            return len(some)
        self._text.carry(lambda: self._text.inner.buffer.write(some))
        return len(some)

    def flush(self) -> None:
        """Flush the stream, or record why it cannot be flushed."""
        self._text.flush()

    def writable(self) -> bool:
        """Return True: each write is accepted."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the stream."""
        return self._text.fileno()

    def close(self) -> None:
        """Keep the stream open."""


def to_null(stream: Any) -> None:
    """Send further output of a stream to the null device, with what is left in its buffers.

    Otherwise the interpreter flushes the stream again at its end, prints an error and ends with exit code 120
    (docs.python.org/3/library/signal.html, "Note on SIGPIPE").
    """
    with contextlib.suppress(*ERRORS):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
