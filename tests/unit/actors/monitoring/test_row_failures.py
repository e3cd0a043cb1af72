"""Failed rows are warned of at the first of a kind, and once when many of the last rows fail."""

from __future__ import annotations

import pytest

from actors.monitoring.row_failures import ROWS_MIN, RowFailureMonitor


def _told(monitor: RowFailureMonitor, ended: int, **by_kind: int) -> list[str]:
    return [message for message, _ in monitor.news(ended, by_kind)]


def test_the_first_row_of_a_kind_is_told_once() -> None:
    monitor = RowFailureMonitor()
    assert _told(monitor, 1) == []
    assert _told(monitor, 2, rejected=1) == ["the first row failed: rejected"]
    assert _told(monitor, 3, rejected=2) == []
    assert _told(monitor, 4, rejected=2, cut=1) == ["the first row failed: cut"]


def test_many_of_the_last_rows_are_told_once_until_fewer_fail() -> None:
    monitor = RowFailureMonitor()
    list(monitor.news(10_000, {"rejected": 1}))
    many = "14 of the last 50 rows failed (28 %)"
    assert _told(monitor, 10_000 + ROWS_MIN - 1, rejected=14) == [], "too few rows for a share"
    assert _told(monitor, 10_000 + ROWS_MIN, rejected=15) == [many]
    assert _told(monitor, 10_000 + 2 * ROWS_MIN, rejected=29) == []
    assert _told(monitor, 10_000 + 3 * ROWS_MIN, rejected=29) == []
    assert _told(monitor, 10_000 + 4 * ROWS_MIN, rejected=43) == [many]


@pytest.mark.parametrize(("failed", "told"), [(5, 0), (6, 1)])
def test_one_row_in_twenty_may_fail(failed: int, told: int) -> None:
    monitor = RowFailureMonitor(0, {"cut": 0})
    assert len(_told(monitor, 100, cut=failed)) == 1 + told


def test_what_had_failed_before_the_run_and_what_a_retry_takes_back_are_no_news() -> None:
    monitor = RowFailureMonitor(100, {"rejected": 90})
    assert _told(monitor, 200, rejected=90) == []
    assert _told(monitor, 110, rejected=0) == []
    assert _told(monitor, 110 + ROWS_MIN, rejected=0) == []
