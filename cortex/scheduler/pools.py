"""Pools and routes: the provider's limits, and the health of routes.

A pool has one adaptive limit (``policies.limits.limit``), a route one breaker (``policies.failures.breaker``). The
state of both is given to every holder with its grants as a memo, and returns with its claims to a restarted scheduler.
"""

from __future__ import annotations

import msgspec

from cortex.scheduler import health
from cortex.scheduler.protocol import BreakerMoved, Command
from cortex.scheduler.reports import PACED_BY, BreakerStanding, Claim, RouteSignals
from cortex.scheduler.state import NEVER, JobClaims, PoolState, RouteState, SchedulerState
from policies.failures import breaker
from policies.failures.breaker import Breaker, BreakerState
from policies.failures.failure import FailureKind
from policies.failures.route_choice import choose
from policies.limits import limit, tenancy
from policies.limits.fair_share import ServerLoad, spread
from policies.limits.learned import LearnedBound, learned
from policies.limits.limit import PoolAllowance, PoolCaps, PoolLimit, UsageSample
from policies.limits.told_queue import TOLD_S

_THROTTLED = FailureKind.THROTTLED.value
_UNWELL = (FailureKind.OVERLOADED.value, FailureKind.TRANSIENT.value, FailureKind.TIMED_OUT.value)
_TIMED_OUT = FailureKind.TIMED_OUT.value
_FOR_ITSELF = (FailureKind.REJECTED.value, FailureKind.TOO_LARGE.value)
"""Kinds of failure in which a call was refused for its own request, and nothing was told of the account. Status 413
comes "from Cloudflare before the request reaches our API servers": https://docs.claude.com/en/api/errors."""
_BLOCKING = (FailureKind.BLOCKED.value, FailureKind.UNAUTHORISED.value)
SPREAD_S = 1.0
"""Seconds between two divisions of a job's demand among servers of equal rank while their limits stay the same."""
SAME_SHARE = 0.02
"""Relative difference below which two rates count as equal: sending the change would cost more than it brings."""


class PoolMemo(msgspec.Struct, frozen=True, array_like=True):
    """State of a pool and a route, for the next incarnation of the scheduler."""

    stamp: tuple[int, int]
    """(era, serial): the greater is the newer. Two schedulers neither of which heard of the other have the same era."""
    at_s: float
    """Time of writing, on the writer's clock."""
    cortex: str
    """Incarnation of the scheduler that wrote it."""
    limit: PoolLimit
    caps: PoolCaps
    breaker: Breaker | None
    """None: it was never anything but closed."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PoolMemo).decode


def breaker_in(memo: bytes) -> BreakerState | None:
    """Return the state of the route's breaker in this memo; None if it is not known."""
    if not memo:
        return None  # a grant that no scheduler gave
    try:
        kept = _decode(memo).breaker
    except msgspec.DecodeError:
        return None  # of another release
    return kept.state if kept is not None else BreakerState.CLOSED


def pool_in(memo: bytes) -> tuple[PoolLimit, PoolCaps] | None:
    """Return limit and caps of the pool in this memo; None if they are not known."""
    try:
        kept = _decode(memo) if memo else None
    except msgspec.DecodeError:
        return None  # of another release
    return (kept.limit, kept.caps) if kept is not None else None


def learned_in(memo: bytes) -> tuple[LearnedBound, ...]:
    """Return what was learned about the pool of this memo, with ages at the time of its writing; empty if it is not
    known."""
    try:
        kept = _decode(memo) if memo else None
    except msgspec.DecodeError:
        return ()  # of another release
    return learned(kept.limit, kept.at_s) if kept is not None else ()


def memo(state: SchedulerState, route: RouteState, serial: int) -> bytes:
    """Return the memo for a holder of this route. The breaker's window is left out: a restart forgets half a minute."""
    pool = state.pools[route.pool]
    kept = route.breaker if route.breaker.generation else None
    if kept is not None and kept.window:
        kept = msgspec.structs.replace(kept, window=[])
    return _encode(PoolMemo((state.era, serial), state.at_s, state.cortex, pool.limit, pool.caps, kept))


