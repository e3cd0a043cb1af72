"""Bills above their reservations: what is reserved next, and how many calls may be in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.bill_excess import KNOWN_AFTER, BillExcess, CallCost, after_bill, calls_at_once, raised

BOUND = CallCost(600, 60, 400, 40)
AMOUNTS = st.builds(CallCost, *[st.integers(0, 10**9)] * 4)


def cost(nusd: int, tokens: int) -> CallCost:
    """A bill of which the reply costs what it may."""
    return CallCost(nusd - 400, tokens - 40, 400, 40)


def first(bound: CallCost, bill: CallCost) -> BillExcess | None:
    return after_bill(None, (bound.nusd, bound.tokens), bound, bill)


def following(excess: BillExcess | None, bill: CallCost) -> BillExcess:
    assert excess is not None
    now = raised(excess, BOUND)
    found = after_bill(excess, (now.nusd, now.tokens), BOUND, bill)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("bill", "times", "money", "tokens"),
    [
        (cost(1_000, 100), None, 0, 0),
        (cost(500, 50), None, 0, 0),
        (CallCost(1, 60, 999, 40), None, 0, 0),
        (cost(1_001, 100), 1.001, 1, 0),
        (cost(1_000, 101), 1.01, 0, 1),
        (cost(2_500, 100), 2.5, 1_500, 0),
        (cost(1_000_000, 100_000), 1_000.0, 999_000, 99_900),
    ],
)
def test_a_bill_above_its_reservation_is_noted(bill, times, money, tokens):
    excess = first(BOUND, bill)
    if times is None:
        assert excess is None
        return
    assert excess is not None
    assert (excess.replies, excess.times, excess.over_nusd, excess.over_tokens) == (1, times, money, tokens)


@given(AMOUNTS, AMOUNTS)
def test_an_equal_call_is_reserved_at_no_less_than_the_worst_bill(bound, bill):
    excess = first(bound, bill)
    now = raised(excess, bound) if excess is not None else bound
    assert now.nusd >= bill.nusd and now.tokens >= bill.tokens


@given(AMOUNTS, st.integers(1, 10**6), AMOUNTS)
def test_a_multiple_and_a_prompt_in_front_are_both_foreseen(bound, more, other):
    """Of a call of another size: a prompt as many times its bound, and one as much above it."""
    times = first(bound, bound._replace(input_nusd=bound.input_nusd * more, input_tokens=bound.input_tokens * more))
    front = first(bound, bound._replace(input_nusd=bound.input_nusd + more, input_tokens=bound.input_tokens + more))
    if times is not None and bound.input_nusd and bound.input_tokens:
        assert raised(times, other).nusd >= other.input_nusd * more + other.output_nusd
        assert raised(times, other).tokens >= other.input_tokens * more + other.output_tokens
    assert front is not None and raised(front, other).nusd >= other.nusd + more


def test_one_call_at_a_time_until_bills_stay_within_and_then_as_many_as_have():
    excess, seen = first(BOUND, cost(5_000, 100)), []
    for _ in range(KNOWN_AFTER + 3):
        assert excess is not None
        seen.append(calls_at_once(excess))
        excess = following(excess, cost(4_000, 90))
    assert seen == [1] * KNOWN_AFTER + [KNOWN_AFTER, KNOWN_AFTER + 1, KNOWN_AFTER + 2]
    worse = following(excess, cost(5_100, 100))
    assert calls_at_once(worse) == 1 and worse.replies == 2 and worse.over_nusd == 4_099


def test_calls_that_were_in_flight_with_the_first_confirm_it():
    """They were reserved by their bounds alone: each cost more, and none more than is reserved from now on."""
    excess = None
    for _ in range(20):
        excess = after_bill(excess, (BOUND.nusd, BOUND.tokens), BOUND, cost(5_000, 100))
    assert excess is not None and excess.replies == 20 and calls_at_once(excess) == 19


def test_a_call_that_was_to_cost_nothing_is_reserved_at_what_it_cost():
    free = CallCost(0, 10, 0, 0)
    excess = first(free, free._replace(input_nusd=700))
    assert excess is not None and raised(excess, free).nusd == 700
