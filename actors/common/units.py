"""Parsing and formatting of durations, clock times and shares."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_FORM = "write it like 90s, 15m, 2h or 1d"


def duration_s(text: str | float) -> float:
    """Return the seconds of ``90s``, ``15m``, ``2h``, ``1d``, ``1h30m`` or a number of seconds. Raises ``ValueError``.

    The duration must be above zero.
    """
    message = str(text).strip().lower()
    try:
        seconds = float(message)
    except ValueError:
        parts = _DURATION.findall(message)
        if not parts or "".join(map("".join, parts)) != message:
            raise ValueError(f"{text!r} is no duration: {DURATION_FORM}") from None
        seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{text!r} is no time above zero: {DURATION_FORM}")
    return seconds


def time_at_s(text: str | float | datetime, now_s: float) -> float:
    """Return the time, in seconds since 1970, of ``+6h``, of an ISO 8601 time (without a zone: local time) or of a
    number.

    Raises ``ValueError``, also for a time that has passed.
    """
    if isinstance(text, datetime):
        at_s = text.timestamp()
    elif not isinstance(text, str):
        at_s = float(text)
    elif text.strip().startswith("+"):
        return now_s + duration_s(text.strip()[1:])
    else:
        try:
            at_s = datetime.fromisoformat(text.strip()).timestamp()
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"{text!r} is no time: write +6h, or 2026-11-30T18:00 (ISO 8601)") from None
    if not math.isfinite(at_s) or at_s <= now_s:
        raise ValueError(f"{text} has passed: it is {clock(now_s)}")
    return at_s


def clock(at_s: float) -> str:
    """Return a time for display: local time with its zone."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def span(seconds: float) -> str:
    """Return a duration for display."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours} h {m:02d} min" if hours else f"{m} min {s:02d} s"


def share(text: str | float, least: float = 0.0, below_one: bool = False) -> float:
    """Return the share that ``0.05`` or ``5%`` names. Raises ``ValueError`` if it is out of range."""
    message = str(text).strip()
    try:
        found = Decimal(message.removesuffix("%")) / (100 if message.endswith("%") else 1)
    except InvalidOperation:
        found = Decimal(-1)
    fits = found.is_finite() and least <= found <= 1 and not (below_one and found == 1)
    if not fits:
        raise ValueError(f"{text!r}: give a share from {least:g} to {'below ' if below_one else ''}1, like 0.2 or 20%")
    return float(found)
