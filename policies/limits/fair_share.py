"""Divisions in whole permits: of a limit among claimants, fair by max-min and weights; of a job's demand over servers.

`spread` divides a job's demand over several servers of one model, by normalised latency and by free slots.

While more is wanted than all servers may have in flight, each has all that it may have, and more is wanted of each, so
that its limit is searched for (`policies.limits.limit`). Otherwise the calls go to the faster servers: each has calls
in proportion to a power of its speed, at most what it may have. With the power 1 each server would have as many calls
under way as the choice of the smallest product of latency and calls in flight leads to (peak EWMA: Finagle,
https://twitter.github.io/finagle/guide/Clients.html, and Linkerd, which take it for their default). `POWER` is larger,
since the whole throughput counts here, and not the longest wait of a call.

Every server keeps a call if there are enough: of one without calls nothing is known.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

import msgspec

EVEN: Final = 5
"""Smallest share, in permits, that is within a tenth of its exact value however it is rounded."""
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Golden ratio conjugate: steps of this size modulo 1 stay far from all earlier points for as long as is possible."""
_SAME: Final = 1e-9
"""Tolerance within which two exact shares count as equal, in permits."""
POWER: Final = 2
"""Power of the speed. Ten servers with one to ten times the same latency, with calls for an eighth of their slots, do
86 % of the most that is possible with 2, 59 % with 1 and 32 % with equal parts, computed for latencies that do not
depend on the load. A larger power would react to each change of a latency with a change of nearly all calls."""
SAME: Final = 0.2
"""Relative change of a part below which the former division stays: each change is a message to every job."""
MUCH_SLOWER: Final = 0.5
"""Ratio of weights below which a server is much slower than another."""
SPREAD_MAX: Final = 1_000.0
"""Largest ratio of two weights, so that rounding leaves no server out."""



def fair_shares(claims: Sequence[tuple[int, float]], limit: int) -> list[int]:
    """Divide `limit` permits over `claims` (wanted, weight), in proportion to weight.

    No claim gets more than it wants, and each claim that wants something gets at least one permit. With more claims
    than permits the first claims get one permit each. Returns one share per claim, in order.

    Max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2) in whole permits: the result equals giving permits
    one by one to the claim with the least for its weight, the first of equals. The water level is found in closed form
    and only the last few permits are given singly, so the cost is n log n in the claims, whatever the limit.
    """
    if sum(wanted for wanted, _ in claims) <= limit:
        return [wanted for wanted, _ in claims]
    first = max(0, min(limit, len(claims)))
    shares = [1 if wanted > 0 else 0 for wanted, _ in claims]
    if sum(shares) > first:
        return _one_each(shares, first)
    left = limit - sum(shares)
    hungry = [(wanted - 1, weight, place) for place, (wanted, weight) in enumerate(claims) if wanted > 1]
    level = water_level([(more, weight) for more, weight, _ in hungry], left)
    for more, weight, place in hungry:
        given = min(more, math.floor(weight * level * (1 - 1e-12))) if level < math.inf else more
        given = min(given, left)
        shares[place] += given
        left -= given
    return _singly(claims, shares, left)


def in_turn(claims: Sequence[tuple[int, float]], limit: int, turn: int) -> list[int]:
    """Return `fair_shares`; with more claims than permits, claims take turns in proportion to weight (`over_time`).

    `turn` is the number of the round.
    """
    hungry = sum(wanted > 0 for wanted, _ in claims)
    return fair_shares(claims, limit) if hungry <= limit else over_time(claims, limit, turn)[0]


def over_time(claims: Sequence[tuple[int, float]], limit: int, turn: int) -> tuple[list[int], bool]:
    """Return shares that are fair over many turns, and whether the next turn has other shares.

    Where exact shares are a few permits (below `EVEN`) and not whole, the remainder rotates from turn to turn, so that
    the means over many turns are in proportion to weight.

    The exact shares are laid side by side on a line, and a claim has one permit for each of the points, one permit
    apart, that fall into its part (systematic sampling: W. G. Madow and L. H. Madow, Annals of Mathematical Statistics
    15, 1944). From turn to turn the points advance by at most the smallest share, so no claim is passed over. As long
    as there are permits for all claims, each claim has at least one in every turn.
    """
    if limit <= 0 or sum(wanted for wanted, _ in claims) <= limit:
        return fair_shares(claims, limit), False
    exact = _exact(claims, limit)
    if not any(part < EVEN and abs(part - round(part)) > _SAME for part in exact):
        return fair_shares(claims, limit), False
    parts = [part for part in exact if part > _SAME]
    # equal shares: advance by one share a turn, in integers, since turns counted from 1970 are many
    if max(parts) - min(parts) < _SAME:
        start = turn * limit % len(parts) / len(parts)
    else:
        start = turn * _GOLDEN * min(1.0, *parts) % 1.0
    upto, points = 0.0, 0
    last = max(place for place, part in enumerate(exact) if part > _SAME)
    shares = []
    for place, part in enumerate(exact):
        upto += part
        now = max(points, math.ceil(upto - start - _SAME)) if place < last else limit
        shares.append(now - points)
        points = now
    return shares, True


