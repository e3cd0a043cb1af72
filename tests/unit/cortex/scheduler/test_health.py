"""Rolling signals: bounded in count and in age, and what is read from them."""

import msgspec
import pytest

from cortex.scheduler import health
from cortex.scheduler.health import AGE_MAX_S, SAMPLES_MAX, SLOTS_MAX, HealthBuffer, HealthRates

INFINITE = float("inf")


def test_what_was_never_heard_of_is_silent_for_ever() -> None:
    buffer = HealthBuffer()
    assert health.silent_s(buffer, 5.0) == health.stalled_s(buffer, 5.0) == INFINITE
    assert health.rates(buffer, 5.0) == HealthRates(0.0, 0.0, 0.0, 0.0, 0.0)
    assert health.failure_share(buffer, 5.0) == health.per_token_s(buffer, 5.0, 0.5) == 0.0


def test_news_is_not_progress() -> None:
    buffer = HealthBuffer()
    health.record_life(buffer, 10.0, 3)
    health.record_life(buffer, 14.0, 3)
    assert (health.silent_s(buffer, 20.0), health.stalled_s(buffer, 20.0)) == (6.0, 10.0)
    health.record_life(buffer, 21.0, 1)  # a new incarnation, that has settled one
    assert health.stalled_s(buffer, 21.0) == 0.0


def test_rates_are_of_the_newest_seconds() -> None:
    buffer = HealthBuffer()
    for second in range(100):
        health.record(buffer, second + 0.5, begun=10, answered=6, failed={"transient": 3, "throttled": 1},
                      input_tokens=500, output_tokens=50)  # fmt: skip
    assert health.rates(buffer, 99.9, 10.0) == HealthRates(10.0, 6.0, 4.0, 500.0, 50.0)
    assert health.rates(buffer, 104.9, 10.0) == HealthRates(5.0, 3.0, 2.0, 250.0, 25.0)  # silent for the last five
    assert health.rates(buffer, 99.9, 9_999.0).begun == pytest.approx(10.0)  # no older than is kept
    assert health.rates(buffer, 99.9 + AGE_MAX_S, 9_999.0).begun == 0.0


@pytest.mark.parametrize(
    ("kinds", "share"), [((), 0.4), (("transient",), 0.3), (("transient", "throttled"), 0.4), (("overloaded",), 0.0)]
)
def test_the_share_of_failures_by_kind(kinds: tuple[str, ...], share: float) -> None:
    buffer = HealthBuffer()
    health.record(buffer, 0.0, answered=1_000)  # too old when it is read
    health.record(buffer, 100.0, answered=2, failed={"transient": 2})
    health.record(buffer, 100.9, answered=4, failed={"transient": 1, "throttled": 1})
    assert health.failure_share(buffer, 101.0, kinds) == share


def test_percentiles() -> None:
    buffer = HealthBuffer()
    health.record(buffer, 1.0, samples=[(99.0, 1)])  # too old when it is read
    health.record(buffer, 100.0, samples=[(n / 10, 100) for n in range(100)])
    assert health.per_token_s(buffer, 110.0, 0.5) == pytest.approx(0.05)
    assert health.per_token_s(buffer, 110.0, 0.95) == pytest.approx(0.095)
    assert health.per_token_s(buffer, 110.0, 1.0) == pytest.approx(0.099)


def test_a_long_answer_is_not_a_slow_one() -> None:
    buffer = HealthBuffer()
    health.record(buffer, 0.0, samples=[(n / 10, 10 * n) for n in range(1, 101)])
    assert [health.per_token_s(buffer, 1.0, share) for share in (0.05, 0.95)] == pytest.approx([0.01, 0.01])


def test_an_answer_without_tokens_is_one() -> None:
    buffer = HealthBuffer()
    health.record(buffer, 0.0, samples=[(2.0, 0)])
    assert health.per_token_s(buffer, 0.0, 0.5) == 2.0


def test_the_mean_time_of_what_was_answered_of_late() -> None:
    buffer = HealthBuffer()
    health.record(buffer, 1.0, answered=5, latency_s=500.0)  # too old when it is read
    health.record(buffer, 100.0, answered=2, latency_s=3.0)
    health.record(buffer, 101.0, answered=2, failed={"faulty": 4}, latency_s=5.0)
    assert health.latency_s(buffer, 101.0) == 2.0
    assert health.latency_s(buffer, 500.0) == 0.0


def test_it_is_bounded_in_count_and_in_age() -> None:
    buffer = HealthBuffer()
    for n in range(5_000):
        health.record(buffer, n * 0.7, begun=1, samples=[(1.0, 1)] * 3)
        assert len(buffer.slots) <= 2 * SLOTS_MAX
        assert len(buffer.samples) <= 2 * SAMPLES_MAX
    assert health.rates(buffer, 4_999 * 0.7, AGE_MAX_S).begun == pytest.approx(
        1 / 0.7, rel=0.05
    )  # none too many is cut
    assert health.per_token_s(buffer, 4_999 * 0.7, 0.5) == 1.0


def test_it_is_kept_as_bytes() -> None:
    buffer = HealthBuffer()
    health.record_life(buffer, 3.0, 7)
    health.record(buffer, 3.0, begun=1, failed={"lost": 1}, samples=[(1.0, 1)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(buffer), type=HealthBuffer) == buffer


def test_buffers_share_nothing() -> None:
    one, other = HealthBuffer(), HealthBuffer()
    health.record(one, 0.0, failed={"lost": 1}, samples=[(1.0, 1)])
    health.record(other, 0.0, answered=1)
    health.record(other, 1.0)
    assert health.failure_share(other, 1.0) == 0.0
    assert other.slots[-1].failed == {} and not other.samples


def test_the_series_is_second_by_second_of_whole_seconds():
    buffer = HealthBuffer()
    health.record(buffer, 100.1, begun=3)
    health.record(buffer, 100.9, answered=2, samples=[(1.0, 10), (3.0, 10)])
    health.record(buffer, 102.5, begun=1, failed={"throttled": 2, "lost": 1})
    health.record(buffer, 103.2, begun=9)
    found = health.series(buffer, 103.6, within_s=5.0)
    assert found.begun == (0, 0, 3, 0, 1)  # the second that goes on is not told yet
    assert found.answered == (0, 0, 2, 0, 0)
    assert found.failed == (0, 0, 0, 0, 3)
    assert found.per_token_p50_s == (0, 0, 0.3, 0, 0)
    assert found.per_token_p95_s == (0, 0, 0.3, 0, 0)
    assert health.series(buffer, 104.0).begun[-4:] == (3, 0, 1, 9)
    assert health.series(buffer, 400.0) == health.HealthSeries()
    assert health.series(HealthBuffer(), 5.0) == health.HealthSeries()


def test_the_series_stays_bounded_and_keeps_its_percentiles_though_the_samples_are_gone():
    buffer = HealthBuffer()
    for second in range(500):
        health.record(buffer, float(second), answered=400, samples=[(1.0 + second % 2, 10)] * 400)
    found = health.series(buffer, 500.0)
    assert len(found.begun) == len(found.per_token_p50_s) == 60
    assert found.answered == (400,) * 60
    assert found.per_token_p50_s == (0.1, 0.2) * 30
