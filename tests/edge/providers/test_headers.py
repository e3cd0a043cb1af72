"""Rate limits and Retry-After, read from headers of every quality."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from actors.providers.messages.rate_limit_headers import rate_limits, reports_limits
from actors.providers.transport.response_headers import RETRY_AFTER_MAX_S, retry_after_s
from policies.limits.limit import RateLimits, ReportedBucket

DATE = "Sat, 21 Nov 2026 10:00:00 GMT"


def test_all_four_limits_are_read_by_the_senders_clock() -> None:
    headers = CIMultiDict(
        {
            "Date": DATE,
            "Anthropic-Ratelimit-Requests-Limit": "4000",
            "anthropic-ratelimit-requests-remaining": "3999",
            "anthropic-ratelimit-requests-reset": "2026-11-21T10:00:30Z",
            "anthropic-ratelimit-input-tokens-limit": "2000000",
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2026-11-21T11:01:00+01:00",
            "anthropic-ratelimit-output-tokens-reset": "2026-11-21T09:59:00Z",
            "anthropic-ratelimit-tokens-limit": "many",
            "anthropic-ratelimit-tokens-remaining": "-1",
            "anthropic-ratelimit-tokens-reset": "soon",
        }
    )
    assert reports_limits(headers)
    assert rate_limits(headers) == RateLimits(
        requests=ReportedBucket(4000, 3999, 30.0),
        input_tokens=ReportedBucket(2_000_000, 0, 60.0),
        output_tokens=ReportedBucket(None, None, 0.0),
    )


def test_no_limits_told() -> None:
    assert not reports_limits({})
    assert rate_limits({}) == RateLimits()


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "7", "retry-after-ms": "x"}, 7.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9999999"}, RETRY_AFTER_MAX_S),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:20 GMT", "date": DATE}, 20.0),
        ({"retry-after": "Sat, 21 Nov 2026 09:00:00 GMT", "date": DATE}, 0.0),
    ],
)
def test_retry_after(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers) == wait_s
