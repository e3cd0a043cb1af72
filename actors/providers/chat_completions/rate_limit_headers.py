"""Rate limits in the headers of OpenAI's APIs, of OpenAI and of the servers that follow it.

| servers | requests | tokens | limit holds for | reset |
|---|---|---|---|---|
| OpenAI, Azure, Groq | `x-ratelimit-*-requests` | `x-ratelimit-*-tokens` | a minute | a duration |
| Cerebras | | `x-ratelimit-*-tokens-minute` | a minute | seconds |
| Mistral | `x-ratelimit-*-req-minute` | `x-ratelimit-*-tokens-minute` | a minute | none |
| Together | `x-ratelimit-limit`, … | `x-tokenlimit-limit`, … | a second | seconds |
| OpenRouter | `X-RateLimit-Limit`, … | | a minute or a day, untold | Unix time in milliseconds |
| DeepSeek, Gemini | | | | |

Sources, in turn:

- https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers": limit, remainder and the time until the
  bucket is full. The bucket of tokens is charged with the prompt and with the bound of the reply when a request is
  accepted. Azure reports -1 for what it does not tell (https://learn.microsoft.com/answers/questions/5625878).
  https://console.groq.com/docs/rate-limits: the requests are those of a day (`RATE_WINDOW_MAX_S`).
- https://inference-docs.cerebras.ai/support/rate-limits; its requests are those of a day, by a name of their own
- https://github.com/mistralai/client-ts/issues/169, a response of api.mistral.ai; promptfoo/promptfoo#10577
- https://docs.together.ai/docs/rate-limits, "Fetching Latest Serverless Rate Limits": "The maximum number of requests
  per sec"; the limits of a model change with its load. `x-ratelimit-reset` is "the suggested retry interval".
- https://openrouter.ai/docs/api_reference/limits: "`X-RateLimit-*` headers on the error response", in its body too
  (`error.metadata.headers`); the limit is one of a minute or of a day ("free-models-per-day"), so it is no rate.
- https://api-docs.deepseek.com/quick_start/rate_limit: concurrency is limited by the load, and no header tells it.
  https://ai.google.dev/gemini-api/docs/rate-limits names no headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from actors.providers.transport.response_headers import bounded_s, duration_s, number, sent_at_s
from policies.limits.limit import RateLimits, ReportedBucket

RESET: Final = "x-ratelimit-reset"
"""Header of Together, OpenRouter and others with the time at which one may ask again."""
_REMAINING: Final = "x-ratelimit-remaining"
_PREFIX: Final = "x-ratelimit-"
_REQUESTS_LIMIT: Final = f"{_PREFIX}limit-requests"
_TOKENS_LIMIT: Final = f"{_PREFIX}limit-tokens"
_MINUTE_LIMIT: Final = f"{_PREFIX}limit-tokens-minute"
_TOGETHER_LIMIT: Final = "x-tokenlimit-limit"

MINUTE_S: Final = 60
RATE_WINDOW_MAX_S: Final = 90.0
"""Seconds: a bucket that is full only after this time holds more than the limit of a minute. Groq's bucket of requests
is that of a day (https://console.groq.com/docs/rate-limits); a day's limit is no rate, and is left out."""
UNIX_S: Final = 1e9
"""Number from which on a reset is no duration but a Unix time in seconds: one of 2001."""
UNIX_MS: Final = 1e11
"""Number from which on a reset is a Unix time in milliseconds, as OpenRouter has it: one of 1973, and of the year 5138
in seconds."""


class BucketHeaders(NamedTuple):
    """Headers of one rate limit."""

    limit: str
    remaining: str
    reset: str
    window_s: int = MINUTE_S
    """Seconds for which the limit holds."""
    beside: str = ""
    """Header that must be there too, without which these names mean something else; empty: none."""


def _named(name: str) -> BucketHeaders:
    return BucketHeaders(f"{_PREFIX}limit-{name}", f"{_PREFIX}remaining-{name}", f"{_PREFIX}reset-{name}")


REQUESTS: Final = (
    _named("requests"), _named("requests-minute"), _named("req-minute"),
    BucketHeaders(f"{_PREFIX}limit", _REMAINING, RESET, 1, beside=_TOGETHER_LIMIT),
)  # fmt: skip
"""Headers of limits of requests; the first ones that a response has count."""
TOKENS: Final = (
    _named("tokens"), _named("tokens-minute"), BucketHeaders(_TOGETHER_LIMIT, "x-tokenlimit-remaining", RESET, 1),
)  # fmt: skip
"""Headers of limits of tokens, those of prompts and of replies together."""


def reports_limits(headers: Mapping[str, str]) -> bool:
    """Return whether a response has rate limits at all. Cheap: called for every response."""
    return (
        _REQUESTS_LIMIT in headers or _TOKENS_LIMIT in headers or _MINUTE_LIMIT in headers or _TOGETHER_LIMIT in headers
    )


def rate_limits(headers: Mapping[str, str]) -> RateLimits:
    """Return the limits in these headers (names in any case, as the mapping allows). Unreadable ones are None."""
    return RateLimits(requests=_bucket(headers, REQUESTS), tokens=_bucket(headers, TOKENS))


def _bucket(headers: Mapping[str, str], families: tuple[BucketHeaders, ...]) -> ReportedBucket:
    names = next((each for each in families if each.limit in headers and (each.beside or each.limit) in headers), None)
    if names is None:
        return ReportedBucket()
    limit = number(headers.get(names.limit))
    remaining = number(headers.get(names.remaining))
    reset_s = reset_after_s(headers.get(names.reset), headers)
    a_minute = int((limit or 0.0) * MINUTE_S / names.window_s)
    if not a_minute or (reset_s is not None and reset_s > RATE_WINDOW_MAX_S):
        return ReportedBucket()
    return ReportedBucket(a_minute, None if remaining is None else int(remaining), reset_s)


def reset_after_s(value: str | None, headers: Mapping[str, str]) -> float | None:
    """Return the seconds from a response until a reset, at most a day; None where it cannot be read.

    ``value``: a duration ("6m0s"), a number of seconds, or a Unix time in seconds or milliseconds. ``headers``: those
    of the response, whose Date is the provider's clock.
    """
    seconds = duration_s(value)
    if seconds is None or seconds < UNIX_S:
        return None if seconds is None else bounded_s(seconds)
    return bounded_s((seconds / 1_000 if seconds >= UNIX_MS else seconds) - sent_at_s(headers))


def wait_until_reset_s(limits: Mapping[str, str], headers: Mapping[str, str]) -> float | None:
    """Return the seconds until the reset of a limit that is used up; None where none is named, or some of it is left.

    ``limits``: headers that name it, of the response or of its body; ``headers``: those of the response.
    """
    if number(limits.get(_REMAINING)):
        return None
    return reset_after_s(limits.get(RESET), headers)
