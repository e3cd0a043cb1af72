"""What a job comes to, from its rows' sizes and a sample: the pure part of ``cortex plan``."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.planning import InputRows, JobPlan, PlanSample, PlanTerms, SampledRow, planned
from cortex.values.reply import UNKNOWN_USAGE, Usage
from policies.estimates.duration import CallLimits
from policies.estimates.price import Price, Tier, batch_price, cost_nusd, worst_nusd
from policies.estimates.strata import drawn
from policies.failures.retry import RetryPolicy
from policies.limits.limit import PoolCaps

PRICE = Price(input_usd_per_mtok=3, output_usd_per_mtok=15)  # type: ignore[arg-type]
TIERED = Price(
    input_usd_per_mtok=3, output_usd_per_mtok=15,  # type: ignore[arg-type]
    tiers=(Tier(input_usd_per_mtok=6, output_usd_per_mtok=22, above_input_tokens=1_000),),  # type: ignore[arg-type]
)  # fmt: skip
TERMS = PlanTerms(
    price=PRICE, batch_price=batch_price(PRICE), prompt_tokens_max=100_000, limits=CallLimits(caps=PoolCaps(concurrency=100)),
    retry=RetryPolicy(budget_share=0.0, budget_floor=0),
)  # fmt: skip


def rows(sizes: list[int], known: frozenset[int] = frozenset(), output: int = 100) -> InputRows:
    return InputRows(
        sizes=sizes,
        bounds=[size + 32 for size in sizes],
        outputs=[output] * len(sizes),
        text_bytes=sum(sizes),
        known=known,
    )


def usage(size: int, place: int) -> Usage:
    return Usage(10 + size // 4, 1 + (place * 7) % 90)


def sample(sizes: list[int], wanted: int, lost: int = 0) -> PlanSample:
    """Rows drawn of these and answered, but for so many."""
    strata = drawn(sizes, wanted, random.Random(1).random)
    seen = {
        place: SampledRow(usages=(usage(sizes[place], place),), elapsed_s=(1.0,), reply_bytes=400)
        for each in strata for place in each.drawn
    }  # fmt: skip
    for place in list(seen)[:lost]:
        seen[place] = SampledRow(answered=False, attempts=3)
    return PlanSample(strata, seen)


SIZES = [200 + (each * 37) % 1_800 for each in range(2_000)]


def bill(sizes: list[int], places: object, price: Price = PRICE) -> int:
    return sum(cost_nusd(price, usage(sizes[place], place)) for place in places)  # type: ignore[attr-defined]


def test_the_bill_of_the_rest_is_what_the_sample_says_of_it() -> None:
    known = sample(SIZES, 200)
    plan = planned(rows(SIZES), TERMS, known)
    truth = bill(SIZES, set(range(2_000)) - known.answered)
    assert plan.rows == 1_800
    assert plan.cost is not None and plan.batch_cost is not None and plan.worst_nusd is not None
    assert plan.cost.low <= truth <= plan.cost.high
    assert plan.cost.expected == pytest.approx(truth, rel=0.05)
    assert plan.batch_cost.expected == pytest.approx(plan.cost.expected / 2, rel=1e-6)
    assert plan.input_tokens.expected == pytest.approx(sum(10 + size // 4 for size in SIZES) * 0.9, rel=0.02)
    assert plan.worst_nusd <= sum(worst_nusd(PRICE, size + 32, 100) for size in SIZES)


def test_what_is_remembered_from_before_is_in_no_bill() -> None:
    """Half of the rows, the long ones: the rest is cheaper than half."""
    order = sorted(range(2_000), key=SIZES.__getitem__)
    before = frozenset(order[1_000:])
    known = sample(SIZES, 200)
    plan = planned(rows(SIZES, before), TERMS, known)
    left = set(range(2_000)) - known.answered - before
    assert plan.rows == len(left)
    assert plan.cost is not None and plan.cost.expected == pytest.approx(bill(SIZES, left), rel=0.1)
    assumed = planned(rows(SIZES, before), TERMS)
    assert assumed.rows == 1_000
    assert assumed.input_tokens.expected == pytest.approx(sum(SIZES[place] for place in order[:1_000]) / 3.5)
    nothing = planned(rows(SIZES, frozenset(range(2_000))), TERMS, known)
    assert (nothing.rows, nothing.cost.high, nothing.worst_nusd, nothing.duration.seconds) == (0, 0, 0, 0)  # type: ignore[union-attr]


def test_rows_that_fail_in_the_sample_are_asked_again_and_cost_what_they_cost() -> None:
    """A tenth failed: what is left has them, and a tenth of all will fail, at no cost."""
    plan = planned(rows(SIZES), TERMS, sample(SIZES, 200, lost=20))
    whole = planned(rows(SIZES), TERMS, sample(SIZES, 200))
    assert plan.rows == 1_820
    assert plan.cost is not None and whole.cost is not None
    assert plan.cost.expected < whole.cost.expected


def test_no_answer_at_all_is_no_sample() -> None:
    assert planned(rows(SIZES), TERMS, sample(SIZES, 20, lost=20)) == planned(rows(SIZES), TERMS)


def test_without_a_sample_all_is_assumed_and_the_interval_says_so() -> None:
    plan = planned(rows(SIZES), TERMS)
    assert plan.output_tokens.low == 2_000
    assert plan.output_tokens.expected == 100_000
    assert plan.output_tokens.high == 200_000
    assert plan.cost is not None and plan.cost.low < plan.cost.expected / 2
    assert plan.cost.high <= plan.worst_nusd  # type: ignore[operator]


def test_the_worst_is_every_bound_and_every_retry_that_the_budget_pays_for() -> None:
    some = rows([1_000] * 10)
    one = worst_nusd(PRICE, 1_032, 100)
    assert planned(some, TERMS).worst_nusd == 10 * one
    assert planned(some, TERMS).call_worst_nusd == one
    assert planned(some, msgspec.structs.replace(TERMS, answers_max=2)).worst_nusd == 20 * one
    again = RetryPolicy(budget_floor=4, budget_share=0.1)
    assert planned(some, msgspec.structs.replace(TERMS, retry=again)).worst_nusd == (10 + 4 + 1) * one
    short = msgspec.structs.replace(TERMS, prompt_tokens_max=500)
    assert planned(some, short).worst_nusd == 10 * worst_nusd(PRICE, 500, 100)


@pytest.mark.parametrize(("own", "model_max", "asked"), [
    (100, None, (100, 200, 400, 800)), (100, 500, (100, 200, 400, 500)), (20_000, None, (20_000, 32_768)),
    (40_000, None, (40_000,)), (100, 100, (100,)),
])  # fmt: skip
def test_the_worst_holds_the_raised_bounds_of_rows_that_are_cut_each_time(
    own: int, model_max: int | None, asked: tuple[int, ...]
) -> None:
    some, longer = rows([1_000] * 10, output=own), {"longer": True, "output_tokens_max": model_max}
    plan = planned(some, msgspec.structs.replace(TERMS, **longer))  # type: ignore[arg-type]
    assert plan.worst_nusd == 10 * sum(worst_nusd(PRICE, 1_032, each) for each in asked)
    assert plan.call_worst_nusd == worst_nusd(PRICE, 1_032, asked[-1])
    assert plan.output_tokens.high == 10 * sum(asked)
    assert plan.cost is not None and plan.cost.high <= plan.worst_nusd
    schema = planned(some, msgspec.structs.replace(TERMS, answers_max=2, **longer))  # type: ignore[arg-type]
    assert schema.worst_nusd == plan.worst_nusd + 10 * plan.call_worst_nusd
    tiered = msgspec.structs.replace(TERMS, price=TIERED, **longer)  # type: ignore[arg-type]
    assert planned(some, tiered).worst_nusd == 10 * sum(worst_nusd(TIERED, 1_032, each) for each in asked)
    again = RetryPolicy(budget_floor=4, budget_share=0.1)
    retried = planned(some, msgspec.structs.replace(TERMS, retry=again, **longer)).worst_nusd  # type: ignore[arg-type]
    assert retried == plan.worst_nusd + (4 + len(asked)) * plan.call_worst_nusd


def test_a_sample_of_a_server_that_reports_no_usage_is_none() -> None:
    strata = sample(SIZES, 20).strata
    uncounted = SampledRow(usages=(UNKNOWN_USAGE,), elapsed_s=(1.0,))
    known = PlanSample(strata, {place: uncounted for each in strata for place in each.drawn})
    assert planned(rows(SIZES), TERMS, known) == planned(rows(SIZES), TERMS)


def test_a_sample_of_rows_that_were_cut_several_times_is_no_longer_bounded_by_their_first_bound() -> None:
    strata = sample(SIZES, 20).strata
    cut = SampledRow(usages=tuple(Usage(100, each) for each in (100, 200, 400, 800)), elapsed_s=(1.0,), attempts=4)
    known = PlanSample(strata, {place: cut for each in strata for place in each.drawn})
    plan = planned(rows(SIZES), msgspec.structs.replace(TERMS, longer=True), known)
    assert plan.output_tokens.expected == pytest.approx(1_500 * 1_980, rel=0.01)


def test_dear_tiers_are_for_the_rows_that_reach_them() -> None:
    tiered = msgspec.structs.replace(TERMS, price=TIERED)
    assert planned(rows([500, 2_000]), tiered).worst_nusd == worst_nusd(TIERED, 532, 100) + worst_nusd(
        TIERED, 2_032, 100
    )


def test_how_long_answers_take_is_told_by_the_rows_that_each_stands_for() -> None:
    """Long rows are drawn more often than there are such rows; their slow answers count by their number."""
    sizes = [20_000 if each % 50 == 0 else 100 for each in range(5_000)]
    strata = drawn(sizes, 100, random.Random(1).random)
    seen = {
        place: SampledRow(usages=(Usage(10, 10),), elapsed_s=(100.0 if sizes[place] > 100 else 1.0,))
        for each in strata for place in each.drawn
    }  # fmt: skip
    assert sum(each.elapsed_s == (100.0,) for each in seen.values()) > 20
    plan = planned(rows(sizes), TERMS, PlanSample(strata, seen))
    assert plan.duration.binds == "concurrency"
    by_number = 4_900 * (0.02 * 100 + 0.98) / 100
    assert by_number * 0.9 < plan.duration.seconds < by_number + 100 + 10


def test_without_a_price_there_is_no_money_and_all_else() -> None:
    plan = planned(rows(SIZES), msgspec.structs.replace(TERMS, price=None, batch_price=None), sample(SIZES, 100))
    assert (plan.cost, plan.batch_cost, plan.worst_nusd) == (None, None, None)
    assert plan.output_tokens.expected > 0 and plan.duration.seconds > 0


def of_first(count: int, wanted: int | None) -> JobPlan:
    sizes = SIZES[:count]
    return planned(rows(sizes), TERMS, sample(sizes, wanted) if wanted else None)


@given(st.integers(1, 1_900), st.integers(1, 100), st.sampled_from([None, 2, 3, 8, 40, 2_000]))
@settings(max_examples=60, deadline=None)
def test_low_expected_high_and_worst_are_in_this_order(count: int, more: int, wanted: int | None) -> None:
    plan, longer = of_first(count, wanted), of_first(count + more, wanted)
    assert plan.cost is not None and plan.worst_nusd is not None and longer.worst_nusd is not None
    assert 0 <= plan.cost.low <= plan.cost.expected <= plan.cost.high <= plan.worst_nusd
    assert wanted or longer.worst_nusd > plan.worst_nusd
    if wanted is None:  # more rows are never cheaper; of samples, which differ, that cannot be said
        assert longer.cost is not None
        for end in ("low", "expected", "high"):
            assert getattr(longer.cost, end) > getattr(plan.cost, end)
        assert longer.duration.seconds >= plan.duration.seconds
