"""Metric samples of the scheduler's state, which holds no content of prompts or replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from actors.observability.metrics.instruments import NODE, POOL, ROLE, STATE, SUBJECT, SUBJECT_KIND
from actors.observability.metrics.samples import Labels, NumberSample
from cortex.scheduler.state import RouteState, SchedulerState
from policies.failures.breaker import Breaker, BreakerState

_ROLES: Final = ("branch", "channel", "worker")
_LEVEL: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


def of_cluster(state: SchedulerState) -> Iterator[NumberSample]:
    """Yield the cluster's counters and gauges: a number of series in proportion to its pools, routes, tools and
    nodes."""
    yield NumberSample("cortex.jobs", (), len(state.jobs))
    yield NumberSample("cortex.channels.orphaned", (), sum(job.expired or job.dead for job in state.jobs.values()))
    for name, pool in state.pools.items():
        own = ((POOL, name),)
        yield NumberSample("cortex.pool.limit", own, pool.allowed.concurrency)
        yield NumberSample("cortex.pool.in_flight", own, pool.in_flight)
        yield NumberSample("cortex.pool.granted", own, pool.granted)
        yield NumberSample("cortex.pool.wanted", own, pool.wanted)
    for kind, subjects in (("route", state.routes), ("tool", state.tools), ("node", state.nodes)):
        for name, subject in subjects.items():
            used = not isinstance(subject, RouteState) or bool(subject.jobs)
            yield from _of_breaker(((SUBJECT, name), (SUBJECT_KIND, kind)), subject.breaker, used)
    for name, route in state.routes.items():
        subject_of = ((SUBJECT, name), (SUBJECT_KIND, "route"))
        yield NumberSample("cortex.breaker.given_back", subject_of, route.given_back)
        if route.jobs:
            yield NumberSample("cortex.breaker.blocked", subject_of, int(route.breaker.blocked))
    for name, counts in (("cortex.restarts", state.restarts), ("cortex.kills", state.kills)):
        for role in dict.fromkeys((*_ROLES, *counts)):  # from 0 on, so that the first rise is seen
            yield NumberSample(name, ((ROLE, role),), counts.get(role, 0))
    for (role, phase), count in Counter((one.role, one.state) for one in state.members.values()).items():
        yield NumberSample("cortex.members", ((ROLE, role), (STATE, phase)), count)
    nodes = Counter("drained" if node.drained else "up" if node.alive else "down" for node in state.nodes.values())
    if state.lost:
        nodes["lost"] = len(state.lost)
    for phase, count in nodes.items():
        yield NumberSample("cortex.nodes", ((STATE, phase),), count)
    for host, at_s in {lost.host: lost.now_s for lost in state.lost.values()}.items():
        yield NumberSample("cortex.node.lost.timestamp", ((NODE, host),), at_s)


def _of_breaker(own: Labels, breaker: Breaker, used: bool) -> Iterator[NumberSample]:
    """Yield the samples of a breaker. One that no job has ``used`` any more, such as that of a key that was replaced,
    is never probed and stays as it is: its state says nothing."""
    if used:
        yield NumberSample("cortex.breaker.state", own, _LEVEL[breaker.state])
    yield NumberSample("cortex.breaker.opened", own, breaker.opened)
    yield NumberSample("cortex.probes", own, breaker.probed)
