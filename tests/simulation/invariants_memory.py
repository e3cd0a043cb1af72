"""Watch over facts that outlive a message or a cortex: the order of grants, and limits and breakers in memos.

A job knows what it has committed: the memos of the grants that it accepted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortex.scheduler.pools import PoolMemo
from cortex.scheduler.protocol import ChannelJoined, SchedulerStarted
from cortex.scheduler.reports import Claims, Grant
from cortex.scheduler.state import SchedulerState
from cortex.state import commands, events
from policies.failures.breaker import BreakerState
from policies.limits import limit
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.invariants_leases import claimed_by, named

_claims = msgspec.msgpack.Decoder(Claims).decode
_memo = msgspec.msgpack.Decoder(PoolMemo).decode


class MemoryWatch(Observer):
    """Observer of turns, of claims when they are sent, and of the steps of every cortex."""

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._world = watch, world
        self._taken: dict[tuple[str, int, int], tuple[str, int]] = {}
        """By job, epoch and route: cortex and serial of the last accepted grant."""
        self._past: dict[tuple[str, int, int], set[str]] = {}
        """By job, epoch and route: earlier cortices that a later one has replaced."""
        self._told: dict[str, tuple[int, int]] = {}
        """By pool or route: the newest memo that the present cortex has received."""

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def rebuilt(self, record: JobWatch) -> None:
        """Forget the grants of later epochs, which the next channel may take again."""
        for table in (self._taken, self._past):
            for key in [key for key in table if key[0] == record.name and key[1] > record.epoch]:
                del table[key]  # type: ignore[attr-defined]

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """Check that grants are accepted in their order, and that calls are sent under the newest."""
        k = record.k
        assert k is not None
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.PermitsGranted and event.memo:
                    self._granted((record.name, k.epoch, event.route), event)
        for command in out:
            if type(command) is commands.Call and command.generation != k.shares[command.route].generation:
                self._watch.say(f"{record.name}: a call does not tell under which state of its breaker it was begun")

    def _granted(self, key: tuple[str, int, int], event: events.PermitsGranted) -> None:
        memo = _memo(event.memo)
        cortex, serial = self._taken.get(key, ("", 0))
        past = self._past.setdefault(key, set())
        if memo.cortex in past:
            self._watch.say(f"{key[0]} takes in a grant of {memo.cortex} after one of {cortex}")
        if memo.cortex != cortex:
            past.add(cortex)
        elif memo.stamp[1] < serial:
            self._watch.say(f"{key[0]} takes in grant {memo.stamp[1]} after grant {serial}")
        self._taken[key] = memo.cortex, memo.stamp[1]

    def sent(self, life: Any, name: str, method: str, args: Any) -> None:
        """Check that a claim contains the memos that the job was given."""
        if method != "join" or self._world.lives.get(life.name) is not life:
            return
        claims = _claims(args[0])
        record = self._watch.job(claims.job)
        k = record.k
        if k is None or claims.epoch != k.epoch:
            return
        kept = {
            (claimed_by(k, at), named(route)): share.memo
            for at, (route, share) in enumerate(zip(k.terms.routes, k.shares, strict=True))
        }
        for each in (claims, *claims.others):
            for claim in each.claims:
                if claim.memo != (mine := kept[each.job, claim.route]) and not _unwritten(life, claim.memo, mine):
                    self._watch.say(f"{each.job} does not tell what it was given to keep of {claim.route}")

    # -- the cortex ----------------------------------------------------------------------------------------------------

    def stepped(self, state: SchedulerState, event: Any, out: list[Any]) -> None:
        """A cortex has taken a step."""
        if isinstance(event, SchedulerStarted):
            self._told = {}
        elif isinstance(event, ChannelJoined) and state.again and event.claims.cortex != state.cortex:
            self._joined(state, event.claims)
        for grant in out:
            if (
                isinstance(grant, Grant)
                and grant.permits
                and grant.generation != state.routes[grant.route].breaker.generation
            ):
                now = state.routes[grant.route].breaker.generation
                self._watch.say(
                    f"{grant.job} is granted {grant.route} under generation {grant.generation}, it is {now}"
                )

    def _joined(self, state: SchedulerState, claims: Claims) -> None:
        """Check that a restarted cortex has the limit, cap and open breaker of the newest memo."""
        job = state.jobs.get(claims.job)
        if state.at_s >= state.adopting_until_s or job is None or job.epoch != claims.epoch:
            return
        for claim in claims.claims:
            if not claim.memo:
                continue
            memo = _memo(claim.memo)
            if memo.cortex == state.cortex:
                continue
            if memo.stamp > self._told.get(claim.pool, (0, 0)):
                self._told[claim.pool] = memo.stamp
                self._limit(state, claims.job, claim.pool, memo)
            if memo.breaker is not None and memo.stamp > self._told.get(claim.route, (0, 0)):
                self._told[claim.route] = memo.stamp
                self._breaker(state, claims.job, claim.route, memo)

    def _limit(self, state: SchedulerState, job: str, pool: str, memo: PoolMemo) -> None:
        own = state.pools[pool].limit
        known, now = (
            limit.allowance(state.settings.limit, _copy(one), one.at_s).concurrency for one in (memo.limit, own)
        )
        if now > known:
            self._watch.say(f"{job} tells that the limit of {pool} was {known}; a cortex that came back has {now}")

    def _breaker(self, state: SchedulerState, job: str, route: str, memo: PoolMemo) -> None:
        known, own = memo.breaker, state.routes[route].breaker
        assert known is not None
        if known.state is BreakerState.CLOSED:
            return
        until_s = known.until_s + state.at_s - memo.at_s
        due = known.state is BreakerState.HALF_OPEN or until_s <= state.at_s
        if own.state is BreakerState.CLOSED or (own.state is BreakerState.HALF_OPEN and not due):
            self._watch.say(
                f"{job} tells that the breaker of {route} is {known.state}; a cortex that came back has it {own.state}"
            )
        elif not due and own.until_s < until_s - 1e-6:
            self._watch.say(f"the breaker of {route} was to stay open until {until_s:.3f}, now until {own.until_s:.3f}")


def _unwritten(life: Any, memo: bytes, kept: bytes) -> bool:
    """Return whether the memo is a newer one that is not on the disk of its channel yet, or never will be since the disk
    is full: what the cortex said is true all the same."""
    if not memo or memo not in {share.memo for share in life.seat._actor._k.shares}:
        return False
    return not kept or _memo(memo).stamp > _memo(kept).stamp


def _copy(one: limit.PoolLimit) -> limit.PoolLimit:
    """Return a copy, since reading a limit's allowance may change it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=limit.PoolLimit)
