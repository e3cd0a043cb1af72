"""The cortex's own pure ``step``: who may have how many calls in flight.

    step : (state, event) -> commands

A *pool* is what a provider limits together: endpoint, credential, model class. Its concurrency is one number for the
whole cluster, leased to jobs in shares that are fair, weighted by priority. A share is given back by its holder, or
counts as used until its lease has expired. A cortex that has just come back grants nothing new until it has heard from
every holder, or one lease time has passed. Time is in the events.
"""

from __future__ import annotations

import heapq

import msgspec

LEASE_S = 15.0
"""How long a lease holds unless renewed. Channels renew at a third of it."""


class Holder(msgspec.Struct):
    """One job's claim on a pool."""

    job: str
    pool: str
    wanted: int
    weight: float
    granted: int
    """What it may be using now: what it says that it holds, and what it was told since it last said so."""
    until_s: float
    offered: int
    """What it was told last. Below ``granted`` it has not yet confirmed that it holds no more."""
    told_max: int = 0
    """The most that it was told since it last spoke: when it spoke, it may not have heard that yet."""


class Leases(msgspec.Struct):
    """The scheduler's state."""

    limits: dict[str, int] = msgspec.field(default_factory=dict)
    """Concurrency of each pool."""
    holders: dict[str, Holder] = msgspec.field(default_factory=dict)
    silent_until_s: float = 0.0
    """After a restart: before this, what is not told to be held might still be."""


class Started(msgspec.Struct, frozen=True):
    """The cortex came (back) to life."""

    at_s: float


class Heard(msgspec.Struct, frozen=True):
    """After a restart: every channel that lives has told what it holds. There is nothing left to wait for."""

    at_s: float


class Joined(msgspec.Struct, frozen=True):
    """A channel asks for a share, or renews it, and says what it holds now."""

    at_s: float
    job: str
    pool: str
    wanted: int
    held: int
    weight: float = 1.0


class Left(msgspec.Struct, frozen=True):
    """A job ended: nothing of it is in flight any more."""

    at_s: float
    job: str


class Passed(msgspec.Struct, frozen=True):
    """Time passed: leases may have expired."""

    at_s: float


Event = Started | Heard | Joined | Left | Passed


class Grant(msgspec.Struct, frozen=True):
    """This job may have so many calls in flight until then, in place of what it had."""

    job: str
    permits: int
    until_s: float


def step(state: Leases, event: Event) -> list[Grant]:
    """Take one event; the grants that differ from what their holders have. The event's own job always hears."""
    if isinstance(event, Started):
        state.silent_until_s = event.at_s + LEASE_S
        return []
    if isinstance(event, Heard):
        state.silent_until_s = 0.0
    _expire(state, event.at_s)
    if isinstance(event, Left):
        gone = state.holders.pop(event.job, None)
        return _share_out(state, gone.pool, event.at_s, "") if gone else []
    if isinstance(event, (Passed, Heard)):
        pools = {holder.pool for holder in state.holders.values()}
        return [grant for pool in sorted(pools) for grant in _share_out(state, pool, event.at_s, "")]
    if event.wanted < 1 or event.weight <= 0:
        raise ValueError(f"{event.job}: wants {event.wanted} permits at weight {event.weight}; both must be positive")
    old = state.holders.get(event.job)
    until_s = event.at_s + LEASE_S
    held = max(event.held, old.told_max if old else 0)
    state.holders[event.job] = Holder(event.job, event.pool, event.wanted, event.weight, held, until_s, held)
    state.limits[event.pool] = max(h.wanted for h in state.holders.values() if h.pool == event.pool)
    grants = _share_out(state, event.pool, event.at_s, event.job)
    if old and old.pool != event.pool:
        grants += _share_out(state, old.pool, event.at_s, "")
    return grants


def _expire(state: Leases, at_s: float) -> None:
    for job in [job for job, holder in state.holders.items() if holder.until_s <= at_s]:
        del state.holders[job]


def _share_out(state: Leases, pool: str, at_s: float, asker: str) -> list[Grant]:
    """Give each holder its fair share; nobody is granted what another has not yet given back."""
    holders = [holder for holder in state.holders.values() if holder.pool == pool]
    limit = state.limits.get(pool, 0)
    shares = fair_shares([(holder.wanted, holder.weight) for holder in holders], limit)
    in_use = sum(holder.granted for holder in holders)
    grants = []
    for holder, share in zip(holders, shares, strict=True):
        permits = share
        if share > holder.granted:
            free = limit - in_use if at_s >= state.silent_until_s else 0
            permits = holder.granted + max(0, min(share - holder.granted, free))
            in_use += permits - holder.granted
            holder.granted = permits
        if permits != holder.offered or holder.job == asker:
            grants.append(Grant(holder.job, permits, holder.until_s))
            holder.offered = permits
            if holder.job != asker:
                holder.told_max = max(holder.told_max, permits)
    return grants


def fair_shares(claims: list[tuple[int, float]], limit: int) -> list[int]:
    """Divide a limit over (wanted, weight): in proportion to weight, nobody above what it wants, each at least one.

    Progressive filling (max-min fairness, Bertsekas and Gallager, Data Networks, 6.5.2), in whole permits, the
    remainder to the first. With more holders than permits, the first ones get one each.
    """
    first = max(0, min(limit, len(claims)))
    shares = [1] * first + [0] * (len(claims) - first)
    hungry = [(1 / weight, index) for index, (wanted, weight) in enumerate(claims[:first]) if wanted > 1]
    heapq.heapify(hungry)
    for _ in range(limit - first):
        if not hungry:
            break
        _, index = hungry[0]
        wanted, weight = claims[index]
        shares[index] += 1
        if shares[index] < wanted:
            heapq.heapreplace(hungry, (shares[index] / weight, index))
        else:
            heapq.heappop(hungry)
    return shares
