"""Permits: how many calls a job may make on each of its routes and how fast, and what it uses.

Routes are named by their index in the terms: the job's own is 0, then its fallbacks, then the routes of its roles. They
form lanes: the own route and its fallbacks are one, each route of a role another. A call goes to the first route of its
lane that has a free permit and is not ahead of its pace; of routes that rank equal, to the least loaded. A job held
back by its pace is woken for several calls at a time, never for each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cortex.admission import budget_slices
from cortex.state.route_share import RouteShare, counted
from policies.estimates.tokens import TokenEstimate
from policies.failures.failure import Failure
from policies.failures.peers import least_loaded
from policies.failures.timeout import learned_patience, teaches_from_s
from policies.limits.pace import Pace, correct, due_at_s, put_off, set_rates, take, take_back

if TYPE_CHECKING:
    from cortex.state.state import InFlightAttempt, State
    from cortex.values.limits import JobTerms, Limits, Route
    from cortex.values.reply import Usage


# -- before a call ---------------------------------------------------------------------------------------------------


def way(k: State, lane: int = 0, tried: int = 0) -> int:
    """Return the first route of a lane, by preference, that may be used now; -1: none.

    Of routes of equal rank it is the least loaded one. ``tried``: those that failed the call, as bits by place: it
    waits for another one as long as one takes calls.
    """
    if k.pace is not None and due_at_s(k.pace) > k.at_s:
        return -1
    if not lane and k.terms.peers:
        place = _among_peers(k, tried)
        if place >= 0 or (tried and may_move_on(k, tried)):
            return place
    elif not lane and k.shares[0].free(k.at_s):
        return 0
    return next((place for place in k.terms.lane_places(lane) if k.shares[place].free(k.at_s)), -1)


def way_to(k: State, place: int, tried: int) -> int:
    """Return this route of equal rank if it may be used now, else what ``way`` returns."""
    if (k.pace is None or due_at_s(k.pace) <= k.at_s) and k.shares[place].free(k.at_s):
        return place
    return way(k, 0, tried)


def _among_peers(k: State, tried: int) -> int:
    """The least loaded of the routes of equal rank that did not fail the call; -1: none."""
    shares = k.shares[: 1 + k.terms.peers]
    return least_loaded(((share.free(k.at_s), share.in_flight, share.permits) for share in shares), tried)


def may_move_on(k: State, tried: int) -> bool:
    """Return whether a route of equal rank that did not fail a call takes calls. ``tried``: those that did."""
    shares = k.shares[: 1 + k.terms.peers]
    return any(share.takes_calls(k.at_s) for place, share in enumerate(shares) if not tried >> place & 1)


def room(k: State) -> int:
    """Return the number of calls that may begin now: by permits, by the user's concurrency, and about by the pace."""
    left = k.terms.limits.concurrency - len(k.flights)
    if k.pace is not None:
        left = min(left, _due(k, k.pace))
    shares = k.shares
    if len(shares) == 1 and shares[0].excess is None and shares[0].pace is None:
        free = shares[0].free(k.at_s)
    else:
        for place, share in enumerate(shares):
            if share.excess is not None:
                share.windows = budget_slices.dearest_calls(k, place, share.excess)
        free = rooms(k, shares)
    return free if free < left else left


def rooms(k: State, shares: Sequence[RouteShare]) -> int:
    """Return the number of calls that may begin now on these routes."""
    free = 0
    for share in shares:
        here = share.free(k.at_s)
        free += here if share.pace is None or not here else min(here, _due(k, share.pace))
    return free


def _due(k: State, pace: Pace) -> int:
    """Number of calls, roughly, that a pace lets through now: at least 1 if any."""
    early_s = k.at_s - due_at_s(pace)
    if early_s < 0:
        return 0
    sizes = k.sizes
    calls = max(1, sizes.calls)
    rate = min(
        pace.requests_per_s or _ANY,
        pace.input_tokens_per_s * calls / max(1, sizes.input_tokens) or _ANY,
        pace.output_tokens_per_s * calls / max(1, sizes.output_tokens) or _ANY,
    )
    return 1 + int(min(early_s * rate, _ANY))


