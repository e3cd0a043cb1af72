"""Errors of an operating system about disks and files, in words, with what to do: one table for all messages."""

from __future__ import annotations

import errno
from typing import Final

WORDS: Final[dict[int, tuple[str, str]]] = {
    errno.ENOSPC: ("No space left on device", "make room"),
    errno.EDQUOT: ("the disk quota of this user is used up", "make room, or have the quota raised"),
    errno.EFBIG: ("the file may not grow further", "raise the limit on the size of files (`ulimit -f`)"),
    errno.EIO: (
        "the disk fails (input/output error)",
        "look at the system's log (`dmesg`), and copy what is on the disk to another",
    ),
    errno.EROFS: (
        "the file system is read-only, perhaps since the disk failed",
        "look at the system's log (`dmesg`), and mount it for writing",
    ),
    errno.ENOENT: ("there is no such file or folder", "look at the path, or bring it back"),
    errno.ENOTDIR: ("a part of the path is a file, no folder", "look at the path"),
    errno.EEXIST: ("there is a file in its place", "name another"),
    errno.EISDIR: ("it is a folder", "name a file in it"),
    errno.EACCES: ("no permission", "let this user read and write there, or name another place"),
    errno.EPERM: ("not permitted", "let this user read and write there, or name another place"),
    errno.EMFILE: ("this process may open no more files", "raise the limit (`ulimit -n 1024`)"),
    errno.ENFILE: ("this system can open no more files", "raise its limit (`sysctl fs.file-max`)"),
    errno.ESTALE: ("the file is gone from its server", "mount the file system again"),
}
"""By error number: what is wrong, and what to do (errno(3), write(2), fsync(2), open(2))."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors after which a file is whole up to what it held, and goes on when there is room."""

LIMITS: Final = FULL | {errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS}
"""Errors of a machine, wherever they come up: nobody's program is at fault."""


def told(error: OSError) -> str:
    """Return what is wrong and what to do; the system's own text for an error that is not in the table."""
    wrong, do = WORDS.get(error.errno or 0, (error.strerror or str(error), ""))
    return f"{wrong}: {do}" if do else wrong
