"""How a limit is divided over those who want of it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

EVEN: Final = 5
"""From so many permits on a share is within a tenth of what it should be, however it is rounded."""
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Steps of this size come nowhere near where they were before for as long as can be."""
_SAME: Final = 1e-9


def fair_shares(claims: Sequence[tuple[int, float]], limit: int) -> list[int]:
    """Divide a limit over (wanted, weight): in proportion to weight, nobody above what it wants, each at least one.

    Max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2) in whole permits: as if they were given one by one
    to whoever has the least for its weight, the first of equals. The water level is found in closed form and only the
    last few permits are given singly, so that the cost is n log n in the claims, whatever the limit. With more claims
    than permits the first ones get one each.
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
    """The same; but with more claims than permits they take turns, as often as their weights say (``over_time``)."""
    hungry = sum(wanted > 0 for wanted, _ in claims)
    return fair_shares(claims, limit) if hungry <= limit else over_time(claims, limit, turn)[0]


def over_time(claims: Sequence[tuple[int, float]], limit: int, turn: int) -> tuple[list[int], bool]:
    """Fair shares, and whether others are fair in the next turn: where shares are of a few permits, what whole permits
    cannot divide evenly goes round, so that the means over many turns are in proportion to weight.

    The exact shares are laid side by side, and whoever has one of the points that lie a permit apart has a permit
    (systematic sampling: W. G. Madow and L. H. Madow, Annals of Mathematical Statistics 15, 1944). From turn to turn
    the points move on, by no more than the least share: nobody is passed over. As long as there are permits for all,
    each has one in any case.
    """
    if limit <= 0 or sum(wanted for wanted, _ in claims) <= limit:
        return fair_shares(claims, limit), False
    exact = _exact(claims, limit)
    if not any(part < EVEN and abs(part - round(part)) > _SAME for part in exact):
        return fair_shares(claims, limit), False
    parts = [part for part in exact if part > _SAME]
    if max(parts) - min(parts) < _SAME:  # by one share a turn, in whole numbers: seconds since 1970 make many turns
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
    """Fair shares as they would be if permits could be divided; at least one each where there are as many."""
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
    """The level L at which the sum of min(wanted, weight · L) is the limit; infinity where all get what they want."""
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
    """The permits that whole numbers left over, fewer than there are claims or so."""
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
