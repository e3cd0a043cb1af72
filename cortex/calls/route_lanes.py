"""Lanes: what a job asks side by side. Its own route with its fallbacks is one, each route that roles have another.

Select names its calls best first, whatever their roles. A call whose lane has no permit free must not hold up those of
the others: its goal is parked, and select is read on, so far in one turn. A parked goal is named no more until its
lane has a permit for it; then it comes before all others. How many are parked is how many permits a lane wants.

A job whose roles have no routes of their own has one lane, and pays for none of this.
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
"""Calls without a permit that are looked at in one turn: the rest is looked at in the next, which follows at once."""


def gather(k: State, program: Program, asks: list[Ask | Vote], changed: list[Change]) -> list[Ask | Vote]:
    """What the program wants now: as many calls as each lane has permits for, the changes beside them; and those calls
    that must wait, which are returned."""
    left, roles = room(k), k.terms.roles
    free = [rooms(k, [k.shares[place] for place in places]) for places in _lanes(k)]
    _call_up(k, [min(here, left) for here in free])
    k.looking = False
    waiting: list[Ask | Vote] = []
    for wish in chain(voting.wanted(k, LOOK_MAX) if k.elections else (), program.select(k)):
        if type(wish) is not Ask and type(wish) is not Vote:
            changed.append(wish)  # type: ignore[arg-type]
            continue
        lane = roles.get(wish.role, 0)
        goal = k.goals.get(wish.goal.id)
        if goal is None or goal.status != Status.OPEN:
            asks.append(wish)  # it is told so
        elif left > 0 and free[lane] > 0:
            left -= 1
            free[lane] -= 1
            asks.append(wish)
        else:
            waiting.append(wish)
            if len(waiting) == LOOK_MAX:
                k.looking = True
                break
    return waiting


def park(k: State, waiting: Iterable[Ask | Vote]) -> None:
    """The goals of these calls wait, in this order, until their lanes have permits for them."""
    any_new = False
    for wish in waiting:
        goal = k.goals.get(wish.goal.id)
        if goal is None or goal.status != Status.OPEN or goal.id not in k.open_by_kind.get(goal.kind, ()):
            continue
        del k.open_by_kind[goal.kind][goal.id]
        goal.lane = k.terms.roles.get(wish.role, 0)
        k.parked.setdefault(goal.lane, {})[goal.id] = None
        any_new = True
    k.looking &= any_new
    k.wishes = bool(k.parked or k.called or k.looking)


def _lanes(k: State) -> list[range]:
    """The places of each lane's routes."""
    return [k.terms.lane_places(lane) for lane in range(1 + len(k.terms.role_routes))]


def _call_up(k: State, free: list[int]) -> None:
    """Have select see again what there are permits for."""
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


# -- what each lane wants, for whoever asks for its permits ----------------------------------------------------------


def demands(k: State) -> list[int]:
    """Calls that each lane could have in flight now, were there permits; that of the job's own route first.

    Together they are what the user allows, but for one in each lane: a flow that goes back and forth between them need
    not wait for its permit each time. Not more than is allowed is ever asked at once (``gather``).
    """
    if not k.terms.role_routes:
        return [k.demand()]
    under_way = [sum(k.shares[place].in_flight for place in places) for places in _lanes(k)]
    if k.outcome or k.closing:
        return under_way
    more = [0] * len(under_way)
    if k.paused is not None:
        if k.live and not k.flights:  # one, to find out
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
    """Goals that wait for a permit, or for a moment at which they are asked (again)."""
    for ids in (*k.parked.values(), k.called):
        yield from map(k.goals.__getitem__, ids)
    for due_at_s, goal_id in k.delayed if k.resting else ():
        goal = k.goals.get(goal_id)
        if goal is not None and goal.status == Status.OPEN and goal.due_at_s == due_at_s:
            yield goal


def _blocked(k: State) -> list[int]:
    """Lanes of which all routes are blocked."""
    return [
        lane for lane, places in enumerate(_lanes(k))
        if all(k.shares[place].blocked is not None and not k.shares[place].trying for place in places)
    ]  # fmt: skip


def see_pause(k: State) -> None:
    """A blocked lane does not hold up the others: the job is paused when it has nothing left but what is for blocked
    lanes, and no more when it has."""
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
