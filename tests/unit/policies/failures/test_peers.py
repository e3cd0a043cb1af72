"""Servers of one model that rank equal: the choice among them, and which failures cost a call nothing."""

from __future__ import annotations

import pytest

from policies.failures.breaker import BreakerState
from policies.failures.failure import Failure, FailureKind
from policies.failures.peers import least_loaded, moves_on
from policies.failures.route_choice import RouteChoice, choose

CLOSED, OPEN, HALF = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

LOADS = {
    # name: (free, in flight, permits) of each, tried, place
    "the smallest part in use": ([(5, 5, 10), (15, 5, 20), (1, 0, 1)], 0, 1),
    "the first of equals": ([(5, 5, 10), (5, 5, 10)], 0, 0),
    "none is free": ([(0, 10, 10), (0, 0, 0)], 0, -1),
    "a busy one is passed over": ([(0, 0, 10), (1, 9, 10)], 0, 1),
    "one that failed the call is left out": ([(9, 1, 10), (1, 9, 10)], 0b01, 1),
    "all failed it": ([(9, 1, 10), (1, 9, 10)], 0b11, -1),
    "there is none": ([], 0, -1),
}


@pytest.mark.parametrize("name", LOADS)
def test_which_server_takes_the_next_call(name: str) -> None:
    peers, tried, place = LOADS[name]
    assert least_loaded(peers, tried) == place


MOVES = {
    # kind, what else is known, servers that failed it: does it move on?
    (FailureKind.THROTTLED, (), 1): True,
    (FailureKind.THROTTLED, (), 9): True,
    (FailureKind.OVERLOADED, (), 9): True,
    (FailureKind.TRANSIENT, ("unsent",), 9): True,
    (FailureKind.TRANSIENT, (), 1): True,
    (FailureKind.TRANSIENT, (), 2): True,
    (FailureKind.TRANSIENT, (), 3): False,
    (FailureKind.TRANSIENT, ("answered",), 1): False,
    (FailureKind.TIMED_OUT, (), 1): False,
    (FailureKind.UNREADABLE, (), 1): False,
    (FailureKind.REJECTED, (), 1): False,
    (FailureKind.LOST, (), 1): False,
}


@pytest.mark.parametrize("case", MOVES, ids=str)
def test_which_failures_cost_a_call_nothing(case: tuple[FailureKind, tuple[str, ...], int]) -> None:
    kind, known, servers = case
    failure = Failure(kind, "no", sent="unsent" not in known, answer_came="answered" in known)
    assert moves_on(failure, (1 << servers) - 1) is MOVES[case]


CHOICES = [
    # breakers, further servers, choice
    ([CLOSED, CLOSED, CLOSED], 2, RouteChoice(0, (), (0, 1, 2))),
    ([OPEN, CLOSED, CLOSED], 2, RouteChoice(1, (), (1, 2))),
    ([HALF, OPEN, CLOSED], 2, RouteChoice(2, (0,), (2,))),
    ([CLOSED, HALF], 1, RouteChoice(0, (1,), (0,))),
    ([CLOSED, CLOSED, CLOSED], 1, RouteChoice(0, (), (0, 1))),  # the third is a fallback
    ([OPEN, HALF, CLOSED], 1, RouteChoice(2, (1,))),
    ([OPEN, OPEN], 1, RouteChoice(None)),
    ([CLOSED, CLOSED], 0, RouteChoice(0)),
]


@pytest.mark.parametrize(("states", "peers", "choice"), CHOICES)
def test_which_routes_share_the_work(states: list[BreakerState], peers: int, choice: RouteChoice) -> None:
    assert choose(states, peers) == choice
