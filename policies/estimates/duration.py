"""Estimated duration of a number of calls under given limits.

Rows divided by the rate are not enough: a bucket that is full at the start lends a minute's worth, an unknown pool
begins small and grows, and the slowest answers come last. So the first minutes are simulated, a quarter of a second at
a time, with the policy that holds the limit in a run (``policies.limits.limit``) against the provider's token buckets
as they were reported; the rest is divided by the rate that was reached. Calls are a fluid in the simulation: no
randomness, the same answer each time. Not included: other traffic, provider outages, and limits that a provider does
not report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from policies.limits import limit
from policies.limits.limit import PoolCaps, PoolLimit, RateLimits, ReportedBucket, UsageSample
from policies.limits.limit_policy import LimitPolicy
from policies.limits.pace import BURST_S

REPORT_S: Final = 0.25
"""Seconds between two reports to the pool, and so the step of the simulation."""
SOON_S: Final = 0.04
"""Seconds between two reports during slow start."""
STEP_MIN_S: Final = 0.02
"""Shortest step of the simulation, in seconds."""
PLAYED_S: Final = 600.0
"""Seconds that are simulated at most, unless `PLAYED_LATENCIES` answers take longer."""
PLAYED_LATENCIES: Final = 20
"""Number of mean latencies that may be simulated, if they take longer than `PLAYED_S`."""
REQUESTS: Final = "requests_per_min"
"""Name of the bound "requests per minute"."""
INPUT_TOKENS: Final = "input_tokens_per_min"
"""Name of the bound "input tokens per minute"."""
OUTPUT_TOKENS: Final = "output_tokens_per_min"
"""Name of the bound "output tokens per minute"."""
CONCURRENCY: Final = "concurrency"
"""Name of the bound "calls in flight"."""
LONGEST: Final = "longest_answer"
"""Name of the bound "latency of the slowest answers"."""


class BucketRate(msgspec.Struct, frozen=True):
    """Token bucket of the provider: refill per second, and capacity."""

    per_s: float
    """Refill per second."""
    capacity: float
    """Content of a full bucket."""


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """All known limits. None: not known."""

    requests: BucketRate | None = None
    input_tokens: BucketRate | None = None
    output_tokens: BucketRate | None = None
    caps: PoolCaps = PoolCaps()
    """Caps set by users, of the job and of the pool: the smaller of each."""


def rate_together(rates: Sequence[BucketRate | None]) -> BucketRate | None:
    """Return the bucket of several servers that share the work. One of which none is known (None) counts as the mean of
    the others; None if none is known at all."""
    known = [each for each in rates if each is not None]
    if not known:
        return None
    scale = len(rates) / len(known)
    return BucketRate(sum(each.per_s for each in known) * scale, sum(each.capacity for each in known) * scale)


def caps_together(caps: Sequence[PoolCaps]) -> PoolCaps:
    """Return the caps of several servers that share the work: what is not bounded at one of them is not bounded."""
    concurrency = [each.concurrency for each in caps]
    rates = [
        [getattr(each, name) for each in caps]
        for name in ("requests_per_min", "input_tokens_per_min", "output_tokens_per_min")
    ]
    requests, input_tokens, output_tokens = (None if None in some or not some else sum(some) for some in rates)
    return PoolCaps(
        concurrency=None if None in concurrency or not caps else sum(filter(None, concurrency)),
        requests_per_min=requests, input_tokens_per_min=input_tokens, output_tokens_per_min=output_tokens,
        headroom=max((each.headroom for each in caps), default=0.0),
    )  # fmt: skip


class Workload(msgspec.Struct, frozen=True):
    """Calls to make: their number, the mean tokens of a call, and their latencies."""

    calls: float
    """Number of calls."""
    input_tokens: float
    """Mean input tokens of a call."""
    output_tokens: float
    """Mean output tokens of a call."""
    latencies_s: tuple[float, ...]
    """Mean latencies of equal parts of all calls, in seconds, ascending; at least one."""

    @property
    def latency_s(self) -> float:
        """Mean latency in seconds."""
        return sum(self.latencies_s) / len(self.latencies_s)


class LimitDuration(msgspec.Struct, frozen=True):
    """Duration that one limit alone would allow."""

    name: str
    seconds: float


class Duration(msgspec.Struct, frozen=True):
    """Duration in seconds and the bounds behind it; never shorter than any bound."""

    seconds: float
    bounds: tuple[LimitDuration, ...]

    @property
    def binds(self) -> str:
        """Name of the bound with the longest duration; empty if there is no work."""
        return max(self.bounds, key=lambda each: each.seconds).name if self.bounds else ""


def duration(work: Workload, limits: CallLimits, policy: LimitPolicy | None = None) -> Duration:
    """Return the duration from the first call to the last answer. ``policy`` defaults to ``LimitPolicy()``."""
    if work.calls <= 0:
        return Duration(0.0, ())
    found = tuple(bounds(work, limits))
    seconds = _PoolSimulation(work, limits, policy or LimitPolicy()).seconds()
    return Duration(max(seconds, *(each.seconds for each in found)), found)


def bounds(work: Workload, limits: CallLimits) -> Sequence[LimitDuration]:
    """Return the duration under each limit alone: a bucket is full at the start, concurrency follows Little's law."""
    caps, free = limits.caps, 1 - limits.caps.headroom
    found = [LimitDuration(LONGEST, work.latencies_s[-1])]
    for name, rate, cap, size in (
        (REQUESTS, limits.requests, caps.requests_per_min, 1.0),
        (INPUT_TOKENS, limits.input_tokens, caps.input_tokens_per_min, work.input_tokens),
        (OUTPUT_TOKENS, limits.output_tokens, caps.output_tokens_per_min, work.output_tokens),
    ):
        amount = work.calls * size
        least = []
        if rate is not None:
            least.append(max(amount - rate.capacity, 0) / rate.per_s if free == 1 else amount / (rate.per_s * free))
        if cap is not None:
            least.append(max(amount / cap * 60 - BURST_S, 0.0))
        if least:
            found.append(LimitDuration(name, max(least)))
    if caps.concurrency is not None:
        found.append(LimitDuration(CONCURRENCY, work.calls * work.latency_s / caps.concurrency))
    return found


