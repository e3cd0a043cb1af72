"""Files and folders that are made where others may write too: no link that somebody has planted is followed."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def opened_new(path: str | Path, mode: int = 0o666) -> int:
    """Make a file in place of whatever has its name, and return a descriptor for writing. Raises ``OSError``.

    A link of that name is removed, not followed; one that is put there meanwhile is refused (``O_EXCL``, open(2)).
    ``mode``: permissions, less those of the umask.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def is_dangling(path: str | Path) -> bool:
    """Return whether a path is a link whose target is missing. A file that is made under that name is made at the
    target (open(2), ``O_CREAT``), wherever somebody has let it point: such a name counts as one that exists.
    """
    return os.path.islink(path) and not os.path.exists(path)


def touched(path: str | Path) -> None:
    """Make a file for its owner alone unless it exists, and follow no link. Raises ``OSError``."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def is_of_another(owner: int) -> bool:
    """Return whether a file of the user with this number may be changed by somebody whom this process need not trust.

    Trusted are its own user, root, and under sudo the user who called it, as git trusts them: see ``safe.directory`` in
    https://git-scm.com/docs/git-config. False on Windows, where files have no such number.
    """
    if os.name == "nt" or owner in (0, own := os.geteuid()):
        return False
    return own != 0 or str(owner) != os.environ.get("SUDO_UID")


def is_private(folder: Path) -> bool:
    """Return whether a folder is this user's own, no link, and nobody else can write to it. Raises ``OSError``."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
