"""Share of a route that a job was granted, and how much of it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cortex.values.fast_setattr import quick_to_set
from policies.failures.failure import Failure
from policies.limits.pace import Pace, due_at_s

if TYPE_CHECKING:
    from cortex.state.state import State
    from cortex.values.reply import Usage


TOGETHER_S = 0.1
"""A pace wakes its job so long after the next call is due: what has become due by then goes out in one turn. Less than
``policies.limits.pace.BURST_S``, so that nothing of the rate is lost."""


@quick_to_set
class Share(msgspec.Struct):
    """What a job was granted of one route, and how much of it is in use."""

    permits: int = 0
    """Attempts in flight at once."""
    starts: int = -1
    """Attempts that may still be begun under the grant at all; -1: any number."""
    generation: int = 0
    """Of the route's breaker, as last told."""
    in_flight: int = 0
    """Attempts under way here, those that nobody awaits any more included."""
    hold_until_s: float = 0.0
    """The provider said to wait: nothing is asked here before, no probe either."""
    pace: Pace | None = None
    """The rates granted with it, where there are any."""
    blocked: Failure | None = None
    """Why nothing is asked here: the account, the key, the model, or a wait beyond the job's patience."""
    trying: bool = False
    """Blocked as far as known, and one call may find out."""
    probing: int = 0
    """Of those in flight, the ones that find out: one at a time."""
    reset_s: float = 0.0
    """When an account that is blocked will be open again, as the provider says or as is supposed: it is tried then. 0
    where nobody knows. A probe that the cortex grants may find out before."""
    failing: Failure | None = None
    """The last of the failures of the route itself that came since its last reply; None: a reply came last."""
    failing_s: float = 0.0
    """When the first of them came."""
    why: str = ""
    """Why it is less than was asked for; empty where nothing is the matter."""
    again_at_s: float = 0.0
    """When its open breaker is to be probed, as far as was told; 0: it is not open."""
    memo: bytes = b""
    """What the cortex wants told back, should it have to begin anew."""

    def free(self, at_s: float) -> int:
        """Attempts that may be begun here now, as far as permits go; 0 while the provider or the pace says to wait."""
        if self.hold_until_s > at_s or (self.pace is not None and due_at_s(self.pace) > at_s):
            return 0
        free, starts = self.permits - self.in_flight, self.starts
        if 0 <= starts < free:
            free = starts
        if self.blocked is not None:
            if self.starts >= 0:
                free = min(free, 1 - self.probing)
            else:
                free = min(free, 1 - self.in_flight if self.trying else 0)
        return free if free > 0 else 0


class Sizes(msgspec.Struct):
    """What calls under a pace could weigh at most, and did weigh: so that the next one's tokens can be foretold.

    Whole sums, so that the order in which answers came does not matter.
    """

    calls: int = 0
    input_bound: int = 0
    input_tokens: int = 0
    output_max: int = 0
    output_tokens: int = 0

    def learn(self, input_bound: int, output_max: int, usage: Usage) -> None:
        """One more call of these bounds was answered."""
        self.calls += 1
        self.input_bound += input_bound
        self.input_tokens += counted(usage)
        self.output_max += output_max
        self.output_tokens += usage.output_tokens

    def expected(self, input_bound: int, output_max: int) -> tuple[float, float]:
        """Input and output tokens that a call of these bounds will probably be counted for.

        The bounds times what answered calls used of theirs; before any was answered a third, for about so many bytes
        make a token, and few replies are as long as they may be.
        """
        input_share = (self.input_tokens + _PRIOR / 3) / (self.input_bound + _PRIOR)
        output_share = (self.output_tokens + _PRIOR / 3) / (self.output_max + _PRIOR)
        return input_bound * input_share, output_max * output_share


_PRIOR = 300
"""Tokens that the guess before the first answer counts for."""


def counted(usage: Usage) -> int:
    """Input tokens as rate limits count them: what was read from the prompt cache is free.

    https://docs.claude.com/en/api/rate-limits, "cache-aware ITPM".
    """
    return usage.input_tokens + usage.cache_creation_tokens


def held_until_s(k: State) -> float:
    """When the first of the routes that the provider holds back may be asked again; 0 where none with a permit is."""
    held = [share.hold_until_s for share in k.shares if share.permits > 0 and share.hold_until_s > k.at_s]
    return min(held) if held else 0.0


def next_begin_s(k: State) -> float | None:
    """When time alone lets the next call begin that has a permit, or opens a route; None where none waits for time."""
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
