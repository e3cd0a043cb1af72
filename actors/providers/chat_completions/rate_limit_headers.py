"""Rate limits in the headers of a response of chat completions.

OpenAI (https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers"): limit, remainder and the time
until the bucket is full, as a duration, for requests and for tokens. The bucket of tokens is charged with the prompt
and with the bound of the reply when a request is accepted. Mistral and Cerebras name the window in the header. Azure
reports -1 for what it does not tell (https://learn.microsoft.com/answers/questions/5625878).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.providers.transport.response_headers import bounded_s, duration_s, number
from policies.limits.limit import RateLimits, ReportedBucket

_PREFIX: Final = "x-ratelimit-"
_REQUESTS: Final = ("requests", "requests-minute", "req-minute")
_TOKENS: Final = ("tokens", "tokens-minute")
_REQUESTS_LIMIT: Final = f"{_PREFIX}limit-requests"
_TOKENS_LIMIT: Final = f"{_PREFIX}limit-tokens"
_MISTRAL_LIMIT: Final = f"{_PREFIX}limit-tokens-minute"
_MINUTE_S: Final = 90.0
"""Seconds: a bucket that is full only after this time holds more than the limit of a minute. Groq's bucket of requests
is that of a day (https://console.groq.com/docs/rate-limits); a day's limit is no rate, and is left out."""


def reports_limits(headers: Mapping[str, str]) -> bool:
    """Return whether a response has rate limits at all. Cheap: called for every response."""
    return _REQUESTS_LIMIT in headers or _TOKENS_LIMIT in headers or _MISTRAL_LIMIT in headers


def rate_limits(headers: Mapping[str, str]) -> RateLimits:
    """Return the limits in these headers (names in any case, as the mapping allows). Unreadable ones are None."""
    return RateLimits(requests=_bucket(headers, _REQUESTS), tokens=_bucket(headers, _TOKENS))


def _bucket(headers: Mapping[str, str], names: tuple[str, ...]) -> ReportedBucket:
    name = next((each for each in names if f"{_PREFIX}limit-{each}" in headers), "")
    limit = number(headers.get(f"{_PREFIX}limit-{name}"))
    remaining = number(headers.get(f"{_PREFIX}remaining-{name}"))
    reset_s = duration_s(headers.get(f"{_PREFIX}reset-{name}"))
    if not limit or (reset_s is not None and reset_s > _MINUTE_S):
        return ReportedBucket()
    return ReportedBucket(
        int(limit), None if remaining is None else int(remaining), None if reset_s is None else bounded_s(reset_s)
    )
