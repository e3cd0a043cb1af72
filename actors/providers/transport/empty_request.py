"""Request of ``{}``: no API answers it, and each refuses it in a way of its own, for nothing."""

from __future__ import annotations

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
    key = credential.api_key or credential.auth_token
    headers = [*_HEADERS, *([("Authorization", f"Bearer {key}")] if key else []), *credential.custom_headers]
    try:
        context, proxy = await network_of(url, credential)
        template = RequestTemplate(url, headers, credential.host)
        status, answer, body = await free_call(template, context, proxy, BODY, timeout_s)
    except (CredentialError, ConfigurationFault, aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return status, body, answer.get("server", "")
