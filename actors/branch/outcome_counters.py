"""Counters of the outcomes of attempts at each route, reported to the scheduler (``cortex.scheduler.reports``)."""

from __future__ import annotations

from typing import Any

from cortex.scheduler.reports import RouteSignals
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import RateLimits

SAMPLES_MAX = 16
"""Samples of durations in one report at most."""
FIRST_MAX = 8
"""First attempts of a new breaker generation that are reported as soon as they end: they may be its probes."""
URGENT = frozenset({FailureKind.THROTTLED, FailureKind.BLOCKED, FailureKind.UNAUTHORISED})
"""Kinds of failure that are reported at once, since they concern other users of the route."""


class OutcomeCounter:
    """Counter of attempts at one route under one generation of its breaker, since the last report, except for
    ``in_flight``.

    Calls that the branch itself refuses are not counted, except for those that a breaker gave back; nor is the time in
    the queue.
    """

    __slots__ = (
        "answered",
        "begun",
        "ended",
        "failed",
        "given_back",
        "in_flight",
        "input_tokens",
        "latency_s",
        "message",
        "model",
        "output_tokens",
        "prompts",
        "retry_after_s",
        "samples",
        "slow",
        "timed_out_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended = 0
        """Attempts that have ended since the beginning, counted up to ``FIRST_MAX``."""
        self.model: Any = None
        """Model of the attempts, which holds the rate limits that the provider last reported."""
        self._anew()

    def _anew(self) -> None:
        self.begun = self.answered = self.slow = self.input_tokens = self.output_tokens = self.given_back = 0
        self.failed: dict[str, int] = {}
        self.latency_s = self.retry_after_s = self.timed_out_s = 0.0
        self.samples: list[tuple[float, int]] = []
        self.prompts: list[int] = []
        self.message = ""

    def begin(self, model: Any) -> None:
        """Count an attempt whose request is sent."""
        self.begun += 1
        self.in_flight += 1
        self.model = model

    def end(self, result: Reply | Failure, elapsed_s: float, timeout_s: float) -> bool:
        """Count the outcome of an attempt that took ``elapsed_s``. Return True if it should be reported at once."""
        self.in_flight -= 1
        if type(result) is Reply:
            usage = result.usage
            self.answered += 1
            self.latency_s += elapsed_s
            self.input_tokens += usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
            self.output_tokens += usage.output_tokens
            if elapsed_s > timeout_s / 2:
                self.slow += 1
            if len(self.samples) < SAMPLES_MAX and not usage.unknown:
                self.samples.append((elapsed_s, usage.output_tokens))
                self.prompts.append(usage.input_tokens + usage.cache_creation_tokens)
            if self.ended >= FIRST_MAX:
                return False
        elif not self._failed(result, elapsed_s):
            return False
        elif self.ended >= FIRST_MAX:
            return type(result) is Failure and result.kind in URGENT
        self.ended += 1
        return True

    def _failed(self, failure: Any, elapsed_s: float) -> bool:
        kind = failure.kind
        if kind == FailureKind.CANCELLED:
            return False
        self.failed[kind] = self.failed.get(kind, 0) + 1
        if kind == FailureKind.TIMED_OUT:
            self.slow += 1
            self.timed_out_s = min(self.timed_out_s or elapsed_s, elapsed_s)
        elif kind in (FailureKind.BLOCKED, FailureKind.UNAUTHORISED):
            self.message = failure.message
        if failure.retry_after_s is not None:
            self.retry_after_s = max(self.retry_after_s, failure.retry_after_s)
        return True

    def has_new(self) -> bool:
        """Return whether anything was counted since the last report."""
        return bool(self.begun or self.answered or self.failed or self.given_back)

    def take_signals(self, route: str, pool: str, generation: int, in_flight: int) -> RouteSignals:
        """Return the counts and reset them. ``in_flight``: attempts in flight at this route, of every generation."""
        rate = None
        if self.answered or self.failed:  # otherwise the rate limits are no newer than in the last report
            rate = getattr(self.model, "rate", None)
        at_server = getattr(self.model, "at_server", None)
        signals = RouteSignals(
            route, pool, generation, self.begun, self.answered, self.failed, self.slow, self.input_tokens,
            self.output_tokens, self.latency_s, tuple(self.samples), self.retry_after_s,
            rate if isinstance(rate, RateLimits) else None, self.message, in_flight,
            self.timed_out_s, tuple(self.prompts), None if at_server is None else at_server(), self.given_back,
        )  # fmt: skip
        self._anew()
        return signals


class OutcomeCounters:
    """Counters of all routes at one branch. A route is removed after the last job that used it."""

    def __init__(self) -> None:
        self._routes: dict[str, tuple[str, dict[int, OutcomeCounter]]] = {}

    def of(self, route: str, pool: str) -> dict[int, OutcomeCounter]:
        """Return the counters of a route, by generation; look them up once, not for each call."""
        return self._routes.setdefault(route, (pool, {}))[1]

    def has_new(self) -> bool:
        """Return whether anything was counted since the last report."""
        return any(count.has_new() for _, counts in self._routes.values() for count in counts.values())

    def take_signals(self) -> tuple[RouteSignals, ...]:
        """Return the signals of each route that was used since the last report, or is in use."""
        signals = []
        for route, (pool, counts) in self._routes.items():
            in_flight = sum(count.in_flight for count in counts.values())
            for generation, count in list(counts.items()):
                if count.has_new() or count.in_flight:
                    signals.append(count.take_signals(route, pool, generation, in_flight))
                elif generation != max(counts):
                    del counts[generation]
        return tuple(signals)

    def keep(self, routes: set[str]) -> None:
        """Remove the other routes, unless attempts are in flight or not reported yet."""
        for route in [name for name in self._routes if name not in routes]:
            if not any(count.has_new() or count.in_flight for count in self._routes[route][1].values()):
                del self._routes[route]
