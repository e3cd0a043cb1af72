"""How many branches and workers are there to be, and where."""

from __future__ import annotations

import math

from cortex import health, staff
from cortex.cluster import Cluster, Member
from cortex.health import Buffer
from cortex.orders import Command, Retire, Staffed, Start
from policies import breaker
from policies.breaker import BreakerState
from policies.failure import FailureKind

ENDED_FEW = 20
"""Of fewer attempts a share says nothing; as the breakers' `volume_min`."""
WORSE = 3.0
"""A node is avoided whose failures, or seconds a token, are so many times those of all nodes."""
_OF_A_NODE = frozenset({FailureKind.TRANSIENT.value, FailureKind.TIMED_OUT.value})


def wanted(state: Cluster) -> tuple[int, int]:
    """Branches and workers for what is granted and waits now, as far as there is room for them."""
    own = state.settings
    branches, workers = room(state)
    return min(branches, own.branches_max), min(workers, own.workers_max)


def room(state: Cluster) -> tuple[int, int]:
    """For how many branches and workers there would be work: what a cluster that can grow is asked for."""
    if not state.jobs:
        return 0, 0
    own = state.settings
    granted = sum(pool.granted for pool in state.pools.values())
    branches = max(granted / own.calls_per_branch, state.calls_per_s / own.calls_per_s_per_branch)
    runs = sum(job.runs for job in state.jobs.values())
    return max(math.ceil(branches), own.branches_min), math.ceil(runs / own.runs_per_worker)


def settle(state: Cluster, out: list[Command]) -> None:
    """Start, drain and retire until it is as wanted; tell who takes work, where that changed."""
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
    branches, workers = _up(state, "branch"), _up(state, "worker")
    if (branches, workers) != (state.branches, state.workers):
        state.branches, state.workers = branches, workers
        out.append(Staffed(branches, workers))


def _up(state: Cluster, role: str) -> tuple[str, ...]:
    up = [(one.slot, name) for name, one in state.members.items() if one.role == role and one.state == "up"]
    return tuple(name for _, name in sorted(up))


def _by_role(state: Cluster, role: str, n: int, out: list[Command]) -> None:
    there = [(name, one) for name, one in state.members.items() if one.role == role and one.state in staff.COUNTED]
    if len(there) <= n:
        state.fewer_s.pop(role, None)
    for _ in range(n - len(there)):
        slot = next(slot for slot in range(len(state.members) + 1) if f"{role}:{slot}" not in state.members)
        staff.member(state, f"{role}:{slot}").start_s = state.at_s
    if len(there) <= n:
        return
    unborn = [name for name, one in there if one.state == "wanted"]
    for name in unborn[: len(there) - n]:
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


def _start(state: Cluster, out: list[Command]) -> None:
    due = []
    for name, one in state.members.items():
        if one.state == "wanted":
            if state.at_s < one.start_s:
                state.wake(one.start_s)
            else:
                due.append((name, one))
    if not due:
        return  # which nodes are worse than others is looked up only where one is to be chosen
    avoid, probe = _avoided(state)
    for name, one in due:
        shunned = avoid if probe is None else [*avoid, probe]
        if state.nodes and len(shunned) >= len(state.nodes):
            if probe is None or len(avoid) >= len(state.nodes):
                return  # no node may take it; those that are out are looked at when their breakers are due
            _reserve(state, one, probe)
            shunned, avoid, probe = avoid, [*avoid, probe], None
        one.state, one.since_s = "starting", state.at_s
        if one.past[0]:
            state.restarts[one.role] = state.restarts.get(one.role, 0) + 1
        out.append(Start(one.role, name, tuple(sorted(shunned))))


def _reserve(state: Cluster, one: Member, node: str) -> None:
    """This one start shows whether a half open node is well."""
    one.probe = node
    own, policy = state.nodes[node].breaker, state.settings.node
    breaker.probe_out(policy, own, state.at_s, state.at_s + policy.window_s)
    state.wake(breaker.due_at_s(own, state.at_s))


def _avoided(state: Cluster) -> tuple[list[str], str | None]:
    """Nodes that take nothing, and a half open one that may take one."""
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
    worse = [name for name in _worse(state) if name not in avoid and name != probe]
    if len(avoid) + len(worse) + (probe is not None) < len(state.nodes):
        avoid += worse
    return avoid, probe


def _worse(state: Cluster) -> list[str]:
    """Nodes whose calls fail or crawl far more than those of most others."""
    if len(state.nodes) < 2:
        return []
    at_s = state.at_s
    shares = {name: _failing(place.seen, at_s) for name, place in state.nodes.items()}
    usual = sorted(shares.values())[len(shares) // 2 - 1]
    worse = {name for name, share in shares.items() if share >= max(0.5, WORSE * usual)}
    for part in (0.5, 0.95):  # slow always, or now and then
        paces = {name: health.per_token_s(place.seen, at_s, part) for name, place in state.nodes.items()}
        pace = sorted(paces.values())[(len(paces) - 1) // 2]
        worse |= {name for name, own in paces.items() if 0 < WORSE * pace < own}
    return [name for name in state.nodes if name in worse]


def _failing(seen: Buffer, at_s: float) -> float:
    rates = health.rates(seen, at_s, health.AGE_MAX_S)
    few = (rates.answered + rates.failed) * health.AGE_MAX_S < ENDED_FEW - 0.5
    return 0.0 if few else health.failure_share(seen, at_s, _OF_A_NODE)


def _retire(state: Cluster, out: list[Command]) -> None:
    for name, one in state.members.items():
        if one.state == "draining" and not staff.busy(one):
            due_s = one.empty_s + staff.EMPTY_S
            if state.at_s >= due_s:
                one.state, one.since_s = "retiring", state.at_s
                out.append(Retire(name))
                staff.look(state, state.at_s + state.settings.restart.stale_s)
            else:
                state.wake(due_s)


def rate(state: Cluster) -> None:
    """What all routes together begin in a second, for how many branches are wanted."""
    state.resize = True
    state.calls_per_s = sum(health.rates(route.seen, state.at_s).begun for route in state.routes.values())


