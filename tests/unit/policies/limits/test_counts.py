"""Counts of a pool's limit: no interleaving of reports makes one negative, or stops the search with an error."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from policies.limits.limit_policy import ProbeMode
from policies.limits.strays import Strays
from tests.support.pool_simulation import Pool, Provider

POLICY = LimitPolicy()
COUNTED = ("limit.probing.", "limit.load.", "limit.charged.pending")

class Weather(msgspec.Struct, frozen=True):
    """Some reports in a row of the same kind."""

    reports: int
    apart_s: float
    """Seconds between two reports; below 0: the clock goes back."""
    begun: int
    """Calls begun before each report, at most."""
    refused: float
    """Share of the calls that end which is refused."""
    ending: float
    """Share of the calls under way that end before a report: the others are refused or answered in a later one."""
    retry_after_s: float
    binding: bool


SHARES = st.sampled_from((0.0, 0.02, 0.3, 0.5, 0.9, 1.0))
WEATHERS = st.lists(
    st.builds(
        Weather,
        reports=st.integers(1, 40),
        apart_s=st.sampled_from((-5.0, 0.0, 0.02, 0.25, 1.0, 8.0, 60.0, 100_000.0)),
        begun=st.sampled_from((0, 1, 2, 5, 20, 300)),
        refused=SHARES,
        ending=st.sampled_from((0.05, 0.5, 1.0)),
        retry_after_s=st.sampled_from((0.0, 0.0, 1.0, 30.0)),
        binding=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


def reports(weathers: list[Weather], chance: random.Random, headers: bool) -> Iterator[tuple[float, UsageSample]]:
    """Times and counts of reports: a call ends in the report that begins it, or in any later one."""
    at_s, under_way = 1_000.0, 0
    for weather in weathers:
        for _ in range(weather.reports):
            at_s += weather.apart_s * chance.random()
            begun = chance.randint(0, weather.begun)
            under_way += begun
            ended = sum(chance.random() < weather.ending for _ in range(under_way))
            throttled = sum(chance.random() < weather.refused for _ in range(ended))
            unwell = (ended - throttled) // 9
            answered = ended - throttled - unwell
            under_way -= ended
            durations = [chance.choice((0.0, 0.001, chance.expovariate(1.0))) for _ in range(answered)]
            took = [(seconds, chance.randint(0, 300)) for seconds in durations]
            left = ReportedBucket(60, chance.randint(0, 60), chance.choice((None, 0.0, 30.0)))
            yield at_s, UsageSample(
                begun=begun, answered=answered, throttled=throttled, unwell=unwell, timed_out=unwell // 2,
                timed_out_s=10.0 if unwell // 2 else 0.0, input_tokens=900 * answered, output_tokens=99 * answered,
                latency_s=sum(each for each, _ in took), retry_after_s=weather.retry_after_s if throttled else 0.0,
                rate=RateLimits(requests=left, tokens=left) if headers else None, in_flight=under_way,
                binding=weather.binding, samples=tuple(took[:16]), prompts=tuple(900 for _ in took[:16]),
            )  # fmt: skip


def wrong(value: Any, name: str = "limit") -> Iterator[str]:
    """Names of numbers that are not finite, and of counts and rates that are below 0. `late` counts both ways."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from wrong(getattr(value, field), f"{name}.{field}")
    elif isinstance(value, (int, float)):
        counted = name.startswith(COUNTED) and not name.endswith(".late")
        if not math.isfinite(value) or (counted and value < 0):
            yield f"{name} is {value}"


@given(weathers=WEATHERS, seed=st.integers(0, 10_000), queues=st.booleans(), headers=st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_interleaving_of_reports_fails_or_makes_a_count_negative(
    weathers: list[Weather], seed: int, queues: bool, headers: bool
) -> None:
    limit = new(POLICY, queues)
    for at_s, sample in reports(weathers, random.Random(seed), headers):
        observe(POLICY, limit, at_s, sample)
        allowed = allowance(POLICY, limit, at_s)
        assert allowed.concurrency >= 1 and 0 <= allowed.requests_per_s < math.inf
        assert not list(wrong(limit))


@pytest.mark.parametrize(
    ("calls_a_minute", "nodes", "seed"), [(8, 1, 3), (8, 1, 29), (8, 1, 36), (8, 1, 137), (6, 4, 22), (6, 4, 50)]
)
def test_a_call_that_is_refused_a_report_after_it_began_counts_once(calls_a_minute: int, nodes: int, seed: int) -> None:
    """Buckets of about one call, whose climbs begin between the two reports."""
    latency_s = 1.0 if nodes == 1 else 2.0
    provider = Provider(requests_per_s=calls_a_minute / 60, capacity_s=10, latency_s=latency_s, retry_after=False)
    pool = Pool(provider, seed=seed, nodes=nodes).run(60)
    assert not list(wrong(pool.limit))


def test_a_limit_kept_with_counts_below_0_is_searched_on() -> None:
    kept = new(POLICY)
    kept.at_s = 1_000.0
    kept.probing.accepted, kept.load.accepted_per_s, kept.load.steady_per_s = -1, -0.5, -0.1
    kept.probing.mode, kept.probing.rate = ProbeMode.RATE, 0.5
    kept.probing.strays = Strays(climbs=True, accepted=-1, refused=2, level=0.5, target=4.0, block_before=-0.1)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(kept), type=PoolLimit)
    adopt(kept, 50.0)
    assert not list(wrong(kept.probing.strays)) and kept.probing.accepted == 0
    for turn in range(30):
        good = UsageSample(begun=1, answered=1, latency_s=1.0, in_flight=1, binding=True)
        observe(POLICY, kept, 70.0 + 20 * turn, good)
        allowance(POLICY, kept, 70.0 + 20 * turn)
    assert kept.probing.strays.ended_at_s > 70.0 and kept.probing.strays.tolerated < 1


def test_answers_that_take_no_time_by_the_clock_are_no_error() -> None:
    limit = new(POLICY, queues=True)
    for turn in range(200):
        at_once = tuple((0.0 if turn < 9 else 0.3, 40) for _ in range(4))
        counts = UsageSample(
            begun=4, answered=4, latency_s=1.2, in_flight=4, binding=True, samples=at_once, prompts=(9,) * 4
        )
        observe(POLICY, limit, 1_000.0 + turn, counts)
    assert not list(wrong(limit))
