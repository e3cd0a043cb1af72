"""Jobs of a few rows that are refused: refusals of a few calls teach no rate, and a small limit is obeyed all the same."""

from __future__ import annotations

import pytest

from tests.support.refused_jobs import Case, outcome


@pytest.mark.parametrize(
    ("case", "within_s"),
    [  # formerly 27, 27, 27, 88, 27 s
        (Case(2, 2, 4.0), 18),
        (Case(2, 3), 21),
        (Case(6, 1), 21),
        (Case(6, 1, 4.0, concurrency=6), 30),
        (Case(6, storms=((0.0, 10.0),)), 21),
        (Case(6, storms=((0.0, 5.0), (20.0, 25.0), (40.0, 45.0))), 12),
    ],
    ids=str,
)
def test_a_job_of_a_few_rows_goes_on_after_the_longest_silence_at_the_latest(case: Case, within_s: float) -> None:
    """Each silence is eight seconds at most, and Retry-After where it is longer: no pace is learned beside it."""
    reached = outcome(case)
    assert (len(reached.answered), reached.rows_failed) == (case.rows, 0)
    assert reached.took_s <= within_s, reached


@pytest.mark.parametrize(
    ("case", "refused_max"),
    [
        (Case(10, per_min=10.0), 32),
        (Case(20, per_min=30.0, capacity=2.0), 38),
        (Case(20, retry_after_s=1.0, latency_s=2.0, per_min=10.0, capacity=5.0), 27),
    ],
    ids=str,
)
def test_a_job_of_a_few_rows_at_a_small_bucket_is_refused_no_more_than_before(case: Case, refused_max: int) -> None:
    """Figures of the rule that took two silences for a debt: 31, 37 and 26 refusals."""
    reached = outcome(case)
    assert len(reached.answered) == case.rows
    assert reached.refused <= refused_max, reached


@pytest.mark.long
def test_a_retry_after_that_no_load_causes_does_not_hold_the_job() -> None:
    """40 calls a second, a tenth refused with Retry-After: 1. Holding the route for each allowed .46 in five minutes."""
    case = Case(5_000, retry_after_s=1.0, latency_s=0.5, share=0.1)
    reached = outcome(case, until_s=130.0)
    calls = sum(90 <= at_s < 130 for at_s in reached.answered)
    assert calls / 40 >= 0.9 * 40 * (1 - case.share), calls


def test_a_retry_after_of_a_limit_holds_the_job_all_the_same() -> None:
    """Five places of 3 s: this run tolerates a share for a while, and no check confirms it."""
    reached = outcome(Case(3_000, retry_after_s=1.0, latency_s=3.0, concurrency=100, places=5), 2, 100.0)
    assert reached.refused <= 45, reached.refused
