"""Slices of a shared budget: the amount that each job may commit now.

A budget bounds what all jobs of a label commit in a window of time, a day or a month in UTC. A job commits only what it
was lent before: a slice. Slices are a part of what is left, so that they shrink as the budget does and all jobs may
continue to its end. An unused slice returns as soon as another job lacks money. An amount that was lent counts as used
until the job reports, or its journal shows, that it is not, so the total is never exceeded, whichever process dies.

All money is in 1e-9 USD. A window is named by the day on which it begins, counted from 1970-01-01 UTC. The clock of
the place that keeps a budget alone tells the window of the budget. A job counts what it commits in windows of its own
time, which may be any other where the clock of a machine was set.
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
"""Seconds after which a job without a report counts as possibly dead; a live job reports more often."""
SKEW_S: Final = 3_600.0
"""Difference of two clocks above which one of them was set wrong, in seconds. Below it a job waits, at most as long,
until both are in one window, so that no window is counted twice. Clocks under NTP differ by milliseconds, and ntpd
stops at an offset of 1,000 s (https://www.ntp.org/documentation/4.2.8-series/ntpd/); a real-time clock that is read as
local time is wrong by hours."""
REMOVED: Final = "(removed)"
"""Name of the holding that keeps the use of removed jobs; no job can have this name."""
_EPOCH: Final = date(1970, 1, 1).toordinal()


class Holding(msgspec.Struct):
    """A job's part of a budget in the current window."""

    held_nusd: int = 0
    """Total that the job may commit in this window."""
    used_nusd: int = 0
    """Amount that the job had committed at its latest report: known, assumed and reserved."""
    lacks_nusd: int = 0
    """Amount beyond `used_nusd` that the job's next call needs and that could not be lent yet; 0: nothing is
    lacking."""
    open_nusd: int = 0
    """Part of `used_nusd` that is reserved for calls in flight; most of it comes back."""
    over: bool = False
    """True if the job has ended or was found dead: it holds nothing beyond what it has used."""
    heard_s: float = 0.0
    """Time of the job's latest report, in seconds since 1970."""
    window: int = -1
    """Window of the job's own time in which the amounts count; -1: that of the budget."""

    @property
    def counted_nusd(self) -> int:
        """Amount that counts as used up: the most that the job may have committed by now."""
        return max(self.held_nusd, self.used_nusd)


class Budget(msgspec.Struct):
    """Bound on what the jobs of a label commit in a day or a month, and each job's holding."""

    label: str
    """Name of the label."""
    value: str
    """Value of the label."""
    period: str
    """``day`` or ``month``."""
    cap_nusd: int
    """Bound in 1e-9 USD."""
    who: str = ""
    """User who set the budget."""
    at_s: float = 0.0
    """Time at which the budget was set, in seconds since 1970."""
    window: int = 0
    """Window of `holdings`, named by its first day."""
    holdings: dict[str, Holding] = msgspec.field(default_factory=dict)
    """Holding of each job, by name."""
    former_window: int = -1
    """Window that was left last; -1: none."""
    former: dict[str, Holding] = msgspec.field(default_factory=dict)
    """Holdings of that window, for a clock that was set and is right again."""

    @property
    def name(self) -> str:
        """Display name: "LABEL=VALUE a PERIOD"."""
        return f"{self.label}={self.value} a {self.period}"

    @property
    def used_nusd(self) -> int:
        """Amount spent or reserved for calls in flight, as far as the jobs reported."""
        return sum(each.used_nusd for each in self.holdings.values())

    @property
    def counted_nusd(self) -> int:
        """Amount spent, and amount that may be spent by now."""
        return sum(each.counted_nusd for each in self.holdings.values())


class SliceRequest(msgspec.Struct, frozen=True):
    """Report of a job that asks for a slice."""

    job: str
    window: int
    """Window in which the amounts count, by the job's time."""
    used_nusd: int
    """Amount committed in the window."""
    holds_nusd: int
    """Amount that the job may commit now under its last slice. No later slice is on its way to the job."""
    lacks_nusd: int = 0
    """Amount beyond `used_nusd` that the job's next call needs; 0: there is room for it."""
    open_nusd: int = 0
    """Part of `used_nusd` that is reserved for calls in flight."""
    over: bool = False
    """True if the job has ended and will commit nothing more."""
    far: bool = False
    """True if the job's time differs by more than `SKEW_S` from the clock of the budget."""


class SliceAnswer(msgspec.Struct, frozen=True):
    """Answer to a job's report."""

    upto_nusd: int
    """Total that the job may commit in the window; less than it holds if the rest is to be returned."""
    out: bool = False
    """True if the budget is used up: the lacking amount is not available, and nothing that could still return would
    cover it."""


def day_of(at_s: float) -> int:
    """Return the day of a moment, counted from 1970-01-01 UTC."""
    return int(at_s // DAY_S)


def window_of(period: str, day: int) -> int:
    """Return the day on which the window that contains `day` begins."""
    return day - (date.fromordinal(_EPOCH + day).day - 1) if period == MONTH else day


def window_end_s(period: str, window: int) -> float:
    """Return the end of a window, when the budget is whole again, in seconds since 1970."""
    if period == DAY:
        return float((window + 1) * DAY_S)
    first = date.fromordinal(_EPOCH + window)
    after = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return float((after.toordinal() - _EPOCH) * DAY_S)


def turn_to(budget: Budget, at_s: float) -> None:
    """Set the window of a budget to the one of this time, by the clock of the place that keeps the budget.

    A later window begins with no holdings: amounts left in the old window expire. A window that lies ahead by more than
    `SKEW_S` was begun by a clock that is right again, or the clock is wrong now: the budget goes back and keeps its
    holdings. A window that is entered again also has the holdings with which it was left. A budget of another period
    than a day or a month has one window.
    """
    if budget.period not in PERIODS:
        return
    window, before = window_of(budget.period, day_of(at_s)), budget.window
    back = DAY_S * before - at_s > SKEW_S
    if window == before or (window < before and not back):
        return
    left, found = budget.holdings, dict[str, Holding]()
    if back:
        for job, each in left.items():
            found[job] = msgspec.structs.replace(each, window=window_in(budget, each))
    returns, former = budget.former_window == window, budget.former
    budget.window, budget.holdings = window, found
    budget.former_window, budget.former = (-1, {}) if returns else (before, left)
    for job, each in former.items() if returns else ():
        each.window = window_in(budget, each)
        now = found.setdefault(job, each)
        if now is not each and (job == REMOVED or now.window != each.window):
            add_removed(budget, each.counted_nusd)


def keep_holdings(budget: Budget, before: Budget) -> None:
    """Give a budget that is set anew the windows and holdings that it had."""
    budget.window, budget.holdings = before.window, before.holdings
    budget.former_window, budget.former = before.former_window, before.former


def window_in(budget: Budget, holding: Holding) -> int:
    """Return the window of the job's own time in which a holding counts."""
    return budget.window if holding.window < 0 else holding.window


def set_aside(budget: Budget, job: str) -> None:
    """Remove a job: what it may have used stays used, and a later job of the same name begins with nothing."""
    if gone := budget.holdings.pop(job, None):
        add_removed(budget, gone.counted_nusd)


def add_removed(budget: Budget, nusd: int) -> None:
    """Count `nusd` as used in this window by removed jobs."""
    if nusd:
        kept = budget.holdings.setdefault(REMOVED, Holding(over=True))
        kept.used_nusd += nusd
        kept.held_nusd += nusd


def lend(budget: Budget, request: SliceRequest, at_s: float) -> SliceAnswer:
    """Take in a job's report and return what the job may commit. Save the changed budget before the job gets the
    answer. ``at_s``: time at the place that keeps the budget, in seconds since 1970.

    A job that lacks money gets the lacking amount, or a fair part of what is left if that is more. A job that would
    soon lack money is given more ahead. If other jobs lack money, or the budget was lowered, what a job does not use
    returns.
    """
    turn_to(budget, at_s)
    if request.window != budget.window and not request.far:
        return SliceAnswer(request.used_nusd)  # near midnight: wait until both clocks are in one window
    if (own := budget.holdings.get(request.job)) is not None and window_in(budget, own) != request.window:
        set_aside(budget, request.job)  # the job counts from 0 again; its earlier amounts stay used in this window
    own = budget.holdings.setdefault(request.job, Holding())
    own.window = request.window
    own.used_nusd, own.held_nusd, own.lacks_nusd = request.used_nusd, request.holds_nusd, 0
    own.over, own.heard_s, own.open_nusd = request.over, at_s, request.open_nusd
    if request.over:
        own.held_nusd, own.open_nusd = request.used_nusd, 0
        return SliceAnswer(request.used_nusd)
    others = [each for job, each in budget.holdings.items() if job != request.job]
    left = max(0, budget.cap_nusd - sum(each.counted_nusd for each in others) - request.used_nusd)
    slack = request.holds_nusd - request.used_nusd
    fair = left // (2 * (1 + sum(not each.over for each in others)))
    upto = request.holds_nusd
    if request.lacks_nusd > left:  # the unused rest is of no use to this job; another may need less
        back = request.open_nusd + sum(_coming_back(each, at_s) for each in others)
        out = left + back < request.lacks_nusd
        own.lacks_nusd = 0 if out else request.lacks_nusd  # other jobs return nothing for an amount that cannot be had
        return SliceAnswer(request.used_nusd, out)
    if request.lacks_nusd:
        upto = request.used_nusd + max(request.lacks_nusd, fair, min(slack, left))
    elif any(each.lacks_nusd for each in others):
        upto = request.used_nusd
    elif slack > left:  # the budget was lowered
        upto = request.used_nusd + left
    elif slack < fair // 2:
        upto = request.used_nusd + fair
    own.held_nusd = max(request.holds_nusd, upto)
    return SliceAnswer(upto)


def _coming_back(holding: Holding, at_s: float) -> int:
    """Amount that a live job may return soon; 0 for a job silent for longer than `SILENT_S`, which may be dead."""
    if holding.over or at_s - holding.heard_s > SILENT_S:
        return 0
    return max(0, holding.held_nusd - holding.used_nusd) + holding.open_nusd
