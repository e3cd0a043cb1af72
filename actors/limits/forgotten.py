"""Learned limits that an operator dropped, for the jobs of a state folder that run in processes of their own.

The pools are stored in one note, with author and time. Drivers of running jobs watch the note and tell their
schedulers. A job that is resumed later returns no state to its scheduler that is older. The scheduler of a cluster is
told directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable

import msgspec

from actors.journal.journal import StateFolder, StoreError
from actors.limits.overrides import pools_of
from cortex.values.limits import JobTerms

_KIND = "forgotten"


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Author and time of an order to drop what was learned about a pool."""

    who: str
    at_s: float
    """Seconds since 1970."""


def read(folder: StateFolder) -> dict[str, Forgotten]:
    """Return the latest order for each pool. Raises ``StoreError`` if the note is damaged."""
    return _decoded(folder, folder.note(_KIND, ""))


def _decoded(folder: StateFolder, blob: bytes | None) -> dict[str, Forgotten]:
    try:
        return msgspec.json.decode(blob, type=dict[str, Forgotten]) if blob is not None else {}
    except msgspec.DecodeError as error:
        raise StoreError(f"{folder.place_of_note(_KIND, '')}: damaged: {error}; remove it") from None


def put(folder: StateFolder, pool: str, order: Forgotten) -> None:
    """Store an order. Raises ``StoreError``."""
    while True:  # of two concurrent commands, both orders are kept
        before = folder.note(_KIND, "")
        found = _decoded(folder, before) | {pool: order}
        if folder.swap_note(_KIND, "", before, msgspec.json.format(msgspec.json.encode(found))):
            return


def times(folder: str) -> dict[str, float]:
    """Return the time of the latest order for each pool of a state folder, given by its address, in seconds since 1970;
    empty if the note cannot be read."""
    with contextlib.suppress(StoreError):
        return {pool: order.at_s for pool, order in read(StateFolder(folder)).items()}
    return {}


class ForgottenWatch:
    """Watcher of the orders for a job's pools, for its driver. Orders from before ``from_s``, its start, are for the
    job's channel."""

    def __init__(self, folder: StateFolder, terms: JobTerms, from_s: float) -> None:
        self._folder = folder
        self._pools = {pool for pool, _ in pools_of(terms)}
        self._from_s = dict.fromkeys(self._pools, from_s)
        self._seen: Hashable = None

    def news(self) -> dict[str, Forgotten]:
        """Return the orders that were given since the last call. Without changes, only the note's mark is read."""
        with contextlib.suppress(StoreError):
            mark = self._folder.note_mark(_KIND, "")
            if mark == self._seen:
                return {}
            found = read(self._folder)
            self._seen = mark
            news = {pool: found[pool] for pool in self._pools & set(found) if found[pool].at_s > self._from_s[pool]}
            self._from_s |= {pool: order.at_s for pool, order in news.items()}
            return news
        return {}

    def missed(self, pool: str, order: Forgotten) -> None:
        """Report an order again, since the scheduler did not receive it."""
        self._from_s[pool] = min(self._from_s[pool], order.at_s - 1e-3)
        self._seen = (-1, -1)
