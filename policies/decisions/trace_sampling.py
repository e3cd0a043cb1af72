"""Which traces are kept, and which calls are shown although theirs is not?

A share of all traces, told by the trace's id alone, so that whoever knows the id decides alike (the rule of
OpenTelemetry's ``TraceIdRatioBased`` sampler: the lower 64 bits against a bound). By default the first spans of a job
are kept whole, and of what is left out whatever failed, was slow or went out under a breaker, as far as a rate allows.
"""

from __future__ import annotations

import msgspec

RATIO_DEFAULT = 0.01
FIRST_SPANS = 1_000
"""Kept whole at the beginning of a job: about two hundred calls. More would be felt in a job of some seconds
(``benchmarks.telemetry``)."""
RESCUES_PER_S = 10.0
RESCUES_AT_ONCE = 200.0
SLOW_FACTOR = 4.0
"""A call is slow that takes so many times the mean of those before it."""
INFINITE = float("inf")
SLOW_AFTER = 64
"""Calls of which one mean is taken; before, nothing is called slow."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The rule. ``Sampling(ratio=1.0)`` keeps everything; without ``rescues`` the ids alone decide."""

    ratio: float = RATIO_DEFAULT
    first_spans: int = FIRST_SPANS
    rescues_per_s: float = RESCUES_PER_S
    rescues_at_once: float = RESCUES_AT_ONCE
    """0: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"a ratio is from 0 to 1, not {self.ratio}")

    @property
    def bound(self) -> int:
        """A trace is kept where the lower 64 bits of its id are below this."""
        return round(self.ratio * (1 << 64))


def share(ratio: float) -> Sampling:
    """So many of all traces, and nothing besides: what the standard samplers ask for."""
    return Sampling(ratio=ratio, first_spans=0, rescues_at_once=0.0)


class Rescues(msgspec.Struct):
    """What may still be shown although its trace is not kept, and what is usual for a call."""

    left: float = 0.0
    at_s: float = 0.0
    slow_s: float = INFINITE
    """What takes longer is slow."""
    mean_s: float = 0.0
    seen: int = 0
    sum_s: float = 0.0
    """Calls since the mean was taken, and how long they took together."""


def may_rescue(rule: Sampling, state: Rescues, at_s: float) -> bool:
    """Whether one more call may be shown now; counts it, if so. A rate with some in hand, full at the beginning."""
    if not rule.rescues_at_once:
        return False
    passed_s = at_s - state.at_s
    if not state.at_s:
        state.left = rule.rescues_at_once
    elif passed_s > 0:
        state.left = min(rule.rescues_at_once, state.left + passed_s * rule.rescues_per_s)
    state.at_s = max(state.at_s, at_s)
    if state.left < 1:
        return False
    state.left -= 1
    return True


def look_at_pace(state: Rescues, calls: int, sum_s: float) -> None:
    """So many calls came, and took so long together. After every ``SLOW_AFTER`` of them or more it is seen what is
    usual by now: the new mean counts as much as all before it.
    """
    state.seen += calls
    state.sum_s += sum_s
    if state.seen < SLOW_AFTER:
        return
    mean_s = state.sum_s / state.seen
    state.mean_s = (state.mean_s + mean_s) / 2 if state.mean_s else mean_s
    state.slow_s = SLOW_FACTOR * state.mean_s
    state.seen, state.sum_s = 0, 0.0
