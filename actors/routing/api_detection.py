"""Detection of the API of a server of the user's own, where the user named an address and no API.

Servers of the Messages API (vLLM, SGLang, llama.cpp, Ollama, LiteLLM) serve chat completions as well; other servers,
and earlier releases of these, serve chat completions alone. A request of ``{}`` tells them apart and costs nothing: no
API answers it, and each refuses it in a way of its own. A server that has both, and passes over schemas in the Messages
API (``actors.routing.server_features``), is asked by chat completions, which have log probabilities, by jobs that want
either. Other jobs stay with the Messages API: requests may hold in it what chat completions lack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.providers.credentials.account import base_url_of, credential_of, endpoint_named
from actors.providers.credentials.credential import CredentialError, without_password
from actors.providers.registry import (
    CHAT_CLIENT,
    DEFAULT,
    OPENAI,
    RESPONSES_CLIENT,
    is_own_server,
    over_api,
    row_of,
)
from actors.routing.model_spec import ModelSpec
from actors.routing.server_features import MESSAGES_PATH, without_schemas
from cortex.programs.batch import Batch
from cortex.programs.shards import unsharded
from cortex.programs.table import Table
from cortex.state.program import Program
from cortex.values.chat_form.request import EMBEDDINGS, RESPONSES
from cortex.values.limits import BATCHES
from policies.failures.error_vocabulary import NO_SUCH_PATH

CHAT_PATH: Final = "/chat/completions"
TIMEOUT_S: Final = 10.0
"""Longest wait in seconds for the refusal of a request. A server that says nothing by then is taken for one of the
Messages API: its calls then show what is wrong."""
NO_MESSAGES: Final = "has no Messages API"
_LACKS_FIELDS: Final = 422

Answered = tuple[int, bytes, str]
"""Status, body and header ``Server`` of a response."""


def lacks_api(answered: Answered | None) -> bool:
    """Return whether a server that answered ``{}`` so lacks the API at that path.

    There is no such path or method; or the answer is a success, which no server of the API gives to an empty request:
    LM Studio answers 200 with ``Unexpected endpoint or method`` for every path that it does not know
    (https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/618).
    """
    return answered is not None and (answered[0] in NO_SUCH_PATH or 200 <= answered[0] < 400)


def has_api(answered: Answered | None) -> bool:
    """Return whether a server that answered ``{}`` so has the API at that path: it refuses the request, as JSON, or as
    one that lacks fields, in text (422; TGI and others built on axum).

    A gateway in front of a server that is away (502 to 504) says nothing of the API.
    """
    if answered is None:
        return False
    status, body, _ = answered
    if status == _LACKS_FIELDS:
        return True
    refused = 400 <= status <= 500 and status not in NO_SUCH_PATH
    try:
        return refused and isinstance(msgspec.json.decode(body), dict | list)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def over_chat(spec: ModelSpec) -> bool:
    """Return whether requests of chat completions are sent to a model as they are: over chat completions, or at a
    server of the user's own that may have them."""
    return spec.row.client == CHAT_CLIENT or is_open(spec)


def line_apis(spec: ModelSpec, given: str, stored: str) -> tuple[str, ...]:
    """Return OpenAI's APIs besides chat completions over which lines of batch files may be asked. ``given``: the API
    that the user named; ``stored``: that of the lines of a job that exists; both may be empty."""
    row = spec.row
    if stored:
        return (stored,)
    if row.by_model:
        return ()
    own = is_open(spec)
    responses = row.client == RESPONSES_CLIENT or (not given and (own or over_api(row, RESPONSES) is not None))
    embeddings = own or bool(row.embeddings)
    return (*((RESPONSES,) if responses else ()), *((EMBEDDINGS,) if embeddings else ()))


def wants_schemas(program: Program) -> bool | None:
    """Return whether a job asks for answers of a schema or for log probabilities. None: its rows are requests of the
    Messages API, some of which may. A program of other calls than a table's passes for one that does."""
    asked = unsharded(program)[0]
    if isinstance(asked, Table) and not asked.vectors:
        return bool(asked.schema) or asked.top_logprobs is not msgspec.UNSET
    return None if type(asked) is Batch else True


