"""What all rows come to, by what a few came to: strata, totals with their intervals, equal parts."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.estimates.forecast import EstimatedTotal, SampledStratum, parts, student_t, total
from policies.estimates.strata import ROWS_LEAST, STRATA_MAX, drawn


def sampled(sizes: list[int], values: list[float], wanted: int, seed: int) -> EstimatedTotal:
    strata = drawn(sizes, wanted, random.Random(seed).random)
    return total(
        [
            SampledStratum(s.rows, tuple(float(sizes[p]) for p in s.drawn), tuple(values[p] for p in s.drawn))
            for s in strata
        ],
        float(sum(sizes)),
    )


@given(st.lists(st.integers(0, 50_000), max_size=300), st.integers(1, 400), st.integers(0, 2**32))
def test_a_sample_has_as_many_rows_as_were_wanted_and_none_twice(sizes: list[int], wanted: int, seed: int) -> None:
    strata = drawn(sizes, wanted, random.Random(seed).random)
    places = [place for each in strata for place in each.drawn]
    assert len(places) == len(set(places)) == min(wanted, len(sizes))
    assert sum(each.rows for each in strata) == len(sizes) or wanted < len(strata)
    assert all(0 <= place < len(sizes) for place in places)
    assert len(strata) <= STRATA_MAX
    assert all(len(each.drawn) >= min(each.rows, ROWS_LEAST) for each in strata) or wanted < 2 * ROWS_LEAST
    ends = [(min(sizes[p] for p in each.drawn), max(sizes[p] for p in each.drawn)) for each in strata]
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(ends)), "strata are of rising sizes"


def test_the_same_seed_draws_the_same_rows() -> None:
    sizes = [each % 97 for each in range(1_000)]
    assert drawn(sizes, 40, random.Random(5).random) == drawn(sizes, 40, random.Random(5).random)
    assert drawn(sizes, 40, random.Random(5).random) != drawn(sizes, 40, random.Random(6).random)


def test_long_rows_are_drawn_more_often_than_their_number_says() -> None:
    """One row in a hundred makes up half of the bytes: of 80 drawn, far more than one is such a row."""
    sizes = [10_000 if each % 100 == 0 else 100 for each in range(5_000)]
    strata = drawn(sizes, 80, random.Random(1).random)
    assert sum(sizes[place] == 10_000 for each in strata for place in each.drawn) >= 10


def test_no_rows_and_no_sample() -> None:
    assert drawn([], 5, lambda: 0.0) == ()
    with pytest.raises(ValueError, match="1 row or more"):
        drawn([1], 0, lambda: 0.0)
    with pytest.raises(ValueError, match="no row is known"):
        total([SampledStratum(5, (), ())], 10.0)


@given(
    st.lists(st.integers(1, 9_000), min_size=1, max_size=120),
    st.floats(0, 9),
    st.floats(0, 3),
    st.integers(2, 40),
)
def test_what_follows_size_is_known_exactly(sizes: list[int], base: float, slope: float, wanted: int) -> None:
    """Whichever rows are drawn, where what they come to is a line of their size, and the line can be seen."""
    values = [base + slope * size for size in sizes]
    found = sampled(sizes, values, wanted, 3)
    assert found.low <= found.expected <= found.high
    strata = drawn(sizes, wanted, random.Random(3).random)
    seen = {sizes[place] for each in strata for place in each.drawn}
    if len(seen) > 1 or len(set(sizes)) == 1 or slope == 0:
        assert found.expected == pytest.approx(sum(values), rel=1e-3, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 9_000), st.floats(0, 1e6)), min_size=1, max_size=60))
def test_where_all_rows_are_drawn_nothing_is_left_to_chance(rows: list[tuple[int, float]]) -> None:
    sizes, values = [size for size, _ in rows], [value for _, value in rows]
    found = sampled(sizes, values, len(sizes), 1)
    assert found.expected == pytest.approx(sum(values), rel=1e-6, abs=1e-3)
    assert found.high - found.low <= 1e-6 * found.expected + 1e-3


@pytest.mark.parametrize("follows", [True, False])
def test_the_interval_holds_as_often_as_it_says(follows: bool) -> None:
    """300 samples of a skewed population: 90 % of the intervals hold the sum, give or take three deviations."""
    chance = random.Random(11)
    sizes = [round(chance.lognormvariate(6, 1)) for _ in range(3_000)]
    values = [chance.lognormvariate(3, 0.6) * (size / 400 if follows else 1) for size in sizes]
    truth, held, off = sum(values), 0, []
    for seed in range(300):
        found = sampled(sizes, values, 100, seed)
        held += found.low <= truth <= found.high
        off.append(found.expected / truth - 1)
    assert 0.84 <= held / 300 <= 0.97
    assert abs(sum(off) / 300) < 0.01, "without bias"


def test_what_is_drawn_is_not_left_to_chance() -> None:
    """Of the same rows about the line, nine drawn of ten leave a third of the width that nine of a thousand do."""
    values = (1.0, 5.0, 2.0, 8.0, 3.0, 3.0, 9.0, 1.0, 4.0)
    few, most = (total([SampledStratum(rows, (10.0,) * 9, values)], 10.0 * rows) for rows in (1_000, 10))
    assert (most.high - most.expected) / most.expected < 0.4 * (few.high - few.expected) / few.expected


def test_one_row_of_many_says_nothing_of_the_spread() -> None:
    found = total([SampledStratum(10, (4.0,), (7.0,))], 40.0)
    assert (found.low, found.expected, found.high) == (0.0, 70.0, math.inf)


@pytest.mark.parametrize(
    ("free", "value"), [(1, 6.3138), (2, 2.9200), (3, 2.3534), (5, 2.0150), (10, 1.8125), (30, 1.6973), (1_000, 1.6464)]
)
def test_students_t_as_in_the_tables(free: int, value: float) -> None:
    assert student_t(free, 0.95) == pytest.approx(value, rel=3e-3)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 9)), min_size=1, max_size=50), st.integers(1, 30))
@settings(max_examples=50)
def test_equal_parts_rise_and_keep_the_mean(values: list[tuple[float, float]], count: int) -> None:
    found = parts(values, count)
    mean = sum(value * weight for value, weight in values) / sum(weight for _, weight in values)
    assert len(found) == count
    assert all(one <= two + 1e-6 for one, two in itertools.pairwise(found))
    assert sum(found) / count == pytest.approx(mean, rel=1e-6, abs=1e-6)
    assert parts([], 3) == ()
