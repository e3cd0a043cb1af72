"""Search for the number of calls in flight by what is done per second alone, where durations do not follow tokens.

At a gateway, or where durations vary by much for other reasons, a wait cannot be told from work by the answers at one
number of calls in flight. What is done at two numbers can be compared all the same: by Little's law it changes by the
factor of the calls in flight, divided by that of the mean duration. If it follows the number, no call waited, and the
number grows on; if it stays, the additional calls wait, and the number returns. The more durations vary, the more
answers this takes: where they vary by a half, sixteen answers at each number tell twice as many calls from a queue of
half of them.

While the number is held, a change of the mean duration begins a trial: of fewer calls where it became longer, of more
where it became shorter. From time to time more are tried in any case, as BBR does (draft-ietf-ccwg-bbr).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from policies.limits import waiting as waits
from policies.limits.waiting import Waiting

FIRST: Final = 8.0
"""Calls in flight after `waiting.START`: four times as many are told from a queue by eight answers."""
GROWTH: Final = 2.0
TRIAL: Final = 1.5
"""Factor of a trial of more calls: durations that vary by a half need a hundred answers at each number then."""
ROUNDS: Final = 1.2
"""Mean durations after a change until what is done is compared: before, the quick answers are in and the slow ones are
not."""
ANSWERS: Final = 8.0
"""Answers at a number from which it is compared, at least."""
ALL_AROUND: Final = 0.6
"""The same as a share of the calls in flight."""
ANSWERS_MAX: Final = 96.0
"""Answers after which a comparison that is not sure is decided all the same."""
FOLLOWS: Final = 0.4
"""Elasticity of what is done from which it follows more calls in flight: a queue has 0, free slots have 1."""
FALLS: Final = 0.3
"""Elasticity from which it follows fewer, so that they are too few: a batch that is nearly full has about so much."""
FREE: Final = 0.7
"""Elasticity from which fewer calls have shown that none waited before: then the number grows."""
CHANGED: Final = 0.2
"""Change of the mean duration, of its logarithm, that begins a trial. Twice its error at least."""
SPARE: Final = 1.07
"""Calls in flight for each one that is worked on, as `told_queue.QUEUE`."""
HELD_ANSWERS: Final = 48.0
"""Answers between two readings while the number is held, at least."""
FADES: Final = 128.0
"""Answers over which a mean duration fades at least."""
TRIAL_AFTER: Final = 2
"""Readings until the first trial of more; then twice as many, up to `TRIAL_AFTER_MAX`."""
TRIAL_AFTER_MAX: Final = 64


class Gains(msgspec.Struct, array_like=True):
    """State for one pool. Float fields stay floats, so that the encoded bytes are the same after decoding."""

    before: float = 0.0
    """Calls in flight with which the present number is compared; 0: it is held."""
    before_s: float = 0.0
    """Mean duration of an answer of usual size then, in seconds."""
    before_error: float = 0.0
    """Standard error of that, as a share."""
    least_s: float = 0.0
    """Mean duration for which no call is taken to wait, in seconds; 0: not known yet."""
    rest: int = TRIAL_AFTER
    """Readings until the next trial of more."""
    rests: int = 2 * TRIAL_AFTER
    """Readings between the next two of them."""


def begin(gains: Gains) -> None:
    """Take in that the number of calls in flight was changed for another reason."""
    gains.before = 0.0


def follow(gains: Gains, waiting: Waiting, at_s: float, in_flight: float, growing: bool) -> tuple[float, bool]:
    """Return the calls that may be in flight from now on, and whether the number grows, after answers at `at_s`."""
    if gains.before == in_flight:  # the number was bounded, or changed back for another reason: nothing to compare
        begin(gains)
    if growing or gains.before:
        least = max(ANSWERS, ALL_AROUND * in_flight)
    else:
        least = max(HELD_ANSWERS, 2 * in_flight)
    round_s = max(waiting.latency_s, gains.before_s if gains.before else 0.0)
    if waiting.fresh < min(least, ANSWERS_MAX) or at_s < waiting.from_s + ROUNDS * round_s:
        return in_flight, growing
    mean_s, error = waits.mean(waiting)
    if not gains.before:
        gains.least_s = gains.least_s or mean_s
        if growing:
            return _compare(gains, in_flight, mean_s, error, max(FIRST, GROWTH * in_flight)), True
        return _held(gains, waiting, in_flight, mean_s, error), False
    more = in_flight > gains.before
    span = math.log(in_flight / gains.before)
    follows = 1 - math.log(mean_s / gains.before_s) / span
    doubt = math.hypot(error, gains.before_error) / abs(span)
    bound = FOLLOWS if more else FALLS
    if abs(follows - bound) < doubt and waiting.fresh < max(ANSWERS_MAX, in_flight):
        return in_flight, growing
    if more and follows > bound:
        gains.least_s = min(gains.least_s or mean_s, mean_s)
        return _compare(gains, in_flight, mean_s, error, GROWTH * in_flight), True
    served = min(max(in_flight * gains.before_s / mean_s, gains.before), in_flight) if more else in_flight
    before, gains.before = gains.before, 0.0
    if more:
        spare = SPARE if growing else 1.0  # a number that was held has it already
        return max(before, min(spare * served, in_flight)), False
    if follows > FREE:
        gains.least_s = gains.before_s
        return _compare(gains, before, gains.before_s, gains.before_error, GROWTH * before), True
    if follows > bound:
        gains.least_s = gains.before_s
        return before, False
    gains.least_s = min(gains.least_s or mean_s, mean_s)
    return in_flight, False


def _compare(gains: Gains, in_flight: float, mean_s: float, error: float, wanted: float) -> float:
    gains.before, gains.before_s, gains.before_error = in_flight, mean_s, error
    return wanted


def _held(gains: Gains, waiting: Waiting, in_flight: float, mean_s: float, error: float) -> float:
    """Return the number after a reading while it is held: the same, or that of a trial."""
    sure = max(CHANGED, 2 * error)
    waiting.fresh, waiting.from_s = 0, waiting.heard_s
    gains.rest -= 1
    if math.log(mean_s / gains.least_s) > sure and in_flight > 1:
        wanted = max(in_flight * max(gains.least_s / mean_s, 1 / GROWTH), 1.0)
        return _compare(gains, in_flight, mean_s, error, min(wanted, in_flight - 1))
    if math.log(gains.least_s / mean_s) > sure:
        gains.least_s = mean_s
    elif gains.rest > 0:
        return in_flight
    else:
        gains.rest, gains.rests = gains.rests, min(2 * gains.rests, TRIAL_AFTER_MAX)
    return _compare(gains, in_flight, mean_s, error, max(TRIAL * in_flight, in_flight + 1))
