"""Whether a deadline is at risk: a table."""

import pytest

from policies.estimates.deadline_outlook import Outlook, outlook

NOW = 1_000.0


@pytest.mark.parametrize(
    ("deadline", "left", "rate", "expected"),
    [
        (None, 100, 2.0, Outlook(NOW + 50, None)),  # an end, and nothing to miss
        (None, 100, None, Outlook(None, None)),
        (NOW + 60, 100, 2.0, Outlook(NOW + 50, False)),
        (NOW + 50, 100, 2.0, Outlook(NOW + 50, False)),  # just in time
        (NOW + 49.9, 100, 2.0, Outlook(NOW + 50, True)),
        (NOW + 60, 100, 0.5, Outlook(NOW + 200, True)),
        (NOW + 60, 100, None, Outlook(None, None)),  # it has just begun
        (NOW + 60, 100, 0.0, Outlook(None, True)),  # it stands still
        (NOW, 100, None, Outlook(None, True)),  # passed
        (NOW - 1, 100, 10.0, Outlook(NOW + 10, True)),
        (NOW - 1, 0, 0.0, Outlook(None, False)),  # all was done
        (NOW + 60, 0, None, Outlook(None, False)),
    ],
)
def test_at_risk_or_not(deadline, left, rate, expected):
    assert outlook(NOW, deadline, left, rate) == expected
