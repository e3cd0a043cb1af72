"""Families: a job and its child jobs, at any depth. Limits set by the user hold for all of them together.

A child job has its own channel and joins the scheduler itself, under its parent's name with a suffix. So that twenty
children of a job with ``--concurrency 10 --rpm 60`` are not 200 calls at once and 1,200 a minute, the members of a
family share these limits, and the weight that a single job would have. The limits are those of the root job, as last
reported: ``cortex set`` on it holds for its children too. The few probes of a half-open route come in addition; they
must not wait until the others have nothing in flight elsewhere.

If roles of a job have routes of their own, these are members too: each claims its permits under its own name, although
one channel speaks for all of them and enforces their common limits.

``SchedulerState.families`` holds the families of more than one channel, so that a job without children skips all of
this.
"""

from __future__ import annotations

from collections.abc import Sequence

from cortex.scheduler import pools
from cortex.scheduler.state import JobClaims, SchedulerState
from policies.limits.fair_share import in_turn

Rates = tuple[float, float, float]
"""Requests, input tokens and output tokens per second; 0: no bound."""


def root_of(job: str) -> str:
    """Return the name of the root job: only the names of other members contain ``~``."""
    return job.partition("~")[0]


def member_of(job: str, role: str) -> str:
    """Return the name under which a job claims the permits of this role. Child jobs have numbers, roles have names."""
    return f"{job}~{role}"


def spoken_for(name: str) -> str:
    """Return the job whose channel speaks for this member: the member itself, unless it is a role."""
    job, _, last = name.rpartition("~")
    return job if job and not last.isdecimal() else name


def spoken_by(state: SchedulerState, job: str) -> list[str]:
    """Return the joined members that this job's channel speaks for, itself first."""
    return [name for name in state.jobs if spoken_for(name) == job]


def count(state: SchedulerState, job: str) -> None:
    """Update the family of a job that has joined or left."""
    root = root_of(job)
    members = tuple(name for name in state.jobs if root_of(name) == root)
    if len({spoken_for(name) for name in members}) > 1:
        state.families[root] = members
    else:
        state.families.pop(root, None)
    for name in members:
        state.resize = True
        divide(state, name)


def divide(state: SchedulerState, job: str) -> None:
    """Divide the user's concurrency among the members, fair by weight; in turns if it is small."""
    root = root_of(job)
    names = state.families.get(root, (job,))
    members = [state.jobs[name] for name in names]
    if len(members) == 1:
        wants = [min(members[0].asked, members[0].concurrency)]
    else:
        most = _bounds(state, root)[0]
        turn = int(state.at_s // state.settings.lease_s)
        wants = in_turn([(min(each.asked, most), each.weight) for each in members], most, turn)
        if sum(each.asked > 0 for each in members) > most:
            state.wake((turn + 1) * state.settings.lease_s)
    for each, want in zip(members, wants, strict=True):
        if want != each.want:
            each.want = want
            pools.send(state, each)
        if len(members) > 1:
            for hold in each.holds.values():
                pools.touch(state, hold.pool)  # permits that one member returns may go to another


def _bounds(state: SchedulerState, root: str) -> tuple[int, Rates]:
    """Concurrency and rates set by the user: those of the root, or of its children while the root has not joined."""
    entries = [state.jobs[root]] if root in state.jobs else [state.jobs[name] for name in state.families[root]]
    rates = [min((each.rates[place] for each in entries if each.rates[place]), default=0.0) for place in range(3)]
    return min(each.concurrency for each in entries), (rates[0], rates[1], rates[2])


def room(state: SchedulerState, root: str) -> int:
    """Return the permits that this family may be granted beyond those it may be using, over all routes."""
    using = sum(hold.counted for name in state.families[root] for hold in state.jobs[name].holds.values())
    return max(0, _bounds(state, root)[0] - using)


def hold_back(state: SchedulerState, names: Sequence[str], lacks: list[int]) -> None:
    """Reduce the additional permits of these jobs, so that no family exceeds its limit while other members return
    permits.
    """
    left: dict[str, int] = {}
    for place, (name, lack) in enumerate(zip(names, lacks, strict=True)):
        root = root_of(name)
        if lack > 0 and root in state.families:
            if root not in left:
                left[root] = room(state, root)
            lacks[place] = min(lack, left[root])
            left[root] -= lacks[place]


def weight(state: SchedulerState, name: str, job: JobClaims) -> float:
    """Return a job's weight in its pool: a family weighs as much as its root alone."""
    members = state.families.get(root_of(name))
    if members is None:
        return job.weight
    return job.weight / max(1, sum(state.jobs[each].want > 0 for each in members))


def rates(state: SchedulerState, name: str, share: int, entries: Rates) -> Rates:
    """Return a member's part of the user's rates, by its part of the family's permits, within the granted rates.

    The parts follow the current grants and the share that is about to be granted.
    """
    root = root_of(name)
    own = _bounds(state, root)[1]
    if not share or not any(own):
        return entries
    others = 0
    for each in state.families[root]:
        if each != name:
            others += sum(hold.share for hold in state.jobs[each].holds.values())
    part = share / (share + others)
    least = [
        min(one, by_hand * part) if one and by_hand else one or by_hand * part
        for one, by_hand in zip(entries, own, strict=True)
    ]
    return least[0], least[1], least[2]
