"""Step of the scheduler: calls in flight of each job, health of routes and nodes, start and end of branches and
workers.

    step : (state, event) -> commands

The same events give the same commands: time is in the events, and randomness is a fixed sequence of numbers in the
state. What time alone changes is due at ``state.due_s``; without a job nothing is due.

A *pool* is the unit in which a provider limits calls: endpoint, credential, model class. Its limit is one number for
the whole cluster, leased to jobs in fair shares, weighted by priority (``leases``). A *route* is endpoint, credential
and model; while its breaker is open nothing is leased on it, and its jobs' shares move to the first healthy of their
fallbacks (``pools``). Branches and workers follow demand, and are replaced when they die (``autoscaling``,
``supervision``).
"""

from __future__ import annotations

import msgspec

from cortex.scheduler import autoscaling, claims, health, job_families, leases, pools, supervision, tool_admission
from cortex.scheduler.protocol import (
    AccountShared,
    AdmitToolRun,
    AllRejoined,
    BreakerMoved,
    ChannelJoined,
    Command,
    DrainMember,
    Event,
    JobLeft,
    KillMember,
    MemberDied,
    MemberReported,
    MembersChanged,
    MemberStarted,
    NodesChanged,
    PingAnswered,
    PingMember,
    PingUnanswered,
    PoolCapped,
    PoolForgotten,
    RetireMember,
    SchedulerStarted,
    StartMember,
    StopJob,
    TimePassed,
    ToolRunRequested,
    ToolRunReturned,
)
from cortex.scheduler.reports import Grant, ProgressReport, ReportAnswer
from cortex.scheduler.state import LEASE_S, NEVER, SchedulerSettings, SchedulerState
from policies.limits.limit import NO_CAPS
from policies.limits.tenancy import NOTHING

__all__ = [
    "LEASE_S",
    "AccountShared",
    "AdmitToolRun",
    "AllRejoined",
    "BreakerMoved",
    "ChannelJoined",
    "Command",
    "DrainMember",
    "Event",
    "Grant",
    "JobLeft",
    "KillMember",
    "MemberDied",
    "MemberReported",
    "MemberStarted",
    "MembersChanged",
    "NodesChanged",
    "PingAnswered",
    "PingMember",
    "PingUnanswered",
    "PoolCapped",
    "PoolForgotten",
    "RetireMember",
    "SchedulerSettings",
    "SchedulerStarted",
    "SchedulerState",
    "StartMember",
    "StopJob",
    "TimePassed",
    "ToolRunRequested",
    "ToolRunReturned",
    "report_after_s",
    "report_answer",
    "step",
]


UNCONFIRMED_S = 120.0
"""Seconds after a restart and a silent lease time for which the calls of a silent channel may still be in flight."""
SOON_S = 0.04
"""Seconds between two reports about a pool whose limit has just grown: a few rounds of quick answers."""


def step(state: SchedulerState, event: Event) -> list[Command]:
    """Take one event, and return the commands. A job that joins always gets its grants, last; others only if theirs
    changed.

    Raises ValueError, in one line, for an invalid event; the state is then unchanged.
    """
    _check(state, event)
    out: list[Command] = []
    state.at_s = max(state.at_s, event.at_s)
    if state.at_s >= state.due_s:
        _passed(state, out)
    if isinstance(event, MemberReported):
        _reported(state, event.report, out)
    elif isinstance(event, ChannelJoined):
        claims.joined(state, event.claims, out)
    elif isinstance(event, ToolRunRequested):
        out.append(tool_admission.asked(state, event))
    elif not isinstance(event, TimePassed):
        _rare(state, event, out)
    if state.stale:
        leases.settle(state, out)
    if state.resize or state.restaff:
        autoscaling.settle(state, out)
    return out


def _check(state: SchedulerState, event: Event) -> None:
    """Raise ValueError, in one line, for an invalid event."""
    if isinstance(event, TimePassed):
        pass
    elif isinstance(event, MemberReported):
        _check_role(event.report.subject)
    elif isinstance(event, ChannelJoined):
        claims.check(event.claims)
    elif isinstance(event, MemberStarted):
        _check_role(event.subject)
    elif isinstance(event, PoolCapped):
        if event.pool not in state.routes and event.pool not in state.pools and event.pool.count("|") < 2:
            raise ValueError(f"there is no pool or route called {event.pool}")
    elif isinstance(event, PoolForgotten):
        if event.pool not in state.routes and event.pool not in state.pools:
            raise ValueError(f"there is no pool or route called {event.pool}")
    elif isinstance(event, DrainMember) and event.subject not in state.nodes and event.subject not in state.members:
        raise ValueError(f"there is no node, branch or worker called {event.subject}")


def _check_role(name: str) -> None:
    if not name.startswith(("branch:", "worker:")):
        raise ValueError(f"{name} is neither a branch nor a worker")


