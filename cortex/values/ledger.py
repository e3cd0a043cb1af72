"""Ledger of a job's money and tokens, as a part of K.

The event that asks reserves the worst case; the event that answers settles it. An attempt without reported usage stays
charged in full. Known plus assumed plus reserved never exceeds the cap, whichever process dies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cortex.values.fast_setattr import fast_setattr
from cortex.values.reply import Usage
from policies.estimates.bill_excess import BillExcess, CallCost, after_bill, raised
from policies.estimates.price import Price, cost_nusd, worst_nusd
from policies.limits.slices import DAY_S, MONTH, window_of

ELSEWHERE = -1
"""Day of money that another job spends: that job's own ledger counts it by its days."""


class Charge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Highest or actual cost of one attempt: 1e-9 USD, and input plus output tokens."""

    nusd: int
    """Money in 1e-9 USD."""
    tokens: int
    """Input plus output tokens."""
    day: int = ELSEWHERE
    """UTC day on which it was reserved, counted from 1970-01-01: a budget counts it on that day."""
    bound: tuple[int, int] | None = None
    """Money and tokens by the bounds of the call alone, if more is reserved because its route billed more; else None.
    """

    @property
    def bounds(self) -> tuple[int, int]:
        """Money and tokens by the bounds of the call alone."""
        return (self.nusd, self.tokens) if self.bound is None else self.bound

    def raised_by(self, excess: BillExcess | None, day: int, price: Price | None, output_max: int) -> Charge:
        """Return the charge of an attempt at the same call, begun on this day, on a route with this excess and price.

        ``output_max``: ``max_tokens`` of the call.
        """
        if excess is None:
            return Charge(*self.bounds, day)
        now = raised(excess, _sides(price, *self.bounds, output_max))
        return Charge(now.nusd, now.tokens, day, self.bounds)


class BilledRoute(Protocol):
    """Route of which bills above their reservations are noted."""

    excess: BillExcess | None


class ChildJobBill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Cost of a child job so far, over all its runs."""

    known_nusd: int = 0
    assumed_nusd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    assumed_tokens: int = 0


class EarlierWork(msgspec.Struct, frozen=True, array_like=True):
    """Work of a job before it began anew. It is part of the job's totals, and its cap counts it."""

    calls: int = 0
    """Calls that were answered, by the provider or by a stored reply."""
    known_nusd: int = 0
    assumed_nusd: int = 0


EARLIER = "earlier"
"""Key among a job's places: ``EarlierWork`` as JSON, if the job began anew."""
_NONE = EarlierWork()


def earlier_of(places: Mapping[str, str]) -> EarlierWork:
    """Return the work of a job before it began anew, from the job's places."""
    text = places.get(EARLIER)
    return msgspec.json.decode(text, type=EarlierWork) if text else _NONE


