"""Bills above their reservations: what is reserved next, and how many calls may be in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.bill_excess import KNOWN_AFTER, BillExcess, after_bill, calls_at_once, raised

BOUND = (1_000, 100)
AMOUNTS = st.tuples(st.integers(0, 10**12), st.integers(0, 10**9))


@pytest.mark.parametrize(
    ("bill", "times", "money", "tokens"),
    [
        ((1_000, 100), None, 0, 0),
        ((500, 50), None, 0, 0),
        ((1_001, 100), 1.001, 1, 0),
        ((1_000, 101), 1.01, 0, 1),
        ((2_500, 100), 2.5, 1_500, 0),
        ((1_000_000, 100_000), 1_000.0, 999_000, 99_900),
    ],
)
def test_a_bill_above_its_reservation_is_noted(bill, times, money, tokens):
    excess = after_bill(None, BOUND, BOUND, bill)
    if times is None:
        assert excess is None
        return
    assert excess is not None
    assert (excess.replies, excess.times, excess.over_nusd, excess.over_tokens) == (1, times, money, tokens)


@given(AMOUNTS, AMOUNTS)
def test_an_equal_call_is_reserved_at_no_less_than_the_worst_bill(bound, bill):
    excess = after_bill(None, bound, bound, bill)
    nusd, tokens = (raised(excess, *bound) if excess is not None else bound)
    assert nusd >= bill[0] and tokens >= bill[1]


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_multiple_and_a_prompt_in_front_are_both_foreseen(bound, other, more):
    """Of a call of another size: a bill as many times its bound, and one as much above it."""
    times = after_bill(None, (bound, bound), (bound, bound), (bound * more, bound * more))
    front = after_bill(None, (bound, bound), (bound, bound), (bound + more, bound + more))
    assert times is None or min(raised(times, other, other)) >= other * more
    assert front is not None and min(raised(front, other, other)) >= other + more


def test_one_call_at_a_time_until_bills_stay_within_and_then_as_many_as_have():
    excess = after_bill(None, BOUND, BOUND, (5_000, 100))
    seen = []
    for _ in range(KNOWN_AFTER + 3):
        assert excess is not None
        seen.append(calls_at_once(excess))
        excess = after_bill(excess, raised(excess, *BOUND), BOUND, (4_000, 90))
    assert seen == [1] * KNOWN_AFTER + [KNOWN_AFTER, KNOWN_AFTER + 1, KNOWN_AFTER + 2]
    worse = after_bill(excess, raised(excess, *BOUND), BOUND, (5_001, 100))
    assert calls_at_once(worse) == 1 and worse.replies == 2 and worse.over_nusd == 4_001


def test_calls_that_were_in_flight_with_the_first_confirm_it():
    """They were reserved by their bounds alone: each cost more, and none more than is reserved from now on."""
    excess = None
    for _ in range(20):
        excess = after_bill(excess, BOUND, BOUND, (5_000, 100))
    assert excess is not None and excess.replies == 20 and calls_at_once(excess) == 19


def test_a_call_that_was_to_cost_nothing_is_reserved_at_what_it_cost():
    excess = after_bill(None, (0, 10), (0, 10), (700, 10))
    assert excess is not None and raised(excess, 0, 10) == (700, 10)
    assert BillExcess() == BillExcess(nusd_milli=1_000, tokens_milli=1_000)
