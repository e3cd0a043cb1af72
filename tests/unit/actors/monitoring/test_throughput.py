"""The speed of a job is that of the last half minute, by a clock that the test turns."""

from __future__ import annotations

import math
import random

import pytest

from actors.monitoring.throughput import (
    RESULTS_MIN,
    SAMPLES,
    STILL_S,
    SURE_S,
    TOLD_SHARE,
    WINDOW_S,
    ThroughputEstimator,
    forecast,
    of_job,
)


def _watched(*seen: tuple[float, int]) -> ThroughputEstimator:
    speed = ThroughputEstimator()
    for at_s, done in seen:
        speed.saw(at_s, done)
    return speed


@pytest.mark.parametrize(
    ("seen", "at_s", "per_s"),
    [
        ([], 0.0, 0.0),
        ([(0.0, 7)], 0.0, 0.0),
        ([(0.0, 0), (10.0, 50)], 10.0, 5.0),
        # what a resumed job brings along is not its speed
        ([(0.0, 90_000), (10.0, 90_050)], 10.0, 5.0),
        # a burst of remembered rows is out of sight half a minute later
        ([(0.0, 0), (1.0, 10_000), *((1.0 + t, 10_000 + 2 * t) for t in range(1, 41))], 41.0, 2.0),
        # it stands still: less and less, then nothing
        ([(0.0, 0), (10.0, 100)], 20.0, 5.0),
        ([(0.0, 0), (10.0, 100), *((10.0 + t, 100) for t in range(1, 41))], 50.0, 0.0),
        # it counts anew
        ([(0.0, 500), (10.0, 600), (11.0, 0), (21.0, 30)], 21.0, 3.0),
    ],
)
def test_the_speed_of_late(seen, at_s, per_s):
    assert _watched(*seen).per_s(at_s) == pytest.approx(per_s, rel=0.05)


def test_it_keeps_a_bounded_number_of_moments():
    speed = _watched(*((n / 100, n) for n in range(20_000)))
    assert len(speed._seen) <= 2 * WINDOW_S + 5
    assert speed.per_s(200.0) == pytest.approx(100, rel=0.05)


def test_the_rest_is_foretold_once_there_is_something_to_go_by():
    speed = _watched((0.0, 0), (SURE_S / 2, 10))
    assert speed.left_s(SURE_S / 2, 100) is None
    speed.saw(SURE_S, 20)
    assert speed.left_s(SURE_S, 100) == pytest.approx(100 * SURE_S / 20)
    assert speed.left_s(SURE_S, 0) == 0
    assert _watched((0.0, 5), (50.0, 5)).left_s(50.0, 100) is None


@pytest.mark.parametrize(
    ("seen", "at_s", "risk"),
    [
        ([(0.0, 0)], SURE_S / 2, None),
        ([(0.0, 0), (SURE_S, 0)], SURE_S, None),  # the first answer is under way: a false alarm in each healthy job
        ([(0.0, 0), (STILL_S - 1, 0)], STILL_S - 1, None),
        ([(0.0, 0), (STILL_S, 0)], STILL_S, True),
        ([(0.0, 7), (STILL_S, 7)], STILL_S, True),  # a resumed job
        ([(0.0, 0), (SURE_S, RESULTS_MIN - 1)], SURE_S, None),  # a pool that still grows
        ([(0.0, 0), (SURE_S, RESULTS_MIN)], SURE_S, False),
        ([(0.0, 0), (STILL_S, 2)], STILL_S, False),
        ([(0.0, 0), (10.0, 100), *((10.0 + t, 100) for t in range(1, 41))], 50.0, True),
    ],
)
def test_a_job_without_a_result_yet_puts_no_deadline_at_risk(seen, at_s, risk):
    facts = {"rows_expected": 100, "rows_succeeded": 0, "rows_failed": 0, "deadline_at_s": 2_900.0}
    assert forecast(_watched(*seen), facts, at_s, 1_000.0)["deadline_at_risk"] is risk


@pytest.mark.parametrize("left_s", [5.0, 3_600.0, 6 * 3_600.0])
@pytest.mark.parametrize("pace_s", [math.inf, 15.0])  # it stands still; it is slow
def test_a_risk_is_told_once_a_share_of_the_time_left_was_observed(left_s: float, pace_s: float) -> None:
    """Twenty seconds after the start, six hours ahead of its deadline, no job can be told to miss it."""
    facts = {"rows_expected": 100_000, "rows_succeeded": 0, "rows_failed": 0, "deadline_at_s": left_s}
    speed, told_s = ThroughputEstimator(), None
    for at_s in range(1_000):
        speed.saw(at_s, int(at_s / pace_s))
        if forecast(speed, facts, at_s, float(at_s))["deadline_at_risk"]:
            told_s = at_s
            break
    least_s = max(min(STILL_S, left_s), TOLD_SHARE * left_s / (1 + TOLD_SHARE))
    assert told_s is not None and least_s <= told_s <= least_s + 2 + WINDOW_S
    speed.saw(told_s + 1, 99_000)
    assert forecast(speed, facts | {"rows_succeeded": 99_990}, told_s + 1, 0.0)["deadline_at_risk"] is False
    speed.saw(told_s + 1.5, 99_000)
    again = forecast(speed, facts | {"deadline_at_s": left_s * 1e9}, told_s + 1.5, 0.0)["deadline_at_risk"]
    assert again is not True


@pytest.mark.parametrize(
    ("share", "burst_s", "told", "least"),
    [(0.9, 0, True, 0.9), (0.7, 60, True, 0.95), (0.9, 60, True, 0.7), (1.4, 0, False, 0.99), (1.4, 60, False, 0.9)],
)
def test_a_steady_job_is_told_to_miss_its_deadline_by_its_rate_and_not_by_its_bursts(
    share: float, burst_s: int, told: bool, least: float
) -> None:
    """``share``: rate, as a share of the one needed from the beginning, a row a second. A risk that had to last without a
    break was told after more than two hours."""
    chance, whole_s, done, answers = random.Random(1), 4 * 3_600, 0, []
    speed, facts = ThroughputEstimator(), {"rows_expected": whole_s, "rows_failed": 0, "deadline_at_s": float(whole_s)}
    for at_s in range(whole_s):
        if burst_s:
            done += round(share * burst_s) if at_s % burst_s == 0 else 0
        else:
            done += sum(chance.random() < share / 4 for _ in range(4))
        speed.saw(at_s, done)
        if done >= whole_s:
            break
        if at_s % 2 == 0:
            answers.append(forecast(speed, facts | {"rows_succeeded": done}, at_s, float(at_s))["deadline_at_risk"])
    assert answers.count(told) >= least * len(answers)
    if told:
        assert 2 * answers.index(True) <= 0.02 * whole_s, "soon"
    assert len(speed._long) <= SAMPLES + 5


@pytest.mark.parametrize(
    ("facts", "unit", "done", "expected"),
    [
        ({"results": 0, "calls": 12, "rows_expected": 0}, "calls", 12, None),
        ({"results": 3, "calls": 12, "rows_expected": 0}, "rows", 3, None),
        ({"results": 0, "calls": 12, "rows_expected": 40}, "rows", 0, 40),
    ],
)
def test_rows_where_there_are_any_else_calls(facts, unit, done, expected):
    reported = of_job(ThroughputEstimator(), facts, 0.0)
    assert (reported["unit"], reported["done"], reported["expected"]) == (unit, done, expected)