async def with_apis(
    spec: ModelSpec, environ: Mapping[str, str], endpoints: Collection[str] = (), chat: bool = False,
    schemas: bool | None = True,
) -> tuple[ModelSpec, str]:  # fmt: skip
    """Return a job's specification with the APIs of its servers, and a notice for the user; empty: nothing was found.

    The specifications of further servers, fallbacks and roles are completed as well. ``endpoints``: those of the job's
    routes, if it exists, whose APIs are known. ``chat``: chat completions are preferred where a server has both.
    ``schemas``: result of ``wants_schemas``.
    """
    roles = list(spec.roles)
    asked = (spec, *spec.further, *(spec.roles[role] for role in roles))
    found = await asyncio.gather(*(found_api(each, environ, endpoints, chat=chat, schemas=schemas) for each in asked))
    own, *others = [each for each, _ in found]
    further, players = others[: len(spec.further)], others[len(spec.further) :]
    changed = any(each is not before for (each, _), before in zip(found, asked, strict=True))
    own = own.with_further(tuple(further))
    own = msgspec.structs.replace(own, roles=dict(zip(roles, players, strict=True)))
    return (own if changed else spec), "; ".join(dict.fromkeys(notice for _, notice in found if notice))


async def with_api(
    spec: ModelSpec, environ: Mapping[str, str], endpoints: Collection[str] = (), timeout_s: float = TIMEOUT_S,
    chat: bool = False,
) -> ModelSpec:  # fmt: skip
    """Return a specification with the API of its server; as it is if the user named a provider, if the address is no
    server of the user's own, if the server has the Messages API, or if nothing can be found out. ``chat``: the server
    is asked over chat completions unless it has the Messages API alone."""
    return (await found_api(spec, environ, endpoints, timeout_s, chat))[0]


async def found_api(
    spec: ModelSpec, environ: Mapping[str, str], endpoints: Collection[str] = (), timeout_s: float = TIMEOUT_S,
    chat: bool = False, schemas: bool | None = True,
) -> tuple[ModelSpec, str]:  # fmt: skip
    """Return what ``with_api`` returns, and a notice for the user; empty: nothing was found by a request, or ``chat``
    is wanted anyway. ``schemas``: result of ``wants_schemas``."""
    if not is_open(spec):
        return spec, ""
    try:
        if (known := _known(spec, environ, endpoints)) is not None:
            return known, ""
        if chat:
            return await _preferring_chat(spec, environ, timeout_s), ""
        each, why, _ = await _beside_messages(spec, environ, timeout_s, schemas=schemas is not False)
    except CredentialError:
        return spec, ""  # the resolution of the route says what is wrong
    address = without_password(spec.base_url if each is None else each.base_url)
    if each is None or (schemas is None and why != NO_MESSAGES):
        return spec, "" if each is None else f"{address} {why}: give --api chat if rows hold some"
    return each, f"{address} {why}: asked by OpenAI's chat completions"


async def told_apis(spec: ModelSpec, environ: Mapping[str, str], timeout_s: float) -> tuple[ModelSpec, str]:
    """Return a specification with the API of its server that knows schemas, and by which APIs jobs ask it, with a
    schema and without; empty if the user named the API, or nothing can be found out."""
    try:
        each, why, has_messages = (
            await _beside_messages(spec, environ, timeout_s, schemas=True) if is_open(spec) else (None, "", False)
        )
    except CredentialError:
        return spec, ""
    if each is None:
        address = without_password(_address(spec))
        return spec, f"{address}: asked by the Messages API, with a schema or without" if has_messages else ""
    of_both = "with a schema or --logprobs, by the Messages API without"
    told = "with a schema or without" if why == NO_MESSAGES else of_both
    return each, f"{without_password(each.base_url)} {why}: asked by OpenAI's chat completions {told}"