def report_after_s(state: SchedulerState, report: ProgressReport | None = None) -> float:
    """Return the seconds until a branch or worker should report again: some hundred reports a second in total at most.

    Sooner for a pool in slow start: a report doubles its limit at most once, however many rounds of answers are in it.
    """
    own = state.settings
    after_s = own.report_s
    for signals in report.routes if report is not None else ():
        route = state.routes.get(signals.route)
        if route is not None and state.at_s - state.pools[route.pool].grew_s < own.report_s:
            after_s = min(after_s, SOON_S)
    return max(after_s, len(state.members) / own.reports_per_s)


def report_answer(state: SchedulerState, report: ProgressReport) -> ReportAnswer:
    """Return the answer to a report that was just taken in."""
    return ReportAnswer(report_after_s(state, report), state.cortex, pools.standings(state))


def _reported(state: SchedulerState, report: ProgressReport, out: list[Command]) -> None:
    if not supervision.reported(state, report, out):
        return
    node = state.nodes.get(report.node)
    one = state.members.get(report.subject)
    at_s = state.at_s
    for signals in report.routes:
        pools.record_signals(state, signals, out)
        if signals.answered or signals.failed:
            if one is not None:
                health.record(one.seen, at_s, 0, signals.answered, signals.failed)
            if node is not None:
                health.record(node.seen, at_s, 0, signals.answered, signals.failed, samples=signals.samples)
    for tool in report.tools:
        tool_admission.record_signals(state, tool, out)


def _rare(state: SchedulerState, event: Event, out: list[Command]) -> None:
    if isinstance(event, SchedulerStarted):
        _started(state, event)
    elif isinstance(event, AllRejoined):
        _recovery_completed(state)
    elif isinstance(event, JobLeft):
        for name in job_families.spoken_by(state, event.job):
            claims.ended(state, name, event.epoch)
    elif isinstance(event, MemberStarted):
        supervision.begun(state, event.subject, event.node, event.incarnation)
    elif isinstance(event, PingAnswered | PingUnanswered):
        supervision.answered(state, event.subject, isinstance(event, PingAnswered))
    elif isinstance(event, MemberDied):
        role, _, name = event.subject.partition(":")
        if role != "channel":
            supervision.died(state, event, out)
        elif event.gone:
            for member in job_families.spoken_by(state, name):
                claims.died(state, member, out)
                state.jobs[member].dead = True
    elif isinstance(event, ToolRunReturned):
        tool_admission.returned(state, event)
    elif isinstance(event, PoolCapped):
        _capped(state, event)
    elif isinstance(event, PoolForgotten):
        route = state.routes.get(event.pool)
        pools.forget(state, route.pool if route is not None else event.pool)
    elif isinstance(event, AccountShared):
        _shared(state, event)
    elif isinstance(event, DrainMember):
        supervision.drain(state, event.who, event.subject)
    elif isinstance(event, NodesChanged):
        supervision.nodes(state, event, out)


def _started(state: SchedulerState, event: SchedulerStarted) -> None:
    state.cortex = event.cortex
    state.seed(event.cortex)
    state.again = event.again
    if not event.again:
        return
    at_s, own = state.at_s, state.settings
    state.silent_until_s = state.adopting_until_s = at_s + own.lease_s
    state.probes_from_s = state.silent_until_s + UNCONFIRMED_S
    state.found_s = at_s + supervision.LISTING_S
    state.wake(state.silent_until_s)


def _recovery_completed(state: SchedulerState) -> None:
    """All channels have reported what they hold: nothing is unknown any more."""
    state.silent_until_s = state.probes_from_s = state.at_s
    for name in state.pools:
        pools.touch(state, name)


def _capped(state: SchedulerState, event: PoolCapped) -> None:
    """Set an operator's caps on a pool; every holder receives them, and keeps them for a restarted scheduler."""
    route = state.routes.get(event.pool)
    name = route.pool if route is not None else event.pool
    caps = event.caps
    if caps != NO_CAPS:
        caps = msgspec.structs.replace(caps, who=event.who or caps.who or "an operator", at_s=caps.at_s or event.at_s)
    pool = pools.pool_of(state, name)
    pool.caps, pool.capped, pool.announced = caps, True, False
    pools.touch(state, name)


def _shared(state: SchedulerState, event: AccountShared) -> None:
    if event.pool:
        pools.shared(state, event.pool, event.share, event.until_s)
        return
    state.shared = True
    for name, pool in state.pools.items():
        if pool.lent is None:
            pools.shared(state, name, NOTHING, NEVER)


def _passed(state: SchedulerState, out: list[Command]) -> None:
    """Apply what time alone changes, and compute when it will change something next."""
    state.due_s = NEVER
    at_s = state.at_s
    claims.passed(state)
    for name in state.routes:
        pools.passed(state, name, out)
    tool_admission.passed(state, out)
    for name, pool in state.pools.items():
        if pool.again_s <= at_s:
            pool.again_s = NEVER
        state.wake(pool.again_s)
        if pool.lent_until_s > at_s:
            state.wake(pool.lent_until_s)
        if pool.holders:
            pools.touch(state, name)
    for job in state.jobs.values():
        if job.peers:
            pools.send(state, job)
    for moment_s in (state.silent_until_s, state.probes_from_s):
        if moment_s > at_s:
            state.wake(moment_s)
    autoscaling.rate(state)
    supervision.passed(state, out)
