"""Rate limits as token buckets that fill all the time, and the headers that tell of them.

The provider's rule (https://docs.claude.com/en/api/rate-limits): capacity is replenished continuously up to the limit
of a minute; input tokens count when a request is taken, output tokens as they are made.
"""

import math
from datetime import UTC, datetime

import msgspec

from actors.simulator.faults import ErrorResponse
from actors.simulator.settings import SimulatorSettings

_SPOKEN = {"requests": "requests", "input-tokens": "input tokens", "output-tokens": "output tokens"}


class TokenBucket:
    """One limit. Times are seconds since the epoch and never run back; a level below 0 is a debt to wait for."""

    __slots__ = ("at_s", "capacity", "level", "limit", "name")

    def __init__(self, name: str, limit: int, burst_s: float = 60.0) -> None:
        self.name = name
        self.limit = limit
        self.capacity = max(1.0, limit * burst_s / 60)
        self.level = self.capacity
        self.at_s: float | None = None

    def fill(self, now_s: float) -> None:
        """Let the time until ``now_s`` fill the bucket."""
        if self.at_s is None or now_s < self.at_s:
            self.at_s = now_s
        self.level = min(self.capacity, self.level + (now_s - self.at_s) * self.limit / 60)
        self.at_s = now_s

    def wait_s(self, wanted: float) -> float:
        """Seconds until ``wanted`` can be taken. Of more than the capacity: until the bucket is full."""
        missing = min(wanted, self.capacity) - self.level
        return max(0.0, missing * 60 / self.limit)

    def headers(self, now_s: float) -> dict[str, str]:
        """Limit, what remains, and when it will be full again; never too early, so in whole seconds rounded up."""
        lead = f"anthropic-ratelimit-{self.name}"
        return {
            f"{lead}-limit": str(self.limit),
            f"{lead}-remaining": str(max(0, math.floor(self.level))),
            f"{lead}-reset": rfc3339(math.ceil(now_s + self.wait_s(self.capacity))),
        }


class AccountBuckets:
    """The limits of one account, and what it tells of them."""

    def __init__(self, settings: SimulatorSettings) -> None:
        named = (("requests", settings.rpm), ("input-tokens", settings.itpm), ("output-tokens", settings.otpm))
        self._all = {name: TokenBucket(name, limit, settings.burst_s) for name, limit in named if limit is not None}
        self._reported = settings.limits_told

    def take(self, input_tokens: int, now_s: float) -> ErrorResponse | None:
        """Take one request of this many input tokens, or say why not and how long to wait."""
        if not self._all:
            return None
        wanted = {"requests": 1.0, "input-tokens": float(input_tokens), "output-tokens": 1.0}
        short: list[tuple[float, TokenBucket]] = []
        for name, bucket in self._all.items():
            bucket.fill(now_s)
            if bucket.level < wanted[name]:
                short.append((bucket.wait_s(wanted[name]), bucket))
        if short:
            wait_s, worst = max(short, key=lambda each: each[0])
            return _refusal(worst, wait_s, self._reported != "nothing")
        for name, bucket in self._all.items():
            bucket.level -= wanted[name] if name != "output-tokens" else 0
        return None

    def made(self, output_tokens: int) -> None:
        """Output tokens were made: they are owed to their bucket."""
        if "output-tokens" in self._all:
            self._all["output-tokens"].level -= output_tokens

    def headers(self, now_s: float) -> dict[str, str]:
        """The rate-limit headers of a response; without limits, none."""
        facts: dict[str, str] = {}
        if self._reported != "headers" or not self._all:
            return facts
        for bucket in self._all.values():
            bucket.fill(now_s)
            facts |= bucket.headers(now_s)
        both = [self._all[name] for name in ("input-tokens", "output-tokens") if name in self._all]
        if both:  # the provider's summary of whichever token limits are in force
            resets = [facts[f"anthropic-ratelimit-{each.name}-reset"] for each in both]
            facts["anthropic-ratelimit-tokens-limit"] = str(sum(each.limit for each in both))
            facts["anthropic-ratelimit-tokens-remaining"] = str(sum(max(0, int(each.level)) for each in both))
            facts["anthropic-ratelimit-tokens-reset"] = max(resets)
        return facts


def _refusal(bucket: TokenBucket, wait_s: float, known: bool) -> ErrorResponse:
    message = (
        f"This request would exceed your organization's rate limit of {bucket.limit:,} {_SPOKEN[bucket.name]} per "
        "minute. For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the response headers "
        "for current usage. Please reduce the prompt length or the maximum tokens requested, or try again later."
    )
    return ErrorResponse(429, "rate_limit_error", message, retry_after_s=max(1, math.ceil(wait_s)) if known else None)


def rfc3339(at_s: float) -> str:
    """A time as the provider writes it: ``2026-11-21T23:45:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def next_month(now_s: float) -> str:
    """The first day of the month after ``now_s``, as ``2026-12-01``."""
    now = datetime.fromtimestamp(now_s, UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return f"{year}-{month:02}-01"


class AccountCredit(msgspec.Struct):
    """What the account has left; None has no end. Money in nano-USD."""

    calls: int | None
    nusd: int | None

    def refused(self) -> bool:
        """Is nothing left?"""
        return (self.calls is not None and self.calls <= 0) or (self.nusd is not None and self.nusd <= 0)

    def spend(self, nusd: int) -> None:
        """One answer of this price was worked out. The last one may overdraw, as at the provider."""
        if self.calls is not None:
            self.calls -= 1
        if self.nusd is not None:
            self.nusd -= nusd
