"""Requests that tell servers apart for nothing: of ``{}``, which no API answers and each refuses in a way of its own,
and of what a server says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aiohttp

from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.transport.aiohttp_transport import RequestTemplate
from actors.providers.transport.failures import ConfigurationFault
from actors.providers.transport.free_call import free_call
from actors.providers.transport.proxy_tls import network_of

BODY: Final = b"{}"
_HEADERS: Final = [
    ("Content-Type", "application/json"), ("Accept", "application/json"), ("User-Agent", "cortex"),
    ("anthropic-version", "2023-06-01"),
]  # fmt: skip


async def refusal(url: str, credential: Credential, timeout_s: float) -> tuple[int, bytes, str] | None:
    """Return status, body and header `Server` of the answer to an empty request, sent with the credential's key; None
    without one."""
    found = await _answer(url, credential, timeout_s, BODY)
    return None if found is None else (found[0], found[2], found[1].get("server", ""))


async def found_at(url: str, credential: Credential, timeout_s: float) -> bytes | None:
    """Return the body that a server has at an address, got with the credential's key; None without one."""
    found = await got_at(url, credential, timeout_s)
    return found[1] if found is not None and found[0] == 200 else None


async def got_at(url: str, credential: Credential, timeout_s: float) -> tuple[int, bytes] | None:
    """Return status and body of the answer to a GET, with the credential's key; None without one."""
    found = await _answer(url, credential, timeout_s, None)
    return None if found is None else (found[0], found[2])


async def _answer(
    url: str, credential: Credential, timeout_s: float, sent: bytes | None
) -> tuple[int, Mapping[str, str], bytes] | None:
    key = credential.api_key or credential.auth_token
    headers = [*_HEADERS, *([("Authorization", f"Bearer {key}")] if key else []), *credential.custom_headers]
    try:
        context, proxy = await network_of(url, credential)
        template = RequestTemplate(url, headers, credential.host)
        return await free_call(template, context, proxy, sent, timeout_s)
    except (CredentialError, ConfigurationFault, aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
