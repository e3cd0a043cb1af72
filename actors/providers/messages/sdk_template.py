"""Requests as the SDK would send them: its client is asked once, over a transport that sends nothing.

Importing the SDK takes two seconds of a core, so the process that starts branches does it for all of them and passes
the prepared headers on with the rest of what opens their routes (``actors.routing.model_factory``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.messages.dialect import dialect_of
from actors.providers.transport.aiohttp_transport import RequestTemplate
from policies.failures.timeout import TimeoutPolicy

if TYPE_CHECKING:
    import httpx2


def client_of(
    sdk: ModuleType, credential: Credential, http_client: httpx2.AsyncClient, *, base_url: str, timeouts: TimeoutPolicy,
    open_telemetry: Any,
) -> Any:  # fmt: skip
    """Return the SDK's client, made from the credential alone: what it is not given it would read from the
    environment."""
    import httpx2

    given: dict[str, Any] = {
        "max_retries": 0,  # the core alone decides on retries
        "timeout": httpx2.Timeout(timeouts.ceiling_s, connect=timeouts.connect_s),
        "http_client": http_client,
        "open_telemetry": open_telemetry,
        "base_url": base_url or None,
    }
    return dialect_of(credential).client(sdk, credential, given)


async def asked(made: Callable[[httpx2.AsyncClient], Any], paths: tuple[str, ...]) -> RequestAuth:
    """Return what a client, ``made`` over the transport that it is given, would send to each path."""
    import httpx2

    seen: list[httpx2.Request] = []

    def look(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(look), trust_env=False) as nowhere:
        client = made(nowhere)
        for path in paths:
            await client.post(path, content=b"{}", cast_to=httpx2.Response)
    return RequestAuth(tuple(
        (path, str(request.url), tuple(request.headers.multi_items()))
        for path, request in zip(paths, seen, strict=True)
    ))  # fmt: skip


def templates_of(prepared: RequestAuth, host: str = "") -> Mapping[str, RequestTemplate]:
    """Return the same by path, for the transport. ``host``: name of the server, as in ``Credential``."""
    return {path: RequestTemplate(url, list(headers), host) for path, url, headers in prepared.requests}
