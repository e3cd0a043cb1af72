"""Shares: fair for their weights, in whole permits, found without counting them out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.shares import fair_shares, water_level

CLAIMS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.3, 0.5, 1.0, 2.0, 3.0, 7.0])), max_size=8)


@pytest.mark.parametrize(
    ("claims", "limit", "shares"),
    [
        ([], 10, []),
        ([(5, 1.0)], 10, [5]),
        ([(0, 1.0)], 10, [0]),
        ([(0, 1.0), (50, 1.0)], 10, [0, 10]),
        ([(50, 1.0)], 10, [10]),
        ([(50, 1.0), (50, 1.0)], 10, [5, 5]),
        ([(50, 1.0), (50, 1.0)], 11, [6, 5]),
        ([(50, 3.0), (50, 1.0)], 12, [9, 3]),
        ([(2, 1.0), (50, 1.0), (50, 1.0)], 12, [2, 5, 5]),
        ([(2, 9.0), (50, 1.0)], 12, [2, 10]),
        ([(9, 1.0)] * 4, 3, [1, 1, 1, 0]),
        ([(0, 1.0), (9, 1.0), (9, 1.0), (9, 1.0)], 2, [0, 1, 1, 0]),
        ([(9, 1.0)] * 3, 0, [0, 0, 0]),
        ([(9, 1.0)] * 3, -4, [0, 0, 0]),
        ([(10**9, 1.0), (10**9, 3.0)], 10**9, [25 * 10**7, 75 * 10**7]),
    ],
)
def test_shares(claims, limit, shares):
    assert fair_shares(claims, limit) == shares


def one_by_one(claims: list[tuple[int, float]], limit: int) -> list[int]:
    """The definition, counted out: each gets one, then whoever has the least for its weight."""
    shares = [0] * len(claims)
    for place, (wanted, _) in enumerate(claims):
        if wanted and sum(shares) < limit:
            shares[place] = 1
    while sum(shares) < limit:
        hungry = [place for place, (wanted, _) in enumerate(claims) if 0 < shares[place] < wanted]
        if not hungry:
            break
        shares[min(hungry, key=lambda place: (shares[place] / claims[place][1], place))] += 1
    return shares


@given(CLAIMS, st.integers(0, 120))
def test_the_closed_form_is_what_counting_out_gives(claims, limit):
    shares, expected = fair_shares(claims, limit), one_by_one(claims, limit)
    assert sum(shares) == sum(expected) == min(limit, sum(wanted for wanted, _ in claims))
    assert all(abs(a - b) <= 1 for a, b in zip(shares, expected, strict=True)), (shares, expected)


@given(CLAIMS, st.integers(0, 120))
def test_shares_are_within_a_permit_of_the_weighted_share(claims, limit):
    """Nobody who wants more could be given one more by someone who has, for its weight, more than a permit more."""
    shares = fair_shares(claims, limit)
    for share, (wanted, weight) in zip(shares, claims, strict=True):
        assert share <= wanted
        if share == wanted:
            continue
        for other, (_, its_weight) in zip(shares, claims, strict=True):
            assert other <= 1 or (other - 1) / its_weight <= share / weight + 1e-9


@given(CLAIMS, st.integers(0, 60))
def test_more_permits_take_nothing_from_anyone(claims, limit):
    assert all(a <= b for a, b in zip(fair_shares(claims, limit), fair_shares(claims, limit + 1), strict=True))


@pytest.mark.parametrize(
    ("claims", "limit", "level"),
    [([], 5, float("inf")), ([(4, 2.0)], 4, 2.0), ([(4, 2.0)], 5, float("inf")), ([(1, 1.0), (9, 1.0)], 6, 5.0)],
)
def test_the_water_level(claims, limit, level):
    assert water_level(claims, limit) == level
