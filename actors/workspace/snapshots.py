"""Snapshots of a working folder: taken before a round, restored before a round is repeated.

Snapshots are in a hidden folder inside the working folder. Contents are stored by hash, so that an unchanged file is
stored once. A snapshot's list of files is written last, completely or not at all; without the list there is no
snapshot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from actors.common.process_owner import process_started
from actors.workspace.tree import STORE, FolderRefused, Tree, TreeEntry, open_file, tree_of

_EXECUTABLE, _PLAIN = 0o755, 0o644


class FolderSnapshots:
    """Snapshots of one folder, for one job. Raises ``FolderRefused`` if the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = folder / STORE

    @contextlib.contextmanager
    def held(self, job: str) -> Iterator[None]:
        """Hold the folder for the job, one holder at a time. A worker that was wrongly taken for dead is waited for.

        A check that a crash left running is ended first. Raises ``FolderRefused``.
        """
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            self.claim(job)
            self.end_check()
            yield
        finally:
            os.close(handle)

    def claim(self, job: str) -> None:
        """Record the job as the folder's owner. Raises ``FolderRefused`` if another job owns it."""
        owner = self._store / "owner"
        if self._store.is_symlink():
            raise FolderRefused(f"{self._store} is a link: take it away")
        if owner.exists() and (other := owner.read_text()) != job:
            raise FolderRefused(
                f"job {other} works on {self.folder}: let it end, or delete {self._store} if it never will"
            )
        try:
            (self._store / "objects").mkdir(parents=True, exist_ok=True)
            (self._store / ".gitignore").write_text("*\n")
            _write(owner, job.encode())
        except OSError as error:
            raise FolderRefused(f"{self.folder} cannot be written: {error.strerror}") from None

    def take(self, number: int) -> Tree:
        """Take snapshot ``number`` of the present folder and return its tree. Only the last two snapshots are kept."""
        tree = tree_of(self.folder)
        for path, entry in tree.items():
            if entry.kind == "file" and not (kept := self._store / "objects" / entry.content).exists():
                with open_file(self.folder / path) as content:
                    _write(kept, content.read())
        listed = {path: list(entry) for path, entry in tree.items()}
        _write(self._store / f"before-{number}.json", msgspec.json.encode(listed))
        for old in self._store.glob("before-*.json"):
            if (its := _number(old)) is not None and its not in (number, number - 1):
                old.unlink()
        return tree

    def has(self, number: int) -> bool:
        """Return True if the snapshot exists."""
        return (self._store / f"before-{number}.json").exists()

    def kept(self, number: int) -> Tree:
        """Return the tree of a snapshot."""
        listed = msgspec.json.decode((self._store / f"before-{number}.json").read_bytes(), type=dict[str, Any])
        return {path: TreeEntry(*entry) for path, entry in listed.items()}

    def begin(self, number: int) -> None:
        """Record that round ``number`` begins to change the folder. Without a later snapshot, the folder may be half
        changed."""
        (self._store / f"before-{number + 1}.json").unlink(missing_ok=True)
        _write(self._store / "under-way", str(number).encode())

    def nothing_begun(self) -> None:
        """Record that no round has changed the folder; rounds are counted anew."""
        (self._store / "under-way").unlink(missing_ok=True)

    def begun(self) -> int | None:
        """Return the last round that began to change the folder, or None. The round may be over."""
        try:
            return int((self._store / "under-way").read_text())
        except (OSError, ValueError):
            return None

    def restore(self, number: int) -> None:
        """Restore the folder to a snapshot; ignored files stay as they are."""
        then, now = self.kept(number), tree_of(self.folder)
        for path in reversed(list(now)):
            if path not in then or now[path].kind != then[path].kind:
                _remove(self.folder / path, now[path])
        for path, entry in then.items():
            place = self.folder / path
            if now.get(path) == entry:
                continue
            if entry.kind == "folder":
                place.mkdir(exist_ok=True)
            elif entry.kind == "link":
                place.unlink(missing_ok=True)
                place.symlink_to(entry.content)
            else:
                content = (self._store / "objects" / entry.content).read_bytes()
                _write(place, content, _EXECUTABLE if entry.executable else _PLAIN)

    def note_check(self, pid: int) -> None:
        """Record the process of a running check, so that a later worker can end it after a crash."""
        _write(self._store / "check", f"{pid} {process_started(pid)}".encode())

    def check_over(self) -> None:
        """Record that the check has ended."""
        (self._store / "check").unlink(missing_ok=True)

    def end_check(self) -> None:
        """End a check that a crash left running: it could change the folder under the next one."""
        with contextlib.suppress(OSError, ValueError):
            pid, started = (self._store / "check").read_text().split(" ")
            if started and process_started(int(pid)) == started:
                os.killpg(int(pid), signal.SIGKILL)
        self.check_over()

    def close(self) -> None:
        """Remove all snapshots at the end of the work."""
        shutil.rmtree(self._store, ignore_errors=True)


def _number(place: Path) -> int | None:
    text = place.stem.removeprefix("before-")
    return int(text) if text.isdecimal() else None


def _remove(place: Path, entry: TreeEntry) -> None:
    if entry.kind != "folder":
        place.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):  # ignored files keep the folder in place
        place.rmdir()


def _write(place: Path, content: bytes, mode: int = _PLAIN) -> None:
    """Write a file to disk, completely or not at all."""
    part = place.with_name(f".{place.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, place)


write = _write
