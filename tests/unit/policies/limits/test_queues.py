"""Limit, timeouts and breaker in a closed loop with a server that queues without bound, in virtual time."""

from __future__ import annotations

import pytest

from tests.support.queue_simulation import Queues, Server

CASES = [
    # slots, seconds a call, rows, attempts that time out at most, seconds beyond what the server needs, in calls
    (8, 10.0, 300, 0, 2),
    (4, 20.0, 120, 12, 4),
    (16, 0.5, 1_000, 0, 8),
    (64, 40.0, 300, 0, 4),
]


@pytest.mark.parametrize(("slots", "mean_s", "rows", "timed_out", "calls"), CASES)
def test_no_work_of_a_server_that_queues_is_thrown_away(
    slots: int, mean_s: float, rows: int, timed_out: int, calls: int
) -> None:
    """A hundred calls in flight, the default."""
    found = Queues(Server(slots=slots, mean_s=mean_s), rows=rows, concurrency=100).run(10_000)
    assert (found.done, found.failed, found.opened) == (rows, 0, 0)
    assert found.timed_out <= timed_out
    assert found.ended_s <= rows * mean_s / slots + calls * mean_s


def test_a_server_whose_calls_take_longer_than_the_usual_timeout() -> None:
    found = Queues(Server(slots=64, mean_s=85.0), rows=200, concurrency=100).run(10_000)
    assert (found.done, found.failed, found.opened) == (200, 0, 0)
    assert found.timed_out < 20, "the first ones"


def test_a_server_that_halts_for_half_a_minute() -> None:
    server = Server(slots=8, mean_s=10.0, changes=((100.0, 0), (130.0, 8)))
    found = Queues(server, rows=200, concurrency=100).run(10_000)
    assert (found.done, found.failed, found.opened) == (200, 0, 0)


def test_a_server_that_dies_opens_the_breaker_and_is_found_again() -> None:
    server = Server(slots=64, mean_s=2.0, changes=((60.0, 0), (400.0, 64)))
    found = Queues(server, concurrency=100).run(700)
    assert found.opened >= 1
    assert found.used(560, 700) > 0.95
