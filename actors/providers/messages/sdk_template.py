"""What the SDK would send: it is asked once, by a client whose transport goes nowhere.

The import of the SDK takes two seconds of a core, so who starts branches asks for all of them, and tells each with what
else opens its routes (``actors.routing.model_factory``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from actors.providers.credentials import clouds
from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.transport.aiohttp_transport import RequestTemplate
from policies.failures.timeout import TimeoutPolicy

if TYPE_CHECKING:
    import httpx2


def client_of(
    sdk: ModuleType, credential: Credential, http_client: httpx2.AsyncClient, *, base_url: str, timeouts: TimeoutPolicy,
    open_telemetry: Any,
) -> Any:  # fmt: skip
    """The SDK's client, from the credential alone: it looks at the environment for whatever it is not given."""
    import httpx2

    given: dict[str, Any] = {
        "max_retries": 0,  # retry is decided in one place, and that is the core
        "timeout": httpx2.Timeout(timeouts.ceiling_s, connect=timeouts.connect_s),
        "http_client": http_client,
        "open_telemetry": open_telemetry,
    }
    if credential.platform is not None:
        return clouds.client_of(sdk, credential, **given)
    headers: dict[str, Any] = dict(credential.custom_headers)
    auth: dict[str, str] = {}
    if credential.api_key:
        auth["api_key"] = credential.api_key
    else:
        auth["auth_token"] = credential.auth_token or "unused"  # given nothing, the SDK would look for a key
        if not credential.auth_token and "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = sdk.Omit()
    client = sdk.AsyncAnthropic(**auth, base_url=base_url, default_headers=headers, **given)
    client._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return client


async def asked(made: Callable[[httpx2.AsyncClient], Any], paths: tuple[str, ...]) -> RequestAuth:
    """What a client, ``made`` over the transport that it is given, would send to each path."""
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


def templates_of(prepared: RequestAuth) -> Mapping[str, RequestTemplate]:
    """The same, to send by."""
    return {path: RequestTemplate(url, list(headers)) for path, url, headers in prepared.requests}