async def _beside_messages(
    spec: ModelSpec, environ: Mapping[str, str], timeout_s: float, *, schemas: bool
) -> tuple[ModelSpec | None, str, bool]:
    """Return a specification over chat completions, and why a server is asked by them, as the end of a sentence; None
    and empty if it is not; and whether it has the Messages API. ``schemas``: a server with both APIs is asked whether
    it keeps to schemas over Messages. Raises CredentialError."""
    answered = await _asked(spec, MESSAGES_PATH, environ, timeout_s)
    why, has_messages = NO_MESSAGES if lacks_api(answered) else "", has_api(answered)
    if answered is not None and has_messages and schemas:
        why = await without_schemas(answered[2], partial(got, spec, environ=environ, timeout_s=timeout_s))
    for each in _over_chat(spec) if why else ():
        if has_api(await _asked(each, CHAT_PATH, environ, timeout_s)):
            return each, why, has_messages
    return None, "", has_messages


async def _preferring_chat(spec: ModelSpec, environ: Mapping[str, str], timeout_s: float) -> ModelSpec:
    options = _over_chat(spec)
    for each in options:
        if has_api(await _asked(each, CHAT_PATH, environ, timeout_s)):
            return each
    return spec if has_api(await _asked(spec, MESSAGES_PATH, environ, timeout_s)) else options[0]


def as_known(spec: ModelSpec, environ: Mapping[str, str], endpoints: Collection[str]) -> ModelSpec:
    """Return a specification with the API by which one of these endpoints is asked; as it is if it leads to none of
    them, or the user named a provider."""
    try:
        return (_known(spec, environ, endpoints) if is_open(spec) else None) or spec
    except CredentialError:
        return spec


def is_open(spec: ModelSpec) -> bool:
    """Return whether a specification leaves open by which API its server is asked."""
    if spec.provider or not spec.base_url or spec.via == BATCHES or spec.row.by_model:
        return False
    return is_own_server(_address(spec), row_of(DEFAULT))


def _address(spec: ModelSpec) -> str:
    """Address that the user named, as that of the Messages API; empty for one that cannot be read."""
    try:
        return base_url_of(row_of(DEFAULT), spec.location(), {})
    except CredentialError:
        return ""


def _known(spec: ModelSpec, environ: Mapping[str, str], endpoints: Collection[str]) -> ModelSpec | None:
    options = (spec, *_over_chat(spec)) if endpoints else ()
    return next((each for each in options if _endpoint(each, environ) in endpoints), None)


def _over_chat(spec: ModelSpec) -> list[ModelSpec]:
    """The specification over chat completions: at its address, and where that has a path also at the ``/v1`` below it,
    since ``/api`` and ``/api/v1`` are one address of the Messages API (``Provider.appended``)."""
    address = _address(spec)
    tails = ("", "/v1") if urlsplit(address).path else ("",)
    return [msgspec.structs.replace(spec, provider=OPENAI, base_url=address + tail) for tail in tails]


def _endpoint(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    return endpoint_named(credential_of(spec.location(), environ, required=False))


async def got(spec: ModelSpec, path: str, environ: Mapping[str, str], timeout_s: float) -> bytes | None:
    """Return what a server has at a path below a specification's address, of the Messages API; None: nothing, or no
    answer. Raises CredentialError."""
    from actors.providers.transport.empty_request import found_at

    credential = credential_of(spec.location(), environ, required=False)
    return await found_at(without_password(_address(spec)) + path, credential, timeout_s)


async def _asked(spec: ModelSpec, path: str, environ: Mapping[str, str], timeout_s: float) -> Answered | None:
    """Send an empty request to a path below a specification's address, and return the answer."""
    from actors.providers.transport.empty_request import refusal  # a rehearsal needs no aiohttp

    credential = credential_of(spec.location(), environ, required=False)
    address = without_password(base_url_of(spec.row, spec.location(), environ))
    root = spec.row.root if path == CHAT_PATH and not urlsplit(address).path else ""
    return await refusal(address + root + path, credential, timeout_s)
