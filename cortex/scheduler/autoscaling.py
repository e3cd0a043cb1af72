"""Autoscaling: number and placement of branches and workers."""

from __future__ import annotations

import math
from itertools import count, islice

from cortex.scheduler import health, supervision
from cortex.scheduler.health import HealthBuffer
from cortex.scheduler.protocol import Command, MembersChanged, StartMember
from cortex.scheduler.state import Member, SchedulerState
from policies.failures import breaker
from policies.failures.breaker import BreakerState
from policies.failures.failure import FailureKind

ENDED_FEW = 20
"""Attempts below which no failure share is computed, equal to the breakers' `volume_min`."""
WORSE = 3.0
"""Factor over all nodes by which a node's failures, or its seconds per token, must exceed theirs for it to be
avoided."""
FEW = 64
"""Number of members or nodes up to which each change is sent, and each choice considers all nodes, at once."""
ANNOUNCE_S = 1.0
"""Shortest interval between two updates of the member lists, in seconds, with more than `FEW` members."""
ANNOUNCE_PACE_S = 5e-3
"""Seconds per job between two updates of the member lists, with more than `FEW` members."""
WORSE_PACE_S = 1e-3
"""Seconds per node between two comparisons of more than `FEW` nodes: a tenth of the time at most, as a comparison takes
a tenth of a millisecond per node. If many members die at once, each start requests a comparison."""
_OF_A_NODE = frozenset({FailureKind.TRANSIENT.value, FailureKind.TIMED_OUT.value})


def wanted(state: SchedulerState) -> tuple[int, int]:
    """Return the numbers of branches and workers for the current grants and tool runs, within the maximums."""
    own = state.settings
    branches, workers = room(state)
    return min(branches, own.branches_max), min(workers, own.workers_max)


def room(state: SchedulerState) -> tuple[int, int]:
    """Return the numbers of branches and workers that would have work: the request to a cluster that can grow."""
    if not state.jobs:
        return 0, 0
    own = state.settings
    granted = sum(pool.granted for pool in state.pools.values())
    branches = max(granted / own.calls_per_branch, state.calls_per_s / own.calls_per_s_per_branch)
    runs = sum(job.runs for job in state.jobs.values())
    return max(math.ceil(branches), own.branches_min), math.ceil(runs / own.runs_per_worker)


def settle(state: SchedulerState, out: list[Command]) -> None:
    """Start, drain and retire members until their number is as wanted; send the lists of members if they changed."""
    now, state.resize = wanted(state), False
    if not state.restaff and now == state.wanted:
        return
    state.wanted, state.restaff = now, False
    _by_role(state, "branch", now[0], out)
    _by_role(state, "worker", now[1], out)
    if state.at_s < state.found_s:
        state.wake(state.found_s)
    else:
        _start(state, out)
    _retire(state, out)
    _announce_members(state, out)


def _announce_members(state: SchedulerState, out: list[Command]) -> None:
    """Send the member lists. Every job gets all names: sent for each of a thousand new members, that would be a million
    names.
    """
    branches, workers = up(state, "branch"), up(state, "worker")
    if (branches, workers) == (state.branches, state.workers):
        return
    if len(branches) + len(workers) > FEW and state.branches:
        next_s = state.announced_s + max(ANNOUNCE_S, ANNOUNCE_PACE_S * len(state.jobs))
        if state.at_s < next_s:
            state.wake(next_s)
            return
    state.branches, state.workers, state.announced_s = branches, workers, state.at_s
    out.append(MembersChanged(branches, workers))


def up(state: SchedulerState, role: str) -> tuple[str, ...]:
    """Return the members of a role that take work, by slot."""
    up = [(one.slot, name) for name, one in state.members.items() if one.role == role and one.state == "up"]
    return tuple(name for _, name in sorted(up))


def _by_role(state: SchedulerState, role: str, n: int, out: list[Command]) -> None:
    counted = supervision.COUNTED
    there = [(name, one) for name, one in state.members.items() if one.role == role and one.state in counted]
    if len(there) <= n:
        state.fewer_s.pop(role, None)
    free = (name for slot in count() if (name := f"{role}:{slot}") not in state.members)
    for name in islice(free, max(0, n - len(there))):
        supervision.member(state, name).start_s = state.at_s
    if len(there) <= n:
        return
    unborn = [name for name, one in there if one.state == "wanted"]
    for name in unborn[: len(there) - n]:
        if state.members[name].past[0] or state.members[name].stillborn:
            supervision.retire(state, name, out)
        else:
            del state.members[name]
    extra = len(there) - len(unborn[: len(there) - n]) - n
    if extra <= 0:
        return
    since_s = state.fewer_s.setdefault(role, state.at_s)
    due_s = since_s + state.settings.fewer_after_s
    if state.at_s < due_s:
        state.wake(due_s)
        return
    up = [(name, one) for name, one in there if one.state == "up"]
    up.sort(key=lambda pair: (-health.failure_share(pair[1].seen, state.at_s, _OF_A_NODE), -pair[1].slot))
    for _, one in up[:extra]:
        one.state, one.since_s, one.empty_s = "draining", state.at_s, state.at_s
    state.fewer_s.pop(role, None)