class ReplyTimings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Origin of one reply, for the program that absorbs it."""

    elapsed_s: float = 0.0
    """Seconds that the request took."""
    nusd: int | None = 0
    """Cost in 1e-9 USD; None if no price is known."""
    reused: bool = False
    """True if the reply was stored: nothing was sent, nothing paid."""


@fast_setattr
class Ledger(msgspec.Struct):
    """Totals of a job. Money is in 1e-9 USD (integers, so that sums are exact); everything else is counts."""

    known_nusd: int = 0
    """Money of settled attempts."""
    assumed_nusd: int = 0
    """Money of ended attempts with unknown cost, charged in full."""
    reserved_nusd: int = 0
    """Worst-case money of attempts in flight and of child jobs."""
    known_tokens: int = 0
    """Tokens of settled attempts."""
    assumed_tokens: int = 0
    """Tokens of ended attempts with unknown usage, charged in full."""
    reserved_tokens: int = 0
    """Worst-case tokens of attempts in flight and of child jobs."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    attempts: int = 0
    """Attempts made."""
    paid_calls: int = 0
    """Replies that were paid for."""
    reused_calls: int = 0
    """Calls that were answered by a stored reply."""
    paid_again: int = 0
    """Replies paid for that were not needed: the call had been answered, or its attempt given up as lost."""
    day: int = 0
    """UTC day of the last turn, counted from 1970-01-01."""
    month: int = 0
    """First day of that month, counted in the same way."""
    day_nusd: int = 0
    """Known, assumed and reserved money of attempts begun on that day, without child jobs."""
    month_nusd: int = 0
    """Known, assumed and reserved money of attempts begun in that month, without child jobs."""

    def turn_to(self, at_s: float) -> None:
        """Advance to this time: a new day begins with nothing spent, and possibly a new month."""
        day = int(at_s // DAY_S)  # inlined ``day_of``: called in each turn
        if day != self.day:
            self.day, self.day_nusd = day, 0
            if (month := window_of(MONTH, day)) != self.month:
                self.month, self.month_nusd = month, 0

    def _counts(self, day: int, nusd: int) -> None:
        """Add to (or subtract from) the amount begun on that day."""
        if day >= self.month:
            self.month_nusd += nusd
            if day >= self.day:
                self.day_nusd += nusd

    def as_earlier(self) -> str:
        """Return the totals as ``EarlierWork`` in JSON; empty if nothing was asked yet."""
        found = EarlierWork(self.paid_calls + self.reused_calls, self.known_nusd, self.assumed_nusd)
        return "" if found == _NONE else msgspec.json.encode(found).decode()

    @property
    def committed_nusd(self) -> int:
        """Known plus assumed plus reserved money: the amount compared with the cap."""
        return self.known_nusd + self.assumed_nusd + self.reserved_nusd

    @property
    def committed_tokens(self) -> int:
        """Known plus assumed plus reserved tokens: the amount compared with the cap."""
        return self.known_tokens + self.assumed_tokens + self.reserved_tokens

    def allows(self, charge: Charge, max_cost_nusd: int | None, max_job_tokens: int | None) -> bool:
        """Return True if one more attempt with this worst case stays within both caps."""
        if max_cost_nusd is not None and self.committed_nusd + charge.nusd > max_cost_nusd:
            return False
        return max_job_tokens is None or self.committed_tokens + charge.tokens <= max_job_tokens

    def reserve(self, charge: Charge, attempts: int = 1) -> None:
        """Reserve the charge of an attempt, or the sum of several attempts of one day."""
        self.attempts += attempts
        self.reserved_tokens += charge.tokens
        if charge.nusd:
            self.reserved_nusd += charge.nusd
            self._counts(charge.day, charge.nusd)

    def settle(
        self, charge: Charge, usage: Usage, price: Price | None, route: BilledRoute | None = None, output_max: int = 0
    ) -> int | None:  # fmt: skip
        """Replace the reserved charge of an answered attempt by its real usage. Return its cost, None without a
        price.

        An unknown usage keeps the whole charge as assumed, and is the cost then. ``route``: route on which a bill above
        its reservation is noted; None in a job without a cap. ``output_max``: ``max_tokens`` of the call, for the note.
        """
        if usage.unknown:
            self.assume(charge)
            return self.count_unknown(charge, price)
        self.reserved_tokens -= charge.tokens
        if charge.nusd:
            self.reserved_nusd -= charge.nusd
            self._counts(charge.day, -charge.nusd)
        given, number = usage.input_tokens, usage.output_tokens
        read, written = usage.cache_read_tokens, usage.cache_creation_tokens
        tokens = given + read + written + number
        self.known_tokens += tokens
        self.input_tokens += given
        self.output_tokens += number
        if read or written:
            self.cache_read_tokens += read
            self.cache_creation_tokens += written
        self.paid_calls += 1
        if price is None:
            if route is not None and (tokens > charge.tokens or route.excess is not None):
                note_bill(route, charge, price, output_max, 0, usage)
            return None
        nusd = cost_nusd(price, usage)
        self.known_nusd += nusd
        self._counts(charge.day, nusd)
        if route is not None and (nusd > charge.nusd or tokens > charge.tokens or route.excess is not None):
            note_bill(route, charge, price, output_max, nusd, usage)
        return nusd

    def count_unknown(self, charge: Charge, price: Price | None) -> int | None:
        """Count an answer with unknown usage, whose charge is assumed already. Return that charge, None without a
        price.
        """
        self.paid_calls += 1
        return None if price is None else charge.nusd

    def know_all(self, usages: Sequence[Usage], nusd: int) -> None:
        """Count several answers of today's attempts without a reservation, with this total cost."""
        given = sum([usage.input_tokens for usage in usages])
        number = sum([usage.output_tokens for usage in usages])
        read = sum([usage.cache_read_tokens for usage in usages])
        written = sum([usage.cache_creation_tokens for usage in usages])
        self.known_tokens += given + read + written + number
        self.input_tokens += given
        self.output_tokens += number
        self.cache_read_tokens += read
        self.cache_creation_tokens += written
        self.paid_calls += len(usages)
        self.known_nusd += nusd
        self._counts(self.day, nusd)

    def set_aside(self, charge: Charge) -> None:
        """Reserve what a child job may spend; ``release`` returns it when the child's bill arrives."""
        self.reserved_nusd += charge.nusd
        self.reserved_tokens += charge.tokens

    def release(self, charge: Charge) -> None:
        """Release the charge of an ended attempt that cannot be billed: the request was not sent, or the provider
        refused it.
        """
        self.reserved_nusd -= charge.nusd
        self.reserved_tokens -= charge.tokens
        self._counts(charge.day, -charge.nusd)

    def assume(self, charge: Charge) -> None:
        """Keep the full charge of an ended attempt with unknown cost as assumed."""
        self.release(charge)
        self.assumed_nusd += charge.nusd
        self.assumed_tokens += charge.tokens
        self._counts(charge.day, charge.nusd)

    def unassume(self, charge: Charge) -> None:
        """Remove an assumed charge, because the attempt's reply arrived after all with its real usage."""
        self.assumed_nusd -= charge.nusd
        self.assumed_tokens -= charge.tokens
        self._counts(charge.day, -charge.nusd)

    def bill(self, now: ChildJobBill, before: ChildJobBill) -> None:
        """Count what an ended child job has cost since ``before``."""
        input_tokens = now.input_tokens - before.input_tokens
        output_tokens = now.output_tokens - before.output_tokens
        self.known_nusd += now.known_nusd - before.known_nusd
        self.assumed_nusd += now.assumed_nusd - before.assumed_nusd
        self.known_tokens += input_tokens + output_tokens
        self.assumed_tokens += now.assumed_tokens - before.assumed_tokens
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens

    def know(self, usage: Usage, price: Price | None, day: int = ELSEWHERE) -> int | None:
        """Count a paid reply without a reservation, asked for on this day. Return its cost, None without a price."""
        return self.settle(Charge(0, 0, day), usage, price)


def note_bill(
    route: BilledRoute, charge: Charge, price: Price | None, output_max: int, nusd: int, usage: Usage
) -> None:  # fmt: skip
    """Note the bill of a call on its route, if it or an earlier one there was higher than its reservation."""
    tokens = usage.input_tokens_billed + usage.output_tokens
    if route.excess is None and tokens <= charge.tokens and nusd <= charge.nusd:
        return
    bound, bill = _sides(price, *charge.bounds, output_max), _sides(price, nusd, tokens, usage.output_tokens)
    route.excess = after_bill(route.excess, (charge.nusd, charge.tokens), bound, bill)


def _sides(price: Price | None, nusd: int, tokens: int, output_tokens: int) -> CallCost:
    """Return a cost with its prompt and its reply apart. What a higher price tier adds counts with the prompt, on which
    the tier depends.
    """
    output_nusd = 0 if price is None else min(nusd, worst_nusd(price, 0, output_tokens, caching=False))
    output_tokens = min(tokens, output_tokens)
    return CallCost(nusd - output_nusd, tokens - output_tokens, output_nusd, output_tokens)


def worst_charge(
    price: Price | None, prompt_tokens_bound: int, output_tokens_max: int, caching: bool, day: int = ELSEWHERE
) -> Charge:  # fmt: skip
    """Return the highest charge of one attempt begun on this day, from bounds that are never below the truth.

    ``caching``: the request asks for prompt caching, which costs more than plain input.
    """
    nusd = 0
    if price is not None:
        nusd = worst_nusd(price, prompt_tokens_bound, output_tokens_max, caching=caching)
    return Charge(nusd, prompt_tokens_bound + output_tokens_max, day)
