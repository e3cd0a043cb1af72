"""Lanes: groups of routes that a job uses independently of each other.

The job's own route with its fallbacks is one lane, each route of a role another. Select names its calls best first,
whatever their roles. A call whose lane has no free permit must not hold up calls of other lanes: its goal is parked,
and select is read on, up to `LOOK_MAX` waiting calls in one turn. A parked goal is not named again until its lane has a
permit for it; then it comes before all others. The number of parked goals is the number of permits that a lane wants.

A job whose roles have no routes of their own has one lane, and skips all of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from cortex.admission.permits import room, rooms
from cortex.calls import voting
from cortex.state.changes import Ask, Change, Vote
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status
from policies.limits.fair_share import fair_shares

LOOK_MAX = 1_024
"""Calls without a permit that are processed in one turn; the rest is processed in the next turn, which follows at
once."""


def gather(k: State, program: Program, asks: list[Ask | Vote], changed: list[Change]) -> list[Ask | Vote]:
    """Collect what the program wants now: calls up to the permits of each lane, and changes.

    Appends to `asks` and `changed`; returns the calls that must wait for a permit.
    """
    left, roles = room(k), k.terms.roles
    free = [rooms(k, [k.shares[place] for place in places]) for places in _lanes(k)]
    _call_up(k, [min(here, left) for here in free])
    k.looking = False
    waiting: list[Ask | Vote] = []
    for change in chain(voting.wanted(k, LOOK_MAX) if k.elections else (), program.select(k)):
        if type(change) is not Ask and type(change) is not Vote:
            changed.append(change)  # type: ignore[arg-type]
            continue
        lane = roles.get(change.role, 0)
        goal = k.goals.get(change.goal.id)
        if goal is None or goal.status != Status.OPEN:
            asks.append(change)  # rejected later, with its reason
        elif left > 0 and free[lane] > 0:
            left -= 1
            free[lane] -= 1
            asks.append(change)
        else:
            waiting.append(change)
            if len(waiting) == LOOK_MAX:
                k.looking = True
                break
    return waiting


def park(k: State, waiting: Iterable[Ask | Vote]) -> None:
    """Park the goals of these calls, in this order, until their lanes have permits for them."""
    any_new = False
    for change in waiting:
        goal = k.goals.get(change.goal.id)
        if goal is None or goal.status != Status.OPEN or goal.id not in k.open_by_kind.get(goal.kind, ()):
            continue
        del k.open_by_kind[goal.kind][goal.id]
        goal.lane = k.terms.roles.get(change.role, 0)
        k.parked.setdefault(goal.lane, {})[goal.id] = None
        any_new = True
    k.looking &= any_new
    k.wishes = bool(k.parked or k.called or k.looking)


def _lanes(k: State) -> list[range]:
    """Route indices of each lane."""
    return [k.terms.lane_places(lane) for lane in range(1 + len(k.terms.role_routes))]


def _call_up(k: State, free: list[int]) -> None:
    """Offer parked goals to select again, as many as there are permits for."""
    if not k.parked:
        return
    for goal_id in k.called:
        free[k.goals[goal_id].lane] -= 1
    for lane in list(k.parked):
        ids = k.parked[lane]
        for goal_id in list(islice(ids, max(0, free[lane]))):
            del ids[goal_id]
            k.called[goal_id] = None
        if not ids:
            del k.parked[lane]


# -- demand of each lane, for the request for permits ----------------------------------------------------------------


def demands(k: State) -> list[int]:
    """Return the calls that each lane could have in flight now, given permits; lane 0 first.

    Their sum is at most the user's concurrency, plus one for each lane: a flow that alternates between lanes need not
    wait for its permit each time. ``gather`` never begins more than the concurrency.
    """
    if not k.terms.role_routes:
        return [k.demand()]
    under_way = [sum(k.shares[place].in_flight for place in places) for places in _lanes(k)]
    if k.outcome or k.closing:
        return under_way
    more = [0] * len(under_way)
    if k.paused is not None:
        if k.live and not k.flights:  # one call, to test the block
            for lane in _blocked(k) or [0]:
                more[lane] = 1
    else:
        for goal in _named(k):
            more[goal.lane] += 1
    bound = k.terms.limits.concurrency
    wanted = [here + new for here, new in zip(under_way, more, strict=True)]
    shares = fair_shares([(want, 1.0) for want in wanted], bound)
    least = [max(here, min(1, want)) for here, want in zip(under_way, wanted, strict=True)]
    return list(map(max, shares, least))


def _named(k: State) -> Iterable[Goal]:
    """Goals that wait for a permit, or for the time at which they are asked (again)."""
    for ids in (*k.parked.values(), k.called):
        yield from map(k.goals.__getitem__, ids)
    for due_at_s, goal_id in k.delayed if k.resting else ():
        goal = k.goals.get(goal_id)
        if goal is not None and goal.status == Status.OPEN and goal.due_at_s == due_at_s:
            yield goal


def _blocked(k: State) -> list[int]:
    """Lanes whose routes are all blocked."""
    return [
        lane for lane, places in enumerate(_lanes(k))
        if all(k.shares[place].blocked is not None and not k.shares[place].trying for place in places)
    ]  # fmt: skip


def see_pause(k: State) -> None:
    """Pause the job if all that is left belongs to blocked lanes, and end the pause if something else is left.

    A blocked lane alone does not hold up the others.
    """
    if not k.terms.role_routes or k.outcome:
        return
    blocked = _blocked(k)
    out = {k.terms.lane_at(flight.route) for flight in k.flights.values() if not flight.abandoned}
    if k.paused is not None:
        if out.difference(blocked) and any(share.blocked == k.paused for share in k.shares):
            k.paused = None
        return
    if not blocked or out or k.looking or k.errands or k.resting or k.rows_wanted():
        return
    wanted = {*k.parked, *(k.goals[goal_id].lane for goal_id in k.called)}
    if wanted and wanted <= set(blocked):
        place = k.terms.lane_places(min(wanted))[0]
        k.paused, k.paused_at_s = k.shares[place].blocked, k.at_s
