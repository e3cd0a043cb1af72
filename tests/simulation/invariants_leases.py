"""Watch over leases, limits, breakers and probes: permits granted by any cortex, and calls begun under them.

The watch keeps its own records of all grants, across restarts of the cortex, and never reads the scheduler's counts.
Only limits and states of breakers are taken from the scheduler, which decides them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from cortex.scheduler.job_families import member_of, spoken_for
from cortex.scheduler.pools import PoolMemo
from cortex.scheduler.protocol import ChannelJoined, JobLeft, MemberReported, PoolCapped, SchedulerStarted
from cortex.scheduler.reports import Claim, Claims, Grant
from cortex.scheduler.state import LEASE_S, SchedulerState
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.limits import JobTerms, Route
from policies.failures.breaker import BreakerState
from policies.failures.route_choice import pool_name, route_name
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.lease_books import Held, Out
from tests.simulation.loop import LIFE

GRACE_S = 10.0
"""Seconds beyond its timeout that a call may be under way: the branch's grace period, and delivery."""


def named(route: Route) -> str:
    """Return the scheduler's name of a route."""
    return route_name(route.endpoint, route.credential, route.model)


def left_as(claims: Claims, claim: Claim) -> tuple[str, int, str, int, bytes]:
    """Return the identity of a claim. A job that has learnt of a breaker since has another memo."""
    return claims.job, claims.epoch, claims.cortex, claim.acknowledged, claim.memo


def claimed_by(k: State, place: int) -> str:
    """Return the name under which the route at this place is claimed."""
    lane = k.terms.lane_at(place)
    roles = [role for role, its in k.terms.roles.items() if lane and its == lane]
    return member_of(k.terms.job, roles[0]) if roles else k.terms.job


_claims = msgspec.msgpack.Decoder(Claims)
_memo = msgspec.msgpack.Decoder(PoolMemo).decode
_grants = msgspec.msgpack.Decoder(tuple[Grant, ...])


