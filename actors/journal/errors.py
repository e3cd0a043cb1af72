"""Errors of the state folder and of journals: each message is one line."""

from __future__ import annotations

from typing import Final

from actors.common.errors import UserError

FAULTS: Final = ("missing", "empty", "unreadable", "read_only", "away")
"""Faults of a whole state folder: there is none; there is nothing of Cortex in it; this user may not read
it; nothing can be written beside its journals; its disk or database does not answer."""


class StoreError(UserError):
    """State folder or journal that cannot be used. The message is one line."""


class FolderFault(StoreError):
    """State folder whose journals cannot be read as it is. ``fault``: word of ``FAULTS``."""

    def __init__(self, fault: str, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class NoSuchJob(StoreError):
    """No journal has this name."""


class LostEnd(StoreError):
    """Journal of a shard that has lost its end, while its job is complete: the shard does not go on by itself."""


def removed(job: str) -> StoreError:
    """Return the error for a job of which nothing is left, met by its own writer."""
    return StoreError(f"job {job} was removed while it ran, with all that it had done: begin it again")


def never_began(job: str) -> str:
    """Return the error text for a job whose journal has no opening turn."""
    return (
        f"job {job} has not begun: its run ended before the first turn was on disk (the disk was full, or the run "
        f"was killed); nothing was sent or paid: give its command again, or remove it"
    )


class Damaged(StoreError):
    """Journal whose bytes on the disk are not those that were written. ``seq``: the turn; 0: it is not known."""

    def __init__(self, text: str, seq: int = 0) -> None:
        super().__init__(text)
        self.seq = seq


class UnsupportedFormat(StoreError):
    """Journal of a release whose format this release cannot read. Nothing was changed."""


class ContentRemoved(StoreError):
    """Questions and answers of the job were removed on purpose; its figures remain."""


class TextRedacted(StoreError):
    """Job that keeps no text: these turns were removed from its journal."""


class Fenced(StoreError):
    """Another run has taken the job over: this writer may append nothing more."""


class JobEnded(StoreError):
    """The job has ended and its channel takes in nothing more: what a person orders now is not in the journal."""


class DiskFull(StoreError):
    """The disk that holds the journal is full. Committed turns are safe; the job can be resumed."""


class DatabaseUnreachable(StoreError):
    """The database that holds the journal does not answer now. Committed turns are safe; the request may be repeated.
    """


class JobHeld(Exception):
    """Another process holds the job."""
