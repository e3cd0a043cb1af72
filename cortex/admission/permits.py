"""A job's leave to make calls: what it may use of each of its routes, and what it uses; how many, and how fast.

Routes are named by their place in the terms: the job's own is 0, then its fallbacks, then those of its roles. They form
lanes: the own route and its fallbacks are one, each route of a role another. A call goes to the first route of its lane
that has a permit free and is not ahead of its pace. A job that its pace holds back is woken some calls at a time, never
once a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from cortex.state.route_share import RouteShare, counted
from policies.estimates.tokens import TokenEstimate
from policies.failures.failure import Failure
from policies.limits.pace import Pace, correct, due_at_s, set_rates, take

if TYPE_CHECKING:
    from cortex.state.state import InFlightAttempt, State
    from cortex.values.limits import JobTerms, Limits, Route
    from cortex.values.reply import Usage


# -- before a call ---------------------------------------------------------------------------------------------------


def way(k: State, lane: int = 0) -> int:
    """The first route of a lane, by preference, that may be asked now; -1: none."""
    if k.pace is not None and due_at_s(k.pace) > k.at_s:
        return -1
    if not lane and k.shares[0].free(k.at_s):
        return 0
    return next((place for place in k.terms.lane_places(lane) if k.shares[place].free(k.at_s)), -1)


def room(k: State) -> int:
    """Calls that may be begun now: by permits, by what the user allows, and about as many as the pace lets through."""
    left = k.terms.limits.concurrency - len(k.flights)
    if k.pace is not None:
        left = min(left, _due(k, k.pace))
    shares = k.shares
    free = shares[0].free(k.at_s) if len(shares) == 1 and shares[0].pace is None else rooms(k, shares)
    return free if free < left else left


def rooms(k: State, shares: Sequence[RouteShare]) -> int:
    """Calls that may be begun now on these routes, as far as they go."""
    free = 0
    for share in shares:
        here = share.free(k.at_s)
        free += here if share.pace is None or not here else min(here, _due(k, share.pace))
    return free


def _due(k: State, pace: Pace) -> int:
    """About how many calls a pace lets through now: at least one where any."""
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
    """A call begins on this route. What was taken of the token rates for it, where there is a pace."""
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


def came_back(k: State, flight: InFlightAttempt, usage: Usage | None, paid: bool = True) -> None:
    """An attempt has ended: its permit is free again, and its pace is charged for what it weighed, where that is known.

    ``paid`` is false where the provider cannot have counted any token of it.
    """
    share = k.shares[flight.route]
    share.in_flight -= 1
    if flight.probe:
        share.probing -= 1
    if share.failing is not None and usage is not None:
        share.failing, share.failing_s = None, 0.0
    if k.unhedged:
        k.unhedged.pop(flight.goal << 20 | flight.attempt, None)
    if usage is not None and flight.probe:
        share.blocked, share.trying, share.reset_s = None, False, 0.0
        k.paused = None
    if flight.paced is None or (usage is None and paid):
        return
    if usage is not None:
        k.sizes.learn(flight.charge.tokens - flight.output_max, flight.output_max, usage)
    more_input = (counted(usage) if usage is not None else 0) - flight.paced[0]
    more_output = (usage.output_tokens if usage is not None else 0) - flight.paced[1]
    for pace in (share.pace, k.pace):
        if pace is not None:
            correct(pace, more_input, more_output)


def failed_there(k: State, flight: InFlightAttempt, failure: Failure) -> None:
    """An attempt has failed for what is wrong with its route, not with what it asked."""
    share = k.shares[flight.route]
    if share.failing is None:
        share.failing_s = k.at_s
    share.failing = failure


def granted_pace(share: RouteShare, at_s: float, rates: tuple[float, float, float]) -> None:
    """The rates of a new grant; 0 is no bound."""
    share.pace = _with_rates(share.pace, at_s, rates)


def own_pace(pace: Pace | None, at_s: float, limits: Limits) -> Pace | None:
    """The rates that the job's user set."""
    return _with_rates(pace, at_s, by_hand(limits))


def by_hand(limits: Limits) -> tuple[float, float, float]:
    """Requests, input and output tokens a second that the job's user allows; 0 is no bound."""
    caps = (limits.requests_per_min, limits.input_tokens_per_min, limits.output_tokens_per_min)
    requests, input_tokens, output_tokens = ((cap or 0.0) / 60 for cap in caps)
    return requests, input_tokens, output_tokens


def _with_rates(pace: Pace | None, at_s: float, rates: tuple[float, float, float]) -> Pace | None:
    if not any(rate > 0 for rate in rates):
        return None
    pace = pace if pace is not None else Pace()
    set_rates(pace, at_s, *(max(0.0, rate) for rate in rates))
    return pace


def reroute(k: State, fallbacks: tuple[Route, ...]) -> None:
    """The job falls back elsewhere from now on. What it has of a route that stays, stays with that route.

    While an attempt is under way on a route that goes, nothing changes: its permit and its price belong there.
    """
    now = msgspec.structs.replace(k.terms, fallbacks=fallbacks)
    before, after = _places(k.terms), _places(now)
    moved = {place: after.get(name, -1) for name, place in before.items()}
    if any(moved[flight.route] < 0 for flight in k.flights.values()):
        return
    k.shares = [k.shares[before[name]] if name in before else RouteShare() for name in after]
    for flight in k.flights.values():
        flight.route = moved[flight.route]
    for made in k.submissions.values():
        made.route = moved.get(made.route, 0)
    for goal in k.goals.values():
        if goal.assumed:
            goal.assumed = {
                attempt: msgspec.structs.replace(missing, route=moved.get(missing.route, -1))
                for attempt, missing in goal.assumed.items()
            }
    k.terms = now


def reroute_own(k: State, route: Route) -> None:
    """The job asks another model from now on. Only where nothing is under way, nor open: what a share or an estimate
    tells is of the route before."""
    k.terms = msgspec.structs.replace(k.terms, route=route)
    k.shares[0], k.estimate, k.paused, k.alike = RouteShare(), TokenEstimate(), None, 0


def _places(terms: JobTerms) -> dict[tuple[int, str, str, str], int]:
    """The places of the routes, by lane and what makes a route the same one, under another key too."""
    return {
        (terms.lane_at(place), route.endpoint, route.model, route.via): place
        for place, route in enumerate(terms.routes)
    }


# -- time ------------------------------------------------------------------------------------------------------------
