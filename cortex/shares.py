"""How a limit is divided over those who want of it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


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
    """The same; but with more claims than permits they take turns, one permit each, another row of them every turn."""
    hungry = [place for place, (wanted, _) in enumerate(claims) if wanted > 0]
    if len(hungry) <= limit:
        return fair_shares(claims, limit)
    shares = [0] * len(claims)
    for offset in range(max(limit, 0)):
        shares[hungry[(turn * limit + offset) % len(hungry)]] = 1
    return shares


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