def known(state: SchedulerState, name: str, pool_name: str) -> RouteState:
    """Return the route of this name; a new route is healthy, and a new pool has the initial limit."""
    route = state.routes.get(name)
    if route is None:
        route = state.routes[name] = RouteState(pool_name)
        pool_of(state, pool_name).routes[name] = True
    return route


def pool_of(state: SchedulerState, name: str) -> PoolState:
    """Return the pool of this name, creating it if it is new."""
    pool = state.pools.get(name)
    if pool is None:
        pool = state.pools[name] = PoolState(limit.new(state.settings.limit), left_s=state.at_s)
        if state.shared:
            pool.lent = tenancy.NOTHING
    return pool


def may_queue(state: SchedulerState, name: str) -> None:
    """Take in that the server behind a pool may queue calls (`Claim.queues`)."""
    pool = state.pools[name]
    if pool.limit.queue is None:
        pool.limit = limit.queueing_too(state.settings.limit, pool.limit)
        touch(state, name)


def forget(state: SchedulerState, name: str) -> None:
    """Drop what was learned about the limits of a pool; every holder gets a memo of the new state."""
    pool = state.pools[name]
    pool.limit = limit.forgotten(state.settings.limit, pool.limit)
    pool.stamp, pool.announced = (state.era, state.serial), False  # earlier memos are not adopted any more
    touch(state, name)


def adopt(state: SchedulerState, claim: Claim, out: list[Command]) -> None:
    """Adopt a memo after a restart, in place of the lost state; the newer of two counts.

    The time in between is unknown, since clocks may differ: it is taken to be 0, so that an open breaker stays open at
    least as long as it would have. A late memo is used only if nothing else is known, and never for a breaker that
    results have moved since.
    """
    if not claim.memo:
        return
    route, pool = known(state, claim.route, claim.pool), pool_of(state, claim.pool)
    try:
        kept = _decode(claim.memo)
    except (msgspec.DecodeError, ValueError):
        return  # of another release
    if kept.cortex == state.cortex:
        return  # nothing was lost
    late = state.at_s >= state.adopting_until_s
    state.era = max(state.era, kept.stamp[0] + 1)
    by_s = state.at_s - kept.at_s
    if kept.stamp > pool.stamp and not (late and (any(pool.stamp) or pool.limit.load.from_s)):
        pool.stamp, pool.limit = kept.stamp, kept.limit
        if not pool.capped:
            pool.caps = kept.caps
        limit.adopt(pool.limit, kept.limit.at_s + by_s)
        touch(state, claim.pool)
    if kept.breaker is None or route.seen_here or (late and (any(route.stamp) or route.breaker.generation)):
        return
    shifted = breaker.shifted(kept.breaker, by_s)
    if _counts(route, kept, shifted):
        old = route.breaker.state
        route.stamp, route.writer, route.breaker = kept.stamp, kept.cortex, shifted
        state.wake(breaker.due_at_s(route.breaker, state.at_s))
        if route.breaker.state is not old:
            moved(state, claim.route, breaker.BreakerMove(old, route.breaker.state, route.breaker.why), out)


def _counts(route: RouteState, kept: PoolMemo, shifted: Breaker) -> bool:
    """Return whether a memo's breaker replaces that of an earlier memo.

    The stamps of two schedulers that have counted the same era cannot be compared: one began without any memo of the
    other. Of their breakers the one that stays open longer counts.
    """
    if kept.stamp[0] != route.stamp[0] or kept.cortex == route.writer:
        return kept.stamp > route.stamp
    return shifted.state is BreakerState.OPEN and (
        route.breaker.state is not BreakerState.OPEN or shifted.until_s > route.breaker.until_s
    )


