"""Single requests that cost nothing, for checks: without the connections that calls use."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp

from actors.providers.transport.aiohttp_transport import RequestTemplate

_BYTES_MAX: Final = 1 << 22
"""Bytes of a response that are read. The longest are the lists of models and the descriptions of servers, some hundred
kilobytes."""


async def free_call(
    template: RequestTemplate, context: ssl.SSLContext | None, proxy: str | None, body: bytes | None, timeout_s: float
) -> tuple[int, Mapping[str, str], bytes]:
    """Send one request, a GET without a body; return status, headers, and at most four megabytes of the response.

    Raises aiohttp's errors or TimeoutError.
    """
    connector = aiohttp.TCPConnector(ssl=True if context is None else context)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(
            "GET" if body is None else "POST", template.url, data=body, headers=template.headers, proxy=proxy,
            allow_redirects=False, timeout=timeout, server_hostname=template.server_name,
        ) as answer,
    ):  # fmt: skip
        found = bytearray()
        while len(found) < _BYTES_MAX and (piece := await answer.content.read(_BYTES_MAX - len(found))):
            found += piece  # a read returns what has come so far
        return answer.status, answer.headers, bytes(found)
