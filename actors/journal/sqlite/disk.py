"""Errors of SQLite that are the disk's: what the operating system said, told apart.

SQLite says *disk I/O error* for most of them, *unable to open database file* for others, and drops the system's error
number (https://www.sqlite.org/rescode.html). So the same is tried once more: some bytes are written beside the file and
brought to the disk, and the error of that is told.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

from actors.files.local.new_files import opened_new
from actors.files.local.os_errors import FULL, told
from actors.journal.errors import DiskFull

_ROOM = ("disk is full", "No space left")
_FAILS = ("disk I/O error", "readonly database", "unable to open database", "attempt to write a readonly")
_PROBE_BYTES = 65_536


def disk_error(error: Exception, path: Path) -> DiskFull | None:
    """Return the error for a file whose disk is full, fails, or cannot be used; None if the disk is not to blame."""
    text, found = str(error), disk_cause(error, path)
    if found is None:
        return None
    if found.errno == errno.ENOSPC:
        return DiskFull(f"the disk that holds {path} is full ({text}): make room, then resume")
    return DiskFull(f"{path} cannot be used ({text}): {told(found)}, then resume")


def disk_cause(error: Exception, path: Path) -> OSError | None:
    """Return the operating system's error behind one of SQLite's; None if the disk is not to blame."""
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return error
    if any(words in text for words in _ROOM):
        found = _tried(path)
        return found if found.errno in FULL else OSError(errno.ENOSPC, "")
    return _tried(path) if any(words in text for words in _FAILS) else None


def _tried(path: Path) -> OSError:
    """Return the error of reading the file, or of writing beside it; that of a failing disk if both succeed."""
    probe = path.with_name(f".{path.name}.probe")
    try:
        if path.exists():
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        handle = opened_new(probe, 0o600)
        try:
            os.write(handle, bytes(_PROBE_BYTES))
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        return error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return OSError(errno.EFBIG if _is_at_its_limit(path) else errno.EIO, "")


def _is_at_its_limit(path: Path) -> bool:
    """Return whether the file, or the log of its changes, is about as large as this process may make one
    (setrlimit(2), RLIMIT_FSIZE)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists()]
    return limit != resource.RLIM_INFINITY and max(sizes, default=0) > limit - _PROBE_BYTES


