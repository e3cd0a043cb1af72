"""What was learned about a pool, from what and when, as a person is told."""

from __future__ import annotations

import msgspec
import pytest

from policies.limits.learned import LearnedFrom, LearnedUnit, learned
from policies.limits.limit import (
    LimitPolicy,
    PoolLimit,
    RateLimits,
    ReportedBucket,
    UsageSample,
    adopt,
    forgotten,
    new,
    observe,
)
from tests.support.pool_simulation import Pool, Provider

POLICY = LimitPolicy()


def told(limit: PoolLimit, at_s: float, **sample: object) -> None:
    observe(POLICY, limit, at_s, UsageSample(begun=9, answered=9, latency_s=9.0, in_flight=9, binding=True, **sample))  # type: ignore[arg-type]


def test_in_slow_start_nothing_was_learned() -> None:
    limit = new(POLICY)
    assert learned(limit, 0.0) == ()
    told(limit, 100.0)
    assert learned(limit, 100.0) == ()


def test_a_rate_after_refusals_has_the_time_of_the_first_of_them() -> None:
    pool = Pool(Provider(requests_per_s=5, capacity_s=5, latency_s=0.5)).run(120)
    first_s = next(second for second, each in enumerate(pool.seconds) if each.throttled)
    (found,) = learned(pool.limit, pool.now_s)
    assert (found.source, found.unit) == (LearnedFrom.REFUSALS, LearnedUnit.REQUESTS)
    assert found.amount == pytest.approx(5, rel=0.3)
    assert found.age_s == pytest.approx(120 - first_s, abs=2)
    other = msgspec.msgpack.decode(msgspec.msgpack.encode(pool.limit), type=PoolLimit)
    adopt(other, other.at_s + 5_000)
    assert learned(other, pool.now_s + 5_000)[0].age_s == pytest.approx(found.age_s), "on another clock"


def test_calls_at_once_after_refusals() -> None:
    pool = Pool(Provider(concurrency=20, latency_s=1.0)).run(120)
    (found,) = learned(pool.limit, pool.now_s)
    assert (found.source, found.unit) == (LearnedFrom.REFUSALS, LearnedUnit.AT_ONCE)
    assert 15 <= found.amount <= 25


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (RateLimits(requests=ReportedBucket(600, 590), output_tokens=ReportedBucket(60_000, 5)),
         [(LearnedUnit.REQUESTS, 10.0), (LearnedUnit.OUTPUT_TOKENS, 1_000.0)]),
        (RateLimits(tokens=ReportedBucket(60_000, 5_000)), [(LearnedUnit.TOKENS, 1_000.0)]),
        (RateLimits(input_tokens=ReportedBucket(6_000, 5_000), tokens=ReportedBucket(60_000, 5_000)),
         [(LearnedUnit.INPUT_TOKENS, 100.0)]),
    ],
)  # fmt: skip
def test_limits_in_headers(rate: RateLimits, expected: list[tuple[LearnedUnit, float]]) -> None:
    limit = new(POLICY)
    told(limit, 100.0, rate=rate)
    found = learned(limit, 130.0)
    assert [(each.unit, each.amount) for each in found] == expected
    assert {(each.source, each.age_s) for each in found} == {(LearnedFrom.HEADERS, 30.0)}


def test_the_metrics_of_a_server() -> None:
    limit = new(POLICY, queues=True)
    for at_s in (100.0, 101.0):
        told(limit, at_s, at_server=(9, 0))
    (found,) = learned(limit, 103.0)
    assert (found.source, found.unit, found.age_s) == (LearnedFrom.METRICS, LearnedUnit.AT_ONCE, 2.0)
    assert found.amount == limit.probing.concurrency
    assert learned(limit, 200.0) == (), "the reading is too old to count"


def test_a_share_that_is_refused_whatever_is_sent() -> None:
    pool = Pool(Provider(stray_share=0.02, latency_s=0.3), demand=lambda at_s: 200).run(120)
    found = next(each for each in learned(pool.limit, pool.now_s) if each.unit is LearnedUnit.STRAYS)
    assert 0.01 <= found.amount <= 0.06


@pytest.mark.parametrize("queues", [False, True])
def test_what_is_forgotten_is_all_but_a_wait_that_was_asked_for(queues: bool) -> None:
    limit = new(POLICY, queues)
    told(limit, 100.0, rate=RateLimits(requests=ReportedBucket(600, 590)))
    for at_s in (101.0, 103.0, 105.0):
        told(limit, at_s, throttled=5, retry_after_s=30.0)
    held_s = limit.held_until_s
    again = forgotten(POLICY, limit)
    assert learned(limit, 105.0) and learned(again, 105.0) == ()
    assert again.held_until_s == held_s > 105
    fresh = new(POLICY, queues)
    fresh.at_s, fresh.held_until_s = again.at_s, again.held_until_s
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(fresh)
