"""Forecast of whether a job meets its deadline at its current rate."""

from __future__ import annotations

import msgspec


class DeadlineOutlook(msgspec.Struct, frozen=True):
    """Forecast for a job; None: not known."""

    ends_at_s: float | None = None
    """Expected end of the job, on the clock of the deadline, in seconds."""
    at_risk: bool | None = None
    """True if the deadline will be missed at the current rate; None without a deadline, or before a rate is known."""


def outlook(now_s: float, deadline_at_s: float | None, left: int, rate_per_s: float | None) -> DeadlineOutlook:
    """Return the outlook of a job with ``left`` unfinished rows.

    ``rate_per_s``: rows finished per second; None if not yet known, 0 if no row finishes. A finished job is at no risk;
    a job past its deadline or without progress is.
    """
    if left <= 0:
        return DeadlineOutlook(None, None if deadline_at_s is None else False)
    ends_at_s = now_s + left / rate_per_s if rate_per_s else None
    if deadline_at_s is None:
        return DeadlineOutlook(ends_at_s, None)
    if now_s >= deadline_at_s:
        return DeadlineOutlook(ends_at_s, True)
    if rate_per_s is None:
        return DeadlineOutlook(None, None)
    return DeadlineOutlook(ends_at_s, ends_at_s is None or ends_at_s > deadline_at_s)
