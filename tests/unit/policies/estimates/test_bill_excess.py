"""Bills above their reservations: what is reserved next, and how many calls may be in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.bill_excess import KNOWN_AFTER, BillExcess, CallCost, after_bill, calls_at_once, dearest, raised

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


def test_one_call_at_a_time_until_bills_stay_within_and_then_the_root_of_their_number():
    excess, seen = first(BOUND, cost(5_000, 100)), []
    for _ in range(KNOWN_AFTER + 9):
        assert excess is not None
        seen.append(calls_at_once(excess))
        excess = following(excess, cost(4_000, 90))
    assert seen == [1] * KNOWN_AFTER + [2] + [3] * 7 + [4]
    worse = following(excess, cost(5_100, 100))
    assert calls_at_once(worse) == 1 and worse.replies == 2 and worse.over_nusd == 4_099


def test_calls_that_were_in_flight_with_the_first_confirm_it():
    """They were reserved by their bounds alone: each cost more, and none more than is reserved from now on."""
    excess = None
    for _ in range(20):
        excess = after_bill(excess, (BOUND.nusd, BOUND.tokens), BOUND, cost(5_000, 100))
    assert excess is not None and excess.replies == 20 and calls_at_once(excess) == 4


@pytest.mark.parametrize(
    ("within", "windows", "at_once"),
    [
        (0, 0, 1), (0, 900, 1), (KNOWN_AFTER - 1, 900, 1), (KNOWN_AFTER, 0, 2), (KNOWN_AFTER, 900, KNOWN_AFTER),
        (119, 0, 10), (119, 3, 10), (119, 60, 60), (119, 900, 119), (10_000, 0, 100), (1_000_000, 400, 1_000),
    ],
)  # fmt: skip
def test_more_than_the_root_are_in_flight_only_while_the_cap_could_pay_a_whole_window_for_each(
    within: int, windows: int, at_once: int
):
    assert calls_at_once(BillExcess(replies=1, within=within), windows) == at_once


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=400), st.integers(10_000, 10**7))
def test_whatever_the_bills_a_change_for_all_calls_at_once_finds_few_in_flight(bills, cap):
    """A change is a bill worse than all before. As many calls as are in flight then may cost as much: a cap that could
    not pay a whole window for each of them is passed by no more calls than the root of the bills before it."""
    window, spent = CallCost(9_000, 900, 1_000, 100), 0
    excess = first(BOUND, cost(2_000, 100))
    for bill in bills:
        assert excess is not None
        full = dearest(excess, window)
        windows = max(0, cap - spent) // full.nusd
        at_once = calls_at_once(excess, windows)
        assert at_once <= max(1, excess.within)
        assert at_once * at_once <= max(1, excess.within) or spent + at_once * full.nusd <= cap
        spent += bill
        excess = following(excess, cost(bill, 100))
        assert dearest(excess, window).nusd >= bill


def test_a_call_that_was_to_cost_nothing_is_reserved_at_what_it_cost():
    free = CallCost(0, 10, 0, 0)
    excess = first(free, free._replace(input_nusd=700))
    assert excess is not None and raised(excess, free).nusd == 700
