"""Interface of a state folder: files of this machine, or a database that can be reached from any machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from abc import ABC
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.journal.errors import StoreError
from actors.journal.storage import KeyValues, ReplyIndex
from actors.journal.stores import store_of

if TYPE_CHECKING:
    from typing import TypeVar

    from actors.journal.journal import Journal

    T = TypeVar("T")

    def abstractmethod(method: T) -> T:
        """Return the method unchanged: ``StateFolder(address)`` creates a subclass, so type checkers must see no
        abstract methods.
        """
        return method

else:
    from abc import abstractmethod

STATE_DEFAULT = ".cortex"
"""State folder where neither ``--state`` nor ``CORTEX_STATE`` names one."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(~[0-9]+)*")


def checked_name(job: str) -> str:
    """Return the job's name. Raises ``StoreError`` for an invalid name. All stores have this rule, which suits file
    names.
    """
    if not _JOB_NAME.fullmatch(job):
        raise StoreError(f"job name {job!r}: use letters, digits, '.', '_' and '-', at most 100 of them")
    return job


def advised(state: StateFolder | str | Path | None, verb: str, job: str = "", options: str = "") -> str:
    """Return a command for a message: complete, so that a copy of it works.

    ``state``: state folder of the job, which is named unless commands find it without ``--state``; None: unknown.
    """
    folder = StateFolder(state) if isinstance(state, (str, Path)) else state
    where = ""
    if folder is not None and folder.address != StateFolder(os.environ.get("CORTEX_STATE") or STATE_DEFAULT).address:
        where = f"--state {shlex.quote(folder.address)}"
    return " ".join(filter(None, ("cortex", verb, job, where, options)))


