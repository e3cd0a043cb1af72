"""How much of a shared budget may a job commit now?

A budget bounds what all jobs of a label commit in a window of time, a day or a month in UTC. No job commits what it was
not lent before: a slice. Slices are a part of what is left, so that they shrink as the budget does and all may go on to
its end; one that is not used goes back as soon as another job lacks money. What a job was lent counts as used until the
job says, or its journal shows, that it is not: so that the sum is never passed, whatever dies.

All money is in 1e-9 USD. A window is named by the day on which it begins, counted from 1970-01-01 UTC.
"""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec

DAY_S: Final = 86_400
DAY: Final = "day"
MONTH: Final = "month"
PERIODS: Final = (DAY, MONTH)
SILENT_S: Final = 60.0
"""A job that lives is heard more often."""
REMOVED: Final = "(removed)"
"""Holds what jobs have used that are no more; no job is named so."""
_EPOCH: Final = date(1970, 1, 1).toordinal()


class Holding(msgspec.Struct):
    """What a job has of a budget in its window."""

    held_nusd: int = 0
    """So much it may commit in this window, all told."""
    used_nusd: int = 0
    """So much it had committed when it was last heard: known, assumed and reserved."""
    lacks_nusd: int = 0
    """What its next call needs beyond what it has used, which it could not be lent yet; 0: it lacks nothing."""
    open_nusd: int = 0
    """Of what it has used, so much is reserved for calls that are under way: most of it comes back."""
    over: bool = False
    """It holds nothing any more but what it has used: it has ended, or was found dead."""
    heard_s: float = 0.0
    """When it was last heard, in seconds since 1970."""

    @property
    def counted_nusd(self) -> int:
        """What counts as used up: what it may have committed by now."""
        return max(self.held_nusd, self.used_nusd)


class Budget(msgspec.Struct):
    """A bound on what the jobs of a label commit in a day or a month, and what each of them has of it."""

    label: str
    value: str
    period: str
    cap_nusd: int
    who: str = ""
    at_s: float = 0.0
    """Who set it, and when."""
    window: int = 0
    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.label}={self.value} a {self.period}"

    @property
    def used_nusd(self) -> int:
        """What is spent, or reserved for calls under way, as far as the jobs said."""
        return sum(each.used_nusd for each in self.holdings.values())

    @property
    def counted_nusd(self) -> int:
        """What is spent, and what may be by now."""
        return sum(each.counted_nusd for each in self.holdings.values())


class Told(msgspec.Struct, frozen=True):
    """What a job says of itself when it asks."""

    job: str
    window: int
    used_nusd: int
    holds_nusd: int
    """What it may commit at this moment, under its last slice. Nothing it was lent since is on its way to it."""
    lacks_nusd: int = 0
    """What its next call needs beyond what it has used; 0: it has room for it."""
    open_nusd: int = 0
    """Of what it has used, so much is reserved for calls that are under way."""
    over: bool = False
    """It has ended and will commit nothing."""


class Lent(msgspec.Struct, frozen=True):
    """The answer."""

    upto_nusd: int
    """So much the job may commit in the window, all told; less than it holds where that is to go back."""
    out: bool = False
    """What it lacks is not there, nor anything that could still come back: the budget is used up."""


def day_of(at_s: float) -> int:
    """The day of a moment, counted from 1970-01-01 UTC."""
    return int(at_s // DAY_S)


def window_of(period: str, day: int) -> int:
    """The day on which the window of that day begins."""
    return day - (date.fromordinal(_EPOCH + day).day - 1) if period == MONTH else day


def window_end_s(period: str, window: int) -> float:
    """When a window is over and the budget whole again, in seconds since 1970."""
    if period == DAY:
        return float((window + 1) * DAY_S)
    first = date.fromordinal(_EPOCH + window)
    after = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return float((after.toordinal() - _EPOCH) * DAY_S)


def turn_to(budget: Budget, window: int) -> None:
    """A new window begins with nothing held: what is left of the old one is worth nothing any more."""
    if window > budget.window:
        budget.window, budget.holdings = window, {}


def set_aside(budget: Budget, job: str) -> None:
    """A job is no more: what it may have used stays used, and whoever takes its name begins with nothing."""
    if gone := budget.holdings.pop(job, None):
        add_removed(budget, gone.counted_nusd)


def add_removed(budget: Budget, nusd: int) -> None:
    """Jobs that are no more have used this of the window."""
    if nusd:
        kept = budget.holdings.setdefault(REMOVED, Holding(over=True))
        kept.used_nusd += nusd
        kept.held_nusd += nusd


def lend(budget: Budget, told: Told, at_s: float) -> Lent:
    """Take in what a job says, and say what it may commit. The budget is changed: it must be kept before the job hears.

    A job in want gets what it lacks, or a fair part of what is left if that is more; one that would soon lack is given
    more ahead. Where others are in want, or the budget was lowered, what a job does not use goes back.
    """
    turn_to(budget, told.window)
    if told.window < budget.window:
        return Lent(told.used_nusd)  # its clock is behind: nothing more under a window that is over
    own = budget.holdings.setdefault(told.job, Holding())
    own.used_nusd, own.held_nusd, own.lacks_nusd = told.used_nusd, told.holds_nusd, 0
    own.over, own.heard_s, own.open_nusd = told.over, at_s, told.open_nusd
    if told.over:
        own.held_nusd, own.open_nusd = told.used_nusd, 0
        return Lent(told.used_nusd)
    others = [each for job, each in budget.holdings.items() if job != told.job]
    left = max(0, budget.cap_nusd - sum(each.counted_nusd for each in others) - told.used_nusd)
    slack = told.holds_nusd - told.used_nusd
    fair = left // (2 * (1 + sum(not each.over for each in others)))
    upto = told.holds_nusd
    if told.lacks_nusd > left:  # what it has is of no use to it; another may need less
        back = told.open_nusd + sum(_coming_back(each, at_s) for each in others)
        out = left + back < told.lacks_nusd
        own.lacks_nusd = 0 if out else told.lacks_nusd  # nobody gives anything back for what cannot be had
        return Lent(told.used_nusd, out)
    if told.lacks_nusd:
        upto = told.used_nusd + max(told.lacks_nusd, fair, min(slack, left))
    elif any(each.lacks_nusd for each in others):
        upto = told.used_nusd
    elif slack > left:  # the budget was lowered
        upto = told.used_nusd + left
    elif slack < fair // 2:
        upto = told.used_nusd + fair
    own.held_nusd = max(told.holds_nusd, upto)
    return Lent(upto)


def _coming_back(holding: Holding, at_s: float) -> int:
    """What a job that lives may give back soon. One that was not heard for long may be dead: nobody waits for it."""
    if holding.over or at_s - holding.heard_s > SILENT_S:
        return 0
    return max(0, holding.held_nusd - holding.used_nusd) + holding.open_nusd
