"""Requests of a job to all budgets that cover it: the slices they lend, and the reason why no more can be lent.

Independent of where budgets are stored: in a state folder or with a cluster's scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cortex.state.budget_slice import BudgetSlice
from policies.estimates.price import usd_text
from policies.failures.reset_time import format_time
from policies.limits.slices import MONTH, SILENT_S, SKEW_S, Budget, SliceRequest, day_of, lend, window_end_s, window_of

REPORT_S = 5.0
"""Seconds between two stored updates of what a job has used, for observers and for jobs that wait for a part of it."""


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a job that requests slices of its budgets."""

    job: str
    labels: dict[str, str]
    day: int
    """The job's UTC day by its own time, counted from 1970-01-01."""
    day_nusd: int
    """Committed money of attempts begun on that day, in 1e-9 USD."""
    month_nusd: int
    """Committed money of attempts begun in that month, in 1e-9 USD."""
    holds: dict[str, int] = msgspec.field(default_factory=dict)
    """Total that the job may commit now in the current window, by budget name; missing: what it has committed."""
    lacks_nusd: int = 0
    """Amount that the next call needs beyond the slices; 0: none."""
    open_nusd: int = 0
    """Money reserved for calls in flight, without message batches."""
    over: bool = False
    """True if the job has ended."""
    new: bool = False
    """True if the job has never begun anything: a holding under its name belongs to a removed job."""
    at_s: float = 0.0
    """The job's time, in seconds since 1970; 0 in requests of earlier releases."""


class BudgetAnswer(msgspec.Struct, frozen=True):
    """Slices of the job from now on, replacing all earlier ones."""

    slices: tuple[BudgetSlice, ...] = ()
    reason: str = ""
    """Reason why no more can be lent; empty: none."""
    again_s: float = 0.0
    """Time at which that budget is whole again, in seconds since 1970."""
    spent: tuple[tuple[str, int, int, int], ...] = ()
    """Each budget's name, first day of its window, cap, and use by all jobs."""


def covering(budgets: Iterable[Budget], labels: dict[str, str]) -> list[Budget]:
    """Return the budgets that cover a job with these labels."""
    return [each for each in budgets if labels.get(each.label) == each.value]


def ask(budgets: list[Budget], asked: BudgetRequest, at_s: float) -> BudgetAnswer:
    """Request slices from these budgets, which all cover the job. Changes the budgets.

    ``at_s``: time at the place that keeps the budgets.
    """
    far = asked.at_s > 0.0 and abs(asked.at_s - at_s) > SKEW_S
    slices, lines, again_s = [], [], 0.0
    for each in budgets:
        used_nusd = asked.month_nusd if each.period == MONTH else asked.day_nusd
        window = window_of(each.period, asked.day)
        holds_nusd = max(used_nusd, asked.holds.get(each.name, 0))
        request = SliceRequest(
            asked.job, window, used_nusd, holds_nusd, asked.lacks_nusd, asked.open_nusd, asked.over, far
        )
        lent = lend(each, request, at_s)
        slices.append(BudgetSlice(each.name, each.period, window, lent.upto_nusd))
        if lent.out:
            end_s = window_end_s(each.period, each.window)
            again_s = max(again_s, end_s)
            unused_nusd = holds_nusd - used_nusd  # unused part of its own slice, which counts as used
            left_nusd = max(0, each.cap_nusd - each.counted_nusd + unused_nusd)
            lines.append(
                f"the budget {each.label}={each.value} of {usd_text(each.cap_nusd)} a {each.period} has "
                f"{usd_text(left_nusd)} left, the next call may cost "
                f"{usd_text(asked.lacks_nusd)}; it is whole again at {format_time(end_s)}"
            )
    spent = tuple((each.name, each.window, each.cap_nusd, each.used_nusd) for each in budgets)
    return BudgetAnswer(tuple(slices), "; ".join(lines), again_s, spent)


def differs(before: Budget, after: Budget, job: str) -> bool:
    """Return True if the result of a request must be stored, because others could notice the difference."""
    then, now = before.holdings.get(job), after.holdings.get(job)
    if then is None or now is None or before.window != after.window:
        return True
    same = (then.held_nusd, then.lacks_nusd, then.over, then.window) == (
        now.held_nusd, now.lacks_nusd, now.over, now.window,
    )  # fmt: skip
    new = (then.used_nusd, then.open_nusd) != (now.used_nusd, now.open_nusd)
    return not same or now.heard_s - then.heard_s >= (REPORT_S if new else SILENT_S / 3)


def day_at(at_s: float, day: int) -> int:
    """Return the day of a job that had reached ``day``, by a clock that may have been set back."""
    return max(day, day_of(at_s))
