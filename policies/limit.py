"""How much of a pool may be used now? (The adaptive part follows.)"""

from __future__ import annotations

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
