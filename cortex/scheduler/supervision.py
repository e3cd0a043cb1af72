"""Supervision of branches and workers: reports, pings, kills, deaths and drains.

A silent member is asked, and killed only if it does not answer, if the path is not delayed, and one at a time. A death
without progress counts against the member's node. The number of members follows demand: more at once, fewer after a
while, none without a job.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import msgspec

from cortex.scheduler import health, lost_nodes, pools
from cortex.scheduler.protocol import (
    BreakerMoved,
    Command,
    KillMember,
    MemberDied,
    NodesChanged,
    PingMember,
    RetireMember,
)
from cortex.scheduler.reports import ProgressReport
from cortex.scheduler.state import NEVER, LostNode, Member, NodeState, SchedulerState
from policies.failures import breaker, restart

CHECK_S: Final = 1.0
"""Seconds between two checks of members with work."""
IDLE_CHECK_S: Final = 30.0
"""Seconds between two pings of a member without work, while there is a job: it may hang, and would get work."""
STILLBORN: Final = 3
"""Consecutive starts without life after which a member may hang and is killed; if no process has its name, the kill is
a new start."""
KILLED_S: Final = 10.0
"""Seconds after which a kill that was not confirmed is ordered again."""
EMPTY_S: Final = 2.0
"""Seconds without work after which a draining member is retired: calls on their way to it have arrived by then."""
LISTING_S: Final = 2.0
"""Seconds after a restart before anything is started: live members are reported first."""

_WORKING: Final = ("up", "draining")
_WATCHED: Final = (*_WORKING, "retiring")
COUNTED: Final = ("wanted", "starting", "up", "killed")


def member(state: SchedulerState, name: str) -> Member:
    """Return the branch or worker of this name, creating its record if it is new."""
    found = state.members.get(name)
    if found is None:
        role, _, slot = name.partition(":")
        found = state.members[name] = Member(role, int(slot) if slot.isdigit() else 0, since_s=state.at_s)
    return found


def node_of(state: SchedulerState, name: str) -> NodeState | None:
    """Return the node of this name; None if the runtime does not name nodes."""
    if not name:
        return None
    return state.nodes.setdefault(name, NodeState())


def begun(state: SchedulerState, name: str, node: str, incarnation: str) -> None:
    """Note that a member is alive."""
    one = member(state, name)
    if one.state in ("wanted", "starting"):
        one.state, one.since_s = "up", state.at_s
    one.stillborn = 0
    if one.probe and one.probe != node:
        _unprobe(state, one)
    one.node, one.unconfirmed = node, False
    one.incarnation = incarnation or one.incarnation
    health.record_life(one.seen, state.at_s, one.seen.done)
    place = node_of(state, node)
    if place is not None and place.drained and one.state == "up":
        one.state, one.since_s = "draining", state.at_s
    state.restaff = True
    look(state, state.at_s + (CHECK_S if busy(one) else IDLE_CHECK_S))


def busy(one: Member) -> bool:
    """Return True if the member has work, so that it would report."""
    return one.in_flight > 0 or one.queued > 0 or one.phase not in ("", "idle")


def look(state: SchedulerState, at_s: float) -> None:
    """Check all members at this time at the latest."""
    if at_s < state.check_s:
        state.check_s = at_s
        state.wake(at_s)


# ------------------------------------------------------------------------------------------- reports


def reported(state: SchedulerState, report: ProgressReport, out: list[Command]) -> bool:
    """Take in a member's report; return True if its counts are new."""
    at_s, name = state.at_s, report.subject
    if name not in state.members and state.ended.get(name, ("", 0))[0] == report.incarnation:
        new = report.number > state.ended[name][1]
        state.ended[name] = (report.incarnation, max(report.number, state.ended[name][1]))
        return new
    one = member(state, name)
    if one.incarnation and report.incarnation != one.incarnation and one.state != "starting":
        if report.incarnation == one.past[0]:  # late report of an earlier incarnation
            new = report.number > one.past[1]
            one.past = (one.past[0], max(one.past[1], report.number))
            return new
        _end(state, one)
        if one.state == "killed":
            one.state = "wanted"
    if one.state in ("wanted", "starting") or report.incarnation != one.incarnation or report.node != one.node:
        one.incarnation = report.incarnation
        begun(state, name, report.node, report.incarnation)
    fresh = report.number > one.number
    if not fresh:
        health.record_life(one.seen, at_s, one.seen.done)
        return False
    was_busy = busy(one)
    one.number, one.phase, one.in_flight, one.queued = report.number, report.phase, report.in_flight, report.queued
    one.overdue_s = report.overdue_s
    one.unconfirmed = False
    health.record_life(one.seen, at_s, report.done)
    _flights(state, one, report)
    if one.probe and health.stalled_s(one.seen, at_s) == 0.0 and report.done:
        _node_answered(state, one, True, out)
    if busy(one):
        look(state, at_s + CHECK_S)
    elif one.state == "draining" and (was_busy or fresh):
        one.empty_s = at_s
        state.wake(at_s + EMPTY_S)
        state.restaff = True
    return True


