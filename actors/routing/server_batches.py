"""Message batches at a server of the user's own: found out before a plan proposes them, by a list, which costs nothing.

Most of these servers have no batches over HTTP and say so of the path (Ollama:
https://docs.ollama.com/api/anthropic-compatibility). Gateways may have them: LiteLLM serves ``/v1/batches`` for some of
its providers (https://docs.litellm.ai/docs/batches).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from actors.providers.credentials.account import base_url_of, credential_of
from actors.providers.credentials.credential import CredentialError, without_password
from actors.providers.registry import MESSAGES_CLIENT, is_own_server
from actors.routing.api_detection import lacks_api
from actors.routing.model_spec import ModelSpec, SetupError
from cortex.values.limits import BATCHES, Route

TIMEOUT_S: Final = 5.0
"""Longest wait for an answer, in seconds."""
MESSAGE_BATCHES: Final = "/v1/messages/batches"
FILE_BATCHES: Final = "/batches"
"""Path of OpenAI's batches, below the root of its API."""
_OTHER_METHOD: Final = 405


def has_batches(status: int, body: bytes) -> bool | None:
    """Return whether a server that answers the request of a list so has batches; None: its answer does not tell.

    A list has the field ``data`` at Anthropic and at OpenAI. A path that knows another method alone may make batches
    and list none. A refusal, of a key for instance, says nothing of the path.
    """
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if status == 200 and isinstance(found, dict) and isinstance(found.get("data"), list):
        return True
    return False if status != _OTHER_METHOD and lacks_api((status, body, "")) else None


async def batches_of(
    spec: ModelSpec, route: Route | None, environ: Mapping[str, str]
) -> tuple[Route | None, tuple[str, ...]]:
    """Return the route of message batches, None where the server has none, and a line for the user if that is not
    known. ``route``: as the provider's row has it; a provider's own service is not asked.

    Raises ``SetupError`` where the job is to take batches and the server has none.
    """
    if route is None or not is_own_server(route.endpoint):
        return route, ()
    from actors.providers.transport.empty_request import got_at  # a plan for a provider needs no aiohttp

    try:
        credential = credential_of(spec.location(), environ, required=False)
        address = without_password(base_url_of(spec.row, spec.location(), environ))
    except CredentialError:
        return route, ()  # the plan says what is wrong
    root = "" if urlsplit(address).path else spec.row.root
    path = MESSAGE_BATCHES if spec.row.client == MESSAGES_CLIENT else root + FILE_BATCHES
    answered = await got_at(address + path, credential, TIMEOUT_S)
    has = None if answered is None else has_batches(*answered)
    if has is False and spec.via == BATCHES:
        raise SetupError(f"--via {BATCHES}: {address} takes no message batches; leave it out")
    if has is None:
        said = "does not answer" if answered is None else f"answers {answered[0]} at {path}"
        return route, (f"--via {BATCHES} may not work: {address} {said}, which does not tell whether it has batches",)
    return (route if has else None), ()
