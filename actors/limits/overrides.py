"""Limits of a pool set by hand, for all jobs of a state folder that run in a process of their own.

They stand in one note. Drivers look at it and tell their cortex; what that grants goes into the journals with who
said so and when. A cluster's cortex is told directly and keeps them itself.
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
    """Caps as they stand in the note: by name, so that a later release may know more of them."""

    concurrency: int | None = None
    requests_per_min: float | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    who: str = ""
    at_s: float = 0.0


_KIND = "limits"


def read(folder: StateFolder) -> dict[str, PoolCaps]:
    """Caps by pool, those that were taken away again among them: whoever told them on must tell that too.

    Raises ``StoreError`` where they are damaged.
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
    """Have these caps in force. Raises ``StoreError``."""
    while True:  # two commands at once both stand there in the end
        before = folder.note(_KIND, "")
        found = _decoded(folder, before) | {pool: caps}
        stands = {name: _StoredOverride(**msgspec.structs.asdict(each)) for name, each in found.items()}
        if folder.swap_note(_KIND, "", before, msgspec.json.format(msgspec.json.encode(stands))):
            return


def binds(caps: PoolCaps) -> bool:
    """Whether it bounds anything."""
    return any(getattr(caps, name) != getattr(NO_CAPS, name) for name in _NAMES)


def encode(caps: PoolCaps) -> bytes:
    """Caps as they travel to a cortex."""
    return msgspec.msgpack.encode(caps)


class OverrideWatch:
    """What a driver tells its cortex of the caps of its own job's pools: all at first, then what has changed.

    ``narrow``: pools that can take only so many calls at once, whatever anybody says.
    """

    def __init__(self, folder: StateFolder, terms: JobTerms, narrow: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._narrow = dict(narrow or {})
        self._pools = {pool for pool, _ in pools_of(terms)}
        self._seen: Hashable = None
        self._sent: dict[str, PoolCaps] = {}

    def news(self) -> dict[str, PoolCaps]:
        """Caps that the cortex has not heard of. One look at its mark where nothing has changed."""
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
        """The cortex did not hear of this one: it is news again."""
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
    """(pool, route) names of a job's routes."""
    named = [(route.endpoint, route.credential, route.model) for route in terms.routes]
    return [(pool_of(*name), route_name(*name)) for name in named]


def known(folder: StateFolder) -> dict[str, set[str]]:
    """The pools that jobs of a state folder ever had a route in, or that have caps, and those routes."""
    found: dict[str, set[str]] = {pool: set() for pool in read(folder)}
    for job in folder.jobs():
        if "~" in job:
            continue
        with contextlib.suppress(StoreError, ValueError):  # a damaged journal hides no other
            terms = last_terms(folder, job)
            for pool, route in pools_of(terms) if terms is not None else ():
                found.setdefault(pool, set()).add(route)
    return found


def matching(text: str, pools: dict[str, set[str]]) -> list[str]:
    """The pools that a text may mean: the one of this very name, or of a route of it, else all that hold the text."""
    for exact in (lambda pool: pool == text, lambda pool: text in pools[pool]):
        if found := [pool for pool in sorted(pools) if exact(pool)]:
            return found
    part = text.lower()
    return [pool for pool in sorted(pools) if any(part in name.lower() for name in (pool, *pools[pool]))]