_ANY = 1e9


def begin(k: State, place: int, input_bound: int, output_max: int) -> tuple[float, float] | None:
    """Begin a call on this route. Return the tokens charged to the pace for it, if there is one."""
    share = k.shares[place]
    share.in_flight += 1
    if share.blocked is not None:
        share.probing += 1
    if share.starts > 0:
        share.starts -= 1
    if share.pace is None and k.pace is None:
        return None
    taken = k.sizes.expected(input_bound, output_max)
    for pace in (share.pace, k.pace):
        if pace is not None:
            take(pace, k.at_s, *taken)
    return taken


# -- after it --------------------------------------------------------------------------------------------------------


def release_permit(k: State, flight: InFlightAttempt, usage: Usage | None, paid: bool = True) -> None:
    """End an attempt: free its permit, and charge the pace for its real tokens, if they are known.

    ``paid`` is False if the provider cannot have counted any token of it.
    """
    share = k.shares[flight.route]
    share.in_flight -= 1
    if flight.probe:
        share.probing -= 1
    if share.failing is not None and usage is not None:
        share.failing, share.failing_s, share.doubted = None, 0.0, False
    if k.unhedged:
        k.unhedged.pop(flight.goal << 20 | flight.attempt, None)
    if usage is not None and flight.probe:
        share.blocked, share.trying, share.reset_s = None, False, 0.0
        k.paused = None
    if flight.paced is None or (usage.unknown if usage is not None else paid):
        return
    if usage is not None:
        k.sizes.learn(flight.charge.bounds[1] - flight.output_max, flight.output_max, usage)
    more_input = (counted(usage) if usage is not None else 0) - flight.paced[0]
    more_output = (usage.output_tokens if usage is not None else 0) - flight.paced[1]
    for pace in (share.pace, k.pace):
        if pace is not None:
            correct(pace, more_input, more_output)


def give_pace_back(k: State, flight: InFlightAttempt) -> None:
    """Let another attempt begin in place of this one, which asked nobody, by the pace. Without this, remembered replies
    would be read at the rate at which calls may be made.
    """
    if flight.paced is not None:
        for pace in (k.shares[flight.route].pace, k.pace):
            if pace is not None:
                take_back(pace)


def unspend(k: State, flight: InFlightAttempt) -> None:
    """Let another attempt begin in place of this one, which asked nobody, if a grant bounds how many may begin.

    Under a later grant it may not: the scheduler has withdrawn what was left of the grant before. Nor after a probe of
    the same grant found the route blocked. Times would not tell: a grant may come in the instant in which an attempt
    began. Without this, rows whose replies are remembered would use up the probes of a blocked account, of which there
    is one a minute.
    """
    share = k.shares[flight.route]
    if share.starts >= 0 and flight.bounded == share.bounded:
        share.starts += 1


def learn_patience(k: State, flight: InFlightAttempt, elapsed_s: float) -> None:
    """Note how long an answer took, if it may change the timeouts of its route. Results of message batches do not."""
    share, policy = k.shares[flight.route], k.terms.limits.timeout
    if elapsed_s > teaches_from_s(policy, share.patience) and not flight.submission:
        bound = flight.charge.bounds[1] - flight.output_max
        share.patience = learned_patience(policy, share.patience, elapsed_s, flight.output_max, bound)


def failed_there(k: State, flight: InFlightAttempt, failure: Failure) -> None:
    """Note a failure that is the route's, not the request's."""
    share = k.shares[flight.route]
    if share.failing is None:
        share.failing_s = k.at_s
    share.failing = failure
    if k.terms.is_peer(flight.route):
        share.doubted = True


