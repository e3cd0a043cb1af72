"""Cut of the calls in flight where attempts time out, at a server that may queue its calls."""

from __future__ import annotations

import msgspec
import pytest

from policies.failures.timeout import TimeoutPolicy
from policies.limits import queueing
from policies.limits.limit import (
    LimitPolicy,
    PoolLimit,
    RateLimits,
    ReportedBucket,
    UsageSample,
    adopt,
    allowance,
    new,
    observe,
)
from tests.support.queue_simulation import Queues, Server

POLICY = LimitPolicy()


def at_a_queue(in_flight: int) -> PoolLimit:
    """Return a pool that looks for a queue and has so many calls in flight."""
    limit = new(POLICY, queues=True)
    limit.probing.concurrency = float(in_flight)
    return limit


def late(limit: PoolLimit, at_s: float, n: int, answered: int = 0) -> int:
    """Let n attempts time out after 70 s, all permits being used; return the permits."""
    before = allowance(POLICY, limit, at_s).concurrency
    counts = {"answered": answered, "latency_s": 10.0 * answered, "unwell": n, "timed_out": n}
    timed_out_s = 70.0 if n else 0.0
    observe(POLICY, limit, at_s, UsageSample(**counts, timed_out_s=timed_out_s, in_flight=before - n, binding=True))
    return allowance(POLICY, limit, at_s).concurrency


@pytest.mark.parametrize(
    ("in_flight", "reports", "expected"),
    [
        (1_000, [(0.0, 1), (0.5, 0), (1.5, 0)], [500, 500, 1_000]),
        (1_000, [(0.0, 1), (0.5, 68), (1.5, 0)], [500, 500, 1_000]),
        (1_000, [(0.0, 1), (0.5, 69), (1.5, 0), (60.0, 0)], [500, 500, 500, 500]),
        (1_000, [(0.0, 1), (1.5, 1), (9.0, 30), (9.5, 40), (39.0, 0)], [500, 1_000, 1_000, 500, 500]),
        (1_000, [(0.0, 1), *((10.0 * n, 30) for n in range(1, 7))], [500] + 6 * [1_000]),
        (1_000, [(0.0, 1_000), (1.5, 0)], [500, 500]),
        (16, [(0.0, 1), (1.5, 0)], [8, 16]),
        (8, [(0.0, 1), (1.5, 0), (9.0, 1)], [4, 4, 4]),
        (5, [(0.0, 5), (1.5, 0)], [2, 2]),
        (2, [(0.0, 1), (1.5, 1)], [1, 1]),
        (1, [(0.0, 1), (1.5, 1)], [1, 1]),
    ],
)
def test_calls_in_flight_are_halved_and_return_unless_many_more_time_out(
    in_flight: int, reports: list[tuple[float, int]], expected: list[int]
) -> None:
    """One lost connection of a thousand halved them, until the search had grown again."""
    limit = at_a_queue(in_flight)
    assert [late(limit, 100.0 + after_s, n) for after_s, n in reports] == expected


@pytest.mark.parametrize("timed_out", [0, 1])
def test_a_refusal_leaves_the_number_cut(timed_out: int) -> None:
    limit = at_a_queue(1_000)
    assert late(limit, 100.0, 1) == 500
    observe(POLICY, limit, 101.5, UsageSample(throttled=5, timed_out=timed_out, unwell=timed_out, in_flight=400))
    assert limit.probing.concurrency == 500
    assert late(limit, 110.0, 0) == 500


def test_a_limit_that_headers_name_leaves_the_number_cut() -> None:
    limit = at_a_queue(1_000)
    late(limit, 100.0, 1)
    told = RateLimits(requests=ReportedBucket(limit=9_000, remaining=6_000))
    observe(POLICY, limit, 100.5, UsageSample(answered=1, latency_s=1.0, rate=told, in_flight=400, binding=True))
    observe(POLICY, limit, 101.5, UsageSample(in_flight=1))
    assert 500 < limit.probing.concurrency < 900


