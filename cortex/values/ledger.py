"""A job's money and tokens, as a part of K.

The event that asks reserves the worst case; the event that answers settles it. An attempt whose usage was never
reported stays charged in full. Known plus assumed plus reserved never passes the cap, whatever dies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cortex.values.fast_setattr import quick_to_set
from cortex.values.reply import Usage
from policies.estimates.price import Price, cost_nusd, worst_nusd
from policies.limits.slices import DAY_S, MONTH, window_of

ELSEWHERE = -1
"""The day of money that another job spends: its own ledger counts it, by its days."""


class Charge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one attempt may cost, or did: 1e-9 USD, and tokens in and out together."""

    nusd: int
    tokens: int
    day: int = ELSEWHERE
    """The day on which it was set aside, in UTC, counted from 1970-01-01: a budget counts it then."""


class Bill(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a child job has cost so far, over all its runs."""

    known_nusd: int = 0
    assumed_nusd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    assumed_tokens: int = 0


class Took(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one reply came about, for the program that absorbs it."""

    elapsed_s: float = 0.0
    """How long the request took."""
    nusd: int | None = 0
    """What it cost, 1e-9 USD; None where no price is known."""
    reused: bool = False
    """It was remembered: nothing was sent, nothing paid."""


@quick_to_set
class Ledger(msgspec.Struct):
    """Totals of a job. Money is in 1e-9 USD (whole numbers, so that sums are exact); everything else is counts."""

    known_nusd: int = 0
    assumed_nusd: int = 0
    reserved_nusd: int = 0
    known_tokens: int = 0
    assumed_tokens: int = 0
    reserved_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    attempts: int = 0
    paid_calls: int = 0
    reused_calls: int = 0
    paid_again: int = 0
    day: int = 0
    """The day of the last turn, in UTC, counted from 1970-01-01."""
    month: int = 0
    """The first day of its month."""
    day_nusd: int = 0
    """Known, assumed and reserved money of what was begun on that day, without that of child jobs."""
    month_nusd: int = 0

    def turn_to(self, at_s: float) -> None:
        """It is this time now: a new day begins with nothing spent, and perhaps a new month."""
        day = int(at_s // DAY_S)  # ``day_of``, in each turn
        if day != self.day:
            self.day, self.day_nusd = day, 0
            if (month := window_of(MONTH, day)) != self.month:
                self.month, self.month_nusd = month, 0

    def _counts(self, day: int, nusd: int) -> None:
        """So much more, or less, of what was begun on that day."""
        if day >= self.month:
            self.month_nusd += nusd
            if day >= self.day:
                self.day_nusd += nusd

    @property
    def committed_nusd(self) -> int:
        """Known plus assumed plus reserved: what the cap is compared with."""
        return self.known_nusd + self.assumed_nusd + self.reserved_nusd

    @property
    def committed_tokens(self) -> int:
        """The same in tokens."""
        return self.known_tokens + self.assumed_tokens + self.reserved_tokens

    def allows(self, charge: Charge, max_cost_nusd: int | None, max_job_tokens: int | None) -> bool:
        """Whether one more attempt of this worst case stays within both caps."""
        if max_cost_nusd is not None and self.committed_nusd + charge.nusd > max_cost_nusd:
            return False
        return max_job_tokens is None or self.committed_tokens + charge.tokens <= max_job_tokens

    def reserve(self, charge: Charge, attempts: int = 1) -> None:
        """An attempt is asked for; or several of one day, for all of which this is the charge."""
        self.attempts += attempts
        self.reserved_tokens += charge.tokens
        if charge.nusd:
            self.reserved_nusd += charge.nusd
            self._counts(charge.day, charge.nusd)

    def settle(self, charge: Charge, usage: Usage, price: Price | None) -> int | None:
        """The answer takes the place of what was reserved. What it cost; None where no price is known."""
        self.reserved_tokens -= charge.tokens
        if charge.nusd:
            self.reserved_nusd -= charge.nusd
            self._counts(charge.day, -charge.nusd)
        given, said = usage.input_tokens, usage.output_tokens
        read, written = usage.cache_read_tokens, usage.cache_creation_tokens
        self.known_tokens += given + read + written + said
        self.input_tokens += given
        self.output_tokens += said
        if read or written:
            self.cache_read_tokens += read
            self.cache_creation_tokens += written
        self.paid_calls += 1
        if price is None:
            return None
        nusd = cost_nusd(price, usage)
        self.known_nusd += nusd
        self._counts(charge.day, nusd)
        return nusd

    def know_all(self, usages: Sequence[Usage], nusd: int) -> None:
        """As many answers, begun on the day that it is, for which nothing is reserved, and which cost so much."""
        given = sum([usage.input_tokens for usage in usages])
        said = sum([usage.output_tokens for usage in usages])
        read = sum([usage.cache_read_tokens for usage in usages])
        written = sum([usage.cache_creation_tokens for usage in usages])
        self.known_tokens += given + read + written + said
        self.input_tokens += given
        self.output_tokens += said
        self.cache_read_tokens += read
        self.cache_creation_tokens += written
        self.paid_calls += len(usages)
        self.known_nusd += nusd
        self._counts(self.day, nusd)

    def set_aside(self, charge: Charge) -> None:
        """A child job may spend this much; ``release`` gives it back when the child's own bill is in."""
        self.reserved_nusd += charge.nusd
        self.reserved_tokens += charge.tokens

    def release(self, charge: Charge) -> None:
        """An attempt ended and cannot have been paid: the request never left, or the provider refused it."""
        self.reserved_nusd -= charge.nusd
        self.reserved_tokens -= charge.tokens
        self._counts(charge.day, -charge.nusd)

    def assume(self, charge: Charge) -> None:
        """An attempt ended and nobody knows what it cost: it stays charged in full."""
        self.release(charge)
        self.assumed_nusd += charge.nusd
        self.assumed_tokens += charge.tokens
        self._counts(charge.day, charge.nusd)

    def unassume(self, charge: Charge) -> None:
        """The reply of an attempt given up for lost came after all: its real usage takes the assumption's place."""
        self.assumed_nusd -= charge.nusd
        self.assumed_tokens -= charge.tokens
        self._counts(charge.day, -charge.nusd)

    def bill(self, now: Bill, before: Bill) -> None:
        """A child job has ended, for now: what it cost since ``before`` is this job's."""
        input_tokens = now.input_tokens - before.input_tokens
        output_tokens = now.output_tokens - before.output_tokens
        self.known_nusd += now.known_nusd - before.known_nusd
        self.assumed_nusd += now.assumed_nusd - before.assumed_nusd
        self.known_tokens += input_tokens + output_tokens
        self.assumed_tokens += now.assumed_tokens - before.assumed_tokens
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens

    def know(self, usage: Usage, price: Price | None, day: int = ELSEWHERE) -> int | None:
        """A reply was paid for, with this usage, that was asked for on this day, and for which nothing is reserved."""
        return self.settle(Charge(0, 0, day), usage, price)


def worst_charge(
    price: Price | None, prompt_tokens_bound: int, output_tokens_max: int, caching: bool, day: int = ELSEWHERE
) -> Charge:  # fmt: skip
    """The most that one attempt can cost that is begun on this day, from bounds that are never below the truth.

    ``caching``: the request asks for its prompt to be cached, which costs more than plain input.
    """
    nusd = 0
    if price is not None:
        nusd = worst_nusd(price, prompt_tokens_bound, output_tokens_max, caching=caching)
    return Charge(nusd, prompt_tokens_bound + output_tokens_max, day)
