"""Sinks of JSON Lines: a file that a resumed run truncates and continues, or a stream that cannot be truncated.

A results file is a projection of the journal, which records how many rows were whole and on disk, in how many bytes, at
the last flush. In gzip each flush ends a member, so that the file can be truncated there.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec

from actors.files.errors import SinkClosed, SinkError, SinkFailed, SinkFull
from actors.files.local.new_files import is_dangling
from actors.files.local.os_errors import FULL, told
from actors.files.sinks.ownership import HEAD_BYTES, lines_are_of, unpacked
from actors.files.sinks.results_recovery import GZIP_BITS, checksum_of, held
from cortex.values.display import printable

GZIP_LEVEL: Final = 6

_CLOSED: Final = "standard output is closed: redirect it, like > FILE"

_encoder: Final = msgspec.json.Encoder()


class _Target(Protocol):
    """Destination of bytes."""

    def put(self, some: bytes) -> None: ...
    def sync(self) -> None: ...
    def stands(self) -> bool: ...
    def cut(self, size_bytes: int) -> None: ...
    def close(self) -> None: ...


class FileSink:
    """Sink that writes results as lines to a file; gzip by suffix. `-` is standard output.

    Values of type bytes are lines already; others are encoded as JSON. `overwrite` permits to replace a file that
    another job, or something else, has written. `keep_off` names files that are never written to, such as the job's
    input.
    """

    def __init__(
        self,
        path: str,
        *,
        overwrite: bool = False,
        keep_off: Iterable[str] = (),
        fsync: Callable[[int], None] = os.fsync,
        hidden: bool = False,
    ) -> None:
        """``hidden``: the file is this project's own, beside the one that the user named: a link is not followed."""
        self._hidden = hidden
        self.name = "standard output" if path == "-" else path
        self._path = path
        self._overwrite = overwrite
        self._keep_off = tuple(keep_off)
        self._fsync = fsync
        self._packs = path.lower().endswith(".gz")
        self._member: zlib._Compress | None = None
        self._place: _Target | None = None
        self._rows = self._size_bytes = 0
        self._flushed = (0, 0)
        self._sum = 0
        """CRC-32 of all bytes up to here, in a file that can be cut back."""
        self.checksum = -1
        """CRC-32 of the bytes of the last flush. Before ``open``: that of the bytes that the journal records. -1: not
        known."""
        self.only_copy = False
        """True if the journal does not hold the rows any more, so that what is left of them in the file stays."""

    @property
    def cuts_back(self) -> bool:
        """True if a resumed run can truncate the output. If False, rows written after the last flush may be written
        twice.
        """
        if self._path == "-":
            return False
        there = _mode(self._path)
        return there is None or stat.S_ISREG(there)

    def check(self) -> None:
        """Raise `SinkError` if nothing can be written, whatever the job: a folder, a missing parent, no permission."""
        if self._path == "-":
            if _standard_stream() is None:
                raise SinkError(_CLOSED)
            return
        path = Path(self._path)
        try:
            if is_dangling(path):
                path = Path(os.path.realpath(path))
            if not path.parent.is_dir():
                raise SinkError(f"{self.name}: {missing_folder(path.parent)}")
            there = _mode(self._path)
            if there is not None and stat.S_ISDIR(there):
                raise SinkError(f"{self.name} is a folder: name a file in it")
            if there is not None and any(Path(other).exists() and path.samefile(other) for other in self._keep_off):
                raise SinkError(f"{self.name} is the input itself: name another output")
            if not os.access(path.parent if there is None else path, os.W_OK):
                raise SinkError(f"{self.name} cannot be written: no permission")
        except (OSError, ValueError) as error:
            raise SinkError(f"{self.name} cannot be written: {why(error)}") from None

    def taken(self) -> bool:
        """Return whether something has the name of the output already, also a link whose target is missing."""
        return self._path != "-" and os.path.lexists(self._path)

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Open the sink and return the number of rows it holds; the next row to write is the one after these.

        The journal records `rows` results in the first `size_bytes`; `own`: this job has written here before. The file
        is truncated to these rows. If it holds only some of them, these are kept where nothing tells whether they are
        the first ones: there is no checksum, or no other copy. If they are not kept, or the file was edited or is gone,
        all rows are written again (0). Raises `SinkError` if the file belongs to something else or cannot be written.
        """
        self.check()
        if self._path == "-":
            self._place, self._size_bytes = _standard_output(), size_bytes
        elif not self.cuts_back:
            self._place, self._size_bytes = _opened_stream(self._path), size_bytes
        else:
            rows = self._open_file(rows, size_bytes, own)
        self._rows = rows
        self._flushed, self.checksum = (rows, self._size_bytes), self._sum if self.cuts_back else -1
        return rows

    def _open_file(self, rows: int, size_bytes: int, own: bool) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if own or self._overwrite else os.O_EXCL)
        flags |= os.O_NOFOLLOW if self._hidden else 0
        try:
            fd = os.open(self._path, flags, 0o666)
        except FileExistsError:
            raise SinkError(f"{self.name} exists: give --overwrite to write over it, or name another output") from None
        except (OSError, ValueError) as error:
            raise SinkError(f"{self.name} cannot be written: {why(error)}") from None
        disk = _FileTarget(fd, self._fsync, Path(self._path))
        try:
            if not _locked(fd):
                raise SinkError(f"{self.name} is being written by another run: name another output")
            found = held(fd, rows, size_bytes, self._packs) if own else (0, 0)
            if found is not None:
                self._sum = checksum_of(fd, found[1])
                if size_bytes and found == (rows, size_bytes) and self.checksum not in (-1, self._sum):
                    found = None  # a row was edited, or changed on the disk
                elif found != (rows, size_bytes) and self.checksum != -1 and not self.only_copy:
                    found, self._sum = (0, 0), 0  # perhaps rows of a retry that the journal has lost, in another order
            if found is None and not self._overwrite:
                raise SinkError(
                    f"{self.name} is not as this job left it ({rows} rows in its first {size_bytes} bytes): move it "
                    "away to have all results written anew, or give --overwrite"
                )
            if found is None:
                self._sum = 0
            rows, self._size_bytes = found or (0, 0)
            disk.cut(self._size_bytes)
        except OSError as error:
            disk.close()
            raise SinkError(f"{self.name} cannot be read or cut back: {why(error)}") from None
        except SinkError:
            disk.close()
            raise
        self._place = disk
        return rows

    def write(self, values: Sequence[Any]) -> None:
        """Write rows, one line each. Raises `SinkFull` and, for other failures, `SinkError`."""
        if not values:
            return
        lines = lines_of(values)
        if self._packs:
            self._member = self._member or zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
            lines = self._member.compress(lines)
        self._put(lines)
        self._rows += len(values)

    def flush(self) -> tuple[int, int]:
        """Bring all rows to disk; return (rows, bytes) on disk. Raises as `write`."""
        self._end_member()
        try:
            self._opened().sync()
        except OSError as error:
            raise self._failed(error) from None
        if not self._opened().stands():
            raise SinkFailed(
                f"{self.name} was removed or replaced by something else while the job ran: its results are in the "
                "journal; resume to have them written again"
            )
        self._flushed = self._rows, self._size_bytes
        self.checksum = self._sum if self.cuts_back else -1
        return self._flushed

    def close(self) -> None:
        """Close the sink. Rows written since the last flush are left whole, but are not guaranteed."""
        if self._place is None:
            return
        with contextlib.suppress(SinkError):
            if self._packs and not self._size_bytes and self._member is None:
                # no rows: still a valid gzip file
                self._member = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
            self._end_member()
        with contextlib.suppress(OSError):
            self._place.close()
        self._place = None

    def abandon(self) -> None:
        """Close the sink of an incomplete run: the rows so far stay."""
        self.close()

    def forget(self) -> None:
        """Do nothing: the job has ended, and this sink keeps no files beside the output."""

    def holds(self, rows: int) -> bool:
        """Return whether the file exists. The journal's byte count says how much of it is the job's."""
        return Path(self._path).exists()

    def kept(self) -> bool:
        """Return whether the output is a file that holds anything. False for a stream, which holds nothing."""
        return self.cuts_back and bool(unpacked(self._head(), self._packs))

    def is_of(self, values: Sequence[Any]) -> bool:
        """Return whether the file may hold rows of a job whose first results are ``values``; True without a file."""
        lines = [line_of(value)[:-1] for value in values]
        return not self.cuts_back or lines_are_of(unpacked(self._head(), self._packs), lines)

    def replace(self) -> None:
        """Permit to replace a file that another job, or something else, has written."""
        self._overwrite = True

    def older_than(self, at_s: float) -> bool:
        """Return whether the file was last written before this Unix time."""
        try:
            return os.stat(self._path).st_mtime < at_s
        except OSError:
            return True

    def _head(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                return file.read(HEAD_BYTES)
        except FileNotFoundError:
            return b""
        except (OSError, ValueError) as error:
            raise SinkError(f"{self.name} cannot be read: {why(error)}") from None

    def _end_member(self) -> None:
        if self._member is not None:
            rest, self._member = self._member.flush(), None
            self._put(rest)

    def _put(self, some: bytes) -> None:
        try:
            self._opened().put(some)
        except OSError as error:
            raise self._failed(error) from None
        self._size_bytes += len(some)
        self._sum = zlib.crc32(some, self._sum)

    def _opened(self) -> _Target:
        if self._place is None:
            raise SinkError(f"{self.name} is not open")
        return self._place

    def _failed(self, error: OSError) -> SinkError:
        """Truncate the file to its last flush, so that a full disk holds only whole rows, and return the error to
        raise.
        """
        self._member = None
        with contextlib.suppress(OSError):
            self._opened().cut(self._flushed[1])
            self._rows, self._size_bytes = self._flushed
            self._sum = max(0, self.checksum)
        if isinstance(error, BrokenPipeError):
            return SinkClosed(f"{self.name} was closed by its reader")
        if error.errno in FULL:
            return SinkFull(f"{self.name}: {told(error)}")
        return SinkFailed(f"{self.name} cannot be written: {told(error)}")


class StdoutSink(FileSink):
    """Sink that writes results as lines to standard output.

    The output cannot be truncated: a resumed run may repeat the rows after a flush.
    """

    def __init__(self) -> None:
        super().__init__("-")


class _FileTarget:
    """Regular file."""

    def __init__(self, fd: int, fsync: Callable[[int], None], path: Path) -> None:
        self._fd = fd
        self._path = path
        self._fsync = fsync
        self._folder: Path | None = path.parent

    def put(self, some: bytes) -> None:
        left = memoryview(some)
        while left:
            left = left[os.write(self._fd, left) :]

    def sync(self) -> None:
        self._fsync(self._fd)
        if self._folder is not None:  # the file's entry is part of its folder, which must be synced as well
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._fsync(folder)
            finally:
                os.close(folder)
            self._folder = None

    def cut(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        os.lseek(self._fd, size_bytes, os.SEEK_SET)

    def stands(self) -> bool:
        """Return whether the path still names this file."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._fd)


