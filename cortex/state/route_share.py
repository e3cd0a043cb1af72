"""Share of a route that a job was granted, and the part of it in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cortex.values.fast_setattr import fast_setattr
from policies.estimates.bill_excess import BillExcess, calls_at_once
from policies.failures.failure import Failure
from policies.limits.pace import Pace, due_at_s

if TYPE_CHECKING:
    from cortex.state.state import State
    from cortex.values.reply import Usage


TOGETHER_S = 0.1
"""Seconds between the time at which the next call is due by the pace and the wake-up of its job: all calls due by then
go out in one turn. Less than ``policies.limits.pace.BURST_S``, so that nothing of the rate is lost."""


@fast_setattr
class RouteShare(msgspec.Struct):
    """Grant for one route, and the part of it in use."""

    permits: int = 0
    """Attempts that may be in flight at once."""
    starts: int = -1
    """Attempts that may still be begun under the grant; -1: any number."""
    generation: int = 0
    """Generation of the route's breaker, as last reported."""
    in_flight: int = 0
    """Attempts in flight, abandoned ones included."""
    hold_until_s: float = 0.0
    """Retry-After of the provider, a second's rest after a call came back from an open breaker, or the pause before a
    message batch is submitted again: no call, and no probe, is sent on this route before this time, in seconds since
    1970."""
    pace: Pace | None = None
    """Rates of the grant; None: no rates."""
    blocked: Failure | None = None
    """Reason why no call is sent on this route: the account, the key, the model, or a wait beyond the job's
    patience."""
    trying: bool = False
    """True if the route is blocked as far as known, and one call may test it."""
    probing: int = 0
    """Number of calls in flight that test a blocked route; at most 1."""
    reset_s: float = 0.0
    """Time at which a blocked account is tried again, as the provider says or as is assumed; 0: not known. A probe
    granted by the scheduler may try earlier."""
    failing: Failure | None = None
    """Latest failure of the route itself since its last reply; None: the latest outcome was a reply."""
    failing_s: float = 0.0
    """Time of the first of these failures."""
    why: str = ""
    """Reason why the grant is less than was asked for; empty: no reason."""
    again_at_s: float = 0.0
    """Time at which the route's open breaker is probed, as last reported; 0: the breaker is not open."""
    memo: bytes = b""
    """Opaque state of the scheduler, returned to it when it restarts."""
    patience: float = 1.0
    """Factor by which measured durations lengthen the timeouts of attempts (``policies.failures.timeout``)."""
    granted_at_s: float = 0.0
    """Time of the latest grant, and so of its memo, in seconds since 1970; 0: there was none."""
    doubted: bool = False
    """True if other routes rank equal with this one, and its latest outcome was a failure of its own: it gets one call
    at a time until it answers, since a dead server refuses calls faster than others answer them."""
    excess: BillExcess | None = None
    """Bills that were higher than was reserved, in a job with a cap; None: there were none."""
    told_until_s: float = 0.0
    """Latest end of a Retry-After, in seconds since 1970; 0: the provider named none. A `hold_until_s` beyond it was
    not named by the provider."""
    strays: bool = False
    """True if refusals are known not to follow load (`policies.limits.strays`): a Retry-After holds the call that got
    it alone."""
    bounded: int = 0
    """Number of the latest bound of ``starts``. Grants that bound them are counted, and blocks that void such a grant:
    an attempt that began under an earlier bound gives nothing back (``cortex.admission.permits.unspend``)."""
    windows: int = 0
    """Number of the dearest bills, a full context window each, that what is left of the caps can pay; kept only while
    there is an `excess`."""

    @property
    def calls_at_once(self) -> int:
        """Number of calls that may be in flight, in a share with an `excess`."""
        assert self.excess is not None
        return calls_at_once(self.excess, self.windows)

    def hold_as_told(self, until_s: float) -> None:
        """Send nothing on this route before a time that the provider named, in seconds since 1970."""
        self.hold_until_s = max(self.hold_until_s, until_s)
        self.told_until_s = max(self.told_until_s, until_s)

    @property
    def told_to_wait(self) -> bool:
        """True if the end of the wait is one that the provider named."""
        return self.told_until_s >= self.hold_until_s

    def free(self, at_s: float) -> int:
        """Return the attempts that may be begun now by the permits; 0 while Retry-After or the pace requires
        waiting.
        """
        if self.hold_until_s > at_s or (self.pace is not None and due_at_s(self.pace) > at_s):
            return 0
        free, starts = self.permits - self.in_flight, self.starts
        if 0 <= starts < free:
            free = starts
        if self.doubted:
            free = min(free, 1 - self.in_flight)
        if self.excess is not None:
            free = min(free, calls_at_once(self.excess, self.windows) - self.in_flight)
        if self.blocked is not None:
            if self.starts >= 0:
                free = min(free, 1 - self.probing)
            else:
                free = min(free, 1 - self.in_flight if self.trying else 0)
        return free if free > 0 else 0

    def takes_calls(self, at_s: float) -> bool:
        """Return whether calls are sent on this route, though perhaps no permit is free now."""
        return (
            self.permits > 0 and self.starts != 0 and self.hold_until_s <= at_s and not self.doubted
            and self.blocked is None
        )  # fmt: skip