def shared(state: SchedulerState, name: str, share: tenancy.TenantShare, until_s: float) -> None:
    """Set this cluster's share of an account that other clusters draw on, until `until_s`."""
    pool = pool_of(state, name)
    pool.lent, pool.lent_until_s = share, until_s
    if until_s > state.at_s:
        state.wake(until_s)
    touch(state, name)


def touch(state: SchedulerState, pool: str) -> None:
    """Mark a pool whose shares must be computed anew."""
    state.stale[pool] = True


# ----------------------------------------------------------------------------------------- reports


def record_signals(state: SchedulerState, signals: RouteSignals, out: list[Command]) -> None:
    """Take in a branch's report on attempts: for the pool's limit, the route's breaker and its health signals."""
    at_s = state.at_s
    route = known(state, signals.route, signals.pool)
    pool = state.pools[route.pool]
    failed = signals.failed
    health.record(
        route.seen,
        at_s,
        signals.begun,
        signals.answered,
        failed,
        signals.latency_s,
        signals.input_tokens,
        signals.output_tokens,
        signals.samples,
    )
    throttled = failed.get(_THROTTLED, 0)
    route.given_back += signals.given_back
    if signals.answered:
        route.answered_s = at_s
    if signals.at_server is not None:
        route.told_s = at_s
    timed_out = failed.get(_TIMED_OUT, 0) if failed and _answers_others(signals, route, at_s) else 0
    if signals.begun or signals.answered or failed or signals.rate is not None or signals.at_server is not None:
        sample = UsageSample(
            begun=signals.begun,
            answered=signals.answered,
            throttled=throttled,
            unwell=sum(failed.get(kind, 0) for kind in _UNWELL) if failed else 0,
            input_tokens=signals.input_tokens,
            output_tokens=signals.output_tokens,
            latency_s=signals.latency_s,
            retry_after_s=signals.retry_after_s if throttled else 0.0,
            rate=signals.rate,
            in_flight=pool.in_flight,
            binding=pool.wanted > pool.allowed.concurrency,
            timed_out=timed_out,
            timed_out_s=signals.timed_out_s,
            samples=signals.samples,
            prompts=signals.prompts,
            at_server=signals.at_server,
        )
        if limit.observe(state.settings.limit, pool.limit, at_s, sample):
            pool.grew_s = at_s
        changed = not _alike(pool.allowed, allowed(state, pool), at_s)
        if changed:
            touch(state, route.pool)
        spread_again(state, route, changed)
    _judge(state, signals, route, limit.tells_nothing(pool.limit), timed_out, out)


def _answers_others(signals: RouteSignals, route: RouteState, at_s: float) -> bool:
    """Return True if the server answered other calls in the later half of the time of those that timed out."""
    return route.answered_s > at_s - signals.timed_out_s / 2


def _judge(
    state: SchedulerState, signals: RouteSignals, route: RouteState, queues: bool, timed_out: int, out: list[Command]
) -> None:
    """Let the route's breaker count the outcomes.

    ``queues``: the server may queue calls, so that its slowness is no fault; ``timed_out``: calls that timed out while
    it answered others. A server whose own metrics tell of a queue has one, also behind a gateway that limits rates.
    """
    policy, failed = state.settings.breaker, signals.failed
    if failed:
        good, bad, void = breaker.sorted_out("route", signals.answered, failed)
    else:
        good, bad, void = signals.answered, 0, 0
    void += signals.given_back  # a probe that was not sent makes room for another
    if not good + bad + void:
        return
    own = route.breaker
    throttled = failed.get(_THROTTLED, 0) if failed else 0
    asked_s = 0.0 if throttled else signals.retry_after_s
    if queues:
        bad, void = bad - timed_out, void + timed_out
    queued = queues or state.at_s - route.told_s < TOLD_S
    slow = 0 if queued else min(signals.slow, good + bad)
    was = breaker.observe(
        policy, own, state.at_s, signals.generation, good, bad, slow, asked_s, state.draw() if bad else 0.0, void
    )
    if was is not None:
        route.seen_here = True
        moved(state, signals.route, was, out)
    if failed and any(kind in failed for kind in _BLOCKING):
        why = signals.message or "the account is blocked"
        was = breaker.block(policy, own, state.at_s, signals.generation, why, state.draw(), signals.retry_after_s)
        if was is not None:
            route.seen_here = True
            moved(state, signals.route, was, out)
    elif own.state is BreakerState.HALF_OPEN:
        touch(state, route.pool)  # a further probe may be sent
        tests_nothing = signals.given_back or (failed and any(kind in failed for kind in _FOR_ITSELF))
        if tests_nothing and breaker.probe_rejected(policy, own, state.at_s, signals.generation):
            pool = state.pools[route.pool]
            pool.probed_s = min(pool.probed_s, own.probe_due_s - policy.blocked_open_s)
            state.wake(own.probe_due_s)


