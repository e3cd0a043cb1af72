"""State folder on a disk of this machine: private to its user, excluded from git, never on a network file system."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import pwd
import shutil
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from actors.common.boot_clock import steady_s
from actors.common.file_systems import NETWORK_FILE_SYSTEMS, file_system
from actors.files.local.new_files import is_of_another, opened_new
from actors.files.local.os_errors import told
from actors.journal.journal import Damaged, FolderFault, Journal, StateFolder, StoreError
from actors.journal.sqlite.backup import backup
from actors.journal.sqlite.job_lock import hold, is_held
from actors.journal.sqlite.key_values import FileKeyValues
from actors.journal.sqlite.reply_index import FileReplyIndex, anything, known, unremember, whose
from actors.journal.sqlite.storage import FileStorage
from actors.journal.sqlite.wal import CutLog, see_whole
from actors.journal.state_folder import advised

BESIDE = (".sqlite-wal", ".sqlite-shm", ".control", ".tended", ".channel", ".lock")
"""Suffixes of the files that may accompany a journal, ``NAME.sqlite``; the lock is removed last."""


_OWN_NAMES = frozenset({
    ".gitignore", "jobs", "live", "traces", "programs", "accounts",
    *(f"{name}.sqlite{end}" for name in ("replies", "budgets") for end in ("", "-wal", "-shm")),
    "bills.jsonl", "limits.json", "forgotten.json", "halted.json",
})  # fmt: skip
"""Names in a state folder that no user gave."""

_log = logging.getLogger("cortex.journal")


@lru_cache
def _tell_owner(folder: Path, owner: int) -> None:
    """Warn, once in a process, that another user owns a state folder: a journal names the program that is loaded."""
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"number {owner}"
    _log.warning(
        "the state folder %s belongs to the user %s, who can put other journals, and so other programs, into it: give "
        "a --state of your own, or `chown -R` this one if you trust what is in it", folder, name,
    )  # fmt: skip


class FileStateFolder(StateFolder):
    """``StateFolder`` of files."""

    def __init__(self, address: str | Path) -> None:
        self.path = Path(os.path.realpath(os.path.expanduser(address)))
        self.address = str(self.path)

    def prepare(self) -> FileStateFolder:
        """Create the folder, with modes for its owner only. Raises ``StoreError`` if it cannot be used."""
        kind = file_system(self.path)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreError(
                f"{self.path} is on a network file system ({kind}), where a journal is not safe: give a local --state"
            )
        self._see_folder()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            (self.path / "jobs").mkdir(mode=0o700, exist_ok=True)
            self._tighten()
            self._see_owner()
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise self._unusable(error) from None
        return self

    def see_readable(self) -> None:
        """Look at the folder and at ``jobs`` in it.

        Where nothing can be written SQLite reads no journal that is not open elsewhere: it must make a file beside it
        (https://www.sqlite.org/wal.html, "Read-Only Databases").
        """
        jobs = self.path / "jobs"
        try:
            self.path.stat()
        except FileNotFoundError:
            text = f"there is no state folder {self.path}: correct --state; a first job makes it"
            raise FolderFault("missing", text) from None
        except OSError as error:
            raise self._fault(error) from None
        try:
            os.scandir(jobs).close()
        except FileNotFoundError:
            text = f"{self.path} is no state folder, since it has no folder jobs: correct --state; a first job makes it"
            raise FolderFault("empty", text) from None
        except OSError as error:
            raise self._fault(error) from None
        if not os.access(jobs, os.W_OK | os.X_OK):
            text = f"{jobs} is read-only for this user, so SQLite opens no journal in it: give the right to write there"
            raise FolderFault("read_only", text)

    def _fault(self, error: OSError) -> FolderFault:
        denied = isinstance(error, (PermissionError, NotADirectoryError))
        text = f"cannot read the state folder {self.path}: {told(error)}"
        return FolderFault("unreadable" if denied else "away", text)

    def _tighten(self) -> None:
        """Let nobody but its owner write to the state folder: older releases made it with the mode of the umask.

        Only a folder that this project made is changed. Whoever can write to it can put another journal in the place of
        one.
        """
        mode = self.path.stat().st_mode
        if mode & 0o022 and {each.name for each in self.path.iterdir()} <= _OWN_NAMES:
            self.path.chmod(0o700)
        elif mode & 0o022:
            _log.warning("others may write to the state folder %s: `chmod go-w %s`", self.path, self.path)

    def _see_owner(self) -> None:
        """Warn of a folder that belongs to another user. It is used all the same: in a container root works in folders
        of the users outside.
        """
        with contextlib.suppress(OSError):
            owner = self.path.stat().st_uid
            if is_of_another(owner):
                _tell_owner(self.path, owner)

    def _see_folder(self) -> None:
        """Raise ``StoreError`` if there is a file where the folder would be. A folder that is not there has no jobs."""
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise StoreError(f"{self.path} is a file, no state folder: give another --state")

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot use {self.path} as state folder: {told(error)}")

    # -- journals --------------------------------------------------------------------------------------------------

    def journal_path(self, job: str) -> Path:
        """Return the path of a job's journal. Raises ``StoreError`` for a name that cannot be a file's."""
        return self.beside(job, ".sqlite")

    def journal(self, job: str, *, create: bool = False, forgotten_too: bool = False) -> Journal:
        """Return a job's journal, over its file."""
        if not self.is_held(job.partition("~")[0]):
            self._see_log(job)
        self._see_owner()
        storage = FileStorage(self.journal_path(job), create=create)
        return Journal(storage, folder=self, forgotten_too=forgotten_too)

    @contextlib.contextmanager
    def making(self, job: str) -> Iterator[Journal]:
        """Create the journal in a separate file, which is renamed to the job's at the end."""
        part = self.beside(job, ".part")
        try:
            made = Journal(FileStorage(part, create=True))
            try:
                yield made
            finally:
                made.close()
            os.replace(part, self.journal_path(job))
        finally:
            for left in (part, Path(f"{part}-wal"), Path(f"{part}-shm")):
                left.unlink(missing_ok=True)

    def has(self, job: str) -> bool:
        """Return whether the journal's file exists."""
        found = self.journal_path(job).exists()
        if not found:
            self._see_folder()
        return found

    def jobs(self) -> list[str]:
        """Return the names of all jobs, latest written first."""
        self._see_folder()
        written_s = {}
        for path in (self.path / "jobs").glob("*.sqlite"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                written_s[path.stem] = path.stat().st_mtime
        return sorted(written_s, key=written_s.__getitem__, reverse=True)

    def changed_s(self, job: str) -> float:
        """Return the modification time of the journal's files, in seconds since 1970."""
        return max((at_ns for at_ns, _ in self._stamps(job)), default=0) / 1e9

    def mark(self, job: str) -> Hashable:
        """Return times and sizes of the journal's files."""
        return self._stamps(job)

    def _stamps(self, job: str) -> tuple[tuple[int, int], ...]:
        found = []
        for suffix in (".sqlite", ".sqlite-wal"):
            with contextlib.suppress(OSError):
                stat = self.beside(job, suffix).stat()
                if stat.st_size:
                    found.append((stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def cut(self, job: str) -> str:
        """Give up what cannot be read of a write-ahead log, and keep it beside the journal. Return its new place."""
        with hold(self.beside(job.partition("~")[0], ".lock")):
            log = self.beside(job, ".sqlite-wal")
            kept = log.with_name(f"{log.name}.damaged")
            try:
                if not log.exists():
                    return ""
                shutil.copyfile(log, kept)
                kept.chmod(0o600)
                FileStorage(self.journal_path(job)).close()  # the last to close it takes in what can be read
            except OSError as error:
                raise self._unusable(error) from None
            return str(kept)

    def size_bytes(self, job: str) -> int:
        """Return the bytes of the job's files."""
        total = 0
        for path in self._files(job):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def free_bytes(self) -> int | None:
        """Return the free bytes of the disk."""
        try:
            return shutil.disk_usage(self.path / "jobs").free
        except OSError:
            return None

    def _files(self, job: str) -> list[Path]:
        """Return the job's files: the journal first, the lock last."""
        live = self._note("live", job)
        return [self.journal_path(job), live, *self._halves(live), *(self.beside(job, suffix) for suffix in BESIDE)]

    def remove(self, job: str) -> None:
        """Remove the job's files."""
        for path in self._files(job):
            path.unlink(missing_ok=True)

    def backup(self, to: Path) -> None:
        """Copy the databases one by one, then the other files."""
        backup(self.path, to)

    # -- locks -----------------------------------------------------------------------------------------------------

    def hold(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Lock a file, which the operating system unlocks when this process dies. Raises ``Damaged`` for a journal
        whose write-ahead log is."""
        return self._held(job)

    @contextlib.contextmanager
    def _held(self, job: str) -> Iterator[None]:
        with hold(self.beside(job, ".lock")):
            self._see_log(job)
            for child in (self.path / "jobs").glob(f"{glob.escape(job)}~*.sqlite-wal"):
                self._see_log(child.name.removesuffix(".sqlite-wal"))
            yield

    def _see_log(self, job: str) -> None:
        """Raise ``Damaged`` if the write-ahead log that a killed run has left is damaged: SQLite would say nothing."""
        log = self.beside(job, ".sqlite-wal")
        try:
            stat = log.stat()
            if stat.st_size:
                see_whole(log, same_boot=stat.st_mtime >= time.time() - steady_s())
        except OSError:
            return  # there is none, or the journal itself will say what is wrong
        except CutLog:
            verify = advised(self, "verify", job, "--cut")
            raise Damaged(
                f"job {job} is damaged: turns in {log} cannot be read any more; nothing was changed: bring back a "
                f"backup of its state folder, or give them up with `{verify}`: what they paid for is asked again"
            ) from None

    def is_held(self, job: str) -> bool:
        """Return whether the lock file is locked."""
        return is_held(self.beside(job, ".lock"))

    def attend(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Lock a second file."""
        return self._attended(job)

    @contextlib.contextmanager
    def _attended(self, job: str) -> Iterator[None]:
        path = self.beside(job, ".channel")
        with hold(path):
            if not is_held(path):  # the file system has no such locks: what nobody can see is not shown
                path.unlink(missing_ok=True)
            yield

    def is_attended(self, job: str) -> bool | None:
        """Return whether that file is locked."""
        path = self.beside(job, ".channel")
        return is_held(path) if path.exists() else None

    # -- replies ---------------------------------------------------------------------------------------------------

    def index(self) -> FileReplyIndex:
        """Return the index of remembered replies."""
        return FileReplyIndex(self._replies)

    def whose(self, question: bytes) -> tuple[str, int]:
        """Return (job, turn) that paid for a reply."""
        return whose(self._replies, question)

    def unremember(self, jobs: Sequence[str]) -> None:
        """Remove the replies of these jobs from the index."""
        unremember(self._replies, jobs)

    def remembered(self, questions: Sequence[bytes]) -> set[bytes]:
        """Return the questions with a remembered reply; no index is created."""
        return known(self._replies, questions)

    def remembers(self) -> bool:
        """Return True if the index is not empty."""
        return anything(self._replies)

    @property
    def _replies(self) -> Path:
        return self.path / "replies.sqlite"

    # -- notes: a small file each, renamed into place
    # -------------------------------------------------------------------

    def _note(self, kind: str, name: str) -> Path:
        if kind == "live":
            return self.path / kind / f"{name}.json"
        return self.path / f"{kind}.json" if not name else self.beside(name, f".{kind}")

    @staticmethod
    def _halves(path: Path) -> Iterator[Path]:
        return path.parent.glob(f".{glob.escape(path.name)}.*")

    def note(self, kind: str, name: str) -> bytes | None:
        """Return the content of the note's file. Raises ``StoreError`` if it cannot be read."""
        path = self._note(kind, name)
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: {told(error)}") from None

    def note_mark(self, kind: str, name: str) -> Hashable:
        """Return time and size of the note's file."""
        try:
            stat = self._note(kind, name).stat()
        except OSError:
            return 0, 0
        return stat.st_mtime_ns, stat.st_size

    def notes(self, kind: str) -> list[str]:
        """Return the names of the files of this kind."""
        found = self._note(kind, "any")
        return sorted(path.stem for path in found.parent.glob(f"*{found.suffix}"))

    def put_note(self, kind: str, name: str, value: bytes) -> None:
        """Write a temporary file and rename it into place."""
        path = self._note(kind, name)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                with os.fdopen(opened_new(part, 0o600), "wb") as file:
                    file.write(value)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: {told(error)}") from None

    def swap_note(self, kind: str, name: str, before: bytes | None, value: bytes) -> bool:
        """Replace the note under a lock on its folder, one writer at a time."""
        path = self._note(kind, name)
        try:
            handle = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"{path}: {told(error)}") from None
        try:
            with contextlib.suppress(OSError):  # the file system has no such locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if self.note(kind, name) != before:
                return False
            self.put_note(kind, name, value)
            return True
        finally:
            os.close(handle)

    def place_of_note(self, kind: str, name: str) -> str:
        """Return the path of the note's file."""
        return str(self._note(kind, name))

    def drop_note(self, kind: str, name: str) -> None:
        """Remove the note's file, and temporary files that a killed writer left."""
        path = self._note(kind, name)
        try:
            for each in (path, *self._halves(path)):
                each.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise StoreError(f"{path}: {told(error)}") from None

    # -- shared by all jobs --------------------------------------------------------------------------------------------

    def register(self, kind: str) -> FileKeyValues:
        """Return the values of a separate SQLite file."""
        return FileKeyValues(self.path / f"{kind}.sqlite")

    def add_line(self, kind: str, line: bytes) -> None:
        """Append a line to a file."""
        path = self.path / f"{kind}.jsonl"
        try:
            handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                os.write(handle, line + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise StoreError(f"{path}: {told(error)}") from None

    def lines(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """Return the lines of the file with their line numbers."""
        path = self.path / f"{kind}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            return [(f"{path} line {number}", line) for number, line in enumerate(path.read_bytes().splitlines(), 1)]
        return []
