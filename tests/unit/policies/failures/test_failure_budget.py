"""When failures end a job: a count, a share, and first rows that all failed alike."""

import pytest

from policies.failures.failure_budget import FINISHED_MIN, all_alike, too_many_failed, too_many_unreadable


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
    ("rule", "failed", "finished", "unreadable", "rows", "ends"),
    [
        (None, 5, 10, 10**6, 10, False),
        (100, 0, 0, 99, 900, False),
        (100, 0, 0, 100, 900, True),  # before the first row is asked
        (100, 60, 500, 40, 900, True),
        (0.1, 0, 0, 100, 900, True),  # 100 of 1,000: no success can undo that
        (0.1, 0, 0, 99, 901, False),
        (0.1, 0, 0, 10, 9, False),  # 10 of 19 records: too few to speak of a share
        (0.1, 0, FINISHED_MIN - 1, 50, 950, False),
        (0.1, 0, 500, 50, 950, False),  # 5 % are unreadable, wherever the job stands
        (0.1, 24, 475, 50, 950, False),  # 24 of 475 failed, and 25 of the unreadable records fall to them: 49 of 500
        (0.1, 25, 475, 50, 950, True),
        (0.1, 49, 950, 50, 950, False),
        (0.1, 50, 950, 50, 950, True),
        (0.1, 0, 30, 2, 0, False),  # the rows of the input are not known
        (0.1, 0, 30, 4, 0, True),
    ],
)
def test_unreadable_records_count_as_failed_rows(
    rule: float | None, failed: int, finished: int, unreadable: int, rows: int, ends: bool
) -> None:
    assert too_many_failed(rule, failed, finished, unreadable, rows) is ends


@pytest.mark.parametrize(
    ("rule", "unreadable", "rows", "stops"),
    [
        (0.01, 0, 0, False),
        (0.01, 1, 99, False),
        (0.01, 1, 98, True),
        (0.01, 1, 49, True),
        (0.34, 334, 666, False),
        (0.33, 334, 666, True),
        (1, 1, 3, False),
        (1, 2, 10**6, True),
        (334, 334, 666, False),
        (0, 1, 10**6, True),
        (0, 0, 10, False),
    ],
)
def test_the_accepted_number_of_unreadable_records(rule: float, unreadable: int, rows: int, stops: bool) -> None:
    assert too_many_unreadable(rule, unreadable, rows) is stops


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
