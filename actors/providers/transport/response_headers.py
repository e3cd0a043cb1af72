"""Headers of an HTTP response that every client reads: times, numbers, and Retry-After."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

NUMBER_MAX: Final = 1e13
"""Number in a header from which it is not believed: limits of tokens a minute are below 1e9, Unix times in milliseconds
(https://openrouter.ai/docs/api_reference/limits) are 1.8e12 in 2026."""
RETRY_AFTER_MAX_S: Final = 86_400.0
"""Longest wait in seconds. A wait beyond a day is no rate limit; a longer one is taken for a day."""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the provider asks us to wait, at most `RETRY_AFTER_MAX_S`; None where it does not.

    `retry-after-ms` is the finer one and goes first; `retry-after` is seconds or an HTTP date (RFC 9110, 10.2.3).
    """
    millis = number(headers.get("retry-after-ms"))
    if millis is not None:
        return bounded_s(millis / 1_000)
    value = headers.get("retry-after")
    seconds = number(value)
    if seconds is not None:
        return bounded_s(seconds)
    at_s = http_date_s(value)
    return None if at_s is None else bounded_s(at_s - sent_at_s(headers))


def sent_at_s(headers: Mapping[str, str]) -> float:
    """Return when the response was sent, in seconds since 1970: by its Date header, else by our own clock."""
    at_s = http_date_s(headers.get("date"))
    return time.time() if at_s is None else at_s


def http_date_s(value: str | None) -> float | None:
    """Return an HTTP date in seconds since 1970; None where it is none."""
    try:
        return parsedate_to_datetime(value).timestamp() if value else None
    except (ValueError, OverflowError):
        return None


def rfc3339_s(value: str | None) -> float | None:
    """Return an RFC 3339 time in seconds since 1970; None where it is none."""
    try:
        moment = datetime.fromisoformat(value) if value else None
    except ValueError:
        return None
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LENGTH: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(ms|s|m|h|d)\s*")


def duration_s(value: str | None) -> float | None:
    """Return a duration in seconds: `6m0s`, `1s`, `20ms`, `1h2m3.5s` (Go's `time.Duration`), or a number of seconds;
    None where it is none."""
    text = (value or "").strip()
    if (seconds := number(text)) is not None:
        return seconds
    parts = _LENGTH.findall(text)
    whole = "".join(text.split()) == "".join(f"{count}{unit}" for count, unit in parts)
    seconds = sum(float(count) * _UNITS_S[unit] for count, unit in parts)
    return round(seconds, 6) if parts and whole and seconds < NUMBER_MAX else None


def number(value: str | None) -> float | None:
    """Return a number of at least 0 and below `NUMBER_MAX`; None where it is none."""
    try:
        found = float(value) if value else None
    except ValueError:
        return None
    return found if found is not None and 0 <= found < NUMBER_MAX else None


def bounded_s(seconds: float) -> float:
    """Return a wait in seconds between 0 and `RETRY_AFTER_MAX_S`."""
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)
