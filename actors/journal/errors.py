"""What may be wrong with the state folder or a journal: each a clear line."""

from __future__ import annotations

from actors.common.errors import UserError


class StoreError(UserError):
    """The state folder or a journal cannot be used. The message is one clear line."""


class NoSuchJob(StoreError):
    """There is no journal of that name."""


def never_began(job: str) -> str:
    """Said of a job whose journal no turn opens."""
    return (
        f"job {job} has not begun: what was to begin it ended before its first turn was on disk (which was full, or it "
        f"was killed); nothing was sent or paid: give its command again, or cortex rm {job}"
    )


class UnsupportedFormat(StoreError):
    """The journal is of a release whose form this one cannot read. Nothing was touched."""


class ContentRemoved(StoreError):
    """What the job asked and was answered was removed on purpose; its figures are there."""


class TextRedacted(StoreError):
    """The job keeps no text: these turns have left its journal."""


class Fenced(StoreError):
    """Another run has taken the job over: this writer may append nothing more."""


class DiskFull(StoreError):
    """The disk that holds the journal is full. What was committed is safe; the job can be resumed."""


class DatabaseUnreachable(StoreError):
    """The database that holds the journal does not answer now. What was committed is safe; it may be asked again."""


class JobHeld(Exception):
    """Somebody else holds the job."""
