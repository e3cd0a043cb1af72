"""Content of a working folder, read once: names, kinds, hashes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final, NamedTuple

from actors.common.errors import UserError

STORE: Final = ".cortex-ralph"
"""Name of the folder for snapshots inside the working folder, while a job works on it."""
IGNORED: Final = frozenset(
    {STORE, ".cortex", ".git", ".hg", ".svn", ".venv", ".tox", "node_modules", "__pycache__"}
    | {".pytest_cache", ".mypy_cache", ".ruff_cache", ".DS_Store"}
)
"""Names that are ignored in any folder: neither shown, nor stored, nor changed."""
_NO_NAME: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and bytes that are no UTF-8."""
FILES_MAX: Final = 5_000
FILE_BYTES_MAX: Final = 32 << 20
BYTES_MAX: Final = 256 << 20


class FolderRefused(UserError, ValueError):
    """The folder cannot be used. The message is one line for users."""


class TreeEntry(NamedTuple):
    """Entry of a folder: a ``file`` (content: its hash), a ``link`` (content: its target), or a ``folder``."""

    kind: str
    content: str
    size: int = 0
    executable: bool = False


Tree = dict[str, TreeEntry]
"""Path relative to the folder -> entry, sorted."""


def tree_of(folder: Path) -> Tree:
    """Return the tree of the folder, without following links. Raises ``FolderRefused`` if too large or unreadable."""
    found: Tree = {}
    size = 0
    try:
        for path, entry in _walked(folder, ""):
            found[path] = entry
            size += entry.size
            if len(found) > FILES_MAX:
                raise FolderRefused(f"{folder} holds more than {FILES_MAX:,} files: name a smaller folder")
            if size > BYTES_MAX:
                raise FolderRefused(f"{folder} holds more than {BYTES_MAX >> 20} MB: name a smaller folder")
    except OSError as error:
        raise FolderRefused(f"{folder} cannot be read: {error}") from None
    return dict(sorted(found.items()))


def _walked(folder: Path, prefix: str) -> Iterator[tuple[str, TreeEntry]]:
    with os.scandir(folder) as inside:
        entries = sorted(inside, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name in IGNORED:
            continue
        path, place = prefix + entry.name, folder / entry.name
        leads = os.readlink(place) if entry.is_symlink() else ""
        if _NO_NAME.search(entry.name + leads):
            raise FolderRefused(f"{folder} holds a name that cannot be shown, {entry.name!r}: rename it")
        if leads:
            yield path, TreeEntry("link", leads)
        elif entry.is_dir():
            if not _holds_jobs(place):
                yield path, TreeEntry("folder", "")
                yield from _walked(place, path + "/")
        elif entry.is_file():
            about = entry.stat(follow_symlinks=False)
            if about.st_size > FILE_BYTES_MAX:
                raise FolderRefused(f"{place} is larger than {FILE_BYTES_MAX >> 20} MB: move it out of the folder")
            yield path, TreeEntry("file", hash_of(place), about.st_size, bool(about.st_mode & stat.S_IXUSR))


def _holds_jobs(folder: Path) -> bool:
    """Return True for a state folder of cortex, whose journals must not be restored."""
    return (folder / "jobs").is_dir() and any((folder / "jobs").glob("*.sqlite"))


def hash_of(place: Path) -> str:
    """Return the hash of a file's content, 32 hex digits."""
    digest = blake2b(digest_size=16)
    with open_file(place) as content:
        while some := content.read(1 << 20):
            digest.update(some)
    return digest.hexdigest()


def open_file(place: Path) -> IO[bytes]:
    """Open a file for reading, without following links."""
    return os.fdopen(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def digest_of(tree: Tree) -> str:
    """Return a hash of names and contents, 16 hex digits, by which progress is measured."""
    digest = blake2b(digest_size=8)
    for path, entry in tree.items():
        if entry.kind != "folder":
            line = f"{path}\0{entry.kind}\0{entry.content}\0{entry.executable}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
