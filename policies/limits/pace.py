"""When may the next call begin, so that no rate is passed?

The generic cell rate algorithm, in its form as virtual scheduling (ITU-T I.371, annex A; I.371.1): a *theoretical
arrival time* says when the next call would be due if calls came perfectly spaced, and a call may be early by a
tolerance. It is a token bucket without a clock that ticks: one number a resource, one comparison a call. What a call
weighs is charged after it was let through, so a call larger than the whole tolerance is never stuck; those behind it
wait for it.

A holder that is always behind its pace keeps its theoretical times ahead of now by the tolerance; so a wake-up that
comes late, by less than that, loses nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

BURST_S: Final = 0.15
"""How early a call may be, in seconds' worth of the rate. It pays for wake-ups that come late and together; more would
only pass bursts on to a provider whose bucket may hold no more than a second."""


class Pace(msgspec.Struct, array_like=True):
    """Rates a second, 0 where there is no bound, and the theoretical arrival time of each."""

    requests_per_s: float = 0.0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    requests_due_s: float = 0.0
    input_due_s: float = 0.0
    output_due_s: float = 0.0


def set_rates(
    pace: Pace, at_s: float, requests_per_s: float, input_tokens_per_s: float, output_tokens_per_s: float
) -> None:
    """The rates from now on. What was let through under the old ones stays charged: the wait that is left is
    stretched or shortened as the rate has changed. Raises ValueError for a rate that is negative or no number."""
    if not (requests_per_s >= 0 and input_tokens_per_s >= 0 and output_tokens_per_s >= 0):
        raise ValueError(
            f"a rate must be 0 or more, not {requests_per_s}, {input_tokens_per_s}, {output_tokens_per_s}"
        )
    pace.requests_due_s = _moved(pace.requests_due_s, at_s, pace.requests_per_s, requests_per_s)
    pace.input_due_s = _moved(pace.input_due_s, at_s, pace.input_tokens_per_s, input_tokens_per_s)
    pace.output_due_s = _moved(pace.output_due_s, at_s, pace.output_tokens_per_s, output_tokens_per_s)
    pace.requests_per_s = requests_per_s
    pace.input_tokens_per_s = input_tokens_per_s
    pace.output_tokens_per_s = output_tokens_per_s


def _moved(due_s: float, at_s: float, old: float, new: float) -> float:
    if new == old:
        return due_s
    if new == 0:
        return 0.0
    if old == 0 or due_s <= at_s:
        return at_s
    return at_s + (due_s - at_s) * old / new


def due_at_s(pace: Pace) -> float:
    """From when on the next call may begin; `-inf` where nothing bounds it. In the past: at once."""
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
    """A call of about this size begins. What it really weighed is put right by `correct` when it has ended."""
    if pace.requests_per_s:
        pace.requests_due_s = max(at_s, pace.requests_due_s) + 1 / pace.requests_per_s
    if pace.input_tokens_per_s:
        pace.input_due_s = max(at_s, pace.input_due_s) + input_tokens / pace.input_tokens_per_s
    if pace.output_tokens_per_s:
        pace.output_due_s = max(at_s, pace.output_due_s) + output_tokens / pace.output_tokens_per_s


def correct(pace: Pace, input_tokens: float, output_tokens: float) -> None:
    """A call has ended that weighed so many tokens more (or, below 0, fewer) than were taken for it.

    With it the rates hold for what is billed, however good the guess; without it they hold for the guess.
    """
    if pace.input_tokens_per_s:
        pace.input_due_s += input_tokens / pace.input_tokens_per_s
    if pace.output_tokens_per_s:
        pace.output_due_s += output_tokens / pace.output_tokens_per_s
