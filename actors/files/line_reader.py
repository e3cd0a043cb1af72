"""Lines of an input file from any position on, as UTF-8: gzip by suffix; standard input or a pipe is first copied to a
spool file.

Memory stays flat for files of any size: one line is held, and of a line that is too long only its beginning.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from actors.files.bad_records import RawRecord
from actors.files.batch_request import LINE_BYTES_MAX
from actors.files.dialects import encodings, given_encoding
from actors.files.dialects.dialect import DETECTED, Dialect
from actors.files.dialects.streams import DecodedStream, DecodingFailed, UniversalLines
from actors.files.errors import SourceError, WrongEncoding
from actors.files.local.os_errors import told
from actors.files.paths import READ_BYTES, is_remote

_GZIP_MAGIC: Final = b"\x1f\x8b"
_BAD_GZIP: Final = (EOFError, zlib.error, gzip.BadGzipFile)
PARQUET_MAGIC: Final = b"PAR1"
_UNREADABLE: Final = (*_BAD_GZIP, DecodingFailed, OSError)
"""Errors of reading that tell of a damaged file, or of a wrong encoding."""


class HashDigest(Protocol):
    """Part of a `hashlib` object that is used by readers."""

    def update(self, some: bytes, /) -> None: ...


class InputFile:
    """Input file that is held open, so that a file that takes its name later is not mistaken for it.

    ``dialect``: properties of the file that the user gives; None if the bytes are read as they are, whatever their
    encoding.
    """

    def __init__(
        self, path: str, spool: Path, stdin: BinaryIO | None = None, dialect: Dialect | None = DETECTED
    ) -> None:
        self.name = "standard input" if path == "-" else path
        self._path = path
        self._spool = spool
        self._stdin = stdin
        self._fd = -1
        self.place = Path(path)
        """Regular file that is read; valid once opened."""
        self.universal = False
        """True if CR alone ends a line too."""
        self._dialect = dialect
        self._codec = ""
        """Codec of an encoding other than UTF-8."""

    def open(self) -> None:
        """Open the file unless it is open. Raises `SourceError`."""
        if self._fd >= 0:
            return
        try:
            path = self.place = self._found()
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SourceError(f"{self.name}: no such file (looked in {Path.cwd()})") from None
        except (OSError, ValueError) as error:
            raise SourceError(f"{self.name} cannot be read: {_why(error)}") from None
        if self._dialect is not None:
            self._codec = self._encoding(self._dialect.encoding)

    def _encoding(self, given: str) -> str:
        """Return the codec of the file, given or detected; empty for UTF-8."""
        head = self.start(encodings.SAMPLE_BYTES)
        whole = len(head) < encodings.SAMPLE_BYTES
        if given:
            return given_encoding.codec_of(given, head, whole)
        return "" if head.startswith(PARQUET_MAGIC) else encodings.by_start(head, whole)

    def start(self, count: int) -> bytes:
        """Return the first bytes of the file, after decompression, as UTF-8."""
        return LineReader(self._stream(), self.name, 0, None).start(count)

    def refuse_encoding(self) -> None:
        """Raise ``WrongEncoding`` if the file is surely not UTF-8, with the option that reads it. Reads the whole file.

        A file whose encoding is given is not examined.
        """
        if self._dialect is None or self._dialect.encoding or self._codec:
            return
        if text := encodings.refusal(self._stored):
            raise WrongEncoding(f"{self.name} {text}")

    def refuse_given(self, *, failed: bool, bad: bool) -> None:
        """Raise ``WrongEncoding`` if the given encoding is surely wrong, with the option that reads the file.

        ``failed``: the text is not what was expected. ``bad``: some of its lines are bad. Does nothing before the file
        is opened.
        """
        given = self._dialect.encoding if self._dialect is not None and self._fd >= 0 else ""
        if given and (text := given_encoding.refusal_of_given(given, self._stored, failed=failed, bad=bad)):
            raise WrongEncoding(f"{self.name} {text}")

    def _stored(self) -> Iterator[bytes]:
        """Yield the content as it is stored, after decompression; lines that end in CR end in LF."""
        for piece in LineReader(self._stream(decoded=False), self.name, 0, None).pieces():
            yield piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if self.universal else piece

    def _found(self) -> Path:
        """Return the regular file to read: the path itself, or the spool to which its stream was copied."""
        if self._path == "-":
            keep(self._stdin if self._stdin is not None else _standard_input(), self._spool, self.name)
            return self._spool
        if is_remote(self._path):
            from actors.files.object_store import fetch

            fetch(self._path, self._spool)
            return self._spool
        path = Path(self._path)
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            if self._spool.exists():  # a pipe that an earlier run has read
                return self._spool
            raise
        if stat.S_ISDIR(mode):
            raise SourceError(f"{self.name} is a folder: name a file in it")
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            with path.open("rb") as stream:
                keep(stream, self._spool, self.name)
            return self._spool
        if not stat.S_ISREG(mode):
            raise SourceError(f"{self.name} is a device: give a file, or - for standard input")
        return path

    def stamp(self) -> tuple[int, int]:
        """Return a value that changes whenever the file is written to."""
        found = os.fstat(self._fd)
        return found.st_size, found.st_mtime_ns

    def lines(self, position: int = 0, digest: HashDigest | None = None) -> LineReader:
        """Return a reader of the lines from a position, in bytes of UTF-8 after decompression.

        The given dialect is part of the digest: the same bytes are another input in another dialect. Raises
        `SourceError` if the file is shorter.
        """
        if digest is not None and self._dialect is not None:
            digest.update(self._dialect.encoded().encode())
        stream = self._stream(position)
        return LineReader(UniversalLines(stream) if self.universal else stream, self.name, position, digest)

    def _stream(self, position: int = 0, decoded: bool = True) -> io.BufferedReader:
        """Return the content from the start, as UTF-8 unless not ``decoded``. Raises ``SourceError`` if ``position`` is
        beyond the end.
        """
        os.lseek(self._fd, 0, os.SEEK_SET)
        file: io.RawIOBase = io.FileIO(self._fd, closefd=False)
        if self._path.lower().endswith(".gz"):
            if os.pread(self._fd, 2, 0) not in (b"", _GZIP_MAGIC):
                raise SourceError(f"{self.name} is not gzip, whatever its name says: name it without .gz")
            plain = gzip.GzipFile(fileobj=io.BufferedReader(file, READ_BYTES), mode="rb")
            file = cast(io.RawIOBase, plain)
        elif not self._codec and position > os.fstat(self._fd).st_size:
            raise _shorter(self.name)
        if self._codec and decoded:
            file = DecodedStream(io.BufferedReader(file, READ_BYTES), self._codec)
        return io.BufferedReader(file, READ_BYTES)

    def reading(self, position: int = 0, digest: HashDigest | None = None) -> LineReader:
        """Return a reader of the pieces from a position: a line is a piece."""
        return self.lines(position, digest)

    def digest(self) -> str:
        """Return the digest of the whole content after decompression."""
        digest = hashlib.blake2b(digest_size=16)
        lines = self.lines(digest=digest)
        while lines.next() is not None:
            pass
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LineReader:
    """Reader of a file, a line at a time."""

    def __init__(
        self, stream: io.BufferedReader | UniversalLines, name: str, position: int, digest: HashDigest | None
    ) -> None:
        self._stream: io.BufferedReader | UniversalLines | _GivenBack = stream
        self.universal = isinstance(stream, UniversalLines)
        """True if CR alone ends a line too."""
        self.ends = (b"\n", b"\r") if self.universal else (b"\n",)
        self.watch: Callable[[bytes], None] | None = None
        """Function that receives a line over ``LINE_BYTES_MAX`` in pieces, before ``next`` returns its beginning."""
        self._beyond = 0
        """Bytes of the latest line that was cut, beyond the cut."""
        self.name = name
        """Name of the file, for errors."""
        self._digest = digest
        self.position = 0
        """Position of the next line, in bytes of UTF-8 after decompression."""
        self.number = 0
        """Number of the latest line, from 1, counted from the start of the reading."""
        if not position:
            return
        try:
            self.position = stream.seek(position)
        except _UNREADABLE as error:
            raise self._damaged(error) from None
        if self.position < position:
            raise _shorter(name)

    def next(self) -> bytes | None:
        """Return the next line with its end; None after the last. A line over `LINE_BYTES_MAX` is cut to one byte
        more.
        """
        try:
            line = self._stream.readline(LINE_BYTES_MAX + 1)
            if not line:
                return None
            self.position += len(line)
            if self._digest is not None:
                self._digest.update(line)
            if len(line) > LINE_BYTES_MAX:
                self._finish(line)
        except _UNREADABLE as error:
            raise self._damaged(error) from None
        self.number += 1
        return line

    def _finish(self, line: bytes) -> None:
        """Read the rest of a line that is cut."""
        self._beyond, some = 0, line
        while some:
            if self.watch is not None:
                self.watch(some)
            if some.endswith(self.ends):
                break
            some = self._stream.readline(READ_BYTES)
            self._beyond += len(some)
            if self._digest is not None:
                self._digest.update(some)
        self.position += self._beyond

    def raw(self, piece: bytes) -> RawRecord:
        """Return place and bytes of the latest line, given as ``next`` returned it."""
        size = len(piece) + (self._beyond if len(piece) > LINE_BYTES_MAX else 0)
        return RawRecord.of(self.position - size, size, piece)

    def give_back(self, content: BinaryIO, size: int, lines: int) -> None:
        """Read ``content`` next: the latest ``size`` bytes that were read, ``lines`` lines."""
        self.position -= size
        self.number -= lines
        self._stream = _GivenBack(content, self.universal, self, self._stream, self._digest)
        self._digest = None  # fed with these bytes before

    def close(self) -> None:
        """Release bytes that were given back."""
        while isinstance(self._stream, _GivenBack):
            self._stream.release()

    def go_on(self, stream: Any, digest: HashDigest | None) -> None:
        """Continue with the stream that was read before bytes were given back."""
        self._stream, self._digest = stream, digest

    def head(self) -> bytes:
        """Return up to 64 of the next bytes without consuming them."""
        try:
            return self._stream.peek(64)[:64]
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def start(self, count: int) -> bytes:
        """Return up to ``count`` bytes, and consume them. Lines read afterwards are not those of the file."""
        found = bytearray()
        for piece in self.pieces():
            found += piece
            if len(found) >= count:
                break
        return bytes(found[:count])

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest of the file in pieces of any size."""
        assert isinstance(self._stream, io.BufferedReader)
        try:
            while some := self._stream.read1(READ_BYTES):
                yield some
        except _UNREADABLE as error:
            raise self._damaged(error) from None

    def at_end(self) -> bool:
        """Return True if no line is left."""
        return not self.head()

    def _damaged(self, error: Exception) -> SourceError:
        if isinstance(error, DecodingFailed):
            return WrongEncoding(f"{self.name} cannot be read as {error}: leave --encoding out")
        where = f"{self.name}: somewhere after line {self.number}"
        if isinstance(error, EOFError):
            return SourceError(f"{where}, its gzip ends too early: it was cut; fetch or make it again")
        if isinstance(error, _BAD_GZIP):
            text = "something else follows it" if "Not a gzipped" in str(error) else "its checksum or form is wrong"
            return SourceError(f"{where}, its gzip is damaged ({text}): fetch or make it again")
        return SourceError(f"{where}, it cannot be read: {_why(error)}")


