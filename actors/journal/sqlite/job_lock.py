"""Who works on a job at this moment: a lock on a file beside its journal.

The system lets go of it when its holder dies, however it dies, also on another host of the same disk or in another
container: so a job is never taken for in use because of a process that is gone, or of one that lives on and does
something else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from actors.journal.journal import JobHeld, StoreError

_TRIES = 20
_TRY_AGAIN_S = 0.01  # somebody who only looks holds the lock for microseconds


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold a job for as long as the block runs. Raises ``JobHeld``, or ``StoreError`` where the folder allows no
    file.
    """
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use {path.parent.parent} as state folder: {error.strerror}") from None
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
                return  # a file system without such locks: the epoch in the journal still keeps writers apart
            if tried == _TRIES:
                raise JobHeld from None
        time.sleep(_TRY_AGAIN_S)


def is_held(path: Path) -> bool:
    """Whether somebody works on the job now."""
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
