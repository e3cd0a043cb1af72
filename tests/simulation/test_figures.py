"""Required figures, measured on the simulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.measured_scenarios import Credit, credit, idle, outage, paced
from tests.simulation.scenario import ProviderPlan

Tell = Callable[[str], None]


@pytest.mark.parametrize("burst_s", [1.0, pytest.param(10.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("retry_after", [False, True])
def test_the_rate_reaches_the_limit_of_the_provider(burst_s: float, retry_after: bool, tell: Tell) -> None:
    """Four branches; only 429 responses tell the limit."""
    provider = ProviderPlan(latency_s=0.5, jitter=0.3, requests_per_s=20.0, burst_s=burst_s, retry_after=retry_after)
    found = paced(provider, 30, 120)
    tell(str(found))
    assert found.share >= 0.95
    assert found.throttled < 0.02
    assert found.converged_s <= 30


@pytest.mark.parametrize("burst_s", [1.0, 10.0])
def test_the_rate_reaches_a_limit_that_headers_tell(burst_s: float, tell: Tell) -> None:
    """Headers tell the limit for a minute, whatever the burst is."""
    provider = ProviderPlan(
        latency_s=0.5, jitter=0.3, requests_per_s=20.0, burst_s=burst_s, retry_after=True, headers=True
    )
    found = paced(provider, 5, 90)
    tell(str(found))
    assert found.share >= 0.95
    assert found.throttled < 0.02
    assert found.converged_s <= 5


@pytest.mark.parametrize(("share", "every", "worlds"), [pytest.param(0.6, 0, 4, marks=pytest.mark.long), (0.9, 10, 1)])
def test_a_breaker_opens_within_a_window_and_full_rate_is_back(share: float, every: int, worlds: int, tell: Tell) -> None:
    """Failure rates of 60 %, and of 90 % with every tenth call good.

    If four of ten calls are good, a breaker's probes may succeed by luck, and each time some 80 calls are begun until
    it is open again: 60 in the mean of 60 worlds. It opens after 57 to 120 calls, depending on the order of failures.
    """
    found = [outage(share, every, seed) for seed in range(1, 1 + worlds)]
    for each in found:
        tell(str(each))
        assert each.opened_s <= 30
        assert each.recovered_s <= 15
    assert sum(each.opened_after for each in found) / worlds <= 100
    assert sum(each.begun_while_out for each in found) / worlds < 150, "3,200 where nothing opens"


@pytest.mark.release
def test_credit_runs_out_at_sixty_per_cent(tell: Tell) -> None:
    found: Credit = credit(100_000)
    tell(str(found))
    assert found.refused <= found.in_flight
    assert (found.rows, found.answered, found.outcome) == (100_000, 100_000, "complete")


def test_idle_for_ten_minutes(tell: Tell) -> None:
    """No call, no turn, no growth; only each process's own watchdog ticks."""
    found = idle()
    tell(str(found))
    assert (found.calls, found.turns, found.messages, found.tasks_more) == (0, 0, 0, 0)
    assert found.callbacks <= 200
    assert not [name for name in found.lives if name.startswith(("branch:", "worker:", "channel:"))]
