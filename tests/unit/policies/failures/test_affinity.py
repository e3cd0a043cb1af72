"""Which calls go to which servers of one model, by the beginnings that these hold."""

from __future__ import annotations

import random

import pytest

from policies.failures.affinity import dealt

A, B, C = 1, 2, 4
IDLE = (4, 0, 4)
FULL = (0, 4, 4)

CASES = {
    # name: calls (holders, tried), servers (free, in flight, permits), most, what is dealt
    "no beginning is known: the least loaded": ([(0, 0)] * 3, [IDLE, IDLE], 9, [(0, 0), (1, 1), (2, 0)]),
    "each to its holder": ([(B, 0), (A, 0)], [IDLE, IDLE], 9, [(0, 1), (1, 0)]),
    "the least loaded holder": ([(A | B, 0)], [(2, 2, 4), IDLE, IDLE], 9, [(0, 1)]),
    "a call that waits lets others pass": ([(A, 0), (0, 0), (B, 0)], [FULL, (2, 2, 4)], 9, [(2, 1), (1, 1)]),
    "no server is idle for it": ([(A, 0), (A, 0)], [FULL, (1, 3, 4)], 9, [(0, 1)]),
    "what its holder cannot take goes elsewhere last": ([(A, 0), (0, 0)], [FULL, (2, 2, 4)], 9, [(1, 1), (0, 1)]),
    "a server that failed a call is left out": ([(0, A)], [IDLE, FULL], 9, []),
    "at most so many": ([(B, 0), (B, 0), (A, 0)], [IDLE, IDLE], 2, [(0, 1), (1, 1)]),
    "none": ([], [IDLE], 9, []),
    "no server": ([(0, 0)], [], 9, []),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_dealt_by_their_beginnings(name: str) -> None:
    calls, servers, most, found = CASES[name]
    assert dealt(calls, servers, most) == found


@pytest.mark.parametrize("seed", range(50))
def test_permits_are_used_up_and_never_passed(seed: int) -> None:
    """No call twice, none to a server that failed it; a free permit is left only if no call left over may use it."""
    chance = random.Random(seed)
    servers = [(chance.randint(0, 3), chance.randint(0, 5), 5) for _ in range(3)]
    calls = []
    for _ in range(chance.randint(0, 12)):
        tried = chance.choice((0, 0, 0, A, B | C))
        calls.append((chance.choice((0, A, B, A | C)) & ~tried, tried))
    most = chance.randint(0, 9)
    found = dealt(calls, servers, most)
    assert len({at for at, _ in found}) == len(found) <= most
    used = [sum(place == each for _, place in found) for each in range(3)]
    assert all(used[place] <= free for place, (free, _, _) in enumerate(servers))
    assert not any(calls[at][1] >> place & 1 for at, place in found)
    left = [calls[at][1] for at in range(len(calls)) if at not in {at for at, _ in found}]
    idle = [place for place, (free, _, _) in enumerate(servers) if used[place] < free]
    assert len(found) == most or all(tried >> place & 1 for tried in left for place in idle)