def granted_pace(
    share: RouteShare, at_s: float, rates: tuple[float, float, float], phase: float = 0.0, released: bool = False
) -> None:  # fmt: skip
    """Set the rates of a new grant; 0: no bound. ``released``: the route was held until now, with those of others."""
    share.pace = _with_rates(share.pace, at_s, rates, phase)
    if released and share.pace is not None:
        put_off(share.pace, at_s, phase)


def own_pace(pace: Pace | None, at_s: float, limits: Limits) -> Pace | None:
    """Return the pace by the rates that the job's user set."""
    return _with_rates(pace, at_s, by_hand(limits))


def by_hand(limits: Limits) -> tuple[float, float, float]:
    """Return the user's rates: requests, input tokens and output tokens per second; 0: no bound."""
    caps = (limits.requests_per_min, limits.input_tokens_per_min, limits.output_tokens_per_min)
    requests, input_tokens, output_tokens = ((cap or 0.0) / 60 for cap in caps)
    return requests, input_tokens, output_tokens


def _with_rates(
    pace: Pace | None, at_s: float, rates: tuple[float, float, float], phase: float = 0.0
) -> Pace | None:  # fmt: skip
    if not any(rate > 0 for rate in rates):
        return None
    pace = pace if pace is not None else Pace()
    requests, input_tokens, output_tokens = (max(0.0, rate) for rate in rates)
    set_rates(pace, at_s, requests, input_tokens, output_tokens, phase)
    return pace


def reroute(k: State, fallbacks: tuple[Route, ...], peers: int) -> None:
    """Change the job's fallbacks, the first `peers` of which rank equal with its own route. The state of a route that
    stays is kept.

    While an attempt is in flight on a route that is removed, nothing changes: its permit and its price belong to that
    route.
    """
    now = msgspec.structs.replace(k.terms, fallbacks=fallbacks, peers=peers)
    before, after = _places(k.terms), _places(now)
    moved = {place: after.get(name, -1) for name, place in before.items()}
    if any(moved[flight.route] < 0 for flight in k.flights.values()):
        return
    k.shares = [k.shares[before[name]] if name in before else RouteShare() for name in after]
    k.holders = {}
    for flight in k.flights.values():
        flight.route = moved[flight.route]
    for made in k.submissions.values():
        made.route = moved.get(made.route, 0)
    for share in k.shares:
        share.doubted = False
    for goal in k.goals.values():
        goal.tried = 0
        if goal.assumed:
            goal.assumed = {
                attempt: msgspec.structs.replace(missing, route=moved.get(missing.route, -1))
                for attempt, missing in goal.assumed.items()
            }
    k.late = {
        key: msgspec.structs.replace(missing, route=moved.get(missing.route, -1)) for key, missing in k.late.items()
    }
    for number, batch in list(k.cancelled.items()):
        if (place := moved.get(batch.made.route, -1)) < 0:
            del k.cancelled[number]
            continue
        batch.made.route = place
        for flight in batch.flights:
            flight.route = place
    k.terms = now


def close_servers(k: State, closed: tuple[str, ...]) -> None:
    """Take these servers out: no more calls go to them, and calls in flight there end. The others are open."""
    k.terms = msgspec.structs.replace(k.terms, closed=closed)
    for place, share in enumerate(k.shares):
        if k.terms.is_closed(place):
            share.permits = 0


def reroute_own(k: State, route: Route) -> None:
    """Change the job's own model. Only while nothing is in flight or open: the share and the estimate belong to the old
    one.
    """
    k.terms = msgspec.structs.replace(k.terms, route=route)
    k.shares[0], k.estimate, k.paused, k.alike = RouteShare(), TokenEstimate(), None, 0


def _places(terms: JobTerms) -> dict[tuple[int, str, str, str], int]:
    """Route indices by lane and identity (endpoint, model, transport; the credential may differ)."""
    return {
        (terms.lane_at(place), route.endpoint, route.model, route.via): place
        for place, route in enumerate(terms.routes)
    }