def test_a_number_that_was_lowered_meanwhile_for_another_reason_stays() -> None:
    limit = at_a_queue(1_000)
    late(limit, 100.0, 1)
    limit.probing.concurrency = 100.0
    assert late(limit, 101.5, 0) == 100


def test_growth_that_ended_meanwhile_does_not_go_on() -> None:
    limit = at_a_queue(1_000)
    assert limit.queue is not None
    late(limit, 100.0, 1)
    queueing.cut(limit.queue, 100.5)
    assert (late(limit, 101.5, 0), limit.queue.growing) == (1_000, False)


def test_an_episode_that_begins_before_the_number_has_returned_keeps_it() -> None:
    limit = at_a_queue(1_000)
    limit.load.latency_s = 1_000.0  # it returns after 140 s
    assert [late(limit, at_s, n) for at_s, n in ((100.0, 1), (171.0, 1), (312.0, 0))] == [500, 250, 1_000]


def test_calls_are_halved_in_each_episode_in_which_all_time_out() -> None:
    limit = at_a_queue(80)
    seen = [late(limit, at_s, 20) for at_s in (100.0, 101.0, 102.0, 169.0, 170.0, 171.0, 240.0)]
    assert seen == [40, 40, 40, 40, 20, 20, 10]


def test_answers_of_other_calls_hide_no_timeouts() -> None:
    """Quick calls are answered a thousand times while one that waits times out."""
    limit = at_a_queue(64)
    assert late(limit, 100.0, 64, answered=50_000) == 32


def test_the_number_returns_later_where_answers_take_long() -> None:
    limit = at_a_queue(1_000)
    limit.load.latency_s = 50.0
    assert [late(limit, at_s, n) for at_s, n in ((100.0, 1), (106.5, 0), (107.5, 0))] == [500, 500, 1_000]


def test_a_cut_is_taken_back_on_another_clock_and_in_another_process() -> None:
    limit = at_a_queue(100)
    assert late(limit, 100.0, 5) == 50
    limit = msgspec.msgpack.decode(msgspec.msgpack.encode(limit), type=PoolLimit)
    adopt(limit, 5_000.0)
    assert [late(limit, at_s, 0) for at_s in (5_000.5, 5_001.5)] == [50, 100]


def test_growth_goes_on_where_a_single_attempt_times_out() -> None:
    limit = at_a_queue(1_000)
    for at_s, n in ((100.0, 1), (101.5, 0)):
        late(limit, at_s, n)
    assert limit.queue is not None and limit.queue.growing


@pytest.mark.parametrize(("slots", "told_s"), [(16, 0.0), (64, 0.0), (64, 1.0)])
def test_a_connection_that_is_lost_costs_no_more_than_its_own_slot(slots: int, told_s: float) -> None:
    """Half of the slots were empty for a while: at 64 of them .79 was used in the next ten calls' time."""
    found = Queues(Server(slots=slots, mean_s=10.0), told=told_s).run(100.0)
    found.lose()
    while not found.timed_out:
        found.run(found.now_s - found.zero_s + 1.0)
    from_s = found.now_s - found.zero_s
    found.run(from_s + 100.0)
    assert (found.timed_out, found.opened) == (1, 0)
    assert found.used(from_s, from_s + 100.0) >= 0.97


def test_connections_that_are_lost_now_and_then_cost_no_more_than_their_slots() -> None:
    """Losses of a whole episode looked like a queue together: with seeds 1 to 4, .54 to .86 was used."""
    timeouts = TimeoutPolicy(first_byte_s=60.0)
    found = Queues(Server(slots=64, mean_s=10.0), timeouts=timeouts).run(40.0)
    for number in range(36):
        found.run(40.0 + 10.0 * number)
        found.lose()
    assert found.timed_out >= 20
    assert found.used(100.0, 390.0) >= 0.95
