"""Decoder of compressed bodies (RFC 9110, 8.4)."""

from __future__ import annotations

import zlib
from typing import Final

import aiohttp

from actors.providers.transport.body import BODY_BYTES_MAX, UnreadableResponse, too_long

ACCEPTED: Final = "gzip, deflate"
"""Value of a request's Accept-Encoding."""

_ZLIB_METHOD: Final = 8
"""Low half of the first byte of a zlib stream (RFC 1950, 2.2); some servers send `deflate` without that wrapper."""
_MEMBERS_MAX: Final = 100
"""Most members of a gzip file. Each costs a copy of the bytes that follow it."""


def decoded(body: bytes, encoding: str, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the decoded body. Raises ClientPayloadError where it is not in that encoding, UnreadableAnswer beyond
    `bytes_max`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _bits(body, name)
    if not bits:
        raise aiohttp.ClientPayloadError(f"the answer's encoding is {name[:40]}, which nobody asked for")
    parts: list[bytes] = []
    left = bytes_max
    while body:
        if len(parts) == _MEMBERS_MAX:
            raise UnreadableResponse(f"the answer is in more than {_MEMBERS_MAX} pieces of {name}")
        member = zlib.decompressobj(bits)
        try:
            parts.append(member.decompress(body, left + 1))
        except zlib.error as error:
            raise aiohttp.ClientPayloadError(f"the answer is no {name}: {error}") from None
        left -= len(parts[-1])
        if left < 0:
            raise too_long(bytes_max)
        if not member.eof:
            raise aiohttp.ClientPayloadError(f"the answer's {name} is cut")
        body = member.unused_data
    return b"".join(parts)


def decoded_beginning(body: bytes, encoding: str, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return what the beginning of a body becomes, at most `bytes_max`; empty where it is not in that encoding."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    bits = _bits(body, name)
    try:
        return zlib.decompressobj(bits).decompress(body, bytes_max) if bits else b""
    except zlib.error:
        return b""


def _bits(body: bytes, name: str) -> int:
    """Return zlib's window bits for an encoding; 0 for one that was not asked for."""
    if name in ("gzip", "x-gzip"):
        return 16 + zlib.MAX_WBITS
    if name == "deflate":
        return zlib.MAX_WBITS if body[:1] and body[0] & 15 == _ZLIB_METHOD else -zlib.MAX_WBITS
    return 0
