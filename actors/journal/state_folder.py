"""A state folder, whatever stands behind it: files of this machine, or a database that any machine reaches."""

from __future__ import annotations

import contextlib
import re
from abc import ABC
from collections.abc import Hashable, Iterable, Sequence
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
        """``StateFolder(address)`` makes one of the kinds that there are: for a type checker nothing is abstract
        here.
        """
        return method

else:
    from abc import abstractmethod

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(~[0-9]+)*")


def checked_name(job: str) -> str:
    """The job's name. Raises ``StoreError`` for one that cannot be a file's: it is the same rule wherever it stands."""
    if not _JOB_NAME.fullmatch(job):
        raise StoreError(f"job name {job!r}: use letters, digits, '.', '_' and '-', at most 100 of them")
    return job


class StateFolder(ABC):
    """A state folder: the journals of many jobs, the index of their replies, and what the processes that run or look at
    them tell each other. ``StateFolder(address)`` is the one that ``--state`` names, made or not."""

    address: str
    """As ``--state`` names it; it holds no secret."""
    path: Path
    """Where files of this machine are that belong to jobs: the whole of it, where it is no database."""

    remote = False
    """Whether any machine reaches it, and not this one alone."""

    def __new__(cls, address: str | Path) -> StateFolder:
        if cls is not StateFolder:
            return super().__new__(cls)
        store = store_of(address)
        serves: type[StateFolder] = store.load(store.folder)
        return super().__new__(serves)

    @abstractmethod
    def __init__(self, address: str | Path) -> None:
        """Raises ``StoreError`` for an address that cannot be one."""
        raise NotImplementedError

    @abstractmethod
    def prepare(self) -> StateFolder:
        """Make it, for its user alone. Raises ``StoreError`` where it cannot serve."""
        raise NotImplementedError

    @abstractmethod
    def journal(self, job: str, *, create: bool = False, forgotten_too: bool = False) -> Journal:
        """A job's journal; ``create``: made if there is none. Raises ``StoreError``, also for a job that was forgotten,
        unless ``forgotten_too``."""
        raise NotImplementedError

    @abstractmethod
    def making(self, job: str) -> contextlib.AbstractContextManager[Journal]:
        """A journal that becomes the job's when the block ends well, and else was never there."""
        raise NotImplementedError

    @abstractmethod
    def has(self, job: str) -> bool:
        """Whether there is a journal of the job."""
        raise NotImplementedError

    @abstractmethod
    def jobs(self) -> list[str]:
        """Names of all jobs, the latest written first."""
        raise NotImplementedError

    @abstractmethod
    def changed_s(self, job: str) -> float:
        """When the job's journal was last written, seconds since 1970; 0 where there is none."""
        raise NotImplementedError

    @abstractmethod
    def mark(self, job: str) -> Hashable:
        """Differs where the job's journal was written since."""
        raise NotImplementedError

    @abstractmethod
    def size_bytes(self, job: str) -> int:
        """Bytes that a job's journal takes, and what else of it stands here."""
        raise NotImplementedError

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Room where journals are; None where that cannot be told."""
        raise NotImplementedError

    @abstractmethod
    def backup(self, to: Path) -> None:
        """Copy all of it, with jobs running, to a folder that is not there yet and will be one like it. Raises
        ``StoreError``."""
        raise NotImplementedError

    def beside(self, job: str, suffix: str) -> Path:
        """A file of this machine that belongs to a job."""
        return self.path / "jobs" / f"{checked_name(job)}{suffix}"

    @abstractmethod
    def hold(self, job: str) -> contextlib.AbstractContextManager[None]:
        """Hold a job as long as the block runs, or this process. Raises ``JobHeld`` where somebody else does."""
        raise NotImplementedError

    @abstractmethod
    def is_held(self, job: str) -> bool:
        """Whether somebody works on the job now."""
        raise NotImplementedError

    @abstractmethod
    def index(self) -> ReplyIndex:
        """The index of remembered replies."""
        raise NotImplementedError

    @abstractmethod
    def whose(self, question: bytes) -> tuple[str, int]:
        """The job that has paid for the reply to this question, and in which of its turns; no name where none has."""
        raise NotImplementedError

    @abstractmethod
    def unremember(self, jobs: Sequence[str]) -> None:
        """Take the replies of these jobs out of the index."""
        raise NotImplementedError

    @abstractmethod
    def remove(self, job: str) -> None:
        """Remove a job's journal, and the notes about it."""
        raise NotImplementedError

    @abstractmethod
    def note(self, kind: str, name: str) -> bytes | None:
        """What one process left for others under this name; None where nothing is."""
        raise NotImplementedError

    @abstractmethod
    def note_mark(self, kind: str, name: str) -> Hashable:
        """Differs where the note is another since."""
        raise NotImplementedError

    @abstractmethod
    def notes(self, kind: str) -> list[str]:
        """The names that there are notes under."""
        raise NotImplementedError

    @abstractmethod
    def put_note(self, kind: str, name: str, value: bytes) -> None:
        """Leave a note; it appears whole."""
        raise NotImplementedError

    @abstractmethod
    def swap_note(self, kind: str, name: str, before: bytes | None, value: bytes) -> bool:
        """Leave a note in place of the one that stands there; False, and nothing is done, where that is another."""
        raise NotImplementedError

    @abstractmethod
    def drop_note(self, kind: str, name: str) -> None:
        """Take a note away, if it is there."""
        raise NotImplementedError

    @abstractmethod
    def place_of_note(self, kind: str, name: str) -> str:
        """Where it stands, for people."""
        raise NotImplementedError

    @abstractmethod
    def remembered(self, questions: Sequence[bytes]) -> set[bytes]:
        """Those of these questions that a reply is remembered to, as far as the index knows."""
        raise NotImplementedError

    @abstractmethod
    def remembers(self) -> bool:
        """Whether the index holds anything."""
        raise NotImplementedError

    @abstractmethod
    def register(self, kind: str) -> KeyValues:
        """Small values of this kind, which several processes change."""
        raise NotImplementedError

    @abstractmethod
    def add_line(self, kind: str, line: bytes) -> None:
        """Keep a line for good, durable when this returns. It may be kept twice."""
        raise NotImplementedError

    @abstractmethod
    def lines(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """All lines of this kind, in their order, each with where it stands, for people."""
        raise NotImplementedError
