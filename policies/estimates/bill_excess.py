"""Excess of bills: how reservations follow a provider that bills more than was reserved.

A reservation is the most that a call can cost by its own bounds: its bytes and its ``max_tokens``. Some servers bill
more: a gateway that puts a prompt of its own in front (MAXeaglet/commandcode-proxy#17: 7,552 tokens before "hi") or
writes it to the cache (theopenco/llmgateway#3918), a reply beyond ``max_tokens`` (stuartleeks/aoai-simulated-api#34),
thinking between tools (https://docs.claude.com/en/docs/build-with-claude/extended-thinking#interleaved-thinking). Their
bills have no bound that is known before. So after the first such bill a route gets one call at a time, and each
reservation is raised by the worst bill seen, until enough bills in a row stayed within that: then as many calls may be
in flight as have stayed within it.

If bills come in any order, the next of n + 1 is the worst so far with a chance of 1 in n + 1: with n in flight after n
that stayed within, less than one new worst bill is expected in each doubling.
"""

from typing import Final

import msgspec

KNOWN_AFTER: Final = 8
"""Bills in a row within the raised reservation after which a route gets more than one call at a time."""
_MILLI: Final = 1_000


class BillExcess(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bills of one route that were higher than was reserved."""

    replies: int = 0
    """Replies that cost more money or tokens than was reserved for them."""
    over_nusd: int = 0
    """Money that they cost beyond it, in 1e-9 USD."""
    over_tokens: int = 0
    """Tokens that they had beyond it."""
    nusd_milli: int = _MILLI
    """Worst ratio of a bill to the bound of its call, in thousandths, rounded up: money."""
    nusd_more: int = 0
    """Most money that a bill was above the bound of its call, in 1e-9 USD."""
    tokens_milli: int = _MILLI
    """Worst ratio of tokens, in thousandths, rounded up."""
    tokens_more: int = 0
    """Most tokens that a reply was counted above the bound of its call."""
    within: int = 0
    """Bills in a row, since the worst one, that stayed within what is reserved now."""

    @property
    def times(self) -> float:
        """Worst ratio of a bill to the bound of its call, money or tokens."""
        return max(self.nusd_milli, self.tokens_milli) / _MILLI


def raised(excess: BillExcess, nusd: int, tokens: int) -> tuple[int, int]:
    """Return what is reserved for a call with these bounds: by the worst ratio seen, and for no less than the largest
    excess on top, since a prompt that a gateway adds costs the same for a short call as for a long one.
    """
    return (
        max(_share(nusd, excess.nusd_milli), nusd + excess.nusd_more),
        max(_share(tokens, excess.tokens_milli), tokens + excess.tokens_more),
    )


def _share(amount: int, milli: int) -> int:
    return -(-amount * milli // _MILLI)


def after_bill(
    before: BillExcess | None, reserved: tuple[int, int], bound: tuple[int, int], bill: tuple[int, int]
) -> BillExcess | None:  # fmt: skip
    """Return the record after one more bill; None as long as none was higher than its reservation.

    Each pair is money in 1e-9 USD and tokens. ``reserved``: what was reserved for the call; ``bound``: what its own
    bounds came to, if its reservation was raised; ``bill``: what it cost.
    """
    over_nusd, over_tokens = max(0, bill[0] - reserved[0]), max(0, bill[1] - reserved[1])
    over = bool(over_nusd or over_tokens)
    if before is None:
        if not over:
            return None
        before = BillExcess()
    now_nusd, now_tokens = raised(before, *bound)
    within = before.within + 1 if bill[0] <= now_nusd and bill[1] <= now_tokens else 0
    return BillExcess(
        before.replies + over, before.over_nusd + over_nusd, before.over_tokens + over_tokens,
        _worst(before.nusd_milli, bill[0], bound[0]), max(before.nusd_more, bill[0] - bound[0]),
        _worst(before.tokens_milli, bill[1], bound[1]), max(before.tokens_more, bill[1] - bound[1]), within,
    )  # fmt: skip


def _worst(milli: int, bill: int, bound: int) -> int:
    """Return the worst ratio with one more bill. For a bound of 0 only the excess on top is known."""
    return max(milli, -(-bill * _MILLI // bound)) if bound > 0 else milli


def calls_at_once(excess: BillExcess) -> int:
    """Return the number of calls that may be in flight on the route."""
    return excess.within if excess.within >= KNOWN_AFTER else 1
