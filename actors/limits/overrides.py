"""Manual limits of pools, for all jobs of a state folder that run in processes of their own.

The limits are stored in one note. Drivers watch the note and tell their schedulers; grants in the journals record
author and time. The scheduler of a cluster is told directly and keeps the limits itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping

import msgspec

from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder, StoreError
from actors.providers.pools import pool_of
from cortex.values.limits import JobTerms
from policies.failures.route_choice import route_name
from policies.limits.limit import NO_CAPS, PoolCaps

_NAMES = ("concurrency", "requests_per_min", "input_tokens_per_min", "output_tokens_per_min", "headroom")


class _StoredOverride(msgspec.Struct, frozen=True, kw_only=True):
    """Limits as stored in the note: by name, so that later releases may add fields."""

    concurrency: int | None = None
    requests_per_min: float | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    who: str = ""
    at_s: float = 0.0


_KIND = "limits"


def read(folder: StateFolder) -> dict[str, PoolCaps]:
    """Return limits by pool, removed ones included: a driver must forward removals too.

    Raises ``StoreError`` if the note is damaged.
    """
    return _decoded(folder, folder.note(_KIND, ""))


def _decoded(folder: StateFolder, blob: bytes | None) -> dict[str, PoolCaps]:
    try:
        found = msgspec.json.decode(blob, type=dict[str, _StoredOverride]) if blob is not None else {}
        return {pool: PoolCaps(**msgspec.structs.asdict(caps)) for pool, caps in found.items()}
    except ValueError as error:
        at = folder.place_of_note(_KIND, "")
        raise StoreError(f"{at}: damaged: {error}; remove it and set the limits again") from None


def put(folder: StateFolder, pool: str, caps: PoolCaps) -> None:
    """Store limits of a pool. Raises ``StoreError``."""
    while True:  # of two concurrent commands, both changes are kept
        before = folder.note(_KIND, "")
        found = _decoded(folder, before) | {pool: caps}
        stands = {name: _StoredOverride(**msgspec.structs.asdict(each)) for name, each in found.items()}
        if folder.swap_note(_KIND, "", before, msgspec.json.format(msgspec.json.encode(stands))):
            return


def binds(caps: PoolCaps) -> bool:
    """Return True if any limit is set."""
    return any(getattr(caps, name) != getattr(NO_CAPS, name) for name in _NAMES)


def encode(caps: PoolCaps) -> bytes:
    """Return limits in the form of messages to a scheduler."""
    return msgspec.msgpack.encode(caps)


class OverrideWatch:
    """Watcher of the manual limits of a job's pools, for its driver: at first all limits, then changes.

    ``narrow``: pools with a fixed limit on concurrent calls, which manual limits cannot raise.
    """

    def __init__(self, folder: StateFolder, terms: JobTerms, narrow: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._narrow = dict(narrow or {})
        self._pools = {pool for pool, _ in pools_of(terms)}
        self._seen: Hashable = None
        self._sent: dict[str, PoolCaps] = {}

    def news(self) -> dict[str, PoolCaps]:
        """Return limits that the scheduler has not heard of. Without changes, only the note's mark is read."""
        first, seen = self._seen is None, self._stamp()
        if seen == self._seen:
            return {}
        try:
            found = read(self._folder)
        except StoreError:
            if first:
                raise  # nothing is sent yet
            return {}
        self._seen = seen
        for pool, most in self._narrow.items():
            found[pool] = _narrowed(found.get(pool, NO_CAPS), most)
        news = {pool: caps for pool, caps in found.items() if pool in self._pools and self._sent.get(pool) != caps}
        if first:
            news = {pool: caps for pool, caps in news.items() if binds(caps)}
        self._sent |= news
        return news

    def missed(self, pool: str) -> None:
        """Report a pool again, since the scheduler did not receive its limits."""
        self._sent.pop(pool, None)
        self._seen = (-1, -1)

    def _stamp(self) -> Hashable:
        try:
            return self._folder.note_mark(_KIND, "")
        except StoreError:
            return self._seen


def _narrowed(caps: PoolCaps, most: int) -> PoolCaps:
    if caps.concurrency is not None and caps.concurrency <= most:
        return caps
    return msgspec.structs.replace(caps, concurrency=most, who=caps.who or "the model itself")


# -- names -----------------------------------------------------------------------------------------------------------


def pools_of(terms: JobTerms) -> list[tuple[str, str]]:
    """Return (pool, route) names of a job's routes."""
    named = [(route.endpoint, route.credential, route.model) for route in terms.routes]
    return [(pool_of(*name), route_name(*name)) for name in named]


def known(folder: StateFolder) -> dict[str, set[str]]:
    """Return the pools of a state folder with their routes: those of all its jobs, and those with manual limits."""
    found: dict[str, set[str]] = {pool: set() for pool in read(folder)}
    for job in folder.jobs():
        if "~" in job:
            continue
        with contextlib.suppress(StoreError, ValueError):  # a damaged journal does not hide other jobs
            terms = last_terms(folder, job)
            for pool, route in pools_of(terms) if terms is not None else ():
                found.setdefault(pool, set()).add(route)
    return found


def matching(text: str, pools: dict[str, set[str]]) -> list[str]:
    """Return the pools that a text may mean: an exact name of a pool or route, else all whose name contains the
    text.
    """
    for exact in (lambda pool: pool == text, lambda pool: text in pools[pool]):
        if found := [pool for pool in sorted(pools) if exact(pool)]:
            return found
    part = text.lower()
    return [pool for pool in sorted(pools) if any(part in name.lower() for name in (pool, *pools[pool]))]