class StateFolder(ABC):
    """State folder: the journals of many jobs, the index of their replies, and notes that processes leave for each
    other.

    ``StateFolder(address)`` returns the state folder that ``--state`` names, whether it exists or not.
    """

    address: str
    """Address as given with ``--state``; it contains no secret."""
    path: Path
    """Folder of this machine for the files of jobs. For a store of files it is the whole state folder."""

    remote = False
    """True if the state folder can be reached from any machine, not only this one."""

    back_s = 0.0
    """Seconds within which a process that lives takes its locks again, if the store has lost them with a connection; 0:
    the locks of a store of files last as long as their process."""

    def __new__(cls, address: str | Path) -> StateFolder:
        if cls is not StateFolder:
            return super().__new__(cls)
        store = store_of(address)
        serves: type[StateFolder] = store.load(store.folder)
        return super().__new__(serves)

    @abstractmethod
    def __init__(self, address: str | Path) -> None:
        """Raise ``StoreError`` for an invalid address."""
        raise NotImplementedError

    def tell_waits(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called, once in this process, with one line as soon as a request takes long. By default, as for
        a store of files, never."""
        return

    @abstractmethod
    def prepare(self) -> StateFolder:
        """Create the state folder, private to its user. Raises ``StoreError`` if it cannot be used."""
        raise NotImplementedError

    @abstractmethod
    def see_readable(self) -> None:
        """Check that journals can be read here, at the cost of a look. Raises ``FolderFault`` if there is no state
        folder, or none that can be read; ``StoreError`` for a store of another release.
        """
        raise NotImplementedError

    @abstractmethod
    def journal(self, job: str, *, create: bool = False, forgotten_too: bool = False) -> Journal:
        """Return a job's journal; ``create``: create it if there is none.

        Raises ``StoreError``, also for a job that was forgotten, unless ``forgotten_too``.
        """
        raise NotImplementedError

    @abstractmethod
    def making(self, job: str) -> contextlib.AbstractContextManager[Journal]:
        """Return a context with a new journal, which becomes the job's if the block ends well, and is discarded
        otherwise.
        """
        raise NotImplementedError

    @abstractmethod
    def has(self, job: str) -> bool:
        """Return whether the job has a journal."""
        raise NotImplementedError

    @abstractmethod
    def jobs(self) -> list[str]:
        """Return the names of all jobs, latest written first."""
        raise NotImplementedError

    @abstractmethod
    def changed_s(self, job: str) -> float:
        """Return the time of the last write to the job's journal, in seconds since 1970; 0 if there is none."""
        raise NotImplementedError

    @abstractmethod
    def mark(self, job: str) -> Hashable:
        """Return a value that changes whenever the job's journal is written to."""
        raise NotImplementedError

    def cut(self, job: str) -> str:
        """Give up what cannot be read of the log of a job's journal. Return the place of what is kept of it; empty if
        there was nothing. Raises ``JobHeld`` or ``StoreError``."""
        return ""

    @abstractmethod
    def size_bytes(self, job: str) -> int:
        """Return the bytes of a job's journal and of its other files in the state folder."""
        raise NotImplementedError

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the free disk space for journals in bytes; None if it is unknown."""
        raise NotImplementedError

    @abstractmethod
    def backup(self, to: Path) -> None:
        """Copy the state folder, with jobs running, to a new folder, which becomes a state folder. Raises
        ``StoreError``.
        """
        raise NotImplementedError

    def beside(self, job: str, suffix: str) -> Path:
        """Return the path of a job's file on this machine."""
        return self.path / "jobs" / f"{checked_name(job)}{suffix}"

    @abstractmethod
    def hold(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that holds the job until the block ends, or this process. Raises ``JobHeld`` if another
        process does.
        """
        raise NotImplementedError

    @abstractmethod
    def is_held(self, job: str) -> bool:
        """Return whether a process holds the job now."""
        raise NotImplementedError

    @abstractmethod
    def attend(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Return a context that shows, until the block ends or this process, that the channel of a job lives: of a job
        that outlives its driver, which alone holds it. Raises ``JobHeld`` if another process shows it, and
        ``StoreError``.
        """
        raise NotImplementedError

    @abstractmethod
    def is_attended(self, job: str) -> bool | None:
        """Return whether a channel shows that it lives; None if none ever did, so that nothing is known."""
        raise NotImplementedError

    @abstractmethod
    def index(self) -> ReplyIndex:
        """Return the index of remembered replies."""
        raise NotImplementedError

    @abstractmethod
    def whose(self, question: bytes) -> tuple[str, int]:
        """Return (job, turn) that paid for the reply to this question; ("", 0) if none has."""
        raise NotImplementedError

    @abstractmethod
    def unremember(self, jobs: Sequence[str]) -> None:
        """Remove the replies of these jobs from the index."""
        raise NotImplementedError

    @abstractmethod
    def remove(self, job: str) -> None:
        """Remove a job's journal and its notes."""
        raise NotImplementedError

    @abstractmethod
    def note(self, kind: str, name: str) -> bytes | None:
        """Return the note that a process left under this name; None if there is none."""
        raise NotImplementedError

    @abstractmethod
    def note_mark(self, kind: str, name: str) -> Hashable:
        """Return a value that changes whenever the note changes."""
        raise NotImplementedError

    @abstractmethod
    def notes(self, kind: str) -> list[str]:
        """Return the names of the notes of this kind."""
        raise NotImplementedError

    @abstractmethod
    def put_note(self, kind: str, name: str, value: bytes) -> None:
        """Write a note, atomically."""
        raise NotImplementedError

    @abstractmethod
    def swap_note(self, kind: str, name: str, before: bytes | None, value: bytes) -> bool:
        """Replace the note ``before`` (None: no note) by ``value``, atomically. Return False, without effect, if
        another is there.
        """
        raise NotImplementedError

    @abstractmethod
    def drop_note(self, kind: str, name: str) -> None:
        """Remove a note if it exists."""
        raise NotImplementedError

    @abstractmethod
    def place_of_note(self, kind: str, name: str) -> str:
        """Return the location of a note, for messages."""
        raise NotImplementedError

    @abstractmethod
    def remembered(self, questions: Sequence[bytes]) -> set[bytes]:
        """Return the questions with a remembered reply, as far as the index is up to date."""
        raise NotImplementedError

    @abstractmethod
    def remembers(self) -> bool:
        """Return True if the index is not empty."""
        raise NotImplementedError

    @abstractmethod
    def register(self, kind: str) -> KeyValues:
        """Return the small values of this kind, which several processes change."""
        raise NotImplementedError

    @abstractmethod
    def add_line(self, kind: str, line: bytes) -> None:
        """Store a line for good, durable on return. The line may be stored twice."""
        raise NotImplementedError

    @abstractmethod
    def lines(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """Yield (location, line) for all lines of this kind, in order. The location is for messages."""
        raise NotImplementedError