class _GivenBack:
    """Bytes that are read again, and then the stream ``below``, with the methods of a stream that are used."""

    def __init__(
        self, content: BinaryIO, universal: bool, reader: LineReader, below: Any, digest: HashDigest | None
    ) -> None:
        given: Any = UniversalLines(cast(io.BufferedReader, content)) if universal else content
        self._content = given
        self._peek = given.peek if universal else self._peek_bytes
        self._close = content.close
        self._reader = reader
        self._below = below
        self._digest = digest

    def readline(self, size: int) -> bytes:
        """Return the next line, of a longer one its first ``size`` bytes; empty at the end."""
        line: bytes = self._content.readline(size)
        if line:
            return line
        self.release()
        return bytes(self._below.readline(size))

    def peek(self, size: int) -> bytes:
        """Return bytes that come next, without consuming them; none at the end."""
        return bytes(self._peek(size) or self._below.peek(size))

    def release(self) -> None:
        """Close the bytes, and let the reader go on below."""
        self._close()
        self._reader.go_on(self._below, self._digest)

    def _peek_bytes(self, size: int) -> bytes:
        place = self._content.tell()
        some: bytes = self._content.read(size)
        self._content.seek(place)
        return some


def _shorter(name: str) -> SourceError:
    return SourceError(f"{name} is shorter than when it was read before: put back what it held, or start another job")