class _StreamTarget:
    """Standard output, a pipe or a device."""

    def __init__(self, stream: BinaryIO, lent: bool) -> None:
        self._stream = stream
        self._lent = lent
        self._shown = codecs.getincrementaldecoder("utf-8")("replace") if stream.isatty() else None
        """Decoder of what a terminal is shown, which is printable text and no longer a result to the letter."""

    def put(self, some: bytes) -> None:
        if self._shown is not None:
            some = printable(self._shown.decode(some)).encode()
        self._stream.write(some)

    def sync(self) -> None:
        self._stream.flush()

    def stands(self) -> bool:
        """Return True: a stream has no name that could be given to another."""
        return True

    def cut(self, size_bytes: int) -> None:
        """Do nothing: bytes that were sent cannot be taken back."""

    def close(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            if self._lent:  # the interpreter flushes the stream again at exit and would print the error
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            raise
        finally:
            if not self._lent:
                self._stream.close()


def lines_of(values: Sequence[Any]) -> bytes:
    """Return results as their lines in a file of results: what ``line_of`` returns for each of them, joined."""
    if bytes not in map(type, values):
        lines: bytes = _encoder.encode_lines(values)
        if lines.count(b"\n") == len(values):
            return lines
    return b"".join([line_of(value) for value in values])


def line_of(value: Any) -> bytes:
    """Return a result as its line in a file of results."""
    line: bytes = value if type(value) is bytes else _encoder.encode(value)
    # A line break between the parts of a JSON value would end the line. Inside strings JSON has none.
    return line.replace(b"\n", b" ") + b"\n" if b"\n" in line else line + b"\n"


def is_written(path: Path) -> bool:
    """Return whether another process writes to this file now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Lock a file for this process while it is open; False if another process holds the lock.

    True on a file system without locks.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _mode(path: str) -> int | None:
    """Return the mode of the file; None if there is no file."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _opened_stream(path: str) -> _StreamTarget:
    try:
        return _StreamTarget(open(path, "wb"), lent=False)
    except OSError as error:
        raise SinkError(f"{path} cannot be written: {why(error)}") from None


def _standard_stream() -> Any:
    """Return the stream of standard output, below the one that records failures (``actors.common.result_stream``): a
    sink reports its own. None: closed.
    """
    return getattr(sys.stdout, "inner", sys.stdout)


def _standard_output() -> _StreamTarget:
    output = _standard_stream()
    if output is None:
        raise SinkError(_CLOSED)
    if isinstance(stream := getattr(output, "buffer", None), io.BufferedIOBase):
        output.flush()
        return _StreamTarget(cast(BinaryIO, stream), lent=True)
    # sys.stdout may accept only text (in a notebook), or write partially (python -u): the file descriptor does neither.
    return _StreamTarget(open(1, "wb", closefd=False), lent=False)


def missing_folder(folder: Path) -> str:
    """Return what is wrong with a path at which there is no folder, and what to do."""
    file = next((each for each in (folder, *folder.parents) if os.path.exists(each) and not os.path.isdir(each)), None)
    if file is not None:
        return f"{file} is a file, no folder: name another place"
    return f"there is no folder {folder}: make it first"


def why(error: Exception) -> str:
    """Return the operating system's text for an error, or the error's own."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
