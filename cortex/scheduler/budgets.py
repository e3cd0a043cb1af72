"""The budgets that cover a job, asked together: what each lends it, and why no more is to be had.

Where budgets are kept, in a state folder or at a cluster's cortex, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cortex.state.budget_slice import BudgetSlice
from policies.estimates.price import usd_text
from policies.failures.reset_time import said_time
from policies.limits.slices import MONTH, SILENT_S, Budget, SliceRequest, day_of, lend, window_end_s, window_of

HEARD_S = 5.0
"""What a job has used is kept so often while it changes: for whoever looks, and for those who wait for some of it."""


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a job says of itself when it asks its budgets."""

    job: str
    labels: dict[str, str]
    day: int
    """Its day, in UTC, counted from 1970-01-01."""
    day_nusd: int
    """What it has committed of what it began on that day, and so of its month."""
    month_nusd: int
    holds: dict[str, int] = msgspec.field(default_factory=dict)
    """What it may commit at this moment in the windows of that day, by budget; of one that is not here what it has."""
    lacks_nusd: int = 0
    open_nusd: int = 0
    """Reserved for calls that are under way, without those in message batches."""
    over: bool = False
    new: bool = False
    """It has never begun anything: what stands under its name, a job used that was removed."""


class BudgetAnswer(msgspec.Struct, frozen=True):
    """The slices that the job has from now on, in place of all before."""

    slices: tuple[BudgetSlice, ...] = ()
    said: str = ""
    again_s: float = 0.0
    spent: tuple[tuple[str, int, int, int], ...] = ()
    """Of each budget: its name, the day on which its window began, its cap, and what all jobs have used of it."""


def covering(budgets: Iterable[Budget], labels: dict[str, str]) -> list[Budget]:
    """Those that cover a job with these labels."""
    return [each for each in budgets if labels.get(each.label) == each.value]


def ask(budgets: list[Budget], asked: BudgetRequest, at_s: float) -> BudgetAnswer:
    """What these budgets, which all cover the job, let it commit. They are changed."""
    slices, said, again_s = [], [], 0.0
    for each in budgets:
        used_nusd = asked.month_nusd if each.period == MONTH else asked.day_nusd
        window = window_of(each.period, asked.day)
        holds_nusd = max(used_nusd, asked.holds.get(each.name, 0))
        told = SliceRequest(asked.job, window, used_nusd, holds_nusd, asked.lacks_nusd, asked.open_nusd, asked.over)
        lent = lend(each, told, at_s)
        slices.append(BudgetSlice(each.name, each.period, window, lent.upto_nusd))
        if lent.out:
            end_s = window_end_s(each.period, each.window)
            again_s = max(again_s, end_s)
            unused_nusd = holds_nusd - used_nusd  # of its own slice, which counts as used
            left_nusd = max(0, each.cap_nusd - each.counted_nusd + unused_nusd)
            said.append(
                f"the budget {each.label}={each.value} of {usd_text(each.cap_nusd)} a {each.period} has "
                f"{usd_text(left_nusd)} left, the next call may cost "
                f"{usd_text(asked.lacks_nusd)}; it is whole again at {said_time(end_s)}"
            )
    spent = tuple((each.name, each.window, each.cap_nusd, each.used_nusd) for each in budgets)
    return BudgetAnswer(tuple(slices), "; ".join(said), again_s, spent)


def differs(before: Budget, after: Budget, job: str) -> bool:
    """Whether what came of asking must be kept; else nobody would notice."""
    then, now = before.holdings.get(job), after.holdings.get(job)
    if then is None or now is None or before.window != after.window:
        return True
    same = (then.held_nusd, then.lacks_nusd, then.over) == (now.held_nusd, now.lacks_nusd, now.over)
    new = (then.used_nusd, then.open_nusd) != (now.used_nusd, now.open_nusd)
    return not same or now.heard_s - then.heard_s >= (HEARD_S if new else SILENT_S / 3)


def day_at(at_s: float, day: int) -> int:
    """The day of a job that had come to this day, by a clock that may have been set back."""
    return max(day, day_of(at_s))
