"""Body of an HTTP answer: its bound, and the error for one that cannot be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest body in bytes. No reply is near it: a longer one comes from a faulty server and is not held in memory."""


class UnreadableResponse(ValueError):
    """Response that is no complete reply. One line that says why."""


async def bounded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same chunks. Raises UnreadableResponse beyond `BODY_BYTES_MAX`."""
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > BODY_BYTES_MAX:
            raise UnreadableResponse(f"the answer is longer than {BODY_BYTES_MAX} bytes")
        yield chunk
