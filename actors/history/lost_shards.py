"""Shards whose journals know less of their end than that of their job.

Each journal is a file of its own. A disk that says that data is flushed while it is not loses the last turns of each
with the power, as many as happen to be in its cache. So a shard may have ended by its job's journal, which deals it no
rows any more, and not by its own.
"""

from __future__ import annotations

from contextlib import closing
from typing import Protocol

from actors.journal.journal import Journal, NoSuchJob
from cortex.journal.codec import decode_account
from cortex.state.state import State, Status


class Store(Protocol):
    """Journals of a state folder."""

    def journal(self, job: str) -> Journal:
        """Return the journal of a job. Raises ``NoSuchJob``."""


def gone_back(store: Store, job: str, k: State) -> tuple[int, ...]:
    """Return the goals of shards that are complete in ``k``, the state of their job, and not by their own journals."""
    met = [goal for goal in sorted(k.shards) if k.goals[goal].status == Status.RESOLVED]
    return tuple(goal for goal in met if not _complete(store, f"{job}~{goal}"))


def _complete(store: Store, shard: str) -> bool:
    try:
        source = store.journal(shard)
    except NoSuchJob:
        return False
    with closing(source):
        account = source.account(source.seq)
    return bool(account) and decode_account(account).outcome == "complete"