def suspect(state: SchedulerState, name: str, why: str, out: list[Command]) -> None:
    """Take in a job's report of a blocked account, if nothing contradicts it: one immediate probe decides for all
    jobs.
    """
    route = state.routes[name]
    own = route.breaker
    if own.state is not BreakerState.CLOSED or health.rates(route.seen, state.at_s).answered > 0:
        return
    was = breaker.block(state.settings.breaker, own, state.at_s, own.generation, why, 0.0)
    if was is not None:
        own.until_s = own.probe_due_s = state.at_s
        moved(state, name, was, out)
        passed(state, name, out)


def passed(state: SchedulerState, name: str, out: list[Command]) -> None:
    """Apply the passage of time to a route's breaker."""
    route = state.routes[name]
    was = breaker.passed(state.settings.breaker, route.breaker, state.at_s)
    if was is not None:
        moved(state, name, was, out)
    elif route.breaker.state is BreakerState.HALF_OPEN:
        touch(state, route.pool)
    state.wake(breaker.due_at_s(route.breaker, state.at_s))


def moved(state: SchedulerState, name: str, was: breaker.BreakerMove, out: list[Command]) -> None:
    """Note a move of a route's breaker: its jobs are sent elsewhere, or back."""
    route = state.routes[name]
    out.append(BreakerMoved(f"route:{name}", was.old, was.new, was.why))
    if was.new is BreakerState.CLOSED:
        state.not_closed.pop(name, None)
        state.pools[route.pool].probed_s = -NEVER  # the account answers: its other routes need not wait their minute
    else:
        state.not_closed[name] = True
    touch(state, route.pool)
    for job_name in route.jobs:
        job = state.jobs[job_name]
        job.holds[name].probes = []
        send(state, job)
    state.wake(breaker.due_at_s(route.breaker, state.at_s))


def standings(state: SchedulerState) -> tuple[BreakerStanding, ...] | None:
    """Return the breakers that are not closed, for the branches; None while a restarted scheduler waits for the claims
    that bring them.
    """
    if state.at_s < state.silent_until_s:
        return None
    return tuple([_standing(name, state.routes[name].breaker, state.at_s) for name in state.not_closed])


def _standing(name: str, own: Breaker, at_s: float) -> BreakerStanding:
    for_s = max(0.0, own.until_s - at_s) if own.state is BreakerState.OPEN else 0.0
    return BreakerStanding(name, own.state, own.generation, for_s)


