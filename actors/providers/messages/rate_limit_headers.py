"""What a provider says about its limits beside an answer: rate-limit headers and Retry-After."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from policies.limits.limit import RateLimits, ReportedBucket

RETRY_AFTER_MAX_S: Final = 86_400.0
"""A wait beyond a day is no rate limit; what asks for it is taken at a day."""

_PREFIX: Final = "anthropic-ratelimit-"


def tells_limits(headers: Mapping[str, str]) -> bool:
    """Does this answer carry rate limits at all? Cheap: asked of every answer."""
    return f"{_PREFIX}requests-limit" in headers or f"{_PREFIX}tokens-limit" in headers


def rate_limits(headers: Mapping[str, str]) -> RateLimits:
    """The limits in these headers (names in any case, as the mapping allows). What cannot be read is None."""
    now_s = _sent_at_s(headers)
    return RateLimits(
        *(_bucket(headers, name, now_s) for name in ("requests", "tokens", "input-tokens", "output-tokens"))
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the provider asks us to wait, in seconds, at most `RETRY_AFTER_MAX_S`; None where it does not.

    `retry-after-ms` is the finer one and goes first; `retry-after` is seconds or an HTTP date (RFC 9110, 10.2.3).
    """
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return _bounded(millis / 1_000)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return _bounded(seconds)
    at_s = _http_date_s(value)
    return None if at_s is None else _bounded(at_s - _sent_at_s(headers))


def _bucket(headers: Mapping[str, str], name: str, now_s: float) -> ReportedBucket:
    limit = _number(headers.get(f"{_PREFIX}{name}-limit"))
    remaining = _number(headers.get(f"{_PREFIX}{name}-remaining"))
    reset_s = _rfc3339_s(headers.get(f"{_PREFIX}{name}-reset"))
    return ReportedBucket(
        None if limit is None else int(limit),
        None if remaining is None else int(remaining),
        None if reset_s is None else _bounded(reset_s - now_s),
    )


def _sent_at_s(headers: Mapping[str, str]) -> float:
    """When the answer was sent, by the sender's clock (its Date header); by ours where it does not say."""
    at_s = _http_date_s(headers.get("date"))
    return time.time() if at_s is None else at_s


def _http_date_s(value: str | None) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() if value else None
    except (ValueError, OverflowError):
        return None


def _rfc3339_s(value: str | None) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if value else None
    except ValueError:
        return None
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    return number if number is not None and 0 <= number < 1e15 else None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)