class LeasesWatch(Observer):
    """Observer of the steps of every cortex, of turns and of messages."""

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._world, self._loop = watch, world, world.loop
        self._held: dict[tuple[str, str], Held] = {}
        self._until_s: dict[str, float] = {}
        """By job: latest end of its lease, as the cortex counts it."""
        self._lease_s: dict[str, float] = {}
        """By job: time until which it may begin calls, as the job counts it."""
        self._owner: dict[str, Any] = {}
        """By job: incarnation of the channel that may write its journal. One that is only thought dead may be it."""
        self._granter: dict[str, str] = {}
        """By job: the cortex that answered its channel last. Grants of earlier ones are not accepted any more."""
        self._unanswered: dict[str, tuple[Claims, ...]] = {}
        """By job: the claims that its channel sent last, until they are answered."""
        self._succeeded: set[str] = set()
        """Jobs whose unanswered claim is known to a successor of their granter: until it is answered they put every
        larger grant aside, and then they drop it."""
        self._arrived: dict[tuple[str, int, str, str], int] = {}
        self._epochs: dict[str, int] = {}
        self._heard: dict[tuple[str, int, str, str], int] = {}
        """By job, epoch, cortex and route: the last serial that was acknowledged."""
        self._names: dict[str, tuple[JobTerms | None, list[tuple[str, str]]]] = {}
        """By job: its terms, and under which names each of their routes is claimed."""
        self._routes: dict[str, Out] = {}
        self._limits: dict[str, deque[tuple[float, int]]] = {}
        """By pool: (time, limit), greatest limit first."""
        self._caps: dict[str, int] = {}
        """By pool: concurrency cap set by an operator."""
        self._cap_heard: dict[str, set[str]] = {}
        """By pool: jobs that know its cap, and can report it to a restarted cortex."""
        self._state: SchedulerState | None = None
        self._began_s = 0.0
        """Start of the present cortex. For a lease time it accepts reports about its predecessor."""
        self._orphaned: set[str] = set()
        """Jobs whose channel has died, and no next one has claimed anything yet: nobody uses their permits."""
        self.limit_max: dict[str, int] = {}

    # -- the cortex ----------------------------------------------------------------------------------------------------

    def stepped(self, state: SchedulerState, event: Any, out: list[Any]) -> None:
        """A cortex has taken a step."""
        now_s = self._loop.time()
        life = self._world.lived.get(state.cortex)
        if life is not None and life.zombie:
            self._outlived(state, out, now_s)
            return
        self._state = state
        if isinstance(event, MemberReported):
            self._late(state, event)
        if isinstance(event, SchedulerStarted):
            for out_of in self._routes.values():
                out_of.state, out_of.generation, out_of.binds = BreakerState.CLOSED, -1, False  # not known yet
            self._began_s = now_s
            self._caps = {pool: cap for pool, cap in self._caps.items() if self._cap_heard.get(pool)}
        elif isinstance(event, ChannelJoined):
            self._joined(state, event, now_s)
        elif isinstance(event, JobLeft) and event.job not in state.jobs:  # else it was an earlier run that left, late
            for key in [key for key in self._held if spoken_for(key[0]) == event.job]:
                del self._held[key]
            self._over(event.job)
        elif isinstance(event, PoolCapped) and event.caps.concurrency is not None:
            self._caps[event.pool] = event.caps.concurrency
        for name, pool in state.pools.items():
            self._limit(name, pool.allowed.concurrency, now_s)
        for name, route in state.routes.items():
            self._breaker(name, route.pool, route.breaker, now_s, isinstance(event, ChannelJoined))
        for grant in out:
            if isinstance(grant, Grant):
                self._granted(state, grant, now_s)

    def _outlived(self, state: SchedulerState, out: list[Any], now_s: float) -> None:
        """Check grants of a cortex that was replaced: they count for jobs that have not heard of its successor yet."""
        for grant in out:
            if not isinstance(grant, Grant) or self._granter.get(grant.job) != grant.cortex:
                continue
            if spoken_for(grant.job) in self._succeeded:
                continue
            pool = state.routes[grant.route].pool
            held = self._held.setdefault((grant.job, grant.route), Held(pool))
            held.granted.append((grant.cortex, grant.serial, grant.permits))
            total, limit = self._total(pool, now_s), self._most(pool, now_s)
            holders = {job for (job, _), each in self._held.items() if each.pool == pool}
            if all(self._granter.get(job) == grant.cortex for job in holders):  # its successor has granted nothing yet
                limit = max(limit, state.pools[pool].allowed.concurrency)
            if grant.permits and total > limit:
                self._watch.say(
                    f"{grant.job} is granted {grant.permits} by a cortex of the past: all have {total} of {limit}"
                )

    def _late(self, state: SchedulerState, event: MemberReported) -> None:
        """Check that results from an earlier state of a breaker do not move it."""
        facts: dict[str, set[int]] = {}
        for signals in event.report.routes:
            if signals.answered or signals.failed:
                facts.setdefault(signals.route, set()).add(signals.generation)
        for name, generations in facts.items():
            out, route = self._routes.get(name), state.routes.get(name)
            if out is None or route is None or out.generation < 0 or out.generation in generations:
                continue
            if out.state != BreakerState.OPEN and route.breaker.generation != out.generation:
                self._watch.say(f"the breaker of {name} moved for results of generations {generations}")

    def _joined(self, state: SchedulerState, event: ChannelJoined, now_s: float) -> None:
        claims = event.claims
        if claims.job not in state.jobs:
            return  # the job has left; this claim is older
        if claims.epoch < self._epochs.get(claims.job, 0):
            return  # a late claim of an earlier incarnation of the channel
        self._orphaned.discard(spoken_for(claims.job))
        if claims.cortex != state.cortex and claims in self._unanswered.get(spoken_for(claims.job), ()):
            self._succeeded.add(spoken_for(claims.job))
        if claims.epoch > self._epochs.get(claims.job, 0):
            self._epochs[claims.job] = claims.epoch
            for held in (held for (job, _), held in self._held.items() if job == claims.job):
                held.granted = []  # grants to the earlier incarnation are not accepted by this one
        if not self._had_ended(claims):
            self._until_s[claims.job] = now_s + LEASE_S
        for claim in claims.claims:
            held = self._held.setdefault((claims.job, claim.route), Held(claim.pool))
            out = self._routes.get(claim.route)
            if out is not None and left_as(claims, claim) in out.telling and now_s < self._began_s + LEASE_S:
                out.binds = True
            key = (claims.job, claims.epoch, state.cortex, claim.route)
            number = claim.acknowledged if claims.cortex == state.cortex else 0
            if number < self._arrived.get(key, 0):
                continue  # a later claim has overtaken it
            self._arrived[key] = number
            held.held = claim.held
            if claims.cortex == state.cortex:
                held.granted = [one for one in held.granted if one[1] > claim.acknowledged]
            else:  # what an earlier cortex granted is held, or comes to nothing: see `_taken`
                held.granted = [one for one in held.granted if one[0] == state.cortex]

    def _had_ended(self, claims: Claims) -> bool:
        """Return whether the end of this job was on disk when its claims arrived: they were sent before, and nothing is
        used under them any more. Its channel may tell a new cortex so before any cortex knows that the job has left.
        """
        record = self._watch.jobs.get(spoken_for(claims.job))
        k = record.k if record is not None else None
        return k is not None and bool(k.outcome) and claims.epoch <= k.epoch

    def _total(self, pool: str, now_s: float) -> int:
        """Return the most permits of a pool that all jobs together may be using."""
        total = 0
        for (job, route), held in self._held.items():
            if held.pool != pool:
                continue
            out: list[tuple[str, int, int]] = []
            found = self._routes.get(route)
            if found is not None:
                out = [key for key, over_s in found.calls.items() if key[0] == job and over_s > now_s]
            if spoken_for(job) in self._orphaned:
                total += self._under_way(out)
            else:
                total += held.most() if self._until_s.get(job, 0.0) > now_s else len(out)
        return total

    def _under_way(self, calls: list[tuple[str, int, int]]) -> int:
        """Return how many of these calls, of which no channel hears, branches have under way."""
        if not calls:
            return 0
        lives = [life for name, life in self._world.lives.items() if name.startswith("branch:")]
        under = {(each.job, each.call.goal, each.call.attempt) for life in lives for each in life.seat._actor._under}
        return sum((spoken_for(key[0]), *key[1:]) in under for key in calls)

    def _granted(self, state: SchedulerState, grant: Grant, now_s: float) -> None:
        if grant.job in state.jobs and state.jobs[grant.job].epoch < self._epochs.get(grant.job, 0):
            return  # to an earlier incarnation, whose claim was late: the present one does not accept it
        route = state.routes[grant.route]
        key = (grant.job, grant.route)
        held = self._held.setdefault(key, Held(route.pool))
        before = self._total(route.pool, now_s)
        if grant.serial > self._arrived.get((grant.job, self._epochs.get(grant.job, 0), grant.cortex, grant.route), 0):
            # otherwise the grant renews one that was acknowledged
            held.granted.append((grant.cortex, grant.serial, grant.permits))
        after = self._total(route.pool, now_s)
        limit = state.pools[route.pool].allowed.concurrency
        if after > before and after > limit:
            self._watch.say(
                f"{grant.job} is granted {grant.permits}: all have {after}, had {before}, the limit is {limit}"
            )
        breaker = route.breaker
        if grant.permits and grant.starts < 0 and self._routes[grant.route].bound(now_s):
            self._watch.say(f"{grant.job} is granted {grant.permits} of {grant.route}, whose breaker was to stay open")
        if breaker.state == BreakerState.OPEN and not breaker.blocked and grant.permits and grant.starts:
            self._watch.say(f"{grant.job} is granted {grant.permits} of {grant.route}, whose breaker is open")
        if (breaker.state == BreakerState.HALF_OPEN or breaker.blocked) and grant.permits and grant.starts < 0:
            self._watch.say(f"{grant.job} is granted {grant.permits} of {grant.route} without bound while it is probed")

    def _limit(self, pool: str, limit: int, now_s: float) -> None:
        row = self._limits.setdefault(pool, deque())
        if row and row[-1][1] == limit:
            return
        while row and row[-1][1] <= limit:
            row.pop()
        row.append((now_s, limit))
        self.limit_max[pool] = max(limit, self.limit_max.get(pool, 0))

    def _most(self, pool: str, since_s: float) -> int:
        """Return the greatest limit that was in force at any moment since ``since_s``."""
        row = self._limits.get(pool)
        if not row:
            return 0
        while len(row) > 1 and row[1][0] <= since_s:
            row.popleft()
        return row[0][1]

    def _breaker(self, name: str, pool: str, breaker: Any, now_s: float, adopted: bool) -> None:
        """Follow a breaker. ``adopted``: the state is from a claim about an earlier cortex, so it may be old or
        prolonged.
        """
        out = self._routes.setdefault(name, Out(pool))
        if (breaker.state, breaker.generation) == (out.state, out.generation):
            return
        if breaker.state == BreakerState.OPEN and out.state != BreakerState.OPEN:
            out.opened_s = now_s
            out.leave = sum(held.most() for (_, route), held in self._held.items() if route == name)
        if breaker.state == BreakerState.HALF_OPEN:
            out.probes.clear()
            if out.state == BreakerState.OPEN and not adopted and out.bound(now_s + 1e-6):
                self._watch.say(
                    f"the breaker of {name} is half open, it was to stay open until {out.open_until_s:.3f} s"
                )
        if breaker.state == BreakerState.OPEN and not adopted:
            out.open_until_s, out.stay, out.binds, out.told = breaker.until_s, breaker.generation, True, set()
            out.telling = set()
        if breaker.state == BreakerState.CLOSED and out.state == BreakerState.HALF_OPEN and not adopted:
            out.open_until_s = 0.0  # its probes succeeded: it need not stay open any longer
        out.state, out.generation = breaker.state, breaker.generation

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def rebuilt(self, record: JobWatch) -> None:
        """Forget what later epochs of a job have claimed, of which its journal knows nothing any more: the next channel
        may take one of them again. It may have lost its memos of caps and open breakers, too.
        """
        for table in (self._arrived, self._heard):
            for key in [key for key in table if spoken_for(key[0]) == record.name]:
                del table[key]
        for job in [job for job in self._epochs if spoken_for(job) == record.name]:
            self._epochs[job] = min(self._epochs[job], record.epoch)
            self._over(job)
            for out in self._routes.values():
                out.told.discard(job)
                out.open_until_s = out.open_until_s if out.told else 0.0  # else nobody can tell the next cortex

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk: calls have ended, and new ones are sent."""
        k = record.k
        assert k is not None
        now_s = self._loop.time()
        terms, names = self._names.get(record.name, (None, []))
        if terms is not k.terms:
            names = [(claimed_by(k, at), named(route)) for at, route in enumerate(k.terms.routes)]
            self._names[record.name] = k.terms, names
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, (events.Answered, events.AttemptFailed, events.GivenBack)):
                    for job, name in names:
                        self._back(name, (job, event.goal, event.attempt))
                elif isinstance(event, events.PermitsGranted) and not k.terms.routes[event.route].batched:
                    may = event.permits
                    if event.starts >= 0:  # it begins no more than that, whatever its permits
                        may = min(may, k.shares[event.route].in_flight + event.starts)
                    self._taken(*names[event.route], 0 if k.outcome else may, event)
                    self._told_cap(*names[event.route], event.memo)
                elif isinstance(event, (events.Rejoined, events.ReplyRecalled, events.Opened)):
                    self._keep(names, {(flight.goal, flight.attempt) for flight in k.flights.values()})
        for command in out:
            if type(command) is commands.Call and not k.terms.routes[command.route].batched:
                self._call(*names[command.route], command, now_s)
            elif type(command) is commands.FinishJob:
                self._keep(names, set())
                for job in {job for job, _ in names}:
                    self._over(job)
                    self._until_s[job] = 0.0  # the job will use nothing any more, whether or not a cortex knows

    def _taken(self, job: str, route: str, permits: int, grant: events.PermitsGranted) -> None:
        """Check accepted permits. An ended job has none, even if its last claim was answered after it had left.

        Cortexes that know nothing of each other give their breakers the same generations: the pause tells them apart.
        """
        out, held = self._routes.get(route), self._held.get((job, route))
        until_s = self._loop.time() + grant.again_s
        if out is not None and out.stay > 0 and (grant.generation, until_s) > (out.stay, out.open_until_s - 1e-3):
            out.told.add(job)
        if permits > (held.most() if held is not None else 0):
            self._watch.say(
                f"{job} takes in {permits} of {route}, and no cortex counts more than {held and held.most()}"
            )

    def _told_cap(self, job: str, route: str, memo: bytes) -> None:
        pool = self._routes[route].pool if route in self._routes else ""
        if pool in self._caps and memo and _memo(memo).caps.concurrency == self._caps[pool]:
            self._cap_heard.setdefault(pool, set()).add(job)

    def _over(self, job: str) -> None:
        for jobs in self._cap_heard.values():
            jobs.discard(job)

    def _back(self, name: str, key: tuple[str, int, int]) -> None:
        out = self._routes.get(name)
        if out is not None:
            out.calls.pop(key, None)
            out.probes.pop(key, None)

    def _keep(self, names: list[tuple[str, str]], kept: set[tuple[int, int]]) -> None:
        for job, name in names:
            out = self._routes.get(name)
            for key in [key for key in out.calls if key[0] == job and key[1:] not in kept] if out is not None else ():
                self._back(name, key)

    def _call(self, job: str, name: str, call: commands.Call, now_s: float) -> None:
        out = self._routes.get(name)
        if out is None:
            self._watch.say(f"{job} asks {name}, which no cortex knows")
            return
        if now_s > self._lease_s.get(job, 0.0) + 1e-6:
            self._watch.say(f"{job} begins a call, its lease ran out at {self._lease_s.get(job, 0.0):.3f} s")
        key = (job, call.goal, call.attempt)
        out.calls[key] = now_s + call.timeout_s + GRACE_S
        limit = self._most(out.pool, now_s - LEASE_S - call.timeout_s - GRACE_S)
        total = sum(len(one.calls) for one in self._routes.values() if one.pool == out.pool)
        if total > limit or total > self._world.plan.pool_cap > 0:
            total = self._pruned(out.pool, now_s)
        cap = self._caps.get(out.pool)
        if cap and total > cap:
            self._watch.say(f"{total} calls are out on {out.pool}, which somebody capped at {cap}")
        if total > limit:
            self._watch.say(
                f"{total} calls are out on {out.pool}; its limit was at most {limit} since the oldest began"
            )
        self._probe(name, out, key, call, now_s)

    def _pruned(self, pool: str, now_s: float) -> int:
        """Return the calls that are under way in a pool. Of a job whose channel has ended the branches know them, and a
        call has ended once a branch has its outcome: the channel gives its permit back while it writes the turn.
        """
        total, ended = 0, self._ended()
        for one in self._routes.values():
            if one.pool == pool:
                one.calls = {
                    key: over_s for key, over_s in one.calls.items()
                    if over_s > now_s and (spoken_for(key[0]), *key[1:]) not in ended
                }  # fmt: skip
                unheard = [key for key in one.calls if spoken_for(key[0]) in self._orphaned]
                total += len(one.calls) - len(unheard) + self._under_way(unheard)
        return total

    def _probe(self, name: str, out: Out, key: tuple[str, int, int], call: commands.Call, now_s: float) -> None:
        state = self._state
        if state is None or name not in state.routes:
            return
        breaker = state.routes[name].breaker
        if breaker.state == BreakerState.CLOSED or call.generation != breaker.generation:
            return
        out.probes = {one: over_s for one, over_s in out.probes.items() if over_s > now_s}
        out.probes[key] = now_s + call.timeout_s
        n = 1 if breaker.blocked else state.settings.breaker.probes
        if len(out.probes) > n:
            ended = self._ended()
            out.probes = {one: over_s for one, over_s in out.probes.items() if (spoken_for(one[0]), *one[1:]) not in ended}
        if len(out.probes) > n:
            self._watch.say(f"{len(out.probes)} probes of {name} are unresolved, {n} may be")

    def _ended(self) -> set[tuple[str, int, int]]:
        """Return the calls whose outcome a branch holds: the cortex may know it before the call's own channel does."""
        lives = [life for name, life in self._world.lives.items() if name.startswith("branch:")]
        return {
            (job, *key) for life in lives for job, outbox in life.seat._actor._outboxes.items() for key in outbox.keys()  # noqa: SIM118 - no dict
        }

    # -- messages and requests -----------------------------------------------------------------------------------------

    def sent(self, life: Any, name: str, method: str, args: Any) -> None:
        """A message is sent: no claim withdraws what an earlier one has acknowledged."""
        if method == "start" and name.startswith("channel:"):
            asked = self._world.lives.get(name)
            if asked is not None and getattr(asked.seat._actor, "broken", ""):  # it forgets the calls that it had
                self._orphaned.add(name.partition(":")[2])
        if method != "join":
            return
        own = _claims.decode(args[0])
        if self._owner.get(own.job) is life:
            self._unanswered[own.job] = (own, *own.others)
        for claims in (own, *own.others):
            for claim in claims.claims:
                key = (claims.job, claims.epoch, claims.cortex, claim.route)
                if claim.acknowledged < self._heard.get(key, 0):
                    self._watch.say(f"{claims.job} has taken in grant {claim.acknowledged} after a newer one")
                self._heard[key] = claim.acknowledged
                out = self._routes.get(claim.route)
                if out is not None and claims.job in out.told:
                    out.telling.add(left_as(claims, claim))

    def answered(self, message: Any, value: Any) -> None:
        """The answer to a claim has reached the channel: its lease counts from the time of the claim."""
        grants = _grants.decode(value)
        for job in [job for job in self._unanswered if self._owner.get(job) is message.life]:
            del self._unanswered[job]
            self._succeeded.discard(job)
        for grant in {grant.job: grant for grant in grants}.values():
            if self._owner.get(spoken_for(grant.job)) is message.life:
                until_s = message.sent_s + grant.for_s
                self._lease_s[grant.job] = max(self._lease_s.get(grant.job, 0.0), until_s)
                self._heeds(grant.job, grant.cortex)

    def _heeds(self, job: str, cortex: str) -> None:
        if self._granter.get(job) != cortex:
            self._granter[job] = cortex
            for held in (held for (name, _), held in self._held.items() if name == job):
                held.granted = [one for one in held.granted if one[0] == cortex]

    def died(self, life: Any) -> None:
        """A channel has ended: what it held is void, and its calls go on. One that is only thought dead goes on, too."""
        role, _, job = life.name.partition(":")
        if role == "channel" and not life.zombie:
            self._orphaned.add(job)

    def took(self, job: str, epoch: int) -> None:
        """A new incarnation of a channel has no lease yet."""
        self._owner[job] = LIFE.get(None)
        self._unanswered.pop(job, None)
        self._succeeded.discard(job)
        for table in (self._lease_s, self._granter):
            for name in [name for name in table if spoken_for(name) == job]:
                del table[name]  # type: ignore[attr-defined]

    def asked(self, request: Any) -> None:
        """A request reaches the provider."""
        name = route_name(request.endpoint, "", request.model)
        out = self._routes.get(name)
        cortex = self._world.lives.get("cortex")
        if request.batched or out is None or out.state != BreakerState.OPEN or cortex is None:
            return
        world = self._world
        undisturbed = not (world.cut or world.plan.trouble or world.plan.endless or any(node.lag_s for node in world.nodes))
        halted = any(life.halted for life in world.lives.values())
        if not undisturbed or halted or self._loop.time() < out.opened_s + 0.05 + 2 * world.plan.hop_s:
            return  # a job that cannot learn of it uses its permits until its lease ends
        out.leave -= 1
        if out.leave < 0:
            self._watch.say(f"more is asked of {name} than there were permits out when its breaker opened")


def pool_of(endpoint: str) -> str:
    """Return the pool of an endpoint of the simulation."""
    return pool_name(endpoint, "", "m")