def _flights(state: SchedulerState, one: Member, report: ProgressReport) -> None:
    now: dict[str, int] = {}
    for signals in report.routes:
        if signals.in_flight:
            pool = pools.known(state, signals.route, signals.pool).pool
            now[pool] = now.get(pool, 0) + signals.in_flight
    if now != one.flights:
        for pool, n in one.flights.items():
            if pool in state.pools:
                state.pools[pool].in_flight -= n
        one.flights = now
        for pool, n in one.flights.items():
            state.pools[pool].in_flight += n


def _end(state: SchedulerState, one: Member) -> None:
    """End this incarnation of a member."""
    if one.incarnation:
        one.past = (one.incarnation, one.number)
    one.incarnation, one.number, one.phase = "", 0, ""
    one.in_flight = one.queued = 0
    one.overdue_s, one.unconfirmed, one.pinged_s = 0.0, False, -NEVER
    for pool, n in one.flights.items():
        if pool in state.pools:
            state.pools[pool].in_flight -= n
    one.flights = {}


# ------------------------------------------------------------------------------------------- the ladder


def answered(state: SchedulerState, name: str, there: bool) -> None:
    """Note that a pinged member answered, or did not."""
    one = state.members.get(name)
    if one is not None:
        one.unconfirmed = not there
        if there:
            health.record_life(one.seen, state.at_s, one.seen.done)
        look(state, state.at_s + (CHECK_S if busy(one) or one.unconfirmed else IDLE_CHECK_S))


def check(state: SchedulerState, out: list[Command]) -> None:
    """Ping silent members, and kill members that do not answer or did not stop when asked."""
    at_s, policy = state.at_s, state.settings.restart
    lag_s, state.check_s = at_s - state.check_s, NEVER
    if lag_s > policy.lag_max_s:
        state.deaf_until_s = at_s + policy.stale_s
        for one in state.members.values():
            one.unconfirmed = False
    silent, known = _silent(state)
    kills = policy.kills_per_tick
    for name, one in state.members.items():
        if one.state == "killed":
            if at_s >= one.since_s + KILLED_S:
                one.since_s = at_s
                out.append(KillMember(name, "it was killed, and its end is not confirmed"))
            look(state, one.since_s + KILLED_S)
        if one.state == "starting" and one.stillborn >= STILLBORN:
            if kills > 0:
                kills -= 1
                one.state, one.since_s, one.stillborn = "killed", at_s, 0
                _kill(state, name, "it does not start", out)
            look(state, at_s + (KILLED_S if one.state == "killed" else CHECK_S))
        if one.state not in _WATCHED:
            continue
        silent_s = min(health.silent_s(one.seen, at_s), at_s - one.since_s)
        if not busy(one) and one.state != "retiring":  # a retiring member may hang, and not even begin to end
            _ask_idle(state, name, one, silent_s, out)
            if not one.unconfirmed:
                continue
        look(state, at_s + CHECK_S)
        delayed = _delayed(state, one, silent, known, lag_s, silent_s)
        step = restart.rung(policy, silent_s, one.overdue_s, one.unconfirmed, delayed, kills)
        if step is restart.EscalationStep.KILL:
            kills -= 1
            stuck = silent_s < policy.stale_s
            why = f"a call is {one.overdue_s:.0f} s overdue" if stuck else f"silent for {silent_s:.0f} s, no answer"
            one.state, one.since_s = "killed" if one.state == "up" else "retiring", at_s
            state.restaff = True
            _kill(state, name, why, out)
            look(state, at_s + KILLED_S)
        elif step is restart.EscalationStep.ASK:
            _ask(state, name, one, out)


def _kill(state: SchedulerState, name: str, why: str, out: list[Command]) -> None:
    role = state.members[name].role
    state.kills[role] = state.kills.get(role, 0) + 1
    out.append(KillMember(name, why))


def _ask(state: SchedulerState, name: str, one: Member, out: list[Command]) -> None:
    if state.at_s >= one.pinged_s + state.settings.restart.grace_s:
        one.pinged_s = state.at_s
        out.append(PingMember(name))


