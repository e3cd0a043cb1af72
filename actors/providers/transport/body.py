"""Body of an HTTP answer: its bound, and the error for one that cannot be read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest body in bytes. No reply is near it: a longer one comes from a faulty server and is not held in memory."""


class UnreadableResponse(ValueError):
    """Response that is no complete reply. One line that says why."""


class PageResponse(UnreadableResponse):
    """Page (HTML, XML) in place of an answer: of a proxy, or of a server that does not serve the API."""


class UnreadableAnswer(UnreadableResponse):
    """Answer of the provider's that came whole, but holds no message that can be read. It may have been paid for."""


async def bounded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same chunks. Raises UnreadableResponse beyond `BODY_BYTES_MAX`."""
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > BODY_BYTES_MAX:
            raise UnreadableResponse(f"the answer is longer than {BODY_BYTES_MAX} bytes")
        yield chunk


def json_bytes(value: Any) -> bytes:
    """Return a value as compact JSON. Two halves of a surrogate pair that stand side by side become one character; a
    half alone, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):  # the latter for an integer of more than 64 bits
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=msgspec.json.decode)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
