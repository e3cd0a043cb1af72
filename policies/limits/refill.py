"""Rate at which a token bucket that the provider reports in headers is used.

A rate-limit header gives a limit and the remainder. The remainder is the level of a token bucket that fills all the
time (https://docs.claude.com/en/api/rate-limits: "capacity is continuously replenished up to your maximum limit"), so
the refill is known with the first answer. Everything else shows in the level: other traffic, wrong estimates of a
call's size, calls in flight. A proportional-integral controller holds the level at a reserve:

- proportional part: above the reserve the pool runs faster than the refill, below it slower. A bucket that is full at
  the start is used up, so its burst is not lost; and nothing is refused while the level is above 0.
- integral part: the share of the refill that is free for this pool is learnt, never more than the refill. Without it,
  other traffic would settle the level below the reserve, in the end at 0, where refusals alternate among holders.

How much a bucket holds follows from the time until it is full, where that is reported ("the time until the rate limit
resets to its initial state", https://platform.openai.com/docs/guides/rate-limits; "will be fully replenished",
https://docs.claude.com/en/api/rate-limits), and otherwise from the largest remainder seen. It may be the calls of a
second: both providers enforce a limit of a minute over shorter times too, as does Azure, over one second or ten.

A reading is as old as a call takes. A loop with delay d and a response time of 3 d or more does not oscillate (gain
times delay is a third, far below the pi/2 at which it would; Astrom and Murray, Feedback Systems, 10).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

RESERVE: Final = 0.2
"""Share of the bucket that is kept as reserve."""
RESERVE_MAX: Final = 0.5
"""Largest share of a small bucket that is kept as reserve: a fuller bucket overflows sooner, and the overflow is
lost."""
RESERVE_S: Final = 1.5
"""Seconds of refill that the reserve holds at least, up to `RESERVE_MAX`, because own calls come unevenly."""
RESERVE_CALLS: Final = 4
"""Calls that the reserve holds at least in addition to `RESERVE_S`, up to `RESERVE_MAX`."""
SPARED: Final = 0.5
"""Share of a small bucket's reserve down to which a lower level is no sign of other traffic: readings come after calls,
several of which may have come together."""
RESPONSE_S: Final = 5.0
"""Shortest response time of the controller, in seconds."""
REPORT_S: Final = 0.25
"""Age of a report beyond the latency of the call itself, in seconds."""
EXCESS_MAX: Final = 2.0
"""Upper bound of use above the refill, in multiples of the refill: a full bucket is used up at three times its refill
at most. Some providers refuse sharp rises as such (the "acceleration limits" of the page above)."""
FLOOR: Final = 0.05
"""Share of the refill that is always used: a pool that sends no calls gets no readings."""
FLOOR_S: Final = 20.0
"""Seconds for a call at least, up to half of the refill: at few calls a minute the share would leave a full bucket
unused for minutes."""
BELOW: Final = 0.5
"""Share of the learnt rate by which the proportional part lowers it at most: the bucket fills all the same."""
LOW: Final = 0.05
"""Share of the capacity; a bucket at or below it explains a refusal for `LOW_S`."""
LOW_CALLS: Final = 3
"""Number of calls; a bucket with room for this many or fewer explains a refusal for `LOW_S`."""
LOW_S: Final = 1.5
"""Seconds for which a low bucket explains a refusal."""
CUT: Final = 0.97
"""Share of the learnt rate that is kept after a refusal by a bucket that was used no faster than it fills: one of a
call or two has no room for a call that comes a little early."""
ELAPSED_MAX_S: Final = 1.0
"""Longest interval between two readings that the integral part counts, in seconds."""
_EVEN: Final = 0.5
"""Weight of a new reading. The newest answers of several reporters differ a little in age, so readings are averaged."""


class Refill(msgspec.Struct, array_like=True):
    """State of one bucket. All rates are per second; `per_s` is 0 until a header was read."""

    per_s: float = 0.0
    """Refill per second; 0: no header was read."""
    capacity: float = 0.0
    """Largest remainder that was ever reported; each was read after a call."""
    level: float = 0.0
    """Averaged remainder."""
    free_per_s: float = 0.0
    """Integral part: the learnt share of the refill that is free for this pool."""
    excess_per_s: float = 0.0
    """Proportional part: use above `free_per_s`."""
    excess_max: float = EXCESS_MAX
    """Upper bound of `excess_per_s`, in multiples of the refill."""
    reported_at_s: float = 0.0
    """Time of the latest reading, in seconds."""
    low_at_s: float = -LOW_S
    """Time at which the bucket was last so empty that a refusal needs no other reason."""
    floor_per_s: float = 0.0
    """Lower bound of `free_per_s`."""
    cut_at_s: float = -LOW_S
    """Time at which `free_per_s` was last cut by a refusal."""
    told: float = -1.0
    """Capacity as the time until the bucket is full tells it; below 0: it was not reported."""


class ChargedSize(msgspec.Struct, array_like=True):
    """Measurement of the amount that a call takes of a bucket, by its level.

    Azure and OpenAI charge a request when it comes, by its prompt and the longest answer that it allows, which no usage
    tells (https://learn.microsoft.com/azure/ai-foundry/openai/how-to/quota, "Understanding rate limits").
    """

    calls: float = 0.0
    """Fading count of accepted calls."""
    taken: float = 0.0
    """Fading sum of what they took."""
    level: float = 0.0
    """Level at the latest reading."""
    at_s: float = 0.0
    """Time of the latest reading, in seconds; 0: there was none."""
    pending: float = 0.0
    """Calls accepted since then."""
    peak: float = 0.0
    """Largest level that the bucket has had for certain."""


MEASURED_CALLS: Final = 5
"""Calls from which the measured size counts."""
MEASURED_MAX: Final = 100
"""Calls after which a measurement has faded to a third."""


FULL: Final = 0.75
"""Share of the capacity from which a bucket counts as full between two readings: each comes after a call."""
DOUBTED_AFTER: Final = 30.0
"""Calls that a full bucket allows until the measured size has fallen to a third."""


def measure(size: ChargedSize, refill: Refill, at_s: float, remaining: float, used: float, binding: bool) -> None:
    """Take in a reading of the level, before `take_reading` does.

    A bucket that is full loses what fills it. Just before its latest call the bucket held at least what that call used
    more than was left, so it has room for that much (`ChargedSize.peak`); what a longer time would have filled beyond
    is no measure. If more was wanted than was allowed while the bucket was full, calls take less than is known.

    Args:
        size: State, changed.
        refill: Bucket before this reading.
        at_s: Time of the reading.
        remaining: Level that was reported.
        used: Tokens that a call is known to have used.
        binding: True if more was wanted than was allowed.
    """
    if size.at_s and size.pending <= 0:
        return  # no call since then
    size.peak = max(size.peak, remaining + used, refill.capacity, refill.told)
    if size.at_s:
        before = size.level + refill.per_s * (at_s - size.at_s)
        if before <= size.peak:
            keep = math.exp(-size.pending / MEASURED_MAX)
            size.calls = keep * size.calls + size.pending
            size.taken = keep * size.taken + before - remaining
        elif binding and refill.level >= FULL * refill.capacity:
            size.taken *= math.exp(-size.pending / DOUBTED_AFTER)
    size.level, size.at_s, size.pending = float(remaining), at_s, 0.0


def size_of(size: ChargedSize, used: float) -> float:
    """Return the amount that a call takes: as measured, and at least the tokens that it is known to have used."""
    return max(used, size.taken / size.calls) if size.calls >= MEASURED_CALLS else used


def take_reading(
    refill: Refill,
    at_s: float,
    limit: int,
    remaining: int,
    size: float,
    latency_s: float,
    binding: bool,
    reset_s: float | None = None,
) -> None:
    """Take in a reading of this bucket: `limit` per minute, what is `remaining`, and the time until it is full.

    `size` is what a call takes of the bucket; `binding` is True if more was wanted than was allowed.
    """
    per_s, left = limit / 60, float(remaining)
    if per_s != refill.per_s:
        refill.per_s = refill.free_per_s = per_s
        refill.capacity = refill.level = left
        refill.excess_max = EXCESS_MAX
        refill.reported_at_s = at_s
        refill.told = -1.0
    if left > refill.capacity:
        refill.capacity = left
    if reset_s is not None:
        if reset_s % 1 == 0:  # rounded up, and by a clock of whole seconds
            reset_s = max(reset_s - 1, 0.0)
        told = min(left + reset_s * per_s, float(limit))
        refill.told = told if refill.told < 0 else min(refill.told, told)  # the nearest
    capacity = max(refill.told, refill.capacity) - size if refill.told >= 0 else refill.capacity
    if left <= LOW * capacity or left <= LOW_CALLS * size:
        refill.low_at_s = at_s
    refill.floor_per_s = max(FLOOR * per_s, min(per_s / 2, size / FLOOR_S))
    refill.level += _EVEN * (left - refill.level)
    wanted, most = RESERVE_S * per_s + RESERVE_CALLS * size, RESERVE_MAX * max(capacity, 0.0)
    reserve = max(min(most, wanted), RESERVE * capacity)
    spared = reserve if wanted < most else SPARED * reserve
    response_s = 3 * (latency_s + REPORT_S)
    if response_s < RESPONSE_S:
        response_s = RESPONSE_S
    excess = (refill.level - reserve) / response_s
    learnt = excess if excess > 0 else min((refill.level - spared) / response_s, 0.0)
    if binding or learnt < 0:  # a bucket that is full for lack of demand teaches nothing
        elapsed_s = min(at_s - refill.reported_at_s, ELAPSED_MAX_S)
        free = refill.free_per_s + learnt * elapsed_s / (4 * response_s)  # a quarter: critically damped
        refill.free_per_s = min(max(free, refill.floor_per_s), per_s)
    refill.reported_at_s = at_s
    refill.excess_per_s = min(excess, refill.excess_max * per_s)


def rate(refill: Refill, headroom: float) -> float:
    """Return the usable rate per second; 0 if no header was read. At most the share 1 - `headroom` of the refill."""
    if not refill.per_s:
        return 0.0
    used = max(refill.free_per_s + max(refill.excess_per_s, -BELOW * refill.free_per_s), FLOOR * refill.per_s)
    return min(used, (1 - headroom) * refill.per_s) if headroom else used


def is_low(refill: Refill, at_s: float) -> bool:
    """Return True if the bucket was so empty within the last `LOW_S` seconds that a refusal needs no other reason."""
    return refill.per_s > 0 and at_s - refill.low_at_s < LOW_S


def explains(refill: Refill, at_s: float) -> bool:
    """Return True if the state of this bucket explains a refusal.

    A low bucket does. So does, once, use above the refill: the reported remainder is then not available at once, and is
    no longer used faster than it fills.
    """
    quick = refill.excess_max > 0 and refill.excess_per_s > 0
    if refill.per_s:
        if not quick and is_low(refill, at_s) and at_s - refill.cut_at_s >= LOW_S:
            refill.free_per_s = max(CUT * refill.free_per_s, refill.floor_per_s)
            refill.cut_at_s = at_s
        refill.excess_max = 0.0
        refill.excess_per_s = min(refill.excess_per_s, 0.0)
    return quick or is_low(refill, at_s)