class CallSizes(msgspec.Struct):
    """Bounds and real sizes of answered calls under a pace, from which the tokens of the next call are predicted.

    Integer sums, so that the order of the answers does not matter.
    """

    calls: int = 0
    input_bound: int = 0
    input_tokens: int = 0
    output_max: int = 0
    output_tokens: int = 0

    def learn(self, input_bound: int, output_max: int, usage: Usage) -> None:
        """Add an answered call with these bounds."""
        self.calls += 1
        self.input_bound += input_bound
        self.input_tokens += counted(usage)
        self.output_max += output_max
        self.output_tokens += usage.output_tokens

    def expected(self, input_bound: int, output_max: int) -> tuple[float, float]:
        """Predict the input and output tokens for which a call with these bounds will be counted.

        The bounds times the share of their bounds that answered calls used. Before any answer the share is a third:
        about three bytes make a token, and few replies are as long as they may be.
        """
        input_share = (self.input_tokens + _PRIOR / 3) / (self.input_bound + _PRIOR)
        output_share = (self.output_tokens + _PRIOR / 3) / (self.output_max + _PRIOR)
        return input_bound * input_share, output_max * output_share


_PRIOR = 300
"""Tokens with which the initial guess is weighted."""


def counted(usage: Usage) -> int:
    """Return the input tokens as rate limits count them: tokens read from the prompt cache are free.

    https://docs.claude.com/en/api/rate-limits, "cache-aware ITPM".
    """
    return usage.input_tokens + usage.cache_creation_tokens


def held_until_s(k: State) -> float:
    """Return the earliest end of a Retry-After among the routes with permits; 0 if none is held, or another server of
    the job's own model takes calls."""
    peers = k.terms.peers
    if peers and any(share.takes_calls(k.at_s) for share in k.shares[: 1 + peers]):
        return 0.0
    held = [share.hold_until_s for share in k.shares if share.permits > 0 and share.hold_until_s > k.at_s]
    return min(held) if held else 0.0


def next_begin_s(k: State) -> float | None:
    """Return when time alone lets the next call with a permit begin, or opens a route; None if no call waits for
    time.
    """
    if not k.wishes or not (any(k.open_by_kind.values()) or k.parked or k.called):
        return None
    own_s = due_at_s(k.pace) if k.pace is not None else 0.0
    times = []
    for share in k.shares:
        if share.blocked is not None and not share.trying:
            if share.reset_s > k.at_s:
                times.append(share.reset_s)
            if share.starts <= 0:
                continue
        if share.permits <= share.in_flight or share.starts == 0 or (share.trying and share.in_flight):
            continue
        paced_s = max(own_s, due_at_s(share.pace) if share.pace is not None else 0.0)
        due_s = max(share.hold_until_s, paced_s + TOGETHER_S)
        if max(share.hold_until_s, paced_s) > k.at_s:
            times.append(due_s)
    return min(times) if times else None