def _start(state: SchedulerState, out: list[Command]) -> None:
    due = []
    for name, one in state.members.items():
        if one.state == "wanted":
            if state.at_s < one.start_s:
                state.wake(one.start_s)
            else:
                due.append((name, one))
    if not due:
        return  # nodes are compared only when one must be chosen
    avoid, probe = _avoided(state)
    for name, one in due:
        shunned = avoid if probe is None else [*avoid, probe]
        if state.nodes and len(shunned) >= len(state.nodes):
            if probe is None or len(avoid) >= len(state.nodes):
                return  # no node may take it; avoided nodes are reconsidered when their breakers are due
            _reserve(state, one, probe)
            shunned, avoid, probe = avoid, [*avoid, probe], None
        one.state, one.since_s = "starting", state.at_s
        if one.past[0]:
            state.restarts[one.role] = state.restarts.get(one.role, 0) + 1
        out.append(StartMember(one.role, name, tuple(sorted(shunned))))


def _reserve(state: SchedulerState, one: Member, node: str) -> None:
    """Use this start as the probe of a half-open node."""
    one.probe = node
    own, policy = state.nodes[node].breaker, state.settings.node
    one.probe_until_s = state.at_s + policy.window_s
    breaker.probe_out(policy, own, state.at_s, one.probe_until_s)
    state.wake(breaker.due_at_s(own, state.at_s))


def _avoided(state: SchedulerState) -> tuple[list[str], str | None]:
    """Nodes that take no member, and a half-open node that may take one."""
    at_s = state.at_s
    avoid: list[str] = []
    probe = None
    for name, place in state.nodes.items():
        own = place.breaker
        if place.drained or own.state is BreakerState.OPEN:
            avoid.append(name)
        elif own.state is BreakerState.HALF_OPEN:
            if probe is None and breaker.probes_wanted(state.settings.node, own, at_s) > 0:
                probe = name
            else:
                avoid.append(name)
    out = {*avoid, probe}
    worse = [name for name in _worse(state) if name not in out]
    if len(avoid) + len(worse) + (probe is not None) < len(state.nodes):
        avoid += worse
    return avoid, probe


def _worse(state: SchedulerState) -> tuple[str, ...]:
    """Nodes that are worse than others; with many nodes, by a recent comparison."""
    nodes = len(state.nodes)
    if nodes <= FEW or state.at_s >= state.worse_s + nodes * WORSE_PACE_S:
        state.worse, state.worse_s = worse(state), state.at_s
    return tuple(name for name in state.worse if name in state.nodes)


def worse(state: SchedulerState) -> tuple[str, ...]:
    """Return the nodes whose calls fail, or are slow, far more often than those of most other nodes."""
    if len(state.nodes) < 2:
        return ()
    at_s = state.at_s
    shares = {name: _failing(place.seen, at_s) for name, place in state.nodes.items()}
    usual = sorted(shares.values())[len(shares) // 2 - 1]
    found = {name for name, share in shares.items() if share >= max(0.5, WORSE * usual)}
    for part in (0.5, 0.95):  # always slow, or occasionally slow
        paces = {name: health.per_token_s(place.seen, at_s, part) for name, place in state.nodes.items()}
        pace = sorted(paces.values())[(len(paces) - 1) // 2]
        found |= {name for name, own in paces.items() if 0 < WORSE * pace < own}
    return tuple(name for name in state.nodes if name in found)


def _failing(seen: HealthBuffer, at_s: float) -> float:
    rates = health.rates(seen, at_s, health.AGE_MAX_S)
    few = (rates.answered + rates.failed) * health.AGE_MAX_S < ENDED_FEW - 0.5
    return 0.0 if few else health.failure_share(seen, at_s, _OF_A_NODE)


def _retire(state: SchedulerState, out: list[Command]) -> None:
    for name, one in state.members.items():
        if one.state == "draining" and not supervision.busy(one):
            due_s = one.empty_s + supervision.EMPTY_S
            if state.at_s >= due_s:
                supervision.retire(state, name, out)
            else:
                state.wake(due_s)


def rate(state: SchedulerState) -> None:
    """Update the calls per second over all routes, which determine the number of branches."""
    state.resize = True
    state.calls_per_s = sum(health.rates(route.seen, state.at_s).begun for route in state.routes.values())
