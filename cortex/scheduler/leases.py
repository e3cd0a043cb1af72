"""Leases: shares of each pool for each job, so that all jobs together never use more than the pool allows.

What a job may be using is the greatest of what it reported to hold and of every grant that it may still receive: a
grant counts until its holder has confirmed it, or a later one. Only permits that no job may be using are granted. A
smaller share is sent at once and counts when it is confirmed. A job whose lease has expired begins nothing, but its
permits count until its last call must have ended.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from cortex.scheduler import job_families, pools
from cortex.scheduler.protocol import Command
from cortex.scheduler.reports import POOL_LIMITS, PROVIDER_ASKS, Grant
from cortex.scheduler.state import NEVER, JobClaims, PoolState, RouteHolding, RouteState, SchedulerState
from policies.failures import breaker
from policies.failures.breaker import BreakerState
from policies.limits.fair_share import fair_shares, over_time
from policies.limits.limit import PoolAllowance

FEW: Final = 64
"""Number of holders up to which a pool is divided anew with every change; a division takes some 3 µs per holder."""
PACE_S: Final = 3e-5
"""Seconds per holder between two divisions of a larger pool: a tenth of the time is spent on divisions at most."""
RATES_S: Final = 0.25
"""Seconds between two updates of rates only."""
CUT: Final = 0.9
"""Share of the sent rate below which a lower rate is sent at once."""
PROBE_S: Final = 1.0
"""Seconds after which a renewal withdraws unused probes, so that none is used after its lease."""

Row = tuple[str, JobClaims, str, RouteState, RouteHolding]


def count(state: SchedulerState, hold: RouteHolding) -> None:
    """Recompute the permits that this holder may be using."""
    number = hold.announced[0][1] if hold.announced else 0
    now = hold.held if hold.held > number else number
    if now != hold.counted:
        state.pools[hold.pool].in_use += now - hold.counted
        hold.counted = now
        pools.touch(state, hold.pool)


def settle(state: SchedulerState, out: list[Command], asker: str = "") -> list[str]:
    """Divide the pools that changed; return their names. The asker's grants are not put out."""
    divided = []
    while state.stale:
        name = next(iter(state.stale))
        del state.stale[name]
        pool = state.pools.get(name)
        if pool is None or not pool.holders:
            continue
        next_s = pool.shared_s + pool.holders * PACE_S
        if pool.holders <= FEW or state.at_s >= next_s:
            share_out(state, pool, out, asker)
            divided.append(name)
        else:
            pool.late = True
            again(state, pool, next_s)
    return divided


def again(state: SchedulerState, pool: PoolState, at_s: float) -> None:
    """Divide this pool again at `at_s`, whatever happens."""
    pool.again_s = min(pool.again_s, at_s)
    state.wake(at_s)


def share_out(state: SchedulerState, pool: PoolState, out: list[Command], asker: str) -> None:
    """Give each holder its fair share; no permit is granted that another holder may still use."""
    allowed = pools.allowed(state, pool)
    by_rate = _announces_rates(state, pool, allowed)
    pool.allowed, pool.shared_s, pool.again_s = allowed, state.at_s, NEVER
    rows = _rows(state, pool)
    if state.families:
        claims = [(row[4].want, job_families.weight(state, row[0], row[1])) for row in rows]
    else:
        claims = [(row[4].want, row[1].weight) for row in rows]
    shares = _shares(state, pool, rows, claims)
    pool.wanted = sum(want for want, _ in claims)
    granted = sum(shares)
    if granted != pool.granted:
        pool.granted, state.resize = granted, True
    if state.families:
        for row, share in zip(rows, shares, strict=True):
            row[4].share = share
    _set_phases(pool, rows, shares)
    for row, share in zip(rows, shares, strict=True):
        if not row[1].expired:
            grant = due(state, pool, row, share, by_rate or row[0] == asker)
            if grant is not None and row[0] != asker:
                out.append(grant)
    pool.announced, pool.late = True, False
    for route_name in pool.routes:
        _probe(state, pool, route_name, out, asker)
    if allowed.held_until_s > state.at_s:
        again(state, pool, allowed.held_until_s)


