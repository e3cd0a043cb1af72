"""Membership of jobs in the scheduler: join, renew, leave, expire."""

from __future__ import annotations

import math

from cortex.scheduler import health, job_families, leases, pools, supervision
from cortex.scheduler.protocol import Command, StopJob
from cortex.scheduler.reports import Claim, Claims, Grant
from cortex.scheduler.state import JobClaims, RouteHolding, SchedulerState
from policies.failures import restart
from policies.failures.breaker import BreakerState

FORGET_S = 3600.0
"""Seconds without use after which a pool, route or tool is forgotten, with all that was learnt of it."""

LEFT_MAX = 1_000
"""Number of jobs that left whose epoch is remembered: late claims arrive within moments."""


def joined(state: SchedulerState, claims: Claims, out: list[Command]) -> None:
    """Take in a job's claims, divide the pools, and answer each claim.

    Late claims are answered and change nothing: claims of an earlier incarnation of the channel get nothing, overtaken
    claims of the current one get what the job has. A job whose routes draw on no pool claims nothing: it joins so that
    branches and workers are started for it.
    """
    job = state.jobs.get(claims.job)
    if claims.epoch < job.epoch if job is not None else claims.epoch <= state.left.get(claims.job, 0):
        out.extend(_nothing(state, claims, claim) for claim in claims.claims)
        return
    if job is None:
        job = state.jobs[claims.job] = JobClaims(claims.epoch, 0.0)
        state.resize = True
        # No member was checked while there was no job: one may have hung.
        supervision.look(state, state.at_s + supervision.IDLE_CHECK_S)
        forget(state)
        job_families.count(state, claims.job)
    elif claims.epoch > job.epoch:
        _returned(state, claims, job, out)
    elif _overtaken(state, claims, job):
        out.extend(leases.answer(state, claims.job, name, state.pools) for name in job.holds)
        return
    _renew(state, claims, job)
    if state.again and claims.cortex != state.cortex:
        for claim in claims.claims:
            pools.adopt(state, claim, out)
    _take(state, claims, job, out)
    for name, hold in job.holds.items():
        if hold.probes:
            leases.take_back(state, (claims.job, job, name, state.routes[name], hold))
    if state.families and job_families.root_of(claims.job) in state.families:
        job_families.divide(state, claims.job)
    pools.send(state, job)
    divided = leases.settle(state, out, claims.job) if state.stale else ()
    out.extend(leases.answer(state, claims.job, name, divided) for name in job.holds)


def check(claims: Claims) -> None:
    """Raise ValueError, in one line, for invalid claims."""
    if claims.wanted < 0 or not 0 < claims.weight < math.inf:
        raise ValueError(
            f"{claims.job}: wants {claims.wanted} permits at weight {claims.weight}; "
            "permits must be 0 or more, the weight above 0"
        )
    if not 0 <= claims.headroom < 1 or not 0 < claims.call_timeout_s < math.inf:
        raise ValueError(f"{claims.job}: headroom {claims.headroom}, calls of {claims.call_timeout_s} s")
    named = set()
    for claim in claims.claims:
        if claim.held < 0:
            raise ValueError(f"{claims.job}: held must be 0 or more, not {claim.held}")
        named.add(claim.route)
    if claims.wanted and not named:
        raise ValueError(f"{claims.job}: wants {claims.wanted} permits and names no route")
    if len(named) < len(claims.claims):
        raise ValueError(f"{claims.job}: names a route twice")


def _nothing(state: SchedulerState, claims: Claims, claim: Claim) -> Grant:
    why = f"epoch {claims.epoch} of this job is over"
    return Grant(claims.job, claim.route, state.cortex, state.serial, 0, for_s=state.settings.lease_s, why=why)


def _overtaken(state: SchedulerState, claims: Claims, job: JobClaims) -> bool:
    """True if a later claim has arrived before: this one confirms less than is known."""
    for claim in claims.claims:
        hold = job.holds.get(claim.route)
        if hold is not None and _acknowledged(state, claims, claim) < hold.acknowledged:
            return True
    return False


def _acknowledged(state: SchedulerState, claims: Claims, claim: Claim) -> int:
    return claim.acknowledged if claims.cortex == state.cortex else 0


def _returned(state: SchedulerState, claims: Claims, job: JobClaims, out: list[Command]) -> None:
    """Handle a job whose channel died and came back, or that a new run took over."""
    if not job.dead:
        died(state, claims.job, out)
    state.restarts["channel"] = state.restarts.get("channel", 0) + 1
    job.epoch, job.dead = claims.epoch, False
    for hold in job.holds.values():
        hold.acknowledged = 0
        hold.announced = []  # the new incarnation does not receive what was sent to the old one
        hold.grant = None


def _renew(state: SchedulerState, claims: Claims, job: JobClaims) -> None:
    job.expired = False
    job.until_s = state.at_s + state.settings.lease_s
    if job.runs != claims.demand:
        state.resize = True
    job.weight, job.headroom = claims.weight, claims.headroom
    job.asked, job.concurrency, job.rates = claims.wanted, claims.concurrency, claims.rates
    job.want = min(claims.wanted, claims.concurrency)
    job.call_timeout_s, job.runs, job.peers = claims.call_timeout_s, claims.demand, claims.peers
    job.free_s = job.until_s + claims.call_timeout_s + state.settings.restart.grace_s
    health.record_life(job.seen, state.at_s, claims.progress)
    state.wake(job.until_s)


