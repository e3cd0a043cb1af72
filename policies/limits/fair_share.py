"""Weighted max-min fair division of a limit among claimants, in whole permits."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

EVEN: Final = 5
"""Smallest share, in permits, that is within a tenth of its exact value however it is rounded."""
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Golden ratio conjugate: steps of this size modulo 1 stay far from all earlier points for as long as is possible."""
_SAME: Final = 1e-9
"""Tolerance within which two exact shares count as equal, in permits."""


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
