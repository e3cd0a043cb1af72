"""Refill: the rate at which a bucket is used that the provider tells of."""

import pytest

from policies.limits import refill
from policies.limits.refill import Refill


def at_level(remaining: int) -> Refill:
    """A bucket of 100 a second, once seen full, that holds so much now."""
    known = Refill()
    refill.take_reading(known, 100.0, 6_000, 6_000, 1.0, 0.5, False)
    for turn in range(40):
        refill.take_reading(known, 100.0, 6_000, remaining, 1.0, 0.5, turn % 2 == 0)
    return known


@pytest.mark.parametrize(
    ("remaining", "per_s"),
    [
        (6_000, 300.0),  # full: used up, but at no more than three times the refill
        (1_700, 200.0),
        (1_200, 100.0),  # at its reserve
        (900, 50.0),  # below it: no less than half, the bucket fills all the same
        (0, 50.0),
    ],
)
def test_the_level_of_a_bucket_says_the_rate(remaining: int, per_s: float) -> None:
    known = at_level(remaining)
    assert refill.rate(known, 0.0) == pytest.approx(per_s)
    assert refill.rate(known, 0.3) == pytest.approx(min(per_s, 70.0))


def test_other_traffic_is_learnt_from_the_level_and_forgotten_again() -> None:
    known, level = Refill(), 6_000.0
    for turn in range(2_400):
        refill.take_reading(known, turn * 0.25, 6_000, int(level), 1.0, 0.5, True)
        others = 40.0 if turn < 1_200 else 0.0
        level = min(6_000.0, max(0.0, level + 0.25 * (100.0 - others - refill.rate(known, 0.0))))
        if turn == 1_199:
            assert refill.rate(known, 0.0) == pytest.approx(60.0, rel=0.02)
            assert level == pytest.approx(1_200.0, rel=0.05)
    assert refill.rate(known, 0.0) == pytest.approx(100.0, rel=0.02)


def test_a_bucket_that_is_full_for_want_of_demand_teaches_nothing() -> None:
    known = at_level(300)
    for turn in range(400):
        refill.take_reading(known, 100 + turn * 0.25, 6_000, 300, 1.0, 0.5, True)
    learnt = known.free_per_s
    for turn in range(400):
        refill.take_reading(known, 200 + turn * 0.25, 6_000, 6_000, 1.0, 0.5, False)
    assert known.free_per_s == learnt < 100.0


def test_a_small_bucket_is_held_half_full() -> None:
    known = Refill()
    for level in [100] + [50] * 30:
        refill.take_reading(known, 100.0, 6_000, level, 1.0, 0.5, False)
    assert refill.rate(known, 0.0) == pytest.approx(100.0)


def test_a_new_limit_holds_at_once_and_a_bucket_is_as_large_as_it_was_ever_seen() -> None:
    known = at_level(1_200)
    refill.take_reading(known, 101.0, 12_000, 300, 1.0, 0.5, False)
    assert (known.per_s, known.free_per_s, known.capacity) == (200.0, 200.0, 300.0)
    refill.take_reading(known, 102.0, 12_000, 9_000, 1.0, 0.5, False)
    assert (known.per_s, known.capacity) == (200.0, 9_000.0)
