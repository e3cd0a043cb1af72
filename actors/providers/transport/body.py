"""Body of an HTTP answer: its bound, and the error for one that cannot be read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest body of any answer in bytes: of files of results, and of replies that hold audio or vectors."""
REPLY_BYTES_LEAST: Final = 4 * 1024 * 1024
"""Bytes that a reply may have however few tokens were asked for: what frames it, thinking beyond ``max_tokens``, and a
picture that a model draws (1,024 by 1,024 pixels as PNG in base64: up to 3 MB)."""
TOKEN_BYTES: Final = 64
"""Bytes of the reply for each token that it may have. A token is 4 bytes of prose on average; one character of a script
beyond ASCII is six bytes as an escape in JSON."""
NO_HTTP: Final = "the answer is no HTTP"
"""Beginning of the error of a response that cannot be parsed."""
STREAMED_TOKEN_BYTES: Final = 1_024
"""The same in a stream, which may send each token in an event of its own: 150 to 400 bytes."""
LOGPROBS_TOKEN_BYTES: Final = 4_096
"""The same with log probabilities: up to 20 alternatives for each token, some 100 bytes each."""


class UnreadableResponse(ValueError):
    """Response that is no complete reply. One line that says why."""


class PageResponse(UnreadableResponse):
    """Page (HTML, XML) in place of an answer: of a proxy, or of a server that does not serve the API."""


class UnreadableAnswer(UnreadableResponse):
    """Answer of the provider's that came, but holds no message that can be read. It may have been paid for."""


def unread(error: Exception) -> UnreadableAnswer:
    """Return the error of an answer at which its reader failed with this exception.

    A client turns every exception of a reader into it. What came was paid, so it must never count as an attempt that
    brought nothing: calls are repeated eight times after a lost connection, and once after this.
    """
    why = "it is nested too deeply" if isinstance(error, RecursionError) else type(error).__name__
    return UnreadableAnswer(f"the answer cannot be read: {why}")


def too_long(bytes_max: int) -> UnreadableAnswer:
    """Return the error of an answer with more than `bytes_max` bytes. The server answered, so it may have been paid."""
    why = "" if bytes_max >= BODY_BYTES_MAX else ", far more than its max_tokens can come to"
    return UnreadableAnswer(f"the answer is longer than {bytes_max:,} bytes{why}")


async def bounded(chunks: AsyncIterator[bytes], bytes_max: int = BODY_BYTES_MAX) -> AsyncIterator[bytes]:
    """Yield the same chunks. Raises UnreadableAnswer beyond `bytes_max`."""
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > bytes_max:
            raise too_long(bytes_max)
        yield chunk


def json_bytes(value: Any) -> bytes:
    """Return a value as compact JSON. Two halves of a surrogate pair that stand side by side become one character; a
    half alone, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):  # the latter for an integer of more than 64 bits
        return utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=msgspec.json.decode))


def utf8(text: str) -> bytes:
    """Return a text as UTF-8, halves of surrogate pairs as `json_bytes` does."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
