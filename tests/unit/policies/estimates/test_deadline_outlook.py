"""Whether a deadline is at risk: a table."""

import pytest

from policies.estimates.deadline_outlook import DeadlineOutlook, outlook

NOW = 1_000.0


@pytest.mark.parametrize(
    ("deadline", "left", "rate", "expected"),
    [
        (None, 100, 2.0, DeadlineOutlook(NOW + 50, None)),  # an end, and nothing to miss
        (None, 100, None, DeadlineOutlook(None, None)),
        (NOW + 60, 100, 2.0, DeadlineOutlook(NOW + 50, False)),
        (NOW + 50, 100, 2.0, DeadlineOutlook(NOW + 50, False)),  # just in time
        (NOW + 49.9, 100, 2.0, DeadlineOutlook(NOW + 50, True)),
        (NOW + 60, 100, 0.5, DeadlineOutlook(NOW + 200, True)),
        (NOW + 60, 100, None, DeadlineOutlook(None, None)),  # it has just begun
        (NOW + 60, 100, 0.0, DeadlineOutlook(None, True)),  # it stands still
        (NOW, 100, None, DeadlineOutlook(None, True)),  # passed
        (NOW - 1, 100, 10.0, DeadlineOutlook(NOW + 10, True)),
        (NOW - 1, 0, 0.0, DeadlineOutlook(None, False)),  # all was done
        (NOW + 60, 0, None, DeadlineOutlook(None, False)),
    ],
)
def test_at_risk_or_not(deadline, left, rate, expected):
    assert outlook(NOW, deadline, left, rate) == expected