def _take(state: SchedulerState, claims: Claims, job: JobClaims, out: list[Command]) -> None:
    """Take in what the job holds; routes that it no longer names are returned."""
    old, names = job.holds, [claim.route for claim in claims.claims]
    if list(old) != names:
        for name in [name for name in old if name not in names]:
            _drop(state, claims.job, name, old.pop(name))
        for claim in claims.claims:
            if claim.route not in old:
                _enter(state, claims.job, claim, old)
        job.holds = {name: old[name] for name in names}
    for claim in claims.claims:
        hold, route = job.holds[claim.route], state.routes[claim.route]
        number = _acknowledged(state, claims, claim)
        hold.held, hold.acknowledged, hold.blocked = claim.held, number, claim.blocked
        while hold.announced and hold.announced[0][0] <= number:
            del hold.announced[0]
        if _put_aside(hold):
            hold.grant = None  # it counts again when it is sent anew
        leases.count(state, hold)
        if claim.blocked:
            pools.suspect(state, claim.route, claim.blocked, out)
            if route.breaker.state is BreakerState.CLOSED and hold.grant is not None and number >= hold.grant.serial:
                hold.grant = None  # the one call that it may make is granted anew
        pool = state.pools[hold.pool]
        if job.headroom != pool.headroom:
            _keep_free(state, hold.pool)


def _put_aside(hold: RouteHolding) -> bool:
    """True if the holder has confirmed its grant and holds less: the lease has expired by the holder's clock only."""
    grant = hold.grant
    return grant is not None and grant.starts < 0 and hold.acknowledged >= grant.serial and hold.held < grant.permits


def _keep_free(state: SchedulerState, name: str) -> None:
    pool = state.pools[name]
    headroom = max((state.jobs[job].headroom for route in pool.routes for job in state.routes[route].jobs), default=0.0)
    if headroom != pool.headroom:
        pool.headroom = headroom
        pools.touch(state, name)


def _enter(state: SchedulerState, job: str, claim: Claim, holds: dict[str, RouteHolding]) -> None:
    route = pools.known(state, claim.route, claim.pool)
    route.jobs[job] = True
    if claim.queues:
        pools.may_queue(state, route.pool)
    holds[claim.route] = RouteHolding(route.pool)
    state.pools[route.pool].holders += 1
    pools.touch(state, route.pool)


def _drop(state: SchedulerState, job: str, name: str, hold: RouteHolding) -> None:
    leases.probes_back(state, name, hold)
    hold.held, hold.announced = 0, []
    leases.count(state, hold)
    del state.routes[name].jobs[job]
    pool = state.pools[hold.pool]
    pool.holders -= 1
    pool.left_s = state.at_s
    if not pool.holders:
        pool.granted = pool.wanted = 0
    _keep_free(state, hold.pool)
    pools.touch(state, hold.pool)


def ended(state: SchedulerState, name: str, epoch: int) -> None:
    """End a job in this epoch. A job with claims in a later epoch continues."""
    job = state.jobs.get(name)
    if job is not None and job.epoch <= epoch:
        left(state, name)


def left(state: SchedulerState, name: str, silent: bool = False) -> None:
    """Remove a job that has nothing in flight and no channel.

    ``silent``: nothing was heard of it for so long. It may come back in the same epoch: its process, or its machine,
    may have been suspended, or the network was away.
    """
    job = state.jobs.get(name)
    if job is not None:
        for route, hold in job.holds.items():
            _drop(state, name, route, hold)
        del state.jobs[name]
        state.left.pop(name, None)
        state.left[name] = job.epoch - silent
        if len(state.left) > LEFT_MAX:
            del state.left[next(iter(state.left))]
        job_families.count(state, name)
        state.resize = True
        forget(state)


def died(state: SchedulerState, name: str, out: list[Command]) -> None:
    """Handle the death of a job's channel. A channel that makes progress between its deaths may die any number of
    times.
    """
    job = state.jobs.get(name)
    if job is None or job.condemned:
        return
    policy = state.settings.channel
    if job.deaths and health.stalled_s(job.seen, state.at_s) < state.at_s - job.deaths[-1]:
        job.deaths = []
    job.deaths = restart.remembered(policy, [*job.deaths, state.at_s], state.at_s)
    verdict = restart.decide(policy, job.deaths, state.at_s)
    if verdict.escalate:
        job.condemned = True
        out.append(StopJob(name, f"its channel {verdict.why}"))


def passed(state: SchedulerState) -> None:
    """Expire leases; what an expired job held is free when its last call must have ended."""
    for name in [name for name, job in state.jobs.items() if job.until_s <= state.at_s]:
        job = state.jobs[name]
        if state.at_s >= job.free_s:
            left(state, name, silent=True)
        elif not job.expired:
            job.expired = True
            pools.send(state, job)
            for hold in job.holds.values():
                hold.grant = None  # the holder has dropped it; if the job returns, it gets a new grant
                pools.touch(state, hold.pool)
    for job in state.jobs.values():
        state.wake(job.free_s if job.expired else job.until_s)


def forget(state: SchedulerState) -> None:
    """Forget what has not been used for `FORGET_S`. Called when jobs come and go, so that an idle scheduler needs no
    timer.
    """
    for name in [name for name, pool in state.pools.items() if _forgotten(state, name)]:
        for route in state.pools.pop(name).routes:
            del state.routes[route]
            state.not_closed.pop(route, None)
    old_s = state.at_s - FORGET_S
    for name in [name for name, tool in state.tools.items() if tool.asked_s < old_s]:
        del state.tools[name]


def _forgotten(state: SchedulerState, name: str) -> bool:
    pool = state.pools[name]
    by_hand = bool(pool.caps.who)
    return not pool.holders and not by_hand and not pool.in_flight and pool.left_s < state.at_s - FORGET_S
