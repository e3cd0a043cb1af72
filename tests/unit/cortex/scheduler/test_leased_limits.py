"""Limits in the closed loop of the cortex's own step: four branches, four jobs, leases, grants and claims."""

from typing import Any

import pytest

from tests.support.leased_pool import LeasedPool
from tests.support.pool_simulation import Provider

BLIND_S, TOLD_S, SLOW_S, MEASURED_S = 30, 5, 60, 60


@pytest.mark.parametrize(
    ("from_s", "provider"),
    [
        (TOLD_S, {"requests_per_s": 50, "latency_s": 0.3, "headers": True}),
        (TOLD_S, {"requests_per_s": 50, "latency_s": 1, "capacity_s": 1, "headers": True}),
        (TOLD_S, {"input_tokens_per_s": 50_000, "latency_s": 1, "capacity_s": 10, "headers": True}),
        (SLOW_S, {"requests_per_s": 0.5, "latency_s": 0.6, "capacity_s": 4, "headers": True}),
        (SLOW_S, {"requests_per_s": 1, "latency_s": 0.6, "capacity_s": 2, "headers": True}),
        (SLOW_S, {"requests_per_s": 1, "latency_s": 0.6, "capacity_s": 4, "headers": True, "openai": True}),
        (SLOW_S, {"requests_per_s": 2, "latency_s": 2, "capacity_s": 1, "headers": True}),
        (BLIND_S, {"requests_per_s": 50, "latency_s": 0.02, "capacity_s": 10}),
        (BLIND_S, {"requests_per_s": 50, "latency_s": 0.3, "capacity_s": 1}),
        (BLIND_S, {"requests_per_s": 50, "latency_s": 1, "capacity_s": 60, "retry_after": False}),
        (BLIND_S, {"requests_per_s": 50, "latency_s": 5, "capacity_s": 10}),
        (BLIND_S, {"concurrency": 5, "latency_s": 1}),
        (BLIND_S, {"concurrency": 60, "latency_s": 1}),
    ],
)
def test_what_is_leased_comes_to_what_the_provider_allows(from_s: int, provider: dict[str, Any]) -> None:
    until_s = from_s + MEASURED_S * (1 + 4 * (from_s == SLOW_S))
    pool = LeasedPool(Provider(**provider)).run(until_s)
    used, refused = pool.used(from_s, until_s), pool.throttled(from_s, until_s)
    assert used >= 0.95 and refused < 0.02, f"used {used:.3f}, refused {refused:.4f}, {pool.limit.probing}"
    assert pool.granted < 15 * 4 * until_s  # a few messages a second for each holder


def test_without_any_limit_what_is_wanted_is_granted_within_a_second() -> None:
    pool = LeasedPool(Provider(latency_s=0.02), demand=lambda at_s: 300).run(3)
    assert sum(second.busy_s for second in pool.seconds[1:3]) >= 2 * 0.95 * 300