def _set_phases(pool: PoolState, rows: list[Row], shares: list[int]) -> None:
    """Give each holder that has a share its phase: one after another, as far apart as the calls of the pool.

    Only where headers tell the rate. Calls at the same times find the bucket empty, and its level is told after calls:
    the learnt rate fell to its floor with four jobs at a bucket of less than four calls. A rate that is looked for by
    refusals is not read from levels, and is looked for by bursts as well.
    """
    holders, place = sum(share > 0 for share in shares) if pool.limit.requests.per_s else 0, 0
    for row, share in zip(rows, shares, strict=True):
        row[4].phase = place / holders if holders and share > 0 else 0.0
        place += share > 0


def _rows(state: SchedulerState, pool: PoolState) -> list[Row]:
    rows: list[Row] = []
    for route_name in pool.routes:
        route = state.routes[route_name]
        for job_name in route.jobs:
            job = state.jobs[job_name]
            rows.append((job_name, job, route_name, route, job.holds[route_name]))
    return rows


def _shares(state: SchedulerState, pool: PoolState, rows: list[Row], claims: list[tuple[int, float]]) -> list[int]:
    """Permits to grant now: each holder's fair share, as far as it has it already or permits are free."""
    shares = _turns(state, pool, claims)
    pool.level = min((s / c[1] for s, c in zip(shares, claims, strict=True) if s < c[0]), default=NEVER)
    lacks = [share - row[4].counted for row, share in zip(rows, shares, strict=True)]
    if state.families:
        job_families.hold_back(state, [row[0] for row in rows], lacks)
    free = _free(state, pool)
    if sum(lack for lack in lacks if lack > 0) <= free:
        if not state.families:
            return shares
        free = sum(max(lack, 0) for lack in lacks)
    given = fair_shares([(max(lack, 0), claim[1]) for lack, claim in zip(lacks, claims, strict=True)], free)
    return [min(share, row[4].counted + more) for row, share, more in zip(rows, shares, given, strict=True)]


def _announces_rates(state: SchedulerState, pool: PoolState, allowed: PoolAllowance) -> bool:
    """Return True if new rates are sent now: a few times a second at most, but a cut at once."""
    old, rates = pool.rates, (allowed.requests_per_s, allowed.input_tokens_per_s, allowed.output_tokens_per_s)
    if not any(rates) and not any(old):
        return False
    next_s = pool.rated_s + max(RATES_S, pool.holders / state.settings.reports_per_s)
    cut = any(new and (new < was * CUT or not was) for was, new in zip(old, rates, strict=True))
    if state.at_s < next_s and not cut:
        again(state, pool, next_s)
        return False
    pool.rated_s, pool.rates = state.at_s, rates
    return True


