"""Division of a job's demand over servers of one model."""

from __future__ import annotations

import pytest

from policies.limits.fair_share import ServerLoad, spread

CASES = {
    # name: wanted, (room, seconds a token) of each server, parts
    "more is wanted than all may have: each has its room, and the rest is divided": (
        100, [(10, 1.0), (20, 0.1), (30, 0.0)], [24, 33, 43],
    ),
    "a server that may have none now is wanted for later": (100, [(0, 1.0), (40, 1.0)], [30, 70]),
    "exactly what all may have: one more is wanted of the fast one": (30, [(10, 1.0), (20, 0.1)], [9, 21]),
    "exactly what all may have, at one speed": (30, [(10, 1.0), (20, 1.0)], [10, 20]),
    "nothing is known: equal parts": (20, [(100, 0.0), (100, 0.0)], [10, 10]),
    "the square of the speed": (50, [(100, 1.0), (100, 2.0)], [40, 10]),
    "a fast server has its room, and one call more is wanted of it": (50, [(20, 0.1), (100, 1.0)], [21, 29]),
    "a server of unknown speed counts as a usual one": (30, [(99, 1.0), (99, 0.0), (99, 1.0)], [10, 10, 10]),
    "no server is left out where there are calls for all": (20, [(99, 0.001), (99, 10.0)], [19, 1]),
    "the fastest come first where there are few": (1, [(9, 3.0), (9, 1.0), (9, 2.0)], [0, 1, 0]),
    "none may begin a call now": (5, [(0, 0.0), (0, 0.0)], [3, 2]),
    "nothing is wanted": (0, [(9, 1.0), (9, 1.0)], [0, 0]),
    "one server": (7, [(100, 0.0)], [7]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_server_has_its_part(name: str) -> None:
    wanted, servers, parts = CASES[name]
    found = spread(wanted, [ServerLoad(*each) for each in servers])
    assert found == parts
    assert sum(found) == wanted


BEFORE = {
    # name: seconds a token, division before, division now, of 100 calls
    "nearly the same: it stays": ([1.0, 1.05], [52, 48], [52, 48]),
    "quite another": ([1.0, 2.0], [50, 50], [80, 20]),
    "another sum": ([1.0, 1.0], [40, 40], [50, 50]),
    "another number of servers": ([1.0, 1.0], [100], [50, 50]),
    "a server that had none": ([1.0, 30.0], [100, 0], [99, 1]),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_division_changes_only_by_much(name: str) -> None:
    speeds, before, now = BEFORE[name]
    assert spread(100, [ServerLoad(200, each) for each in speeds], before) == now


def test_a_division_that_leaves_a_servers_room_does_not_stay() -> None:
    assert spread(100, [ServerLoad(45, 1.0), ServerLoad(200, 1.0)], [50, 50]) == [45, 55]