def _ask_idle(state: SchedulerState, name: str, one: Member, silent_s: float, out: list[Command]) -> None:
    if not state.jobs:
        return
    if silent_s >= IDLE_CHECK_S:
        _ask(state, name, one, out)
    look(state, state.at_s + max(CHECK_S, min(IDLE_CHECK_S, IDLE_CHECK_S - silent_s)))


def _silent(state: SchedulerState) -> tuple[dict[str, tuple[int, int]], bool]:
    """Count silent members of those that should report, by node and under "*" for all; and whether any was heard."""
    at_s, stale_s = state.at_s, state.settings.restart.stale_s
    counts: dict[str, tuple[int, int]] = {}
    known = False
    subjects = [
        (one.node, min(health.silent_s(one.seen, at_s), at_s - one.since_s))
        for one in state.members.values()
        if one.state in _WORKING and (busy(one) or one.unconfirmed)
    ]
    subjects += [("", health.silent_s(job.seen, at_s)) for job in state.jobs.values()]
    for node, silent_s in subjects:
        silent = silent_s >= stale_s
        known = known or not silent
        for key in {node, "*"} - {""}:
            was = counts.get(key, (0, 0))
            counts[key] = (was[0] + silent, was[1] + 1)
    return counts, known


def _delayed(
    state: SchedulerState, one: Member, silent: dict[str, tuple[int, int]], known: bool, lag_s: float, silent_s: float
) -> bool:
    """True if the path, or the scheduler itself, is the cause of the silence. Not forever, while other members are
    heard.
    """
    if state.at_s < state.deaf_until_s:
        return True
    if known and silent_s >= health.AGE_MAX_S:
        return False
    policy = state.settings.restart
    own = silent.get(one.node, (0, 0))
    return restart.path_delayed(policy, *silent.get("*", (0, 0)), lag_s) or restart.path_delayed(policy, *own, lag_s)


# ------------------------------------------------------------------------------------------- deaths


def died(state: SchedulerState, event: MemberDied, out: list[Command]) -> None:
    """Handle a member's end: restart it unless it was to end; after a wait if it keeps dying, and elsewhere if that
    fails.

    Deaths in a row on one node are that node's. Those on several nodes come with the member, as from a tool that ends
    its worker wherever it runs: each counts once against its node.
    """
    name, at_s, policy = event.subject, state.at_s, state.settings.restart
    if not event.gone:
        _unconfirmed(state, name)
        return
    one = state.members.get(name)
    if one is None:
        return
    got_on = health.stalled_s(one.seen, at_s) <= at_s - one.since_s and one.seen.done > 0
    node, was = one.node or event.node, one.state
    _end(state, one)
    state.restaff = True
    if was == "draining":
        _unprobe(state, one)
        retire(state, name, out)
        return
    if was == "retiring":
        _unprobe(state, one)
        state.ended[name] = one.past
        del state.members[name]
        return
    one.deaths = [at_s] if got_on else restart.remembered(policy, [*one.deaths, at_s], at_s)
    one.died_there = one.died_there + 1 if node == one.died_on else 1
    one.died_on = node
    verdict = restart.decide(policy, one.deaths, at_s)
    if verdict.escalate and one.died_there < len(one.deaths):
        verdict = restart.decide(policy, one.deaths[1:], at_s)
    one.state, one.since_s, one.node, one.start_s = "wanted", at_s, "", at_s + verdict.wait_s
    if verdict.escalate:
        one.deaths = []
    if one.probe:
        _node_answered(state, one, False, out)
    elif not got_on:
        _blame(state, node, state.settings.node.volume_min if verdict.escalate else 1, out)


def retire(state: SchedulerState, name: str, out: list[Command]) -> None:
    """End a member that is not needed any more.

    Also one whose known incarnation has died: the cluster may have started the process again, and if that one hung, and
    nobody watched it, its calls would be waited for without end.
    """
    one = state.members[name]
    one.state, one.since_s = "retiring", state.at_s
    out.append(RetireMember(name))
    look(state, state.at_s + state.settings.restart.stale_s)


def _unconfirmed(state: SchedulerState, name: str) -> None:
    """Handle a member that cannot be reached. A member of an earlier scheduler is judged like any other."""
    known = name in state.members
    one = member(state, name)
    one.unconfirmed = True
    if not known:
        one.state, state.restaff = "up", True
    elif one.state == "starting":  # it did not start in time: the owner of its name is started, or found, anew
        _unprobe(state, one)
        one.stillborn += 1
        if one.stillborn < STILLBORN:
            one.state, one.since_s, one.start_s = "wanted", state.at_s, state.at_s + state.settings.restart.backoff_s
        state.restaff = True
    look(state, state.at_s)