def _turns(state: SchedulerState, pool: PoolState, claims: list[tuple[int, float]]) -> list[int]:
    """Fair shares; if single permits matter, jobs take turns of one lease time."""
    turn = int(state.at_s // state.settings.lease_s)
    shares, goes_round = over_time(claims, pool.allowed.concurrency, turn)
    if goes_round:
        again(state, pool, (turn + 1) * state.settings.lease_s)
    return shares


def _free(state: SchedulerState, pool: PoolState) -> int:
    if state.at_s < state.silent_until_s:
        return 0
    in_use = pool.in_use
    if state.at_s < state.probes_from_s:
        if pool.unknown < 0:  # calls of holders that did not report within the lease time after the restart
            pool.unknown = max(0, pool.in_flight - pool.in_use)
        pool.unknown = min(pool.unknown, pool.in_flight)
        in_use += pool.unknown
    return max(0, pool.allowed.concurrency - in_use)


# ------------------------------------------------------------------------------------------- the grants


def due(state: SchedulerState, pool: PoolState, row: Row, share: int, by_rate: bool) -> Grant | None:
    """Return a new grant for this holder, or None if its current grant says the same."""
    route, hold, allowed = row[3], row[4], pool.allowed
    old, own = hold.grant, route.breaker
    if hold.probes and old is not None and pool.announced:
        return None  # its probes stand until they are answered, or a renewal withdraws them
    starts, why = _terms(state, pool, route, hold, share)
    part = share / max(share, pool.granted) if share else 0.0  # the granted total may not include it yet
    rates = (allowed.requests_per_s * part, allowed.input_tokens_per_s * part, allowed.output_tokens_per_s * part)
    if state.families and job_families.root_of(row[0]) in state.families:
        rates, by_rate = job_families.rates(state, row[0], share, rates), True
    if (
        old is not None
        and pool.announced
        and old.permits == share
        and old.starts == starts
        and old.generation == own.generation
        and old.why == why
        and old.strays == allowed.strays
        and (not by_rate or _same_rates(old, rates))
    ):
        return None
    return issue(state, row, share, starts, rates, why)


def _same_rates(old: Grant, rates: tuple[float, float, float]) -> bool:
    were = (old.requests_per_s, old.input_tokens_per_s, old.output_tokens_per_s)
    return were == rates or all(map(pools.same_rate, were, rates))


def issue(
    state: SchedulerState, row: Row, permits: int, starts: int, rates: tuple[float, float, float], why: str
) -> Grant:
    """Create a grant with a new serial. It counts from now on, until its holder confirms it."""
    job_name, _, route_name, route, hold = row
    state.serial += 1
    hold.grant = grant = Grant(
        job_name,
        route_name,
        state.cortex,
        state.serial,
        permits,
        starts,
        route.breaker.generation,
        *rates,
        0.0,
        why,
        max(0.0, route.breaker.until_s - state.at_s) if route.breaker.state is BreakerState.OPEN else 0.0,
        pools.memo(state, route, state.serial),
        state.pools[hold.pool].allowed.strays,
        hold.phase,
    )
    entries = hold.announced
    while entries and entries[-1][1] <= permits:
        entries.pop()
    entries.append((state.serial, permits))
    now = max(hold.held, entries[0][1])
    if now != hold.counted:
        state.pools[hold.pool].in_use += now - hold.counted
        hold.counted = now
    return grant


def _terms(
    state: SchedulerState, pool: PoolState, route: RouteState, hold: RouteHolding, share: int
) -> tuple[int, str]:
    """Attempts that may be begun under the grant, and the reason why it is less than was asked for."""
    own, allowed = route.breaker, pool.allowed
    if own.state is BreakerState.OPEN:
        return 0, f"{'blocked' if own.blocked else 'the breaker is open'}: {own.why}"
    if own.state is BreakerState.HALF_OPEN:
        return 0, f"{'blocked' if own.blocked else 'the breaker is half open'}, probes are out: {own.why}"
    if hold.blocked and share:
        return 1, f"one call alone, since the account was blocked: {hold.blocked}"
    if share and allowed.held_until_s > state.at_s:
        return 0, PROVIDER_ASKS
    if share >= hold.want:
        return -1, pools.paced_by(pool)
    if state.at_s < state.silent_until_s:
        return -1, "the scheduler was restarted and waits for the claims of other jobs"
    most = pool.bounds.concurrency
    if pool.lent is not None and (not allowed.concurrency or (most or 0) != (pool.lent.caps.concurrency or 0)):
        return -1, f"a share of the account's limits: {pool.lent.tenants} clusters draw on it"
    if most is not None and allowed.concurrency >= most:
        return -1, f"{pool.bounds.who or 'an operator'} capped this pool at {most} calls at once"
    return -1, POOL_LIMITS[pool.granted != share]


def acknowledged(state: SchedulerState, pool: PoolState) -> int:
    """Return the serial that all holders with a pace have confirmed."""
    paced = (
        hold.acknowledged
        for *_, hold in _rows(state, pool)
        if (own := hold.grant) and (own.requests_per_s or own.input_tokens_per_s or own.output_tokens_per_s)
    )
    return min(paced, default=state.serial + 1)


# ------------------------------------------------------------------------------------------- the probes


def _probe(state: SchedulerState, pool: PoolState, route_name: str, out: list[Command], asker: str) -> None:
    """Half open: allow as many probes as are wanted, to jobs with calls to make."""
    route = state.routes[route_name]
    policy, own = state.settings.breaker, route.breaker
    if own.state is not BreakerState.HALF_OPEN or (wanted := breaker.probes_wanted(policy, own, state.at_s)) <= 0:
        return
    from_s = max(state.silent_until_s, state.probes_from_s, pool.allowed.held_until_s)
    if own.blocked:
        from_s = max(from_s, pool.probed_s + policy.blocked_open_s)
    if state.at_s < from_s:
        again(state, pool, from_s)
        return
    wanted = min(wanted, _free(state, pool))
    able = [name for name in route.jobs if route_name in state.jobs[name].probing and state.jobs[name].want > 0]
    able = [name for name in able if not state.jobs[name].expired]
    able.sort(key=lambda name: (state.jobs[name].holds[route_name].probed_s >= own.since_s, -state.jobs[name].want))
    for name in able:
        if wanted <= 0:
            return
        job = state.jobs[name]
        n = min(wanted, job.want)
        wanted -= n
        _let(state, pool, (name, job, route_name, route, job.holds[route_name]), n, out, asker)


def _let(state: SchedulerState, pool: PoolState, row: Row, n: int, out: list[Command], asker: str) -> None:
    _, job, _, route, hold = row
    at_s, settings = state.at_s, state.settings
    deadline_s = at_s + PROBE_S + settings.lease_s + job.call_timeout_s + settings.restart.grace_s
    breaker.probe_out(settings.breaker, route.breaker, at_s, deadline_s, n)
    hold.probes += [deadline_s] * n
    hold.probed_s = at_s
    route.seen_here = True
    if route.breaker.blocked:
        pool.probed_s = at_s
    why = f"{'blocked' if route.breaker.blocked else 'half open'}, {n} to probe: {route.breaker.why}"
    allowed = pool.allowed
    rates = (allowed.requests_per_s, allowed.input_tokens_per_s, allowed.output_tokens_per_s)
    grant = issue(state, row, hold.held + n, n, rates, why)
    state.wake(breaker.due_at_s(route.breaker, at_s))
    if row[0] != asker:
        out.append(grant)


def take_back(state: SchedulerState, row: Row) -> None:
    """Withdraw unused probes at a renewal that follows their confirmation."""
    _, _, route_name, route, hold = row
    grant = hold.grant
    if grant is None or hold.acknowledged < grant.serial:
        return
    if grant.starts > 0 and state.at_s > hold.probed_s + PROBE_S:
        issue(state, row, 0, 0, (0.0, 0.0, 0.0), f"a probe is out: {route.breaker.why}")
    elif grant.starts == 0 and hold.held == 0:
        probes_back(state, route_name, hold)


def probes_back(state: SchedulerState, route_name: str, hold: RouteHolding) -> None:
    """Note that none of this holder's probes is in flight any more, used or not."""
    if hold.probes:
        breaker.probe_back(state.routes[route_name].breaker, state.at_s, hold.probes)
        hold.probes = []
        pools.touch(state, hold.pool)


# ------------------------------------------------------------------------------------------- the answer


def answer(state: SchedulerState, job_name: str, route_name: str, divided: Collection[str]) -> Grant:
    """Return the current grant of a job that asks, with a new lease, after its pools were settled."""
    job, route = state.jobs[job_name], state.routes[route_name]
    hold = job.holds[route_name]
    if hold.pool not in divided or hold.grant is None:
        pool = state.pools[hold.pool]
        share = _quick(state, pool, job_name, job, hold) if pool.late or hold.grant is None else hold.grant.permits
        due(state, pool, (job_name, job, route_name, route, hold), share, True)
    assert hold.grant is not None
    return msgspec.structs.replace(hold.grant, for_s=state.settings.lease_s)


def _quick(state: SchedulerState, pool: PoolState, name: str, job: JobClaims, hold: RouteHolding) -> int:
    """Share of a job in a large pool by the last division, within the permits that are free now."""
    own = job_families.weight(state, name, job) if state.families else job.weight
    fair = hold.want if pool.level == NEVER else max(1, int(pool.level * own))
    share = min(hold.want, fair)
    if share > hold.counted:
        more = [min(share - hold.counted, _free(state, pool))]
        if state.families:
            job_families.hold_back(state, (name,), more)
        share = hold.counted + more[0]
    hold.share = share
    return share
