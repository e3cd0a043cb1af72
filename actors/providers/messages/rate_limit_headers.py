"""Rate limits in the headers of a response of the Messages API: https://docs.claude.com/en/api/rate-limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.providers.transport.response_headers import bounded_s, number, rfc3339_s, sent_at_s
from policies.limits.limit import RateLimits, ReportedBucket

_PREFIX: Final = "anthropic-ratelimit-"


def reports_limits(headers: Mapping[str, str]) -> bool:
    """Return whether a response has rate limits at all. Cheap: called for every response."""
    return f"{_PREFIX}requests-limit" in headers or f"{_PREFIX}tokens-limit" in headers


def rate_limits(headers: Mapping[str, str]) -> RateLimits:
    """Return the limits in these headers (names in any case, as the mapping allows). Unreadable ones are None."""
    now_s = sent_at_s(headers)
    return RateLimits(
        *(_bucket(headers, name, now_s) for name in ("requests", "tokens", "input-tokens", "output-tokens"))
    )


def _bucket(headers: Mapping[str, str], name: str, now_s: float) -> ReportedBucket:
    limit = number(headers.get(f"{_PREFIX}{name}-limit"))
    remaining = number(headers.get(f"{_PREFIX}{name}-remaining"))
    reset_s = rfc3339_s(headers.get(f"{_PREFIX}{name}-reset"))
    return ReportedBucket(
        None if limit is None else int(limit),
        None if remaining is None else int(remaining),
        None if reset_s is None else bounded_s(reset_s - now_s),
    )
