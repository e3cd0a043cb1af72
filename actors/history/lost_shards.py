"""Shards whose journals know less of their end than that of their job.

Each journal is a file of its own. A disk that says that data is flushed while it is not loses the last turns of each
with the power, as many as happen to be in its cache. So a shard may have ended by its job's journal, which deals it no
rows any more, and not by its own.

A job that is complete, and whose sink has all of its results, needs none of them: it stays complete.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from actors.journal.journal import DatabaseUnreachable, Journal, NoSuchJob, StoreError
from cortex.goals import shards
from cortex.journal.codec import CarriedAccount, decode_account
from cortex.state.state import State, Status

ONLY_COPY = (
    "have lost results that are in the results file, as by a power cut, and the job keeps no text: move the file away, "
    "it is the only copy, and begin anew with --fresh"
)
"""End of the error about the journals of such shards."""


class Store(Protocol):
    """Journals of a state folder."""

    def journal(self, job: str) -> Journal:
        """Return the journal of a job. Raises ``NoSuchJob``."""


def finished(k: State) -> bool:
    """Return whether a job is complete and its sink has all of its results, by its own journal."""
    return k.outcome == "complete" and k.written_rows >= shards.results(k)


def gone_back(
    store: Store, job: str, k: State, unread: Callable[[str, StoreError], None] = lambda shard, error: None
) -> tuple[int, ...]:
    """Return the goals of shards that are complete in ``k``, the state of their job, and not by their own journals.

    A journal that cannot be read proves nothing: ``unread`` is told of it. Raises ``DatabaseUnreachable``.
    """
    lost = []
    for goal in sorted(k.shards):
        if k.goals[goal].status != Status.RESOLVED:
            continue
        try:
            if not has_ended(store, f"{job}~{goal}"):
                lost.append(goal)
        except DatabaseUnreachable:
            raise
        except StoreError as error:
            unread(f"{job}~{goal}", error)
    return tuple(lost)


def has_ended(store: Store, shard: str) -> bool:
    """Return whether a shard is complete by its own journal. Raises ``StoreError``."""
    account = _account(store, shard)
    return account is not None and account.outcome == "complete"


def refuse_to_lose(store: Store, job: str, k: State) -> None:
    """Raise ``StoreError`` if shards of a job that keeps no text have lost results: its sink has the only copy, and
    what is asked again cannot be told from what it holds. To be called before anything is asked.
    """
    if k.terms.keeps_text or not k.terms.notes_written:
        return  # accounts of journals of earlier releases may not count rows
    lost = []
    for goal, shard in sorted(k.shards.items()):
        if shard.written:
            account = _account(store, f"{job}~{goal}")
            if account is None or account.rows < shard.written:
                lost.append(f"{job}~{goal}")
    if lost:
        raise StoreError(f"the journals of {', '.join(lost)} {ONLY_COPY}")


def _account(store: Store, shard: str) -> CarriedAccount | None:
    """Return the last account of a shard; None if it has no journal, or an empty one."""
    try:
        source = store.journal(shard)
    except NoSuchJob:
        return None
    with closing(source):
        blob = source.account(source.seq)
    return decode_account(blob) if blob else None
