"""Model connected to a scripted server, and constants of tests of single attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import pytest

from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.messages.client import AnthropicModel
from actors.providers.transport import aiohttp_transport
from policies.failures.failure import Failure
from tests.edge.support.scripted_http_server import Answer, Script, Scripted, scripted
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-verysecretkey-0123456789"
CREDENTIAL = Credential(api_key=KEY)
BODY = b'{"model":"claude-test",  "max_tokens":16,"messages":[{"role":"user","content":"\xc3\xa9?"}]}'

ROADS = ("direct", "told", "session", "sdk")
"""Ways to send a request: prepared by the SDK and sent over aiohttp connections; the same, prepared by another model;
through aiohttp's session; through the SDK's client."""

Connect = Callable[..., AbstractAsyncContextManager[tuple[Scripted, AnthropicModel]]]


def connected(request: pytest.FixtureRequest) -> Connect:
    """Fixture over `ROADS`: a server with a script, and a model that is connected to it."""

    @asynccontextmanager
    async def connect(
        script: Script, credential: Credential = CREDENTIAL, **settings: Any
    ) -> AsyncIterator[tuple[Scripted, AnthropicModel]]:
        async with scripted(script) as server:
            settings = {"base_url": server.url, "through_sdk": request.param == "sdk"} | settings
            if request.param == "told":
                settings["prepared"] = await told(AnthropicModel(credential, **settings))
            model = AnthropicModel(credential, **settings)
            with pytest.MonkeyPatch.context() as patched:
                if request.param == "session":
                    patched.setattr(aiohttp_transport, "head_of", AsyncMock(return_value=None))
                try:
                    yield server, model
                finally:
                    await model.close()

    return connect


async def told(model: AnthropicModel) -> RequestAuth:
    """Return the authentication that a model shares with another of the same credential."""
    try:
        return await model.prepared()
    finally:
        await model.close()


def always(answer: Answer) -> Script:
    """Return a script with the same answer to every request."""
    return lambda _: answer


def error(kind: str, message: str, **more: Any) -> dict[str, Any]:
    """Return an error in the provider's form."""
    return {"type": "error", "error": {"type": kind, "message": message} | more, "request_id": "req_1"}


async def failed(model: AnthropicModel, timeout_s: float = PATIENCE_S, output_tokens_max: int = 16) -> Failure:
    """Return the failure of one call that must fail, and not by its time unless that is given."""
    call = model.call(BODY, output_tokens_max=output_tokens_max, timeout_s=timeout_s)
    found = await asyncio.wait_for(call, PATIENCE_S)
    assert isinstance(found, Failure)
    return found
