"""Lease client: a channel's permits for its routes, claimed, renewed in time, and given back when they are not used.

The channel also leases slices of budgets (``BudgetClient``). The term of a lease is counted on this side, from the
moment before the request: travel time makes it shorter, never longer. While the lease is valid, a scheduler that does
not answer changes nothing; when it has run out, no call is begun. A number of permits that was reported as held stays
true until the scheduler answers: no larger share is taken in before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

import msgspec

from actors.channel.leases.budget_client import BudgetClient
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from actors.providers.pools import pool_of
from actors.providers.registry import is_own_server
from cortex.admission.permits import by_hand
from cortex.calls import route_lanes
from cortex.scheduler.job_families import member_of
from cortex.scheduler.reports import Claim, Claims, Grant
from cortex.scheduler.state import LEASE_S
from cortex.state import events
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.values.limits import Route
from policies.failures.route_choice import route_name

RENEW_S = LEASE_S / 3
PAUSE_S = 0.005
PAUSE_MAX_S = 0.25
"""Seconds between two claims: from ``PAUSE_S`` to ``PAUSE_MAX_S``, longer while claims follow each other."""
AGAIN_S = 1.0
"""Seconds until a scheduler that did not answer is asked again."""
RAN_OUT = "the lease ran out"

_log = logging.getLogger("cortex.lease")
_encoder = msgspec.msgpack.Encoder()
_grants_decoder = msgspec.msgpack.Decoder(tuple[Grant, ...])


class _RouteLease:
    """Lease of one route of the job."""

    __slots__ = ("acknowledged", "at", "blocked", "coming", "lane", "member", "memo", "pool", "queues", "reported",
                 "route", "told")  # fmt: skip

    def __init__(self, at: int, route: Route, lane: int, member: str) -> None:
        self.at = at
        """Position among the routes of the terms."""
        self.lane = lane
        self.member = member
        """Name under which the route's lane claims it."""
        names = (route.endpoint, route.credential, route.model)
        self.route = route_name(*names)
        self.pool = pool_of(*names)
        self.queues = is_own_server(route.endpoint)
        self.acknowledged = 0
        """Serial of the last grant that was taken in."""
        self.coming: list[int] = []
        """Permits of grants that K will have in its next turns."""
        self.memo = b""
        """Memo of the last of these grants."""
        self.told = b""
        """Memo in the last claim."""
        self.reported = 0
        """Permits that the scheduler counts as in use here: those reported as held in the last claim, or granted since.
        """
        self.blocked = False
        """True if the last claim reported the account as blocked, which grants one call alone."""

    def held(self, share: RouteShare) -> int:
        """Return the permits that may be used now or still are: one that was taken back counts until its call has
        ended.
        """
        busy, may = share.in_flight, share.permits
        if share.starts >= 0:
            may = min(may, busy + share.starts)
        if self.coming:
            return max(may, busy, *self.coming)
        return may if may > busy else busy

    def newest_memo(self, share: RouteShare) -> bytes:
        """Return the memo of the last grant that was taken in."""
        return self.memo if self.coming else share.memo

    def overtaken(self, share: RouteShare) -> bool:
        """Return whether the last claim reported more permits as held, or a blocked account, and this has changed."""
        return self.held(share) < self.reported or (self.blocked and share.blocked is None)


