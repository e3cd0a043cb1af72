"""How much of a pool may be used now? (The adaptive part follows.)"""

from __future__ import annotations

from typing import Final

import msgspec


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """One limit as the provider last told it. None: not told."""

    limit: int | None = None
    remaining: int | None = None
    reset_after_s: float | None = None
    """Seconds from the answer until `remaining` is `limit` again, by the provider's own clock where it told it."""


class RateLimits(msgspec.Struct, frozen=True, array_like=True):
    """The four limits of the Messages API, each a minute's: requests, tokens, input tokens, output tokens."""

    requests: Bucket = Bucket()
    tokens: Bucket = Bucket()
    input_tokens: Bucket = Bucket()
    output_tokens: Bucket = Bucket()


class LimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Raises ValueError, one line, for a bound that makes no sense."""

    start: int = 20
    """Calls in flight that a pool begins with, all jobs together."""
    floor: int = 1
    """No cut goes below it."""
    ceiling: int = 100_000
    cut: float = 0.5
    hold_s: float = 1.0
    """How long nothing begins after a throttled answer that names no time."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.start <= self.ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, not {self.floor}, {self.start}, {self.ceiling}")
        if not 0 < self.cut < 1:
            raise ValueError(f"cut must be between 0 and 1, not {self.cut}")
        if not 0 < self.hold_s < float("inf"):
            raise ValueError(f"hold_s must be above 0, not {self.hold_s}")


class Caps(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Bounds by hand. None: none. Raises ValueError, one line, for a bound that makes no sense."""

    concurrency: int | None = None
    requests_per_min: float | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    """Share of what the provider allows that is left to other traffic."""
    who: str = ""
    at_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_min", "input_tokens_per_min", "output_tokens_per_min"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0, not {value}")
        if not 0 <= self.headroom < 1:
            raise ValueError(f"headroom must be 0 or more and below 1, not {self.headroom}")


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one report told of a pool: counts since that reporter's last one."""

    begun: int = 0
    answered: int = 0
    throttled: int = 0
    unwell: int = 0
    """Attempts that were OVERLOADED, TRANSIENT or TIMED_OUT."""
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    """Sum over the answered attempts."""
    retry_after_s: float = 0.0
    """The longest wait that was asked for; 0 where none was."""
    rate: RateLimits | None = None
    in_flight: int = 0
    """Attempts under way in the whole pool, as far as is known."""
    binding: bool = False
    """Was more wanted of the pool than was allowed?"""


class Limit(msgspec.Struct, array_like=True):
    """What is known of one pool."""

    concurrency: float
    at_s: float = 0.0
    """Of the latest observation."""
    throttled_at_s: float = 0.0
    held_until_s: float = 0.0
    throttled: bool = False
    """Was the pool ever throttled? Until then it grows by a permit an answer."""
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Requests, input and output tokens a second, as the provider told; 0: not told."""


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """What all holders of a pool together may do now."""

    concurrency: int
    requests_per_s: float = 0.0
    """0: no bound; so for tokens."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    held_until_s: float = 0.0
    """Nothing may begin before."""


NO_CAPS: Final = Caps()


def new(policy: LimitPolicy) -> Limit:
    """A pool of which nothing is known."""
    return Limit(float(policy.start))


def observe(policy: LimitPolicy, limit: Limit, at_s: float, sample: Sample) -> None:
    """Take in a report that was heard at `at_s`."""
    at_s = limit.at_s = max(at_s, limit.at_s)
    if sample.rate is not None:
        _told(limit, sample.rate)
    if sample.throttled:
        _throttle(policy, limit, at_s, sample)
    elif sample.binding and not sample.unwell and at_s >= limit.held_until_s:
        grown = sample.answered if not limit.throttled else sample.answered / limit.concurrency
        limit.concurrency = min(limit.concurrency + grown, policy.ceiling)


def _throttle(policy: LimitPolicy, limit: Limit, at_s: float, sample: Sample) -> None:
    if not limit.throttled or at_s >= limit.held_until_s + policy.hold_s:
        limit.concurrency = max(limit.concurrency * policy.cut, policy.floor)
        limit.throttled_at_s = at_s
        limit.throttled = True
    limit.held_until_s = max(limit.held_until_s, at_s + (sample.retry_after_s or policy.hold_s))


def _told(limit: Limit, rate: RateLimits) -> None:
    buckets = (rate.requests, rate.input_tokens, rate.output_tokens)
    if any(bucket.limit for bucket in buckets):
        limit.rates = tuple(  # type: ignore[assignment]
            (bucket.limit or 0) / 60 + ((bucket.remaining or 0) - 0.2 * (bucket.limit or 0)) / 30 for bucket in buckets
        )


def allowance(policy: LimitPolicy, limit: Limit, at_s: float, caps: Caps = NO_CAPS) -> Allowance:
    """What may be used from `at_s` on."""
    concurrency = max(int(limit.concurrency), policy.floor)
    if caps.concurrency is not None:
        concurrency = min(concurrency, caps.concurrency)
    free = 1 - caps.headroom
    return Allowance(
        concurrency,
        _bound(limit.rates[0] * free, caps.requests_per_min),
        _bound(limit.rates[1] * free, caps.input_tokens_per_min),
        _bound(limit.rates[2] * free, caps.output_tokens_per_min),
        limit.held_until_s,
    )


def _bound(rate: float, per_min: float | None) -> float:
    if per_min is None:
        return rate
    return min(rate, per_min / 60) if rate else per_min / 60


def adopt(limit: Limit, at_s: float) -> None:
    """This state comes from another clock, which read `limit.at_s` when it was last observed; `at_s` is that moment
    by ours."""
    by_s = at_s - limit.at_s
    limit.at_s = at_s
    limit.throttled_at_s += by_s
    limit.held_until_s += by_s
