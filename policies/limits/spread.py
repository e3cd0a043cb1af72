"""Division of a job's demand over several servers of one model, by normalised latency and by free slots.

While more is wanted than all servers may have in flight, each has all that it may have, and more is wanted of each, so
that its limit is searched for (`policies.limits.limit`). Otherwise the calls go to the faster servers: each has calls
in proportion to a power of its speed, at most what it may have. With the power 1 each server would have as many calls
under way as the choice of the smallest product of latency and calls in flight leads to (peak EWMA: Finagle,
https://twitter.github.io/finagle/guide/Clients.html, and Linkerd, which take it for their default). `POWER` is larger,
since the whole throughput counts here, and not the longest wait of a call.

Every server keeps a call if there are enough: of one without calls nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from policies.limits.fair_share import fair_shares

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