def _blame(state: SchedulerState, name: str, deaths: int, out: list[Command]) -> None:
    place = node_of(state, name)
    if place is not None:
        own = place.breaker
        moved = breaker.observe(state.settings.node, own, state.at_s, own.generation, 0, deaths, 0, 0.0, state.draw())
        _moved(state, name, moved, out)


def _node_answered(state: SchedulerState, one: Member, well: bool, out: list[Command]) -> None:
    """Judge a half-open node by the member placed on it, which has settled its first work or died."""
    name, one.probe = one.probe, ""
    if name in state.nodes:
        own = state.nodes[name].breaker
        draw = 0.0 if well else state.draw()
        moved = breaker.observe(
            state.settings.node, own, state.at_s, own.generation, int(well), int(not well), 0, 0.0, draw
        )
        _moved(state, name, moved, out)


def _unprobe(state: SchedulerState, one: Member) -> None:
    if one.probe in state.nodes:
        breaker.probe_back(state.nodes[one.probe].breaker, state.at_s, (one.probe_until_s,))
    one.probe = ""


def _moved(state: SchedulerState, name: str, moved: breaker.BreakerMove | None, out: list[Command]) -> None:
    if moved is not None:
        out.append(BreakerMoved(f"node:{name}", moved.old, moved.new, moved.why))
        state.restaff = True
        state.wake(breaker.due_at_s(state.nodes[name].breaker, state.at_s))


def passed(state: SchedulerState, out: list[Command]) -> None:
    """Apply the passage of time to nodes, and to members that wait to be started or retired."""
    for name, place in state.nodes.items():
        _moved(state, name, breaker.passed(state.settings.node, place.breaker, state.at_s), out)
        state.wake(breaker.due_at_s(place.breaker, state.at_s))
    _forget_lost(state)
    if state.check_s <= state.at_s:
        check(state, out)
    elif state.check_s < NEVER:
        state.wake(state.check_s)
    state.restaff = True


def nodes(state: SchedulerState, event: NodesChanged, out: list[Command]) -> None:
    """Take in the live nodes and their cores. Members on other nodes are gone."""
    if event.cores:
        own, cores = state.settings, event.cores
        state.settings = msgspec.structs.replace(own, branches_max=max(cores, own.branches_min, 1), workers_max=cores)
        state.resize = True
    gone = state.nodes.keys() - set(event.names)
    _note_lost(state, gone, event)
    for name in event.names:
        state.nodes.setdefault(name, NodeState()).host = event.hosts.get(name, "")
    there = [(subject, one.node) for subject, one in state.members.items() if one.node in gone] if gone else []
    for subject, name in there:
        died(state, MemberDied(state.at_s, subject, name), out)
    for name in [name for name in state.nodes if name in gone]:
        del state.nodes[name]
    _forget_lost(state)
    state.restaff = True


def _forget_lost(state: SchedulerState) -> None:
    if state.lost:
        state.wake(lost_nodes.forget(state.lost, state.at_s))


def _note_lost(state: SchedulerState, gone: Set[str], event: NodesChanged) -> None:
    """Keep nodes that are gone and were neither drained nor ended on purpose, and see what new nodes replace."""
    new = {name: event.hosts.get(name, "") for name in event.names if name not in state.nodes}
    others = lost_nodes.come_back(state.lost, new)
    if event.lost:  # told at the first look or a later one; a node that is back is not among them
        before = {
            name: LostNode(host or name, state.at_s - max(0.0, event.now_s - at_s), at_s)
            for name, (host, at_s) in event.lost.items() if name not in state.nodes and name not in state.lost
        }  # fmt: skip
        state.lost = dict(sorted((state.lost | before).items(), key=lambda each: each[1].at_s))
    for name in sorted(gone):
        if not state.nodes[name].drained and name not in event.ended:
            lost_nodes.lose(state.lost, name, state.nodes[name].host, state.at_s, event.now_s)
    lost_nodes.replace(state.lost, others)
    for name in list(state.lost)[: -lost_nodes.LOST_MAX]:
        del state.lost[name]


def drain(state: SchedulerState, who: str, subject: str) -> None:
    """Give this node, branch or worker nothing more."""
    state.restaff = True
    if subject in state.nodes:
        state.nodes[subject].drained = who or "an operator"
        drained = [one for one in state.members.values() if one.node == subject]
    else:
        drained = [state.members[subject]]
        drained[0].drained = who or "an operator"
    for one in drained:
        if one.state == "up":
            one.state, one.since_s, one.empty_s = "draining", state.at_s, state.at_s
