"""At what rate is a bucket used that the provider tells of?

A rate-limit header tells a limit and what remains of it. What remains is the level of a token bucket that fills all the
time (https://docs.claude.com/en/api/rate-limits: "capacity is continuously replenished up to your maximum limit"), so
its refill is known at the first answer, and everything else shows in the level: other traffic, a guess of a call's
size that was off, calls that are on their way. A proportional-integral controller holds the level at a reserve:

- proportional: above the reserve the pool runs faster than the refill, below it slower. A bucket that is full at the
  start is used up, its burst is not lost; and what is refused while the level is above 0 is nothing.
- integral: what is free for us is learnt, never more than the refill. Without it, other traffic would settle the level
  below the reserve, in the end at 0, where everything is refused by turns.

News is as old as a call takes. A loop with delay d and a response time of 3 d or more does not swing (gain times delay
of a third, far below the pi/2 at which it would; Astrom and Murray, Feedback Systems, 10).
"""

from __future__ import annotations

from typing import Final

import msgspec

RESERVE: Final = 0.2
"""Share of the bucket that is left in it."""
RESERVE_MAX: Final = 0.5
"""More than half of a small bucket is not kept back: what fills it above the brim is lost."""
RESERVE_S: Final = 1.5
RESERVE_CALLS: Final = 4
"""In a small bucket the reserve is at least so many seconds of refill and so many calls, for the unevenness of ours."""
RESPONSE_S: Final = 5.0
REPORT_S: Final = 0.25
"""Age of a report beyond the call itself."""
EXCESS_MAX: Final = 2.0
"""A full bucket is used up at no more than three times its refill: sharp rises are refused by some for their own sake
(the "acceleration limits" of the page above)."""
FLOOR: Final = 0.05
"""Share of the refill that is always used: a pool that asks nothing hears nothing."""
LOW: Final = 0.05
LOW_CALLS: Final = 3
LOW_S: Final = 1.5
"""A bucket with less than this share, or fewer calls than these, explains a refusal for so long."""
ELAPSED_MAX_S: Final = 1.0
_EVEN: Final = 0.5
"""Each reporter's newest answer is a little older or newer than the others': every second news counts half."""


class Refill(msgspec.Struct, array_like=True):
    """What is known of one bucket. All rates are a second's; `per_s` is 0 as long as nothing was told."""

    per_s: float = 0.0
    capacity: float = 0.0
    """The most that it was ever seen to hold."""
    level: float = 0.0
    free_per_s: float = 0.0
    """What of the refill is there for us, as learnt: the integral part."""
    excess_per_s: float = 0.0
    """What is used above it: the proportional part."""
    excess_max: float = EXCESS_MAX
    """The most that it may be, in multiples of the refill."""
    heard_at_s: float = 0.0
    low_at_s: float = -LOW_S
    """When it last was so empty that a refusal needs no other reason."""


def hear(
    refill: Refill, at_s: float, limit: int, remaining: int, size: float, latency_s: float, binding: bool
) -> None:
    """An answer told of this bucket. `size`: what a call takes of it; `binding`: more was wanted than was allowed."""
    per_s, left = limit / 60, float(remaining)
    if per_s != refill.per_s:
        refill.per_s = refill.free_per_s = per_s
        refill.capacity = refill.level = left
        refill.excess_max = EXCESS_MAX
        refill.heard_at_s = at_s
    if left > refill.capacity:
        refill.capacity = left
    capacity = refill.capacity
    if left <= LOW * capacity or left <= LOW_CALLS * size:
        refill.low_at_s = at_s
    refill.level += _EVEN * (left - refill.level)
    reserve = min(RESERVE_MAX * capacity, RESERVE_S * per_s + RESERVE_CALLS * size)
    if reserve < RESERVE * capacity:
        reserve = RESERVE * capacity
    response_s = 3 * (latency_s + REPORT_S)
    if response_s < RESPONSE_S:
        response_s = RESPONSE_S
    excess = (refill.level - reserve) / response_s
    if binding or excess < 0:  # a bucket that is full because nobody asked teaches nothing
        elapsed_s = min(at_s - refill.heard_at_s, ELAPSED_MAX_S)
        free = refill.free_per_s + excess * elapsed_s / (4 * response_s)  # a quarter: critically damped
        refill.free_per_s = min(max(free, FLOOR * per_s), per_s)
    refill.heard_at_s = at_s
    refill.excess_per_s = min(excess, refill.excess_max * per_s)


def rate(refill: Refill, headroom: float) -> float:
    """How much may be used a second; 0 where nothing was told. With `headroom`, never above that share's rest."""
    if not refill.per_s:
        return 0.0
    used = max(refill.free_per_s + refill.excess_per_s, FLOOR * refill.per_s)
    return min(used, (1 - headroom) * refill.per_s) if headroom else used


def is_low(refill: Refill, at_s: float) -> bool:
    """Was it so empty just now that a refusal needs no other reason?"""
    return refill.per_s > 0 and at_s - refill.low_at_s < LOW_S


def explains(refill: Refill, at_s: float) -> bool:
    """Does what is known of this bucket explain a refusal? That it was low does; and once, that it was used faster than
    it fills: what is told to remain is not to be had at once, and no longer asked for."""
    quick = refill.excess_max > 0 and refill.excess_per_s > 0
    if refill.per_s:
        refill.excess_max = 0.0
        refill.excess_per_s = min(refill.excess_per_s, 0.0)
    return quick or is_low(refill, at_s)
