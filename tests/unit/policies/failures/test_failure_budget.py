"""When failures end a job: a count, a share, and first rows that all failed alike."""

import pytest

from policies.failures.failure_budget import FINISHED_MIN, all_alike, too_many_failed


@pytest.mark.parametrize(
    ("rule", "failed", "finished", "ends"),
    [
        (None, 10**6, 10**6, False),
        (25, 24, 24, False),
        (25, 25, 10**6, True),
        (1, 0, 5, False),
        (1, 1, 1, True),
        (0.05, FINISHED_MIN - 1, FINISHED_MIN - 1, False),  # all of them, and too few to speak of a share
        (0.05, 1, FINISHED_MIN, True),
        (0.05, 0, FINISHED_MIN, False),
        (0.05, 4_999, 100_000, False),
        (0.05, 5_000, 100_000, True),
        (0.999, 998, 1_000, False),
        (0.999, 999, 1_000, True),
    ],
)
def test_too_many_failed(rule: float | None, failed: int, finished: int, ends: bool) -> None:
    assert too_many_failed(rule, failed, finished) is ends


@pytest.mark.parametrize(
    ("first", "finished", "failed", "kind"),
    [
        (50, 49, {"rejected": 49}, ""),  # not yet
        (50, 50, {"rejected": 50}, "rejected"),
        (50, 57, {"rejected": 57}, "rejected"),  # those that came home in the same turn
        (50, 51, {"rejected": 50}, ""),  # one was good
        (50, 50, {"rejected": 49, "malformed": 1}, ""),  # not alike
        (50, 50, {"rejected": 0, "malformed": 50}, "malformed"),
        (50, 50, {}, ""),
        (0, 50, {"rejected": 50}, ""),  # not asked
        (1, 0, {}, ""),
        (1, 1, {"faulty": 1}, "faulty"),
    ],
)
def test_the_first_rows_failing_alike(first: int, finished: int, failed: dict[str, int], kind: str) -> None:
    assert all_alike(first, finished, failed) == kind
