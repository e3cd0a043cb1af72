"""Pace: what is let through, and when; by tables, and against the rate over any behaviour of the sender."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits.pace import BURST_S, Pace, correct, due_at_s, put_off, set_rates, take

INF = float("inf")


def paced(requests: float = 0.0, input_tokens: float = 0.0, output_tokens: float = 0.0, at_s: float = 0.0) -> Pace:
    pace = Pace()
    set_rates(pace, at_s, requests, input_tokens, output_tokens)
    return pace


def begun(pace: Pace, from_s: float, until_s: float, turn_s: float, size: tuple[float, float] = (0.0, 0.0)) -> int:
    """Calls that begin at a sender with endless work that looks up every `turn_s`."""
    count, turn = 0, 0
    while (at_s := from_s + turn * turn_s) < until_s:
        while due_at_s(pace) <= at_s:
            take(pace, at_s, *size)
            count += 1
        turn += 1
    return count


@pytest.mark.parametrize(
    ("rates", "size", "after_s"),
    [
        ((0, 0, 0), (9, 9), -INF),
        ((10, 0, 0), (9, 9), 0.1),
        ((0, 100, 0), (50, 9), 0.5),
        ((0, 0, 100), (9, 200), 2.0),
        ((10, 100, 100), (50, 20), 0.5),  # the slowest of the three says when
        ((1, 100, 100), (50, 20), 1.0),
        ((1, 100, 10), (50, 20), 2.0),
    ],
)
def test_the_next_call_is_due_when_the_last_one_is_paid_for(
    rates: tuple[float, float, float], size: tuple[float, float], after_s: float
) -> None:
    pace = paced(*rates, at_s=100.0)
    take(pace, 100.0, *size)
    assert due_at_s(pace) == pytest.approx(100.0 + after_s - BURST_S)


@pytest.mark.parametrize("rate", [0.01, 1.0, 6.0, 6.7, 50.0, 1000.0])
def test_a_rested_pace_lets_through_a_burst_of_its_tolerance_but_always_one(rate: float) -> None:
    pace = paced(rate)
    assert begun(pace, 1_000.0, 1_000.001, 1.0) == 1 + int(BURST_S * rate)


@pytest.mark.parametrize("turn_s", [0.001, 0.01, 0.14])
@pytest.mark.parametrize("rate", [3.0, 50.0, 700.0])
def test_a_sender_that_looks_up_late_loses_nothing(rate: float, turn_s: float) -> None:
    count = begun(paced(rate), 0.0, 60.0, turn_s)
    assert 60 * rate - 1 <= count <= 60 * rate + 1 + BURST_S * rate


def test_a_sender_that_sleeps_saves_nothing_up() -> None:
    pace = paced(50.0)
    assert begun(pace, 0.0, 1.0, 0.01) >= 50
    assert begun(pace, 61.0, 61.001, 1.0) == 1 + int(BURST_S * 50)


def test_a_call_larger_than_the_tolerance_is_not_stuck_and_those_behind_it_wait() -> None:
    pace = paced(0.0, 100.0)
    assert due_at_s(pace) <= 0.0
    take(pace, 0.0, 1_000, 0)
    assert due_at_s(pace) == pytest.approx(10.0 - BURST_S)


@given(st.integers(0, 2**32), st.floats(10.0, 1e5), st.floats(0.1, 3.0))
def test_tokens_of_mixed_sizes_come_at_the_rate(seed: int, rate: float, spread: float) -> None:
    """Whatever the sizes and the waits, no stretch of time sees more than its rate, the tolerance and one call."""
    chance = random.Random(seed)
    pace = paced(0.0, rate)
    taken: list[tuple[float, float]] = []
    at_s = 0.0
    for _ in range(60):
        at_s = max(at_s + chance.choice((0.0, 0.0, chance.expovariate(1.0))), due_at_s(pace))
        size = rate * chance.lognormvariate(-2.0, spread)
        take(pace, at_s, size, 0)
        taken.append((at_s, size))
    for first in range(0, 60, 7):
        before_last = sum(size for _, size in taken[first:-1])
        elapsed_s = taken[-1][0] - taken[first][0]
        assert before_last <= rate * (elapsed_s + BURST_S) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("old", "new", "wait_s"),
    [(10.0, 10.0, 2.0), (10.0, 20.0, 1.0), (10.0, 5.0, 4.0), (10.0, 0.0, -INF), (0.0, 10.0, 0.0)],
)
def test_a_new_rate_keeps_what_is_charged(old: float, new: float, wait_s: float) -> None:
    pace = paced(0.0, old, at_s=50.0)
    take(pace, 50.0, 20, 0)
    set_rates(pace, 50.0, 0.0, new, 0.0)
    assert due_at_s(pace) == pytest.approx(50.0 + wait_s - BURST_S)


@pytest.mark.parametrize(("old", "new"), [(5.0, 50.0), (50.0, 5.0), (5.0, 5.0)])
def test_a_new_rate_gives_a_rested_pace_no_more_than_its_burst(old: float, new: float) -> None:
    pace = paced(old)
    set_rates(pace, 100.0, new, 0.0, 0.0)
    assert begun(pace, 100.0, 100.001, 1.0) == 1 + int(BURST_S * new)


def test_rates_set_again_and_again_let_nothing_more_through() -> None:
    pace, count = paced(50.0), 0
    for turn in range(1_000):
        set_rates(pace, turn * 0.01, 50.0 + turn % 2, 0.0, 0.0)
        count += begun(pace, turn * 0.01, turn * 0.01 + 0.001, 1.0)
    assert 500 <= count <= 505 + 1 + BURST_S * 51


@pytest.mark.parametrize("resource", [0, 1])
@pytest.mark.parametrize(("guess", "weight"), [(10, 40), (40, 10), (0, 25)])
def test_what_was_guessed_wrong_is_put_right(resource: int, guess: int, weight: int) -> None:
    """A sender that guesses, and learns the weight with the answer, keeps to the rate by weight."""
    pace = paced(0.0, *((1_000.0, 0.0), (0.0, 1_000.0))[resource])
    count = 0
    for turn in range(6_000):
        while due_at_s(pace) <= turn * 0.01:
            take(pace, turn * 0.01, guess, guess)
            correct(pace, weight - guess, weight - guess)
            count += 1
    assert count * weight == pytest.approx(60_000, rel=0.01)


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_rate_that_is_none_is_refused(bad: float, place: int) -> None:
    rates = [1.0, 1.0, 1.0]
    rates[place] = bad
    pace = paced(7.0)
    with pytest.raises(ValueError, match="a rate must be 0 or more"):
        set_rates(pace, 0.0, *rates)
    assert pace == paced(7.0)


def test_a_pace_travels() -> None:
    pace = paced(3.0, 4.0, 5.0, at_s=6.0)
    take(pace, 6.0, 7, 8)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pace), type=Pace) == pace


def test_the_first_calls_of_holders_with_phases_are_as_far_apart_as_those_of_the_whole():
    holders = [Pace() for _ in range(4)]
    for place, pace in enumerate(holders):
        set_rates(pace, 100.0, 0.25, 0.0, 0.0, place / 4)
    assert [due_at_s(pace) + BURST_S for pace in holders] == [100.0, 101.0, 102.0, 103.0]
    for pace in holders:
        set_rates(pace, 100.0, 0.5, 0.0, 0.0, 0.9)
    assert [due_at_s(pace) + BURST_S for pace in holders] == [100.0, 100.5, 101.0, 101.5], "a rate that was there moves them"


@pytest.mark.parametrize(("due_s", "after_s"), [(90.0, 102.0), (101.0, 102.0), (103.0, 103.0)])
def test_a_pace_is_put_off_by_its_phase_and_never_brought_forward(due_s: float, after_s: float):
    pace = Pace(requests_per_s=0.25, requests_due_s=due_s)
    put_off(pace, 100.0, 0.5)
    assert pace.requests_due_s == after_s
    free = Pace(output_tokens_per_s=1.0)
    put_off(free, 100.0, 0.5)
    assert free == Pace(output_tokens_per_s=1.0)
