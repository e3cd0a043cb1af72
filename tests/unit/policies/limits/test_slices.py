"""Lending a budget, as a policy: when it is used up, and when one only waits for what is under way."""

from policies.limits.slices import DAY, Budget, SliceRequest, lend


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
