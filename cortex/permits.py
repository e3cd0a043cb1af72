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

from cortex.quick_fields import quick_to_set
from policies.failure import Failure
from policies.pace import Pace, correct, due_at_s, set_rates, take
from policies.tokens import Estimate

if TYPE_CHECKING:
    from cortex.limits import Limits, Route, Terms
    from cortex.reply import Usage
    from cortex.state import Flight, State

TOGETHER_S = 0.1
"""A pace wakes its job so long after the next call is due: what has become due by then goes out in one turn. Less than
``policies.pace.BURST_S``, so that nothing of the rate is lost."""


@quick_to_set
class Share(msgspec.Struct):
    """What a job was granted of one route, and how much of it is in use."""

    permits: int = 0
    """Attempts in flight at once."""
    starts: int = -1
    """Attempts that may still be begun under the grant at all; -1: any number."""
    generation: int = 0
    """Of the route's breaker, as last told."""
    in_flight: int = 0
    """Attempts under way here, those that nobody awaits any more included."""
    hold_until_s: float = 0.0
    """The provider said to wait: nothing is asked here before, no probe either."""
    pace: Pace | None = None
    """The rates granted with it, where there are any."""
    blocked: Failure | None = None
    """Why nothing is asked here: the account, the key, the model, or a wait beyond the job's patience."""
    trying: bool = False
    """Blocked as far as known, and one call may find out."""
    probing: int = 0
    """Of those in flight, the ones that find out: one at a time."""
    reset_s: float = 0.0
    """When an account that is blocked will be open again, as the provider says or as is supposed: it is tried then. 0
    where nobody knows. A probe that the cortex grants may find out before."""
    failing: Failure | None = None
    """The last of the failures of the route itself that came since its last reply; None: a reply came last."""
    failing_s: float = 0.0
    """When the first of them came."""
    why: str = ""
    """Why it is less than was asked for; empty where nothing is the matter."""
    again_at_s: float = 0.0
    """When its open breaker is to be probed, as far as was told; 0: it is not open."""
    memo: bytes = b""
    """What the cortex wants told back, should it have to begin anew."""

    def free(self, at_s: float) -> int:
        """Attempts that may be begun here now, as far as permits go; 0 while the provider or the pace says to wait."""
        if self.hold_until_s > at_s or (self.pace is not None and due_at_s(self.pace) > at_s):
            return 0
        free, starts = self.permits - self.in_flight, self.starts
        if 0 <= starts < free:
            free = starts
        if self.blocked is not None:
            if self.starts >= 0:
                free = min(free, 1 - self.probing)
            else:
                free = min(free, 1 - self.in_flight if self.trying else 0)
        return free if free > 0 else 0


class Sizes(msgspec.Struct):
    """What calls under a pace could weigh at most, and did weigh: so that the next one's tokens can be foretold.

    Whole sums, so that the order in which answers came does not matter.
    """

    calls: int = 0
    input_bound: int = 0
    input_tokens: int = 0
    output_max: int = 0
    output_tokens: int = 0

    def learn(self, input_bound: int, output_max: int, usage: Usage) -> None:
        """One more call of these bounds was answered."""
        self.calls += 1
        self.input_bound += input_bound
        self.input_tokens += counted(usage)
        self.output_max += output_max
        self.output_tokens += usage.output_tokens

    def expected(self, input_bound: int, output_max: int) -> tuple[float, float]:
        """Input and output tokens that a call of these bounds will probably be counted for.

        The bounds times what answered calls used of theirs; before any was answered a third, for about so many bytes
        make a token, and few replies are as long as they may be.
        """
        input_share = (self.input_tokens + _PRIOR / 3) / (self.input_bound + _PRIOR)
        output_share = (self.output_tokens + _PRIOR / 3) / (self.output_max + _PRIOR)
        return input_bound * input_share, output_max * output_share


_PRIOR = 300
"""Tokens that the guess before the first answer counts for."""


def counted(usage: Usage) -> int:
    """Input tokens as rate limits count them: what was read from the prompt cache is free.

    https://docs.claude.com/en/api/rate-limits, "cache-aware ITPM".
    """
    return usage.input_tokens + usage.cache_creation_tokens


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


def rooms(k: State, shares: Sequence[Share]) -> int:
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


def came_back(k: State, flight: Flight, usage: Usage | None, paid: bool = True) -> None:
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


def failed_there(k: State, flight: Flight, failure: Failure) -> None:
    """An attempt has failed for what is wrong with its route, not with what it asked."""
    share = k.shares[flight.route]
    if share.failing is None:
        share.failing_s = k.at_s
    share.failing = failure


def granted_pace(share: Share, at_s: float, rates: tuple[float, float, float]) -> None:
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
    k.shares = [k.shares[before[name]] if name in before else Share() for name in after]
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
    k.shares[0], k.estimate, k.paused, k.alike = Share(), Estimate(), None, 0


def _places(terms: Terms) -> dict[tuple[int, str, str, str], int]:
    """The places of the routes, by lane and what makes a route the same one, under another key too."""
    return {
        (terms.lane_at(place), route.endpoint, route.model, route.via): place
        for place, route in enumerate(terms.routes)
    }


# -- time ------------------------------------------------------------------------------------------------------------


def held_until_s(k: State) -> float:
    """When the first of the routes that the provider holds back may be asked again; 0 where none with a permit is."""
    held = [share.hold_until_s for share in k.shares if share.permits > 0 and share.hold_until_s > k.at_s]
    return min(held) if held else 0.0


def next_begin_s(k: State) -> float | None:
    """When time alone lets the next call begin that has a permit, or opens a route; None where none waits for time."""
    if not k.wishes or not (any(k.open_by_kind.values()) or k.parked or k.called):
        return None
    own_s = due_at_s(k.pace) if k.pace is not None else 0.0
    times = []
    for share in k.shares:
        if share.blocked is not None and not share.trying:
            if share.reset_s > k.at_s:
                times.append(share.reset_s)
            if share.starts <= 0:
                continue
        if share.permits <= share.in_flight or share.starts == 0 or (share.trying and share.in_flight):
            continue
        paced_s = max(own_s, due_at_s(share.pace) if share.pace is not None else 0.0)
        due_s = max(share.hold_until_s, paced_s + TOGETHER_S)
        if max(share.hold_until_s, paced_s) > k.at_s:
            times.append(due_s)
    return min(times) if times else None
