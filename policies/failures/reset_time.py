"""Reset time in a provider's message: when access returns.

A reached spend limit names the day on which it ends ("You will regain access on 2026-12-01 at 00:00 UTC."). A date in a
model's name, or in the user's text, is ignored: only a date that follows such words counts.
"""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

_STATED: Final = re.compile(
    r"(?:regain access|access (?:returns|resumes)|resets?|restored|renews?|available again|try again|retry)"
    r"(?: (?:on|at|after|until|from))? "
    r"(\d{4})-(\d\d)-(\d\d)(?:(?:T| at | )(\d\d):(\d\d)(?::(\d\d))?)?"
    r"(?:\.\d+)? ?(?:(?:UTC|GMT|Z)|([+-])(\d\d):?(\d\d))?\b",
    re.IGNORECASE,
)
_CHARS_READ: Final = 4_000


def stated_reset_at_s(message: str) -> float | None:
    """Return the moment that the message names, in seconds since 1970; None if it names none.

    A day without a time begins at midnight; a time without a zone is UTC, as the provider writes its times.
    """
    found = _STATED.search(message[:_CHARS_READ])
    if found is None:
        return None
    year, month, day, hour, minute, second, sign, zone_hours, zone_minutes = found.groups()
    zone: timezone = UTC
    try:
        if sign:
            away = timedelta(hours=int(zone_hours), minutes=int(zone_minutes))
            zone = timezone(-away if sign == "-" else away)
        when = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=zone
        )
    except ValueError:  # the 31st of February
        return None
    return when.timestamp()


def format_time(at_s: float) -> str:
    """Format a moment for people, to the minute: `2026-12-01 00:00 UTC`."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
