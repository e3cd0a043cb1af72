"""Bounds on reply tokens of calls whose reply was cut."""

from __future__ import annotations

import pytest

from policies.estimates.reply_bounds import LONGER_TIMES, LONGER_TOKENS_MAX, bounds, raised


@pytest.mark.parametrize(("own", "model_max", "expected"), [
    (1, None, [1, 2, 4, 8]),
    (8, None, [8, 16, 32, 64]),
    (1_024, None, [1_024, 2_048, 4_096, 8_192]),
    (5_000, None, [5_000, 10_000, 20_000, 32_768]),
    (32_768, None, [32_768]),
    (60_000, None, [60_000]),
    (1_024, 4_096, [1_024, 2_048, 4_096]),
    (1_024, 3_000, [1_024, 2_048, 3_000]),
    (1_024, 64_000, [1_024, 2_048, 4_096, 8_192]),
    (8_192, 8_192, [8_192]),
    (9_000, 8_192, [9_000]),
])  # fmt: skip
def test_each_bound_is_twice_the_one_before_within_three_limits(own, model_max, expected):
    assert list(bounds(own, model_max)) == expected
    assert all(each <= max(own, min(LONGER_TIMES * own, LONGER_TOKENS_MAX)) for each in expected)
    assert raised(own, expected[-1], model_max) == 0
