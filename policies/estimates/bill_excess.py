"""Excess of bills: how reservations follow a provider that bills more than was reserved.

A reservation is the most that a call can cost by its own bounds: its bytes and its ``max_tokens``. Some servers bill
more: a gateway that puts a prompt of its own in front (MAXeaglet/commandcode-proxy#17: 7,552 tokens before "hi") or
writes it to the cache (theopenco/llmgateway#3918), a reply beyond ``max_tokens`` (stuartleeks/aoai-simulated-api#34),
thinking between tools (https://docs.claude.com/en/docs/build-with-claude/extended-thinking#interleaved-thinking). Their
bills have no bound that is known before. So after the first such bill a route gets one call at a time, and each
reservation is raised by the worst bill seen, until enough bills in a row stayed within that. Then the number of calls
in flight follows the number of bills in a row, n, that stayed within it.

A server may also change for all calls at once, as when a gateway gets another prompt: then each call in flight is as
dear as the first one. After n bills without such a change it falls on the next w calls with a chance of about w in n,
and makes all w of them dear. With the square root of n in flight, that is one dear call expected at most. More go only
while each of them may fill the whole context window, which bounds what a server can bill, and the cap still holds.
"""

from math import isqrt
from typing import Final, NamedTuple

import msgspec

from policies.estimates.price import COST_MAX_NUSD

KNOWN_AFTER: Final = 8
"""Bills in a row within the raised reservation after which a route gets more than one call at a time."""
_MILLI: Final = 1_000


class CallCost(NamedTuple):
    """Cost of one call, or its bound: money in 1e-9 USD and tokens, of its prompt and of its reply."""

    input_nusd: int
    input_tokens: int
    output_nusd: int
    output_tokens: int

    @property
    def nusd(self) -> int:
        """Money of both sides."""
        return self.input_nusd + self.output_nusd

    @property
    def tokens(self) -> int:
        """Tokens of both sides."""
        return self.input_tokens + self.output_tokens


class WorstRatio(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Worst of one figure of bills above its bound: as a ratio, and as a difference."""

    milli: int = _MILLI
    """Worst ratio in thousandths, rounded up."""
    more: int = 0
    """Largest difference."""

    def raised(self, bound: int) -> int:
        """Return what is reserved for this bound: by the ratio, and no less than the difference on top, since a prompt
        that a gateway adds costs the same for a short call as for a long one. At most what one call may cost.
        """
        return min(max(-(-bound * self.milli // _MILLI), bound + self.more), COST_MAX_NUSD)

    def after(self, bound: int, bill: int) -> "WorstRatio":
        """Return the worst with one more bill. For a bound of 0 only the difference is known."""
        if bill <= bound:
            return self
        milli = max(self.milli, -(-bill * _MILLI // bound)) if bound > 0 else self.milli
        return WorstRatio(milli, max(self.more, bill - bound))


class BillExcess(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bills of one route that were higher than was reserved. Prompts and replies are counted apart: a server that
    counts a prompt ten times over may count the reply once.
    """

    replies: int = 0
    """Replies that cost more money or tokens than was reserved for them."""
    over_nusd: int = 0
    """Money that they cost beyond it, in 1e-9 USD."""
    over_tokens: int = 0
    """Tokens that they had beyond it."""
    times_milli: int = _MILLI
    """Worst ratio of a whole bill to the bound of its call, money or tokens, in thousandths, rounded up."""
    within: int = 0
    """Bills in a row, since the worst one, that stayed within what is reserved now."""
    worst: tuple[WorstRatio, WorstRatio, WorstRatio, WorstRatio] = (WorstRatio(),) * 4
    """Worst of each figure of ``CallCost``."""

    @property
    def times(self) -> float:
        """Worst ratio of a bill to the bound of its call, money or tokens."""
        return self.times_milli / _MILLI


def raised(excess: BillExcess, bound: CallCost) -> CallCost:
    """Return what is reserved for a call with this bound: as much as the worst bills seen would make of it."""
    return CallCost(*[worst.raised(figure) for worst, figure in zip(excess.worst, bound, strict=True)])


def after_bill(
    before: BillExcess | None, reserved: tuple[int, int], bound: CallCost, bill: CallCost
) -> BillExcess | None:  # fmt: skip
    """Return the record after one more bill; None as long as none was higher than its reservation.

    ``reserved``: money and tokens that were reserved for the call; ``bound``: what its own bounds came to.
    """
    over_nusd, over_tokens = max(0, bill.nusd - reserved[0]), max(0, bill.tokens - reserved[1])
    over = bool(over_nusd or over_tokens)
    if before is None:
        if not over:
            return None
        before = BillExcess()
    now = raised(before, bound)
    fits = bill.nusd <= now.nusd and bill.tokens <= now.tokens
    whole = WorstRatio(before.times_milli).after(bound.nusd, bill.nusd).after(bound.tokens, bill.tokens)
    one, two, three, four = (
        worst.after(figure, billed) for worst, figure, billed in zip(before.worst, bound, bill, strict=True)
    )
    return BillExcess(
        before.replies + over, before.over_nusd + over_nusd, before.over_tokens + over_tokens, whole.milli,
        before.within + 1 if fits else 0, (one, two, three, four),
    )  # fmt: skip


def dearest(excess: BillExcess, window: CallCost) -> CallCost:
    """Return the dearest bill that is expected of any call: a full context window, or more if such a bill was seen.

    ``window``: what a prompt that fills the window costs at most, and a reply of ``max_tokens``.
    """
    return CallCost(*[figure + worst.more for worst, figure in zip(excess.worst, window, strict=True)])


def calls_at_once(excess: BillExcess, windows: int = 0) -> int:
    """Return the number of calls that may be in flight on the route.

    ``windows``: the number of the ``dearest`` bills that what is left of the caps can pay.
    """
    within = excess.within
    return 1 if within < KNOWN_AFTER else max(isqrt(within), min(within, windows))
