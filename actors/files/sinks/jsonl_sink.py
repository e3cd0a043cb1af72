"""Where results go: a file of JSON Lines that a resumed run cuts back and writes on, or a stream that it cannot cut.

A results file is a projection of the journal, which knows how many rows stood, whole and on disk, in how many bytes at
the last flush. In gzip every flush ends a member, so that a file can be cut there.
"""

from __future__ import annotations

import contextlib
import errno
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

from actors.files.errors import SinkClosed, SinkError, SinkFull
from actors.files.sinks.results_recovery import GZIP_BITS, held

GZIP_LEVEL: Final = 6

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_encode: Final = msgspec.json.Encoder().encode


class _Target(Protocol):
    """Bytes go there."""

    def put(self, some: bytes) -> None: ...
    def sync(self) -> None: ...
    def cut(self, size_bytes: int) -> None: ...
    def close(self) -> None: ...


class FileSink:
    """Results as lines, into a file; gzip by suffix. `-` is standard output.

    Values that are bytes are lines already; others are written as JSON. `overwrite` lets a file go that another job,
    or somebody else, has written. `keep_off` names files that are never written to, the job's input among them.
    """

    def __init__(
        self,
        path: str,
        *,
        overwrite: bool = False,
        keep_off: Iterable[str] = (),
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
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

    @property
    def cuts_back(self) -> bool:
        """Whether a resumed run can cut it back. Where it cannot, the rows after the last flush may go out twice."""
        if self._path == "-":
            return False
        there = _mode(self._path)
        return there is None or stat.S_ISREG(there)

    def check(self) -> None:
        """Raise `SinkError` where nothing can be written, whatever the job: a folder, a missing parent, no leave."""
        if self._path == "-":
            return
        path = Path(self._path)
        try:
            if not path.parent.is_dir():
                raise SinkError(f"{self.name}: there is no folder {path.parent}: make it first")
            there = _mode(self._path)
            if there is not None and stat.S_ISDIR(there):
                raise SinkError(f"{self.name} is a folder: name a file in it")
            if there is not None and any(Path(other).exists() and path.samefile(other) for other in self._keep_off):
                raise SinkError(f"{self.name} is the input itself: name another output")
            if not os.access(path.parent if there is None else path, os.W_OK):
                raise SinkError(f"{self.name} cannot be written: no permission")
        except (OSError, ValueError) as error:
            raise SinkError(f"{self.name} cannot be written: {why(error)}") from None

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Begin, or go on: how many rows stand there now; the next one to write is the one after these.

        The journal knows `rows` results in the first `size_bytes`; `own`: this job has written here before. The file
        is cut back to these rows. Where it is shorter, to the rows that are whole; where it must have been edited
        since, or is gone, all are written again (0). Raises `SinkError`: the file is somebody else's, or no file.
        """
        self.check()
        if self._path == "-":
            self._place, self._size_bytes = _standard_output(), size_bytes
        elif not self.cuts_back:
            self._place, self._size_bytes = _opened_stream(self._path), size_bytes
        else:
            rows = self._open_file(rows, size_bytes, own)
        self._rows = rows
        self._flushed = (rows, self._size_bytes)
        return rows

    def _open_file(self, rows: int, size_bytes: int, own: bool) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if own or self._overwrite else os.O_EXCL)
        try:
            fd = os.open(self._path, flags, 0o666)
        except FileExistsError:
            raise SinkError(f"{self.name} exists: give --overwrite to write over it, or name another output") from None
        except (OSError, ValueError) as error:
            raise SinkError(f"{self.name} cannot be written: {why(error)}") from None
        disk = _FileTarget(fd, self._fsync, Path(self._path).parent)
        try:
            if not _locked(fd):
                raise SinkError(f"{self.name} is being written by another run: name another output")
            found = held(fd, rows, size_bytes, self._packs) if own else (0, 0)
            if found is None and not self._overwrite:
                raise SinkError(
                    f"{self.name} is not as this job left it ({rows} rows in its first {size_bytes} bytes): move it "
                    "away to have all results written anew, or give --overwrite"
                )
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
        """Write rows, a line each. Raises `SinkFull` and, for other failures, `SinkError`."""
        if not values:
            return
        lines = b"".join([_line(value) for value in values])
        if self._packs:
            self._member = self._member or zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
            lines = self._member.compress(lines)
        self._put(lines)
        self._rows += len(values)

    def flush(self) -> tuple[int, int]:
        """All rows so far, and their bytes, are on disk when this returns: how many there are. Raises as `write`."""
        self._end_member()
        try:
            self._opened().sync()
        except OSError as error:
            raise self._failed(error) from None
        self._flushed = self._rows, self._size_bytes
        return self._flushed

    def close(self) -> None:
        """Let go of it. What was written since the last flush is left whole, but nobody has promised it."""
        if self._place is None:
            return
        with contextlib.suppress(SinkError):
            if self._packs and not self._size_bytes and self._member is None:
                self._member = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)  # no rows: still a gzip file
            self._end_member()
        with contextlib.suppress(OSError):
            self._place.close()
        self._place = None

    def abandon(self) -> None:
        """Let go of it, since not all came: what there is stays as it is."""
        self.close()

    def forget(self) -> None:
        """The job is over: nothing was kept beside."""

    def holds(self, rows: int) -> bool:
        """Whether the file is there. How much of it is ours the journal says, by its bytes."""
        return Path(self._path).exists()

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

    def _opened(self) -> _Target:
        if self._place is None:
            raise SinkError(f"{self.name} is not open")
        return self._place

    def _failed(self, error: OSError) -> SinkError:
        """What to raise, after the file was brought back to its last flush: a full disk keeps whole rows alone."""
        self._member = None
        with contextlib.suppress(OSError):
            self._opened().cut(self._flushed[1])
            self._rows, self._size_bytes = self._flushed
        if isinstance(error, BrokenPipeError):
            return SinkClosed(f"{self.name} was closed by its reader: resume with -o FILE to keep the results")
        if error.errno in _FULL:
            return SinkFull(f"{self.name}: {why(error)}: make room, then resume")
        return SinkError(f"{self.name} cannot be written: {why(error)}")


class StdoutSink(FileSink):
    """Results as lines on standard output. It cannot be cut back: a resumed run may repeat the rows after a flush."""

    def __init__(self) -> None:
        super().__init__("-")


class _FileTarget:
    """A regular file."""

    def __init__(self, fd: int, fsync: Callable[[int], None], folder: Path) -> None:
        self._fd = fd
        self._fsync = fsync
        self._folder: Path | None = folder

    def put(self, some: bytes) -> None:
        left = memoryview(some)
        while left:
            left = left[os.write(self._fd, left) :]

    def sync(self) -> None:
        self._fsync(self._fd)
        if self._folder is not None:  # that the file is there at all is a fact of its folder
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._fsync(folder)
            finally:
                os.close(folder)
            self._folder = None

    def cut(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        os.lseek(self._fd, size_bytes, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._fd)


class _StreamTarget:
    """Standard output, a pipe or a device."""

    def __init__(self, stream: BinaryIO, lent: bool) -> None:
        self._stream = stream
        self._lent = lent

    def put(self, some: bytes) -> None:
        self._stream.write(some)

    def sync(self) -> None:
        self._stream.flush()

    def cut(self, size_bytes: int) -> None:
        """What has gone out has gone out."""

    def close(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            if self._lent:  # the interpreter flushes it once more at its end, and would tell of it then
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            raise
        finally:
            if not self._lent:
                self._stream.close()


def _line(value: Any) -> bytes:
    line: bytes = value if type(value) is bytes else _encode(value)
    # A break between the parts of a value would end the line; inside a string JSON has none.
    return line.replace(b"\n", b" ") + b"\n" if b"\n" in line else line + b"\n"


def is_written(path: Path) -> bool:
    """Whether another process writes to this file now."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Hold a file for this process while it is open; False where another process does. Not all file systems can."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _mode(path: str) -> int | None:
    """What kind of thing is there; None for nothing."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _opened_stream(path: str) -> _StreamTarget:
    try:
        return _StreamTarget(open(path, "wb"), lent=False)
    except OSError as error:
        raise SinkError(f"{path} cannot be written: {why(error)}") from None


def _standard_output() -> _StreamTarget:
    if sys.stdout is None:
        raise SinkError("standard output is closed: give -o FILE")
    if isinstance(stream := getattr(sys.stdout, "buffer", None), io.BufferedIOBase):
        sys.stdout.flush()
        return _StreamTarget(cast(BinaryIO, stream), lent=True)
    # It may take text alone (a notebook's), or write less than all (python -u): the file descriptor does neither.
    return _StreamTarget(open(1, "wb", closefd=False), lent=False)


def why(error: Exception) -> str:
    """What the system says of it, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