class _PoolSimulation:
    """Simulation of the pool's policy against the provider's buckets."""

    def __init__(self, work: Workload, limits: CallLimits, policy: LimitPolicy) -> None:
        self._work, self._policy, self._caps = work, policy, limits.caps
        self._step_s = min(REPORT_S, max(STEP_MIN_S, work.latencies_s[0] / 4))
        sizes = (1.0, work.input_tokens, work.output_tokens)
        buckets = (limits.requests, limits.input_tokens, limits.output_tokens)
        self._sizes, self._buckets = sizes, buckets
        self._levels = [bucket.capacity if bucket is not None else 0.0 for bucket in buckets]
        self._pool: PoolLimit = limit.new(policy)
        self._left = work.calls
        self._in_flight = 0.0
        self._due: defaultdict[int, float] = defaultdict(float)
        held_s = policy.overhead_s / 2
        self._delays = [max(1, round((each + held_s) / self._step_s)) for each in work.latencies_s]
        self._credit = 0.0
        self._begun = self._answered = 0.0
        self._tick = self._reported_tick = 0
        self._report_s = REPORT_S

    def seconds(self) -> float:
        """Time of the last answer, in seconds."""
        work, step_s = self._work, self._step_s
        most = max(PLAYED_S, PLAYED_LATENCIES * work.latency_s) / step_s
        half_left = 0.0
        while self._left > 1e-6 and self._tick < most:
            if self._tick == most // 2:
                half_left = self._left
            self._turn()
        if self._left <= 1e-6:
            return max(self._due, default=self._tick) * step_s
        per_tick = max((half_left - self._left) / (self._tick - most // 2), 1e-9)
        return (self._tick + self._left / per_tick + self._delays[-1]) * step_s

    def _turn(self) -> None:
        self._tick += 1
        step_s = self._step_s
        answered = self._due.pop(self._tick, 0.0)
        self._in_flight -= answered
        self._answered += answered
        for place, bucket in enumerate(self._buckets):
            if bucket is not None:
                self._levels[place] = min(bucket.capacity, self._levels[place] + bucket.per_s * step_s)
        now_s = 1.0 + self._tick * step_s
        if self._tick - self._reported_tick >= round(self._report_s / step_s):
            self._reported_tick = self._tick
            grew = self._report(now_s)
            self._report_s = min(REPORT_S, max(SOON_S, self._work.latency_s)) if grew else REPORT_S
        allowed = limit.allowance(self._policy, self._pool, now_s, self._caps)
        least = self._left
        rates = (allowed.requests_per_s, allowed.input_tokens_per_s, allowed.output_tokens_per_s)
        paced = [rate / size for rate, size in zip(rates, self._sizes, strict=True) if rate and size]
        if paced:
            per_s = min(paced)
            self._credit = min(self._credit + per_s * step_s, max(per_s * (step_s + BURST_S), 1.0))
            least = min(least, self._credit)
        for level, bucket, size in zip(self._levels, self._buckets, self._sizes, strict=True):
            if bucket is not None and size:
                least = min(least, max(level, 0.0) / size)
        begun = max(0.0, min(least, allowed.concurrency - self._in_flight))
        self._begin(begun)
        if paced:
            self._credit -= begun

    def _begin(self, begun: float) -> None:
        if begun <= 0:
            return
        self._left -= begun
        self._in_flight += begun
        self._begun += begun
        each = begun / len(self._delays)
        for delay in self._delays:
            self._due[self._tick + delay] += each
        for place, (bucket, size) in enumerate(zip(self._buckets, self._sizes, strict=True)):
            if bucket is not None:
                self._levels[place] -= begun * size

    def _report(self, now_s: float) -> bool:
        """Report whole calls and the headers of an answer to the policy. Return whether slow start grew."""
        begun, answered = int(self._begun), int(self._answered)
        self._begun -= begun
        self._answered -= answered
        work = self._work
        limits = RateLimits() if not answered else self._headers()
        return limit.observe(
            self._policy, self._pool, now_s,
            UsageSample(
                begun=begun, answered=answered, input_tokens=round(answered * work.input_tokens),
                output_tokens=round(answered * work.output_tokens), latency_s=answered * work.latency_s,
                rate=limits, in_flight=int(self._in_flight), binding=self._left > 0,
            ),
        )  # fmt: skip

    def _headers(self) -> RateLimits:
        entries = [
            ReportedBucket() if bucket is None else ReportedBucket(round(bucket.per_s * 60), max(0, int(level)))
            for bucket, level in zip(self._buckets, self._levels, strict=True)
        ]
        return RateLimits(requests=entries[0], input_tokens=entries[1], output_tokens=entries[2])
