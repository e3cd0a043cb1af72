"""The moment that a provider names for access to come back."""

import pytest

from policies.failures.reset_time import format_time, stated_reset_at_s

DECEMBER = 1_796_083_200.0  # 2026-12-01 00:00 UTC


@pytest.mark.parametrize(
    ("message", "at_s"),
    [
        (
            "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
            DECEMBER,
        ),
        ("You will regain access on 2026-12-01.", DECEMBER),
        ("limit resets at 2026-12-01T06:30:15Z", DECEMBER + 6.5 * 3600 + 15),
        ("limit resets 2026-12-01 06:30", DECEMBER + 6.5 * 3600),
        ("try again after 2026-12-01T02:00:00+02:00", DECEMBER),
        ("Try again after 2026-11-30T19:00:00-0500.", DECEMBER),
        ("will be restored on 2026-12-01T00:00:00.250Z", DECEMBER),
        ("model: claude-x-2026-12-01 was not found", None),
        ("Your credit balance is too low.", None),
        ("You will regain access on 2026-02-31 at 00:00 UTC.", None),
        ("You will regain access on 2026-12-01 at 25:00 UTC.", None),
        ("regain access on 2026-12-01T00:00+99:00", None),
        ("regain access soon; 2026-12-01 is a date", None),
        ("x" * 5_000 + "regain access on 2026-12-01", None),
        ("", None),
    ],
)
def test_what_the_message_says(message: str, at_s: float | None) -> None:
    assert stated_reset_at_s(message) == at_s


def test_a_moment_for_people() -> None:
    assert format_time(DECEMBER + 59) == "2026-12-01 00:00 UTC"
