"""Slices of budgets that a job was lent, as records of K."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from cortex.state.state import State


JOB, TOKENS = "job", "tokens"
"""Period of a slice of a job's tokens that its parent lends to a shard: from the beginning of the job."""


class BudgetSlice(msgspec.Struct, frozen=True, array_like=True):
    """Part of one budget that was lent to the job."""

    budget: str
    """Display name of the budget."""
    period: str
    """``day`` or ``month``; or ``JOB`` or ``TOKENS``, which have no window."""
    window: int
    """First day of the window, counted from 1970-01-01 UTC."""
    upto_nusd: int
    """Total that the job may commit in that window, in 1e-9 USD (in tokens for ``TOKENS``)."""


class BudgetSlices(msgspec.Struct, array_like=True):
    """Slices of the job, and the amount it lacks."""

    slices: tuple[BudgetSlice, ...] = ()
    reason: str = ""
    """Reason why no more can be lent; empty if more may come."""
    again_s: float = 0.0
    """Time at which the budget is whole again."""
    since_s: float = 0.0
    """Time since which no more can be lent."""
    lacks_nusd: int = 0
    """Highest cost of the call for which there was no room; 0: none since the last slice."""
    lacks_tokens: int = 0
    """Most tokens of that call."""


NOTHING_YET = BudgetSlice("of its labels", "day", -1, 0)
"""Slice of a job that has not asked for the budgets of its labels yet: no money, in no window."""


def wait_ends_s(k: State) -> float:
    """Return the time at which a job has waited for its budget as long as its user allows; 0 if it does not wait for
    it.
    """
    purse = k.purse
    return purse.since_s + k.terms.limits.blocked_wait_s if purse is not None and purse.reason else 0.0


def rests(k: State) -> bool:
    """Return True if a call is held back for lack of budget."""
    return k.purse is not None and bool(k.purse.reason)
