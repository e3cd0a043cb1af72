"""Pacing of calls: the earliest moment at which the next call may begin, so that no rate is exceeded.

The generic cell rate algorithm, in its form as virtual scheduling (ITU-T I.371, annex A; I.371.1). A *theoretical
arrival time* is the moment at which the next call would be due if calls came perfectly spaced; a call may be early by a
tolerance. The algorithm is a token bucket without a ticking clock: one number for each resource and one comparison for
each call. The weight of a call is charged after the call was let through, so a call larger than the whole tolerance is
never stuck; the calls after it wait.

A holder that is always behind its pace keeps its theoretical times ahead of now by the tolerance, so a wake-up that is
late by less than the tolerance loses nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

BURST_S: Final = 0.15
"""Tolerance, in seconds' worth of the rate: how early a call may begin. It makes up for wake-ups that come late and
together. A larger value would only pass bursts on to a provider, and a provider's bucket may hold one second at
most."""


class Pace(msgspec.Struct, array_like=True):
    """Rates per second (0: no bound) and the theoretical arrival time of each, in seconds."""

    requests_per_s: float = 0.0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    requests_due_s: float = 0.0
    input_due_s: float = 0.0
    output_due_s: float = 0.0


def set_rates(
    pace: Pace,
    at_s: float,
    requests_per_s: float,
    input_tokens_per_s: float,
    output_tokens_per_s: float,
    phase: float = 0.0,
) -> None:
    """Set the rates from now on. Raises ValueError for a rate that is negative or not a number.

    Calls let through under the old rates stay charged: the remaining wait is stretched or shortened by the change of
    rate. ``phase``: where there was no rate of requests, share of the time between two calls after which the first
    may begin (``put_off``).
    """
    if not (requests_per_s >= 0 and input_tokens_per_s >= 0 and output_tokens_per_s >= 0):
        raise ValueError(
            f"a rate must be 0 or more, not {requests_per_s}, {input_tokens_per_s}, {output_tokens_per_s}"
        )
    new = requests_per_s > 0 == pace.requests_per_s
    pace.requests_due_s = _moved(pace.requests_due_s, at_s, pace.requests_per_s, requests_per_s)
    pace.input_due_s = _moved(pace.input_due_s, at_s, pace.input_tokens_per_s, input_tokens_per_s)
    pace.output_due_s = _moved(pace.output_due_s, at_s, pace.output_tokens_per_s, output_tokens_per_s)
    pace.requests_per_s = requests_per_s
    pace.input_tokens_per_s = input_tokens_per_s
    pace.output_tokens_per_s = output_tokens_per_s
    if new:
        put_off(pace, at_s, phase)


def put_off(pace: Pace, at_s: float, phase: float) -> None:
    """Let no call begin before this share of the time between two calls, from 0 to 1, is over.

    Holders of a rate that is divided, or held back, begin at the same time, and would call at the same times from then
    on. A bucket that holds less than a call of each would refuse the others each time. So each has its own phase.
    """
    if pace.requests_per_s:
        pace.requests_due_s = max(pace.requests_due_s, at_s + phase / pace.requests_per_s)


def _moved(due_s: float, at_s: float, old: float, new: float) -> float:
    if new == old:
        return due_s
    if new == 0:
        return 0.0
    if old == 0 or due_s <= at_s:
        return at_s
    return at_s + (due_s - at_s) * old / new


def due_at_s(pace: Pace) -> float:
    """Return the time from which the next call may begin, in seconds: in the past if at once, `-inf` if nothing bounds
    it.
    """
    due_s = -_NEVER
    if pace.requests_per_s:
        due_s = pace.requests_due_s
    if pace.input_tokens_per_s and pace.input_due_s > due_s:
        due_s = pace.input_due_s
    if pace.output_tokens_per_s and pace.output_due_s > due_s:
        due_s = pace.output_due_s
    return due_s - BURST_S


_NEVER: Final = float("inf")


def take(pace: Pace, at_s: float, input_tokens: float, output_tokens: float) -> None:
    """Charge a call that begins now with its estimated tokens. `correct` replaces the estimate when the call has ended.
    """
    if pace.requests_per_s:
        pace.requests_due_s = max(at_s, pace.requests_due_s) + 1 / pace.requests_per_s
    if pace.input_tokens_per_s:
        pace.input_due_s = max(at_s, pace.input_due_s) + input_tokens / pace.input_tokens_per_s
    if pace.output_tokens_per_s:
        pace.output_due_s = max(at_s, pace.output_due_s) + output_tokens / pace.output_tokens_per_s


def take_back(pace: Pace) -> None:
    """Take back a call that asked nobody: the next one may begin in its place. `correct` takes its tokens back."""
    if pace.requests_per_s:
        pace.requests_due_s -= 1 / pace.requests_per_s


def correct(pace: Pace, input_tokens: float, output_tokens: float) -> None:
    """Charge an ended call with the tokens (below 0: fewer) by which it differed from the estimate given to `take`.

    The rates then hold for billed tokens, however good the estimate. Without this call they hold for the estimate.
    """
    if pace.input_tokens_per_s:
        pace.input_due_s += input_tokens / pace.input_tokens_per_s
    if pace.output_tokens_per_s:
        pace.output_due_s += output_tokens / pace.output_tokens_per_s
