"""Rate limits as token buckets that fill continuously, and the headers that report them.

The provider's rule (https://docs.claude.com/en/api/rate-limits): capacity is replenished continuously up to the limit
of a minute; input tokens count when a request is accepted, output tokens as they are produced.
"""

import math
from datetime import UTC, datetime

import msgspec

from actors.simulator.faults import ErrorResponse
from actors.simulator.settings import SimulatorSettings

_SPOKEN = {"requests": "requests", "input-tokens": "input tokens", "output-tokens": "output tokens",
           "tokens": "tokens"}  # fmt: skip


class TokenBucket:
    """Bucket of one limit. Times are seconds since 1970 and never decrease; a level below 0 is a debt to wait for."""

    __slots__ = ("at_s", "capacity", "level", "limit", "name")

    def __init__(self, name: str, limit: int, burst_s: float = 60.0) -> None:
        self.name = name
        self.limit = limit
        self.capacity = max(1.0, limit * burst_s / 60)
        self.level = self.capacity
        self.at_s: float | None = None

    def fill(self, now_s: float) -> None:
        """Fill the bucket for the time until ``now_s``."""
        if self.at_s is None or now_s < self.at_s:
            self.at_s = now_s
        self.level = min(self.capacity, self.level + (now_s - self.at_s) * self.limit / 60)
        self.at_s = now_s

    def wait_s(self, wanted: float) -> float:
        """Return the seconds until ``wanted`` can be taken; beyond the capacity, until the bucket is full."""
        missing = min(wanted, self.capacity) - self.level
        return max(0.0, missing * 60 / self.limit)

    def headers(self, now_s: float) -> dict[str, str]:
        """Return limit, remainder, and the time at which the bucket is full, rounded up to seconds."""
        lead = f"anthropic-ratelimit-{self.name}"
        return {
            f"{lead}-limit": str(self.limit),
            f"{lead}-remaining": str(max(0, math.floor(self.level))),
            f"{lead}-reset": rfc3339(math.ceil(now_s + self.wait_s(self.capacity))),
        }


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: ``6m0s``, ``1.2s``, ``20ms``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.3g}s" if minutes else f"{rest:.3g}s"


class AccountBuckets:
    """Limits of one account, and their headers."""

    def __init__(self, settings: SimulatorSettings) -> None:
        named = (("requests", settings.rpm), ("input-tokens", settings.itpm), ("output-tokens", settings.otpm),
                 ("tokens", settings.tpm))  # fmt: skip
        self._all = {name: TokenBucket(name, limit, settings.burst_s) for name, limit in named if limit is not None}
        self._reported = settings.limits_told

    def take(self, input_tokens: int, now_s: float, output_tokens_max: int = 0) -> ErrorResponse | None:
        """Take one request with these input tokens; return a refusal with the wait if a limit is reached."""
        if not self._all:
            return None
        wanted = {"requests": 1.0, "input-tokens": float(input_tokens), "output-tokens": 1.0,
                  "tokens": float(input_tokens + output_tokens_max)}  # fmt: skip
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
        """Charge produced output tokens to their bucket."""
        if "output-tokens" in self._all:
            self._all["output-tokens"].level -= output_tokens

    def headers(self, now_s: float) -> dict[str, str]:
        """Return the rate-limit headers of a response; empty without limits."""
        facts: dict[str, str] = {}
        if self._reported != "headers" or not self._all:
            return facts
        for bucket in self._all.values():
            bucket.fill(now_s)
            facts |= bucket.headers(now_s)
        both = [self._all[name] for name in ("input-tokens", "output-tokens") if name in self._all]
        if both:  # the provider's summary of the token limits in force
            resets = [facts[f"anthropic-ratelimit-{each.name}-reset"] for each in both]
            facts["anthropic-ratelimit-tokens-limit"] = str(sum(each.limit for each in both))
            facts["anthropic-ratelimit-tokens-remaining"] = str(sum(max(0, int(each.level)) for each in both))
            facts["anthropic-ratelimit-tokens-reset"] = max(resets)
        return facts


    def chat_headers(self, now_s: float) -> dict[str, str]:
        """Return the headers of OpenAI's chat completions, which know requests and tokens of both directions together
        (https://platform.openai.com/docs/guides/rate-limits); empty without limits."""
        facts: dict[str, str] = {}
        if self._reported != "headers":
            return facts
        for bucket in self._all.values():
            bucket.fill(now_s)
        both = ("tokens",) if "tokens" in self._all else ("input-tokens", "output-tokens")
        for name, parts in (("requests", ("requests",)), ("tokens", both)):
            if buckets := [self._all[each] for each in parts if each in self._all]:
                facts[f"x-ratelimit-limit-{name}"] = str(sum(each.limit for each in buckets))
                facts[f"x-ratelimit-remaining-{name}"] = str(sum(max(0, int(each.level)) for each in buckets))
                facts[f"x-ratelimit-reset-{name}"] = duration(max(each.wait_s(each.capacity) for each in buckets))
        return facts


def _refusal(bucket: TokenBucket, wait_s: float, known: bool) -> ErrorResponse:
    message = (
        f"This request would exceed your organization's rate limit of {bucket.limit:,} {_SPOKEN[bucket.name]} per "
        "minute. For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the response headers "
        "for current usage. Please reduce the prompt length or the maximum tokens requested, or try again later."
    )
    return ErrorResponse(429, "rate_limit_error", message, retry_after_s=max(1, math.ceil(wait_s)) if known else None)


def rfc3339(at_s: float) -> str:
    """Return a time in the provider's form: ``2026-11-21T23:45:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def next_month(now_s: float) -> str:
    """Return the first day of the month after ``now_s``, as ``2026-12-01``."""
    now = datetime.fromtimestamp(now_s, UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return f"{year}-{month:02}-01"


class AccountCredit(msgspec.Struct):
    """Remaining credit of the account; None is unlimited. Money in nano-USD."""

    calls: int | None
    nusd: int | None

    def refused(self) -> bool:
        """Return True if no credit is left."""
        return (self.calls is not None and self.calls <= 0) or (self.nusd is not None and self.nusd <= 0)

    def spend(self, nusd: int) -> None:
        """Charge one answer of this price. The last answer may overdraw, as at the provider."""
        if self.calls is not None:
            self.calls -= 1
        if self.nusd is not None:
            self.nusd -= nusd
