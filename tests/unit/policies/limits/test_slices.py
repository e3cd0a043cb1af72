"""Lending a budget, as a policy: when it is used up, and when one only waits for what is under way."""

import copy

import pytest

from policies.limits.slices import DAY, DAY_S, MONTH, REMOVED, SKEW_S, Budget, Holding, SliceRequest, lend, turn_to

NOON_S = 20_000.5 * DAY_S


def test_a_job_waits_for_its_own_calls_before_the_budget_counts_as_used_up():
    budget = Budget("team", "a", DAY, 100)
    waits = lend(budget, SliceRequest("j", 0, used_nusd=90, holds_nusd=95, lacks_nusd=20, open_nusd=80), 0.0)
    assert (waits.upto_nusd, waits.out) == (90, False)
    more = lend(budget, SliceRequest("j", 0, used_nusd=50, holds_nusd=90, lacks_nusd=20, open_nusd=40), 1.0)
    assert more.upto_nusd >= 70


def test_it_is_used_up_once_nothing_can_come_back():
    budget = Budget("team", "a", DAY, 100)
    assert lend(budget, SliceRequest("j", 0, used_nusd=90, holds_nusd=95, lacks_nusd=20, open_nusd=5), 0.0).out
    assert lend(budget, SliceRequest("j", 0, used_nusd=90, holds_nusd=90, lacks_nusd=20), 1.0).out


def _used(budget: Budget, job: str, window: int, nusd: int, at_s: float, far: bool = False) -> int:
    """Return the total that the job may commit in its window, having committed `nusd` of it."""
    return lend(budget, SliceRequest(job, window, nusd, nusd, lacks_nusd=1, far=far), at_s).upto_nusd


@pytest.mark.parametrize("period", [DAY, MONTH])
@pytest.mark.parametrize("by_s", [40 * DAY_S, 366 * DAY_S, -40 * DAY_S, -19_000 * DAY_S])
def test_a_clock_that_was_set_and_is_right_again_stops_no_job_and_frees_no_money(period: str, by_s: float) -> None:
    right, wrong = Budget("team", "a", period, 100), Budget("team", "a", period, 100)
    turn_to(right, NOON_S)
    turn_to(wrong, NOON_S + by_s)
    day, other = right.window, wrong.window
    budget = Budget("team", "a", period, 10_000)
    assert _used(budget, "ended", day, 30, NOON_S) > 30
    assert _used(budget, "lives", day, 20, NOON_S) > 20
    _used(budget, "lives", day, 25, NOON_S + by_s, far=True)
    assert _used(budget, "begun meanwhile", other, 10, NOON_S + by_s) > 10
    assert _used(budget, "lives", day, 26, NOON_S + 60) > 26, "it waits for a slice"
    assert _used(budget, "begun meanwhile", other, 11, NOON_S + 60, far=True) > 11, "it waits for a slice"
    assert budget.window == day
    used = {job: each.used_nusd for job, each in budget.holdings.items()}
    assert used == {"ended": 30, "lives": 26, "begun meanwhile": 11}
    turn_to(budget, NOON_S + 31 * DAY_S)
    assert budget.window > day and not budget.holdings


def test_a_window_that_an_earlier_release_left_ahead_goes_back_with_all_that_is_known() -> None:
    budget = Budget("team", "a", DAY, 100, window=20_001, holdings={"j": Holding(60, 50, heard_s=NOON_S)})
    assert _used(budget, "k", 20_000, 0, NOON_S) > 0
    assert (budget.window, budget.counted_nusd - budget.holdings["k"].counted_nusd) == (20_000, 60)


def test_what_was_used_in_both_windows_counts_once_for_each() -> None:
    then, now = Holding(40, 40, window=20_000), Holding(5, 5, window=20_001)
    budget = Budget("team", "a", DAY, 100, window=20_001, holdings={"j": now, REMOVED: Holding(1, 1, over=True)})
    budget.former_window, budget.former = 20_000, {"j": then, REMOVED: Holding(2, 2, over=True)}
    turn_to(budget, NOON_S)
    assert (budget.window, budget.counted_nusd, budget.former_window) == (20_000, 48, -1)
    before = copy.deepcopy(budget)
    turn_to(budget, NOON_S)
    assert budget == before


@pytest.mark.parametrize("by_s", [-5.0, 5.0, SKEW_S - 1])
def test_near_midnight_a_job_waits_until_both_clocks_are_in_one_day(by_s: float) -> None:
    midnight_s = 20_001.0 * DAY_S
    budget = Budget("team", "a", DAY, 100)
    assert _used(budget, "j", 20_000, 50, midnight_s - 2 * SKEW_S) > 50
    lent = _used(budget, "j", 20_001 if by_s > 0 else 20_000, 3, midnight_s - by_s)
    assert lent == 3
    assert _used(budget, "j", 20_001, 3, midnight_s + SKEW_S) > 3
    assert budget.window == 20_001 and budget.holdings["j"].used_nusd == 3


def test_a_clock_that_steps_back_over_midnight_loses_nothing_of_the_new_day() -> None:
    midnight_s = 20_001.0 * DAY_S
    budget = Budget("team", "a", DAY, 100)
    _used(budget, "j", 20_001, 50, midnight_s + 1)
    turn_to(budget, midnight_s - 1)
    assert (budget.window, budget.counted_nusd >= 50) == (20_001, True)
