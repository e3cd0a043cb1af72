"""Will a job meet its deadline at the speed it has?"""

from __future__ import annotations

import msgspec


class Outlook(msgspec.Struct, frozen=True):
    """What can be foretold; None where nothing can be."""

    ends_at_s: float | None = None
    """When all would be done, in the time that the deadline is told in."""
    at_risk: bool | None = None


def outlook(now_s: float, deadline_at_s: float | None, left: int, rate_per_s: float | None) -> Outlook:
    """``left``: rows that have not finished. ``rate_per_s``: those that finish a second; None before anybody can tell,
    0 where none does.

    A job that is done is at no risk; one that has passed its deadline, or stands still, is.
    """
    if left <= 0:
        return Outlook(None, None if deadline_at_s is None else False)
    ends_at_s = now_s + left / rate_per_s if rate_per_s else None
    if deadline_at_s is None:
        return Outlook(ends_at_s, None)
    if now_s >= deadline_at_s:
        return Outlook(ends_at_s, True)
    if rate_per_s is None:
        return Outlook(None, None)
    return Outlook(ends_at_s, ends_at_s is None or ends_at_s > deadline_at_s)
