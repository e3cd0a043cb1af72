"""Lock of a running job: a lock on a file beside its journal.

The operating system releases the lock when its holder dies for any reason, also on another host of the same disk or in
another container. So a job never counts as running because of a dead process, or of a process id that was reused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from actors.files.local.os_errors import told
from actors.journal.journal import JobHeld, StoreError

_TRIES = 20
_TRY_AGAIN_S = 0.01  # `is_held` in another process holds the lock for microseconds


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold a job until the block ends. Raises ``JobHeld``, or ``StoreError`` if the lock file cannot be created."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use {path.parent.parent} as state folder: {told(error)}") from None
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> None:
    for tried in range(1, _TRIES + 1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # the file system has no such locks: the epoch in the journal still keeps writers apart
            if tried == _TRIES:
                raise JobHeld from None
        time.sleep(_TRY_AGAIN_S)


def is_held(path: Path) -> bool:
    """Return whether a process holds the job now."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(handle)
