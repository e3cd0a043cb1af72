"""Shares: fair for their weights, in whole permits, found without counting them out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.limits.fair_share import EVEN, fair_shares, in_turn, over_time, water_level

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


TURNS = 2_000


def means(claims: list[tuple[int, float]], limit: int, turns: int = TURNS) -> list[float]:
    """Of so many turns."""
    total = [0] * len(claims)
    for turn in range(turns):
        shares, _ = over_time(claims, limit, turn)
        assert sum(shares) == min(limit, sum(wanted for wanted, _ in claims))
        assert all(0 <= share <= wanted for share, (wanted, _) in zip(shares, claims, strict=True))
        total = [all_ + share for all_, share in zip(total, shares, strict=True)]
    return [all_ / turns for all_ in total]


def test_few_permits_go_round_so_that_weights_hold_over_time() -> None:
    assert means([(9, 1.0), (9, 2.0)] * 2, 3, 400) == pytest.approx([0.5, 1.0] * 2, rel=0.02)
    assert means([(9, 1.0)] * 4, 5, 400) == pytest.approx([1.25] * 4), "else one has twice what the others have, for ever"
    assert means([(9, 1.0)] * 4, 3, 400) == pytest.approx([0.75] * 4)
    assert means([(1, 1.0), (9, 3.0), (9, 1.0)], 6, 400) == pytest.approx([1.0, 3.75, 1.25], rel=0.02)


@given(CLAIMS.filter(lambda claims: any(wanted for wanted, _ in claims)), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_over_time_shares_are_exact_and_at_each_moment_within_a_permit(claims, limit):
    """Exact: one for all, where there are as many; above that nobody has more for its weight than who wants more."""
    exact = means(claims, limit)
    if not over_time(claims, limit, 0)[1]:
        return
    least = int(sum(wanted > 0 for wanted, _ in claims) <= limit)
    short = [mean / weight for mean, (wanted, weight) in zip(exact, claims, strict=True) if 0 < wanted > mean + 0.01]
    for mean, (wanted, weight) in zip(exact, claims, strict=True):
        assert mean >= least * (wanted > 0)
        if mean > least + 0.02:
            assert mean / weight <= min(short) + 0.02 / weight + 0.05
    for turn in range(5):
        now, _ = over_time(claims, limit, turn)
        assert all(abs(share - mean) < 1.02 for share, mean in zip(now, exact, strict=True))


@given(st.integers(2, 12), st.integers(1, 11), st.sampled_from([1.0, 1.5, 2.0, 7.0]))
def test_nobody_is_passed_over_for_long(jobs, limit, heavy):
    """With the points moving on by no more than the least share, its turn comes when they have gone once round."""
    claims = [(9, heavy if n % 3 == 0 else 1.0) for n in range(jobs)]
    if limit >= jobs:
        return
    least = limit / sum(weight for _, weight in claims)
    waits = int(1 / (0.6 * least)) + 2
    for place in range(jobs):
        for first in range(0, 40, 7):
            assert any(in_turn(claims, limit, turn)[place] for turn in range(first, first + waits))


def test_large_shares_and_shares_that_come_out_even_stay_as_they_are() -> None:
    for claims, limit in ([[(99, 1.0)] * 3, 3 * EVEN + 1], [[(9, 1.0), (9, 2.0)], 3], [[(9, 1.0)] * 3, 6]):
        assert over_time(claims, limit, 7) == (fair_shares(claims, limit), False)


def test_whoever_wants_nothing_is_never_given_less() -> None:
    for turn in range(600):
        for claims in ([(0, 1.0)] + [(1_000, 1.0)] * 5, [(0, 1.0)] + [(1_000, 1.0)] * 4 + [(1_000, 2.0)]):
            shares, _ = over_time(claims, 7, turn)
            assert shares[0] == 0 and min(shares) >= 0 and sum(shares) == 7


@pytest.mark.parametrize(("jobs", "limit"), [(3, 1), (6, 1), (7, 3), (3, 4)])
def test_turns_are_even_however_many_went_before(jobs: int, limit: int) -> None:
    first = 170_000_000  # turns of ten seconds since 1970
    shares = [over_time([(1_000, 1.0)] * jobs, limit, turn)[0] for turn in range(first, first + 10 * jobs)]
    assert [sum(each) for each in zip(*shares, strict=True)] == [10 * limit] * jobs
