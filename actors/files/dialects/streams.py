"""Streams of bytes as readers of lines want them: text of another encoding as UTF-8, and lines that end in CR."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

READ_BYTES: Final = 1 << 20
"""Bytes per read from a file."""
_ERRORS: Final = "cortex-undecodable"
_PIECE_BYTES: Final = READ_BYTES >> 2
"""Bytes that are decoded at once."""


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable bytes by half of a surrogate pair, whose bytes are not UTF-8: their line is a bad record."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_ERRORS, _mark)


class DecodingFailed(Exception):
    """Bytes at which a codec gives up, such as UTF-16 without its byte order mark. The message names the codec."""


class Utf8Decoder:
    """Decoder of another encoding to UTF-8, a piece at a time. Bytes that the encoding does not have become bytes that
    are not UTF-8.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder: Any = codecs.getincrementaldecoder(encoding)(_ERRORS)

    def decode(self, some: bytes, ended: bool = False) -> bytes:
        """Return the next piece as UTF-8. Raises ``DecodingFailed``, whichever exception the codec raises."""
        try:
            text: str = self._decoder.decode(some, ended)
            return text.encode("utf-8", "surrogatepass")
        except Exception as error:  # each codec has errors of its own
            why = " ".join(str(error).split()) or type(error).__name__
            raise DecodingFailed(f"{self._encoding} ({why})") from None


def as_utf8(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the pieces of a text of another encoding as UTF-8. Raises ``DecodingFailed``."""
    decoder = Utf8Decoder(encoding)
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode(b"", True)


class DecodedStream(io.RawIOBase):
    """Text of another encoding, as UTF-8. Positions count bytes of the UTF-8 text.

    A position is reached by decoding everything before it, as in gzip: most encodings of more than one byte a character
    have no way back from a position to the state of their decoder. Bytes that the encoding does not have become bytes
    that are not UTF-8, so that one bad byte is one bad line.
    """

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream = stream
        self._decoder = Utf8Decoder(encoding)
        self._ready = memoryview(b"")
        self._ended = False
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: forwards, by reading."""
        return True

    def tell(self) -> int:
        """Return the position, in bytes of UTF-8."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read bytes into ``buffer`` and return their number; 0 at the end. Raises ``DecodingFailed``."""
        while not self._ready and not self._ended:
            some = self._stream.read(_PIECE_BYTES)
            self._ended = not some
            self._ready = memoryview(self._decoder.decode(some, self._ended))
        count = min(len(buffer), len(self._ready))
        memoryview(buffer).cast("B")[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to a position further on, or to the end if the text is shorter. Return the position."""
        if whence != io.SEEK_SET or offset < self._position:
            raise OSError("a decoded text is read forwards alone")
        while self._position < offset and self.read(min(READ_BYTES, offset - self._position)):
            pass
        return self._position

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        super().close()


class UniversalLines:
    """Lines that end in CR, LF or CR LF, with the methods of ``io.BufferedReader`` that readers of lines use."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        """Complete lines, the next one last."""
        self._rest = b""
        """Begin of a line whose end has not been read."""

    def seek(self, position: int) -> int:
        """Continue at a position. Return the position, which is less if the file is shorter."""
        self._lines, self._rest = [], b""
        return self._stream.seek(position)

    def peek(self, size: int) -> bytes:
        """Return bytes that come next, without consuming them; none at the end."""
        if not self._lines and not self._rest:
            self._fill()
        return self._lines[-1] if self._lines else self._rest

    def readline(self, size: int) -> bytes:
        """Return the next line with its end, of a longer one its first ``size`` bytes; empty at the end."""
        while not self._lines and len(self._rest) < size and self._fill():
            pass
        if not self._lines:
            line, self._rest = self._rest[:size], self._rest[size:]
            return line
        line = self._lines.pop()
        if len(line) > size:
            self._lines.append(line[size:])
        return line[:size]

    def _fill(self) -> bool:
        """Read more. Return False at the end of the file."""
        some = self._stream.read1(READ_BYTES)
        lines = (self._rest + some).splitlines(keepends=True)
        self._rest = lines.pop() if some and lines and not lines[-1].endswith(b"\n") else b""
        self._lines[:0] = reversed(lines)
        return bool(some)