def send(state: SchedulerState, job: JobClaims) -> None:
    """Choose the route that a job's demand goes to now: the first healthy one, or all healthy ones of its rank."""
    names, parts = tuple(job.holds), None
    if len(names) == 1 and state.routes[names[0]].breaker.state is BreakerState.CLOSED:
        job.share, job.probing = names[0], ()
    else:
        choice = choose([state.routes[name].breaker.state for name in names], job.peers)
        job.share = "" if choice.share is None else names[choice.share]
        job.probing = tuple(names[place] for place in choice.probed)
        if len(choice.shared) > 1:
            parts = _spread(state, job, [names[place] for place in choice.shared])
    for name, hold in job.holds.items():
        if parts is not None:
            want = parts.get(name, 0)
        else:
            want = job.want if name == job.share else 0
        if job.expired:
            want = 0
        if hold.blocked:
            want = min(want, 1)
        if want != hold.want:
            hold.want = want
            touch(state, hold.pool)


def _spread(state: SchedulerState, job: JobClaims, names: list[str]) -> dict[str, int]:
    """Return the part of a job's demand that each of these routes of equal rank gets."""
    job.spread_s = state.at_s
    servers = []
    for name in names:
        route, hold = state.routes[name], job.holds[name]
        pool = state.pools[route.pool]
        most = allowed(state, pool)
        others = max(0, pool.wanted - hold.want) if pool.holders > 1 else 0
        room = max(most.concurrency - others, most.concurrency // max(1, pool.holders))
        if hold.blocked or most.held_until_s > state.at_s:
            room = 0
        servers.append(ServerLoad(room, health.per_token_s(route.seen, state.at_s, 0.5)))
    parts = spread(job.want, servers, [job.holds[name].want for name in names])
    return dict(zip(names, parts, strict=True))


def spread_again(state: SchedulerState, route: RouteState, changed: bool) -> None:
    """Divide the demand of jobs anew that share it among this route and others: at once where the limit of its pool has
    changed, else from time to time."""
    for name in route.jobs:
        job = state.jobs[name]
        if job.peers and (changed or state.at_s >= job.spread_s + SPREAD_S):
            send(state, job)


# ----------------------------------------------------------------------------------------- bounds


def allowed(state: SchedulerState, pool: PoolState) -> PoolAllowance:
    """Return the bounds of all holders together, less the headroom that any of them asks for."""
    caps = pool.caps
    if pool.headroom > caps.headroom:
        caps = msgspec.structs.replace(caps, headroom=pool.headroom)
    share = pool.lent
    if share is not None and state.at_s >= pool.lent_until_s:
        share = tenancy.NOTHING
    none = share is not None and not (share.part and share.permits)
    if share is not None and not none:
        caps = tenancy.bounds(share, caps)
    pool.bounds = caps
    found = limit.allowance(state.settings.limit, pool.limit, state.at_s, caps)
    return msgspec.structs.replace(found, concurrency=0) if none else found


def paced_by(pool: PoolState) -> str:
    """Return the text that says which operator's rate binds this pool; empty if none does."""
    caps, allowed = pool.bounds, pool.allowed
    lines = [
        f"{most:g} {what} a minute"
        for most, per_s, what in (
            (caps.requests_per_min, allowed.requests_per_s, "requests"),
            (caps.input_tokens_per_min, allowed.input_tokens_per_s, "input tokens"),
            (caps.output_tokens_per_min, allowed.output_tokens_per_s, "output tokens"),
        )
        if most is not None and per_s == most / 60
    ]
    return f"{PACED_BY}{caps.who or 'an operator'}: {', '.join(lines)} for all jobs of this pool" if lines else ""


def _alike(old: PoolAllowance, new: PoolAllowance, at_s: float) -> bool:
    return old == new or (
        old.concurrency == new.concurrency
        and old.strays == new.strays
        and max(old.held_until_s, at_s) == max(new.held_until_s, at_s)
        and same_rate(old.requests_per_s, new.requests_per_s)
        and same_rate(old.input_tokens_per_s, new.input_tokens_per_s)
        and same_rate(old.output_tokens_per_s, new.output_tokens_per_s)
    )


def same_rate(old: float, new: float) -> bool:
    """Return True if the difference of two rates is too small to be sent."""
    return old == new or (old > 0 < new and abs(new - old) <= SAME_SHARE * old)
