"""Trace sampling: which traces are kept, and which calls of dropped traces are exported nevertheless.

A share of all traces is kept, decided by the trace's id alone, so that every process decides alike (the rule of
OpenTelemetry's ``TraceIdRatioBased`` sampler: the lower 64 bits against a bound). By default the first spans of a job
are kept as well, and of the rest the calls that failed, were slow or went out under an open breaker, within a rate.
"""

from __future__ import annotations

import msgspec

RATIO_DEFAULT = 0.01
"""Share of traces that is kept."""
FIRST_SPANS = 1_000
"""Spans kept at the beginning of a job, from about two hundred calls. More would be noticeable in a job of some seconds
(``benchmarks.telemetry``)."""
RESCUES_PER_S = 10.0
"""Rescued calls per second in the long run."""
RESCUES_AT_ONCE = 200.0
"""Rescued calls in a burst."""
SLOW_FACTOR = 4.0
"""Multiple of the mean latency from which a call is slow."""
INFINITE = float("inf")
SLOW_AFTER = 64
"""Calls over which a mean is taken; before the first mean no call is slow."""


class TraceSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling rule. ``TraceSampling(ratio=1.0)`` keeps everything; without rescues only the ids decide."""

    ratio: float = RATIO_DEFAULT
    """Share of traces that is kept, from 0 to 1."""
    first_spans: int = FIRST_SPANS
    """Spans kept at the beginning of a job."""
    rescues_per_s: float = RESCUES_PER_S
    """Rescued calls per second in the long run."""
    rescues_at_once: float = RESCUES_AT_ONCE
    """Rescued calls in a burst; 0: none are rescued."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must be from 0 to 1, not {self.ratio}")

    @property
    def bound(self) -> int:
        """Upper bound: a trace is kept if the lower 64 bits of its id are below it."""
        return round(self.ratio * (1 << 64))


def share(ratio: float) -> TraceSampling:
    """Return a rule that keeps this share of traces and rescues none, as the standard samplers do."""
    return TraceSampling(ratio=ratio, first_spans=0, rescues_at_once=0.0)


class SpanRescue(msgspec.Struct):
    """State of the rescues: calls that may still be exported, and the usual latency."""

    left: float = 0.0
    """Calls that may be rescued now."""
    at_s: float = 0.0
    """Time of the latest decision, in seconds; 0: none yet."""
    slow_s: float = INFINITE
    """Latency above which a call is slow, in seconds."""
    mean_s: float = 0.0
    """Mean latency in seconds; 0: not yet known."""
    seen: int = 0
    """Calls since the mean was taken."""
    sum_s: float = 0.0
    """Sum of the latencies of these calls, in seconds."""


def may_rescue(rule: TraceSampling, state: SpanRescue, at_s: float) -> bool:
    """Return True if one more call may be exported now, and count it. A token bucket, full at the beginning."""
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


def look_at_pace(state: SpanRescue, calls: int, sum_s: float) -> None:
    """Add the latencies of ``calls`` calls, ``sum_s`` seconds in total, and update the mean after ``SLOW_AFTER`` or
    more.

    The new mean counts as much as all means before it.
    """
    state.seen += calls
    state.sum_s += sum_s
    if state.seen < SLOW_AFTER:
        return
    mean_s = state.sum_s / state.seen
    state.mean_s = (state.mean_s + mean_s) / 2 if state.mean_s else mean_s
    state.slow_s = SLOW_FACTOR * state.mean_s
    state.seen, state.sum_s = 0, 0.0