# -------------------------------------------------------------------------------------------------------- the spool


def keep(stream: BinaryIO | None, spool: Path, name: str) -> None:
    """Copy the whole of a stream to a spool file that is private to its user.

    A spool of an earlier run stays if the stream holds the same, or nothing new is given (an empty stream, a terminal).
    A different input belongs to another job: raises `SourceError`, as for a full disk.
    """
    kept = spool.exists()
    if stream is None or (kept and stream.isatty()):
        if not kept:
            raise SourceError(f"{name} is closed: pipe the input in, or name a file")
        return
    part = spool.with_name(spool.name + ".part")
    try:
        spool.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            part.unlink()  # left by a killed run; created again, so that its mode is surely 0600
        try:
            taken = _copy(stream, part)
            if not kept:
                os.replace(part, spool)
            elif taken and not _same(part, spool):
                raise SourceError(f"{name} is not what this job began with: give another --job or another output")
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(f"{name} cannot be kept in {spool}: {_why(error)}") from None


def _copy(stream: BinaryIO, part: Path) -> int:
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as kept:
        while some := stream.read(READ_BYTES):
            kept.write(some)
        kept.flush()
        os.fsync(kept.fileno())
        return kept.tell()


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while (some := first.read(READ_BYTES)) == second.read(READ_BYTES):
            if not some:
                return True
    return False


def _standard_input() -> BinaryIO | None:
    return sys.stdin.buffer if sys.stdin is not None else None


def _why(error: Exception) -> str:
    return told(error) if isinstance(error, OSError) and error.errno else str(error)
