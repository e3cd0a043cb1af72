"""What the budgets of a job's labels let it commit: slices that the job was lent, as a part of K.

Nobody but the job counts what it commits; what it was lent comes as an event. Each slice holds in its own window, a day
or a month in UTC, for what is begun in it. A call that no slice has room for makes the job wait until it is lent more,
or is told that no more is to be had: then it ends partial, or waits as long as its user has it wait for what is
blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cortex.state.budget_slice import JOB, NOTHING_YET, TOKENS, BudgetSlice, BudgetSlices, wait_ends_s
from cortex.values.ledger import Charge
from policies.limits.slices import MONTH

if TYPE_CHECKING:
    from cortex.state.state import State


def unheard(k: State) -> bool:
    """Whether nobody could be asked yet what the budgets of the job's labels let it commit."""
    return k.purse is not None and NOTHING_YET in k.purse.slices


def used_nusd(k: State, period: str) -> int:
    """What the job has committed of what it began in this day, or month."""
    if period in (JOB, TOKENS):
        return k.ledger.committed_tokens if period == TOKENS else k.ledger.committed_nusd
    return k.ledger.month_nusd if period == MONTH else k.ledger.day_nusd


def open_nusd(k: State) -> int:
    """What is reserved for calls that are under way, and most of which comes back soon: not in message batches."""
    return sum(flight.charge.nusd for flight in k.flights.values() if not flight.submission)


def open_tokens(k: State) -> int:
    """The same in tokens."""
    return sum(flight.charge.tokens for flight in k.flights.values() if not flight.submission)


def unbounded(k: State) -> bool:
    """Whether no cap and no slice bounds what the job may commit."""
    limits = k.terms.limits
    return k.purse is None and limits.max_cost_nusd is None and limits.max_job_tokens is None


def affords(k: State, charge: Charge, wanted: bool = False) -> bool:
    """Whether one more attempt of this worst case stays within the job's own caps and within each slice.

    ``wanted``: a call is held back if not, and the purse remembers what it lacks.
    """
    if unbounded(k):
        return True
    limits, purse = k.terms.limits, k.purse
    if not k.ledger.allows(charge, limits.max_cost_nusd, limits.max_job_tokens):
        if purse is not None and wanted:
            purse.lacks_nusd = 0
        return False
    if purse is None:
        return True
    fits = not purse.said and all(_fits(k, each, charge) for each in purse.slices)
    if wanted:
        purse.lacks_nusd = 0 if fits else max(1, charge.nusd)
        purse.lacks_tokens = 0 if fits else charge.tokens
    return fits


def _fits(k: State, slice_: BudgetSlice, charge: Charge) -> bool:
    if slice_.period in (JOB, TOKENS):
        more = charge.tokens if slice_.period == TOKENS else charge.nusd
        return used_nusd(k, slice_.period) + more <= slice_.upto_nusd
    window = k.ledger.month if slice_.period == MONTH else k.ledger.day
    return slice_.window == window and used_nusd(k, slice_.period) + charge.nusd <= slice_.upto_nusd


def lease(k: State, slices: tuple[BudgetSlice, ...], said: str, again_s: float) -> None:
    """These slices take the place of those before."""
    before, k.purse = k.purse, None
    if slices or said:
        now = k.purse = BudgetSlices(slices, said, again_s)
        if before is not None and said:
            now.lacks_nusd, now.lacks_tokens = before.lacks_nusd, before.lacks_tokens
        now.since_s = before.since_s if before is not None and before.said and said else k.at_s
    if not said:
        k.wishes = True  # select may have more to ask than it could pay


def void(k: State) -> None:
    """A new incarnation of the channel knows of no slice: what the one before it was lent is worth nothing."""
    if k.purse is not None:
        k.purse.slices = tuple(msgspec.structs.replace(each, upto_nusd=0) for each in k.purse.slices)


def try_again(k: State) -> None:
    """Someone says to go on: perhaps a budget was raised."""
    if k.purse is not None:
        k.purse.said, k.purse.lacks_nusd = "", 0


def waits(k: State) -> bool:
    """Whether a call is held back that more of a budget lets go, now or when its window is over."""
    if k.purse is None or not (k.purse.lacks_nusd or k.purse.said):
        return False
    return not k.purse.said or k.at_s < wait_ends_s(k)


def why(k: State) -> str:
    """Why the next call could not be paid."""
    said = k.purse.said if k.purse is not None else ""
    return said or "the next call could pass the cap"
