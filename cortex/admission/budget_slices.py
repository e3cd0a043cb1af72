"""Budget slices: amounts that the budgets of a job's labels let it commit, as a part of K.

Only the job counts what it commits; what it was lent arrives as an event. Each slice holds in its own window, a day or
a month in UTC, for attempts begun in it. A call without room in every slice makes the job wait until it is lent more,
or is told that no more can be lent: then the job ends partial, or waits as long as its user allows (`blocked_wait_s`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cortex.state.budget_slice import JOB, NOTHING_YET, TOKENS, BudgetSlice, BudgetSlices, wait_ends_s
from cortex.values.ledger import Charge
from policies.estimates.bill_excess import BillExcess, CallCost, dearest
from policies.estimates.price import worst_nusd
from policies.limits.slices import MONTH

if TYPE_CHECKING:
    from cortex.state.state import State


def unanswered(k: State) -> bool:
    """Return True if the job has not received the budgets of its labels yet."""
    return k.purse is not None and NOTHING_YET in k.purse.slices


def used_nusd(k: State, period: str) -> int:
    """Return the amount that the job has committed in this period (in tokens for ``TOKENS``)."""
    if period in (JOB, TOKENS):
        return k.ledger.committed_tokens if period == TOKENS else k.ledger.committed_nusd
    return k.ledger.month_nusd if period == MONTH else k.ledger.day_nusd


def open_nusd(k: State) -> int:
    """Return the money reserved for calls in flight, most of which comes back soon; message batches are excluded."""
    return sum(flight.charge.nusd for flight in k.flights.values() if not flight.submission)


def open_tokens(k: State) -> int:
    """Return the tokens reserved for calls in flight; message batches are excluded."""
    return sum(flight.charge.tokens for flight in k.flights.values() if not flight.submission)


def unbounded(k: State) -> bool:
    """Return True if no cap and no slice bounds what the job may commit."""
    limits = k.terms.limits
    return k.purse is None and limits.max_cost_nusd is None and limits.max_job_tokens is None


def left(k: State) -> tuple[int, int]:
    """Return the money and the tokens that caps and slices leave for the calls in flight and for further ones.

    Message batches and child jobs keep what is reserved for them. Without a bound it is the most that K can count.
    """
    limits, ledger, slices = k.terms.limits, k.ledger, k.purse.slices if k.purse is not None else ()
    money, tokens = [_ANY], [_ANY]
    if limits.max_cost_nusd is not None:
        money.append(limits.max_cost_nusd - ledger.committed_nusd)
    if limits.max_job_tokens is not None:
        tokens.append(limits.max_job_tokens - ledger.committed_tokens)
    for each in slices:
        (tokens if each.period == TOKENS else money).append(each.upto_nusd - used_nusd(k, each.period))
    return min(money) + open_nusd(k), min(tokens) + open_tokens(k)


_ANY = 1 << 62


def dearest_calls(k: State, place: int, excess: BillExcess) -> int:
    """Return how many calls on the route at this index can be paid, if each were as dear as any can be.

    Calls in flight on other routes count as equally dear. A reply may be as long as the job's bound, the bound of a
    call in flight, or the most that the route's model may be asked for: a row and a question may have bounds of their
    own.
    """
    route = k.terms.routes[place]
    asked = max((flight.output_max for flight in k.flights.values()), default=0)
    output_max = max(k.terms.limits.output_tokens_max, asked, route.output_tokens_max or 0)
    window = route.context_window
    prompt_nusd = worst_nusd(route.price, window, 0) if route.price is not None else 0
    reply_nusd = worst_nusd(route.price, 0, output_max) if route.price is not None else 0
    bill = dearest(excess, CallCost(prompt_nusd, window, reply_nusd, output_max))
    money, tokens = left(k)
    paid = min(money // bill.nusd if bill.nusd else money, tokens // bill.tokens)
    return max(0, min(paid - len(k.flights) + k.shares[place].in_flight, _CALLS_MAX))


_CALLS_MAX = 1_000_000


def affords(k: State, charge: Charge, wanted: bool = False) -> bool:
    """Return True if one more attempt with this worst case stays within the job's caps and within each slice.

    ``wanted``: if not, a call is held back, and the amount it lacks is recorded.
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
    fits = not purse.reason and all(_fits(k, each, charge) for each in purse.slices)
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


def lease(k: State, slices: tuple[BudgetSlice, ...], text: str, again_s: float) -> None:
    """Replace the slices of the job."""
    before, k.purse = k.purse, None
    if slices or text:
        now = k.purse = BudgetSlices(slices, text, again_s)
        if before is not None and text:
            now.lacks_nusd, now.lacks_tokens = before.lacks_nusd, before.lacks_tokens
        now.since_s = before.since_s if before is not None and before.reason and text else k.at_s
    if not text:
        k.wishes = True  # select may have more to ask than there was money for


def void(k: State) -> None:
    """Set all slices to zero: a new incarnation of the channel cannot rely on what the old one was lent."""
    if k.purse is not None:
        k.purse.slices = tuple(msgspec.structs.replace(each, upto_nusd=0) for each in k.purse.slices)


def try_again(k: State) -> None:
    """Clear the refusal after a resume: a budget may have been raised."""
    if k.purse is not None:
        k.purse.reason, k.purse.lacks_nusd = "", 0


def waits(k: State) -> bool:
    """Return True if a call is held back that may go when more is lent, now or in the next window."""
    if k.purse is None or not (k.purse.lacks_nusd or k.purse.reason):
        return False
    return not k.purse.reason or k.at_s < wait_ends_s(k)


def why(k: State) -> str:
    """Return the reason why the next call could not be paid."""
    text = k.purse.reason if k.purse is not None else ""
    return text or "the next call could pass the cap"
