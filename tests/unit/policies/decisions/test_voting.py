"""First-to-ahead-by-k: the tally of one step, and the plan for many."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.voting import (
    Z_95,
    at_least,
    chain_success,
    k_min,
    leader,
    plan,
    rounds_expected,
    step_success,
    votes_expected,
    votes_needed,
)

MILLION = 2**20 - 1

# votes so far, k -> votes still needed
NEEDED = [
    ((), 1, 1),
    ((), 3, 3),
    ((0, 0), 3, 3),
    ((3,), 3, 0),
    ((2,), 3, 1),
    ((2, 1), 3, 2),
    ((1, 2), 3, 2),
    ((2, 2), 3, 3),
    ((4, 1), 3, 0),
    ((4, 2), 3, 1),
    ((1, 1, 1), 3, 3),
    ((5, 2, 1), 3, 0),
    ((9, 1), 3, 0),
    ((1,), 1, 0),
    ((1, 1), 1, 1),
]


@pytest.mark.parametrize(("counts", "k", "needed"), NEEDED)
def test_a_round_asks_for_exactly_the_votes_still_needed(counts, k, needed):
    assert votes_needed(counts, k) == needed


@given(st.lists(st.integers(0, 6), max_size=3), st.integers(1, 4))
def test_no_fewer_votes_decide_and_so_many_can(counts, k):
    """Against every way in which so many votes could fall, a candidate nobody has named yet included."""

    def decided(tally):
        ranked = sorted([*tally, 0, 0], reverse=True)
        return ranked[0] - ranked[1] >= k

    def outcomes(votes):
        for falls in itertools.combinations_with_replacement(range(len(counts) + 1), votes):
            yield [count + falls.count(place) for place, count in enumerate([*counts, 0])]

    needed = votes_needed(counts, k)
    assert any(map(decided, outcomes(needed)))
    assert needed == 0 or not any(map(decided, outcomes(needed - 1)))


@pytest.mark.parametrize(("counts", "place"), [((3,), 0), ((1, 4), 1), ((2, 2), 0), ((0, 1, 1), 1)])
def test_who_leads(counts, place):
    assert leader(counts) == place


# p -> k for 1,023 steps and for 2^20 - 1 steps at a target of .95
K_MIN = [(0.99, 3, 4), (0.95, 4, 6), (0.9, 5, 8), (0.7, 12, 20)]


@pytest.mark.parametrize(("p", "thousand", "million"), K_MIN)
def test_the_published_k(p, thousand, million):
    assert (k_min(p, 0.95, 1_023), k_min(p, 0.95, MILLION)) == (thousand, million)


def test_the_published_million_step_run():
    assert k_min(0.9978, 0.95, MILLION) == 3
    assert votes_expected(0.9978, 3) == pytest.approx(3.013, abs=5e-4)
    assert rounds_expected(0.9978, 3) == pytest.approx(1.007, abs=5e-4)
    assert chain_success(0.9978, 3, MILLION) == pytest.approx(0.98882, abs=1e-5)


# p, k -> a step is right, votes
STEPS = [
    (0.5, 3, 0.5, 9.0),
    (1.0, 4, 1.0, 4.0),
    (0.0, 4, 0.0, 4.0),
    (0.9, 1, 0.9, 1.0),
    (0.9, 2, 0.81 / 0.82, 2 / 0.82),
    (0.75, 3, 27 / 28, 3 * 26 / 28 * 2),
]


@pytest.mark.parametrize(("p", "k", "right", "votes"), STEPS)
def test_one_step(p, k, right, votes):
    assert step_success(p, k) == pytest.approx(right)
    assert votes_expected(p, k) == pytest.approx(votes)


@given(st.floats(0.55, 0.9999), st.floats(0.01, 0.999), st.integers(1, 10**7))
def test_k_is_the_least_that_reaches_the_target(p, target, steps):
    k = k_min(p, target, steps)
    assert chain_success(p, k, steps) >= target * (1 - 1e-9)
    assert k == 1 or chain_success(p, k - 1, steps) < target * (1 + 1e-9)


@given(st.floats(0.501, 0.999), st.integers(1, 8))
def test_more_votes_ahead_are_surer_and_dearer(p, k):
    assert step_success(p, k) <= step_success(p, k + 1) <= 1
    assert k * (1 - 1e-12) <= votes_expected(p, k) < votes_expected(p, k + 1)
    assert 1 <= rounds_expected(p, k) <= votes_expected(p, k) * (1 + 1e-12)


@pytest.mark.parametrize(("p", "k"), [(0.9, 2), (0.9, 5), (0.7, 3), (0.55, 4)])
def test_what_is_expected_is_what_comes(p, k):
    """20,000 elections between two candidates, voted round by round."""
    chance, runs = random.Random(7), 20_000
    votes = rounds = right = 0
    for _ in range(runs):
        counts = [0, 0]
        while needed := votes_needed(counts, k):
            rounds += 1
            for _ in range(needed):
                counts[chance.random() >= p] += 1
        votes += sum(counts)
        right += leader(counts) == 0
    assert votes / runs == pytest.approx(votes_expected(p, k), rel=0.03)
    assert rounds / runs == pytest.approx(rounds_expected(p, k), rel=0.03)
    assert right / runs == pytest.approx(step_success(p, k), abs=0.015)


def test_a_plan_counts_what_is_discarded_as_samples_and_not_as_votes():
    made = plan(0.9, 0.95, 1_023, flagged=0.2)
    assert (made.k, made.votes_per_step) == (5, votes_expected(0.9, 5))
    assert made.samples_per_step == pytest.approx(made.votes_per_step / 0.8)
    assert made.samples == pytest.approx(1_023 * made.samples_per_step)
    assert made.success == chain_success(0.9, 5, 1_023)


def test_the_cost_of_a_chain_grows_as_steps_times_their_logarithm():
    """k, without rounding up, is linear in ln s: doubling s adds the same again and again."""
    longer = [k_min(0.55, 0.95, 2**n) for n in range(4, 24)]
    steps = [b - a for a, b in itertools.pairwise(longer)]
    assert all(abs(step - math.log(2) / math.log(0.55 / 0.45)) <= 1 for step in steps)


@pytest.mark.parametrize(("right", "of"), [(0, 10), (5, 10), (990, 1_000), (10, 10), (9_978, 10_000)])
def test_a_measured_rate_is_planned_with_at_its_lower_end(right, of):
    low = at_least(right, of)
    share = right / of
    assert 0 <= low < share or right == 0 == low
    if right > 0:  # the end of the score interval: where the measurement is just z standard errors away
        assert (share - low) ** 2 == pytest.approx(Z_95**2 * low * (1 - low) / of)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: votes_needed((), 0), "k must be 1 or more"),
        (lambda: leader(()), "no candidate has a vote"),
        (lambda: k_min(0.5, 0.9, 10), "above 0.5"),
        (lambda: k_min(0.5001, 0.9, 10**9), "too near a half"),
        (lambda: k_min(0.9, 1.0, 10), "between 0 and 1"),
        (lambda: k_min(0.9, 0.9, 0), "1 step or more"),
        (lambda: k_min(1.1, 0.9, 10), "from 0 to 1"),
        (lambda: step_success(0.9, 0), "k must be 1 or more"),
        (lambda: plan(0.9, 0.9, 10, flagged=1.0), "below 1"),
        (lambda: at_least(3, 2), "no measurement"),
        (lambda: at_least(0, 0), "no measurement"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(call, said):
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_certainty_needs_one_vote():
    assert k_min(1.0, 0.99, 10**6) == 1
    assert plan(1.0, 0.99, 10**6).samples == 10**6