def _exact(claims: Sequence[tuple[int, float]], limit: int) -> list[float]:
    """Fair shares as real numbers; at least 1 each while there are as many permits as claims that want something."""
    exact = [0.0] * len(claims)
    above = [place for place, (wanted, _) in enumerate(claims) if wanted]
    least = int(len(above) <= limit)
    left = limit
    while above:
        level = water_level([claims[place] for place in above], left)
        below = [place for place in above if claims[place][1] * level < least]
        for place in below or above:
            wanted, weight = claims[place]
            exact[place] = float(least) if below else min(float(wanted), weight * level)
        if not below:
            break
        left -= len(below) * least
        above = [place for place in above if claims[place][1] * level >= least]
    return exact


def water_level(claims: Sequence[tuple[int, float]], limit: int) -> float:
    """The level L at which the sum of min(wanted, weight · L) equals the limit; infinity if all claims are met in full.
    """
    weights = sum(weight for _, weight in claims)
    for ratio, wanted, weight in sorted((wanted / weight, wanted, weight) for wanted, weight in claims):
        if ratio * weights >= limit:
            return limit / weights
        limit -= wanted
        weights -= weight
    return math.inf


def _one_each(shares: list[int], first: int) -> list[int]:
    for place, share in enumerate(shares):
        if share and first <= 0:
            shares[place] = 0
        first -= share
    return shares


def _singly(claims: Sequence[tuple[int, float]], shares: list[int], left: int) -> list[int]:
    """Give the permits that rounding down left over, about as many as there are claims, one by one."""
    hungry = [
        (shares[place] / weight, place)
        for place, (wanted, weight) in enumerate(claims)
        if left > 0 and 0 < shares[place] < wanted
    ]
    heapq.heapify(hungry)
    while left > 0 and hungry:
        _, place = hungry[0]
        wanted, weight = claims[place]
        shares[place] += 1
        left -= 1
        if shares[place] < wanted:
            heapq.heapreplace(hungry, (shares[place] / weight, place))
        else:
            heapq.heappop(hungry)
    return shares


class ServerLoad(msgspec.Struct, frozen=True, gc=False):
    """Load of one server, as far as one job is concerned."""

    room: int
    """Calls that it may have in flight for the job; 0: none may begin now."""
    per_token_s: float = 0.0
    """Seconds of an answer token; 0: not known."""


def spread(wanted: int, servers: Sequence[ServerLoad], before: Sequence[int] = ()) -> list[int]:
    """Return the calls that each of the servers shall have in flight, in order; their sum is `wanted`.

    `before`: the division that holds now, which stays where it is nearly the same; empty: there is none.
    """
    room = sum(each.room for each in servers)
    weights = _weights(servers)
    fastest_first = sorted(range(len(servers)), key=lambda place: -weights[place])
    if wanted >= room:
        found = _beyond(wanted, servers, room)
    else:
        parts = fair_shares([(servers[place].room, weights[place]) for place in fastest_first], wanted)
        found = [0] * len(servers)
        for place, part in zip(fastest_first, parts, strict=True):
            found[place] = part
    if wanted < room + len(servers):
        _push(servers, weights, fastest_first, found)
    return list(before) if _stays(servers, found, before) else found


def _beyond(wanted: int, servers: Sequence[ServerLoad], room: int) -> list[int]:
    """All that each may have, and an equal part of the rest: a server that may have none now may have some soon."""
    more, odd = divmod(wanted - room, max(1, len(servers)))
    return [each.room + more + (place < odd) for place, each in enumerate(servers)]


def _push(
    servers: Sequence[ServerLoad], weights: Sequence[float], fastest_first: Sequence[int], found: list[int]
) -> None:
    """Let one call more be wanted of a server than it may have, in place of one at a much slower server, so that its
    limit is searched for though fewer calls are wanted than all may have."""
    for place in fastest_first:
        if not 0 < servers[place].room == found[place]:
            continue
        slower = [each for each in fastest_first if found[each] > 1 and weights[each] < MUCH_SLOWER * weights[place]]
        if slower:
            found[slower[-1]] -= 1
            found[place] += 1


def _weights(servers: Sequence[ServerLoad]) -> list[float]:
    known = sorted(each.per_token_s for each in servers if each.per_token_s > 0)
    usual_s = known[len(known) // 2] if known else 1.0
    least_s = known[0] if known else 1.0
    return [max((least_s / (each.per_token_s or usual_s)) ** POWER, 1 / SPREAD_MAX) for each in servers]


def _stays(servers: Sequence[ServerLoad], found: Sequence[int], before: Sequence[int]) -> bool:
    if len(before) != len(found) or sum(before) != sum(found):
        return False
    return all(
        was <= max(each.room, now) and abs(now - was) <= max(1.0, SAME * now) and (now > 0) == (was > 0)
        for each, now, was in zip(servers, found, before, strict=True)
    )