class Lease:
    """Lease of one channel.

    ``state`` returns the job's state as it is now, and ``put`` gives events to its next turn. ``runs`` returns the
    number of tool runs that wait, and ``staff`` the digest of the branches and workers that the channel knows: a
    scheduler that knows others tells it. ``dropped``: times, since 1970, before which what was learned about a pool is
    not given to a scheduler (``actors.limits.forgotten``).
    """

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], put: Callable[[list[events.Event]], None],
        runs: Callable[[], int] = lambda: 0, staff: Callable[[], int] = lambda: 0,
        folder: str = "", limits: str = "", dropped: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._dropped = dropped or {}
        self.allowance = BudgetClient(job, folder, runtime, state, put, limits)
        self._runtime = runtime
        self._cortex = runtime.peer("cortex")
        self._state = state
        self._put = put
        self._runs = runs
        self._staff = staff
        self._places: list[_RouteLease] = []
        self._granter = ""
        """Incarnation of the scheduler whose grants count. Grants of earlier ones are late."""
        self._past: set[str] = set()
        """Incarnations whose grants are not taken in any more. The last of them may still be the granter: its successor
        is told once more what it granted."""
        self._until_s = float("-inf")
        self._put_aside = True
        """True if nothing is held: there is no lease yet, or it has run out."""
        self._reported: tuple[list[int], int] = ([0], 0)
        """Calls, by lane, and tool runs that the last claim wanted."""
        self._missed = 0
        """Calls that a turn wanted since then without a permit. In a chain of calls the claim may come at a moment when
        much less is wanted."""
        self._wanted_s: dict[int, float] = {}
        """Time at which each lane wanted something last, in a job of several lanes."""
        self._left = False
        self._changed = asyncio.Event()
        self._sure = True
        """True if the last claim was answered. Until then it is not known which scheduler knows what is held."""
        self._early: list[Grant] = []
        """Larger grants that came before that answer."""
        self._overtaken = False
        """True if the last claim was overtaken by grants that K has not taken yet: it is made again when K has."""

    # -- from the channel --------------------------------------------------------------------------------------------

    def granted(self, blob: bytes) -> None:
        """Take changed grants from the scheduler. They neither extend a lease nor revive one that has run out."""
        grants = _grants_decoder.decode(blob)
        if self._put_aside or self._runtime.monotonic_s() >= self._until_s:
            self._changed.set()
            return
        for grant in grants:
            if grant.cortex == self._granter and grant.cortex not in self._past:
                if self._sure or not self._is_more(grant):
                    self._take(grant)
                else:
                    self._early.append(grant)
            elif grant.cortex not in self._past:
                self._changed.set()  # another scheduler, which does not know the held permits yet

    def look(self) -> None:
        """Check whether a new claim is due. Called after each turn.

        It is due if more permits could be used, if other jobs may use permits that are not needed any more, if a
        blocked account answers again, or if the job has ended.
        """
        self.allowance.look()
        k = self._state()
        entries, told_runs = self._reported
        if k.terms.role_routes:
            wanted, runs = self._wanted(k)
            stirs = self._stirs(k, wanted, entries)
        else:
            runs = self._runs()
            want = self._demand(k, runs)
            short = want > entries[0] and leased(k) < want
            stirs = short or (want == 0 < entries[0])
            if short and want > self._missed:
                self._missed = want
        if k.outcome or stirs or runs > told_runs:
            self._changed.set()
            return
        for place in self._places:
            if place.overtaken(k.shares[place.at]):
                self._changed.set()

    def _stirs(self, k: State, wanted: list[int], entries: list[int]) -> bool:
        """Return whether to claim again, in a job of several lanes.

        A lane that is used again and again keeps a permit.
        """
        now_s = self._runtime.monotonic_s()
        stirs = False
        for lane, want in enumerate(wanted):
            then = entries[lane] if lane < len(entries) else 0
            if want:
                self._wanted_s[lane] = now_s
            stirs |= (want > then and leased(k, lane) < want) or (want == 0 and then > 1)
        return stirs

    def taken(self, event: events.PermitsGranted) -> None:
        """Record that K has a grant."""
        for place in self._places:
            if place.at == event.route and place.coming and event.why != RAN_OUT:
                del place.coming[0]
        if self._overtaken and not self._coming():
            self._overtaken = False
            self._changed.set()

    def again(self) -> None:
        """Claim again: the scheduler was restarted."""
        self._changed.set()

    def run_out(self) -> list[events.Event]:
        """Return the events that take back every permit if the lease has run out, for the end of the turn that begins
        now.

        Costs each turn one reading of the clock.
        """
        if self._runtime.monotonic_s() < self._until_s:
            return []
        if self._put_aside and not self._coming():
            return []
        self._put_aside = True
        self._changed.set()
        shares = self._state().shares
        return [
            events.PermitsGranted(0, place.at, why=RAN_OUT, memo=self._told(place, share, place.newest_memo(share)))
            for place, share in ((place, shares[place.at]) for place in self._places)
        ]

    # -- renewal -----------------------------------------------------------------------------------------------------

    async def hold(self) -> None:
        """Hold leases of permits and of budgets until the job ends in K. A turn that ends a job drops its attempts in
        flight from K, so nothing is claimed after it; what is held counts until ``leave``, or runs out.
        """
        async with asyncio.TaskGroup() as both:
            both.create_task(self.allowance.hold())
            both.create_task(self._hold())

    async def _hold(self) -> None:
        pause_s = PAUSE_S
        while not self._state().outcome:
            self._changed.clear()
            wait_s = RENEW_S if await self._claim() else AGAIN_S
            await asyncio.sleep(pause_s)
            if self._changed.is_set():
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s = PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s - pause_s):  # in 3.11 wait_for may swallow a cancellation
                    await self._changed.wait()

    async def leave(self) -> None:
        """Give the lease back. Called once the end of the job is on disk: until then no attempt in flight is abandoned,
        and if the turn is lost the job goes on.
        """
        if not self._left:
            await self.allowance.leave()
            with contextlib.suppress(PeerUnavailable, PeerGone):
                await self._cortex.ask("leave", self._job, self._state().epoch)
            self._left = True  # not before: a channel that closes meanwhile cancels this, and tells it again

    async def _claim(self) -> bool:
        asked_s = self._runtime.monotonic_s()
        claims = self._claims()
        self._sure, self._early = False, []
        try:
            blob = await self._cortex.ask("join", _encoder.encode(claims))
        except (PeerUnavailable, PeerGone):
            return False
        except ValueError as error:
            _log.error("the cortex refuses the claims of %s: %s", self._job, error)
            return False
        self._sure = True
        if claims.claims or claims.others:  # without claims the job draws on no pool, and holds nothing
            self._answered(_grants_decoder.decode(blob), asked_s)
        return True

    def _wanted(self, k: State) -> tuple[list[int], int]:
        """Return the calls wanted, by lane, and the tool runs that wait.

        A permit is kept for the call after a tool run: the data that a tool reads may be valid only for a moment.
        """
        runs = self._runs()
        if not k.terms.role_routes:
            return [self._demand(k, runs)], runs
        wanted = route_lanes.demands(k)
        for lane, want in enumerate(wanted):
            drawn = drawing(k, lane)
            places = k.terms.lane_places(lane)
            if len(drawn) < len(places):
                elsewhere = sum(k.shares[at].in_flight for at in places) - sum(share.in_flight for share in drawn)
                wanted[lane] = max(0, want - elsewhere) if drawn else 0
            if drawn and not lane:
                wanted[0] = wanted[0] or min(1, runs)
        return wanted, runs

    def _demand(self, k: State, runs: int) -> int:
        """Return the calls wanted by a job of one lane, as most jobs are."""
        drawn = drawing(k)
        if not drawn:
            return 0
        demand = k.demand()
        if drawn is not k.shares:  # calls in flight on other routes draw on no pool
            demand -= sum(share.in_flight for share in k.shares) - sum(share.in_flight for share in drawn)
        return demand if demand > 0 else min(1, runs)

    def _kept(self, wanted: list[int]) -> list[int]:
        """Return the calls to claim for each lane: those wanted, and one permit more where a lane has wanted some
        lately.
        """
        if len(wanted) == 1:
            missed, self._missed = self._missed, 0
            return [max(wanted[0], missed) if wanted[0] else 0]
        now_s = self._runtime.monotonic_s()
        return [want or int(now_s < self._wanted_s.get(lane, -RENEW_S) + RENEW_S) for lane, want in enumerate(wanted)]

    def _claims(self) -> Claims:
        k = self._state()
        terms = k.terms
        members = [self._job] * (1 + len(terms.role_routes))
        for role, lane in reversed(terms.roles.items()):
            members[lane] = member_of(self._job, role) if lane else self._job
        laned = [
            (at, route, terms.lane_at(at)) for at, route in enumerate(terms.routes)
            if not (route.batched or terms.is_closed(at))
        ]  # fmt: skip
        places = [_RouteLease(at, route, lane, members[lane]) for at, route, lane in laned]
        if [(place.at, place.route) for place in places] != [(place.at, place.route) for place in self._places]:
            known = {(place.at, place.route): place for place in self._places}
            self._places = [known.get((place.at, place.route), place) for place in places]
        wanted, runs = self._wanted(k)
        self._reported = self._kept(wanted), runs
        own, *others = [self._claims_of(k, lane, member) for lane, member in enumerate(members)]
        return msgspec.structs.replace(
            own, demand=runs, staff=self._staff(), others=tuple(each for each in others if each.claims)
        )

    def _claims_of(self, k: State, lane: int, member: str) -> Claims:
        limits, tally = k.terms.limits, k.tally
        claims = []
        for place in self._places:
            if place.lane != lane:
                continue
            share = k.shares[place.at]
            place.reported = place.held(share)
            blocked = share.blocked.message if share.blocked is not None else ""
            place.blocked = bool(blocked)
            place.told = share.memo
            memo = self._told(place, share, share.memo)
            claims.append(
                Claim(place.route, place.pool, place.reported, place.acknowledged, memo, blocked, place.queues)
            )
        return Claims(
            member, k.epoch, self._granter, self._reported[0][lane], limits.concurrency, tuple(claims), limits.priority,
            limits.headroom, k.longest_timeout_s, k.successes + tally.succeeded + sum(tally.failures.values()),
            rates=by_hand(limits), peers=0 if lane else sum(k.terms.is_peer(place.at) for place in self._places[1:]),
        )  # fmt: skip

    def _answered(self, grants: tuple[Grant, ...], asked_s: float) -> None:
        if self._outdated(grants):
            self._overtaken = self._coming()  # then `taken` has the claim made again, not this: a turn may take minutes
            if not self._overtaken:
                self._changed.set()
            return
        self._overtaken = False
        anew, self._put_aside = self._put_aside, False
        for grant in grants:
            if grant.cortex in self._past:
                continue
            if grant.cortex != self._granter:
                self._past.add(self._granter)
                self._granter = grant.cortex
                for place in self._places:
                    place.acknowledged = 0
            self._until_s = max(self._until_s, asked_s + grant.for_s)
            self._take(grant, anew)
        for grant in self._early:
            if grant.cortex == self._granter:
                self._take(grant)

    def _coming(self) -> bool:
        """Return whether K will have a grant in its next turns."""
        return any(place.coming for place in self._places)

    def _told(self, place: _RouteLease, share: RouteShare, memo: bytes) -> bytes:
        """Return the memo as schedulers may learn it: nothing that is older than an order to forget it."""
        return memo if share.granted_at_s >= self._dropped.get(place.pool, 0.0) else b""

    def _outdated(self, grants: tuple[Grant, ...]) -> bool:
        """Return whether a new scheduler answers a claim that is overtaken: its predecessor has granted something
        since, which nobody else can tell the new one, for example that a route rests because the account is blocked.

        Before anything of the new scheduler is taken in, the claim is made again, once K has what the predecessor
        granted. What that sends from now on is late.
        """
        new = grants[0].cortex if grants else self._granter
        if not self._granter or new == self._granter or new in self._past:
            return False
        shares = self._state().shares
        if all(place.newest_memo(shares[place.at]) == place.told for place in self._places):
            return False
        self._past.add(self._granter)
        return True

    def _is_more(self, grant: Grant) -> bool:
        """Return whether a grant is more than is held.

        It may be of an old scheduler, while the next knows how little is held.
        """
        place = self._place(grant)
        return place is not None and grant.permits > place.held(self._state().shares[place.at])

    def _place(self, grant: Grant) -> _RouteLease | None:
        return next((each for each in self._places if each.route == grant.route and each.member == grant.job), None)

    def _take(self, grant: Grant, anew: bool = False) -> None:
        """Give K a grant newer than the last, or the last one again if it was put aside when the lease ran out
        (``anew``).
        """
        place = self._place(grant)
        if place is None:
            return
        if grant.serial < place.acknowledged or (grant.serial == place.acknowledged and not anew):
            return
        starts = grant.starts
        if grant.serial == place.acknowledged and starts > 0:
            starts = 0  # starts for probes are granted once
        place.acknowledged = grant.serial
        place.reported = max(place.reported, grant.permits)
        place.coming.append(grant.permits)
        place.memo = grant.memo
        self._put(
            [
                events.PermitsGranted(
                    grant.permits, place.at, starts, grant.generation, grant.requests_per_s, grant.input_tokens_per_s,
                    grant.output_tokens_per_s, grant.why, grant.memo, grant.again_s, grant.strays, grant.phase,
                )
            ]
        )  # fmt: skip


def drawing(k: State, lane: int = 0) -> list[RouteShare]:
    """Return the shares of a lane's routes that draw on a pool: routes by message batches do not."""
    if not (k.terms.fallbacks or k.terms.role_routes or k.terms.route.batched):
        return k.shares
    routes = k.terms.routes
    return [k.shares[at] for at in k.terms.lane_places(lane) if not routes[at].batched]


def leased(k: State, lane: int = 0) -> int:
    """Return the permits that the scheduler has leased to this lane of the job."""
    return sum(share.permits for share in drawing(k, lane))
