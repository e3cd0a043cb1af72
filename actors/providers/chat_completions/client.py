"""Client of chat completions: a bounded canonical request in, a canonical reply or a typed failure out.

It serves every provider whose row names it (`actors.providers.registry`), and any server of `--base-url` with
`--api chat`. Requests go over the same connections as those of the Messages client; no SDK is imported. Retries and
budgets are the core's: the client makes one attempt, and repeats it only where a request was refused for its key or for
a field that the server does not know, which cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from actors.providers.chat_completions.dialect import DEFAULT, ChatDialect
from actors.providers.chat_completions.errors import ChatFailures, refuses_field
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.chat_completions.request import (
    COMPLETION_BOUND,
    TOKENS_BOUND,
    Untranslatable,
    chat_body,
    model_in,
)
from actors.providers.chat_completions.response import read_completion, refusal
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.base_url import read_base_url
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.reload import CredentialReload
from actors.providers.registry import Provider, is_own_server, load, row_of
from actors.providers.remedies import CHAT_ADDRESS
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate, Response
from actors.providers.transport.body import PageResponse, UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.free_call import free_call
from actors.providers.transport.proxy_tls import network_of
from actors.providers.transport.server_load import Load, ServerLoad
from actors.providers.transport.unlabelled import read_unlabelled
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import attempt_timeout_s, silence_max_s
from policies.limits.limit import RateLimits

STREAM_ABOVE_TOKENS: Final = 8_000
"""Bound of a reply in tokens from which it is streamed, as `actors.providers.messages.client.STREAM_ABOVE_TOKENS`."""

COMPLETIONS: Final = "/chat/completions"
MODELS: Final = "/models"
_OTHER_BOUND: Final = {COMPLETION_BOUND: TOKENS_BOUND, TOKENS_BOUND: COMPLETION_BOUND}
_BILLED_REFUSALS: Final = frozenset({"content_filter", "ResponsibleAIPolicyViolation"})
"""Errors of Azure's filter, for which the prompt is billed
(https://learn.microsoft.com/azure/ai-foundry/openai/how-to/manage-costs)."""


class ChatModel:
    """Model (`actors.ports.model.Model`) behind chat completions, at any provider that serves them.

    The first call opens connections and binds the model to its event loop. Raises CredentialError for an address that
    is no URL.
    """

    counts_tokens = False
    """The API has no counter of tokens."""

    def __init__(self, spec: ClientSpec, row: Provider, credential: Credential) -> None:
        self._row = row
        self._dialect: ChatDialect = load(row.dialect) if row.dialect else DEFAULT
        if credential.base_url:
            address = read_base_url("the base URL", credential.base_url, row.appended, row.root)
            credential = msgspec.structs.replace(credential, base_url=address)
        self.endpoint = spec.endpoint
        self.url = address_of(row, self._dialect, credential)
        """Address to which the paths of the API are appended."""
        self._timeouts = spec.timeouts
        self._concurrency = spec.concurrency
        self._keys = CredentialReload(credential, self._take_key)
        self._failures = ChatFailures(row, self._keys.redact, self.url)
        self._bound = self._dialect.bound if not credential.base_url else TOKENS_BOUND
        self._counts_streams = True
        """False once the server has refused to count the tokens of streams: they are charged at their worst case."""
        self._load = ServerLoad(self.url, lambda: self._keys.credential) if is_own_server(self.endpoint) else None
        self._opening = asyncio.Lock()
        self._transport: AiohttpTransport | None = None
        self._closed = False
        self._limit_headers: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"ChatModel({self.endpoint}, {self._keys.credential!r})"

    @property
    def rate(self) -> RateLimits | None:
        """Rate limits in the last response that had any; None before."""
        return None if self._limit_headers is None else rate_limits(self._limit_headers)

    def at_server(self) -> Load:
        """Return the load that the server told since the last call of this, as `Model` says."""
        return None if self._load is None else self._load.take()

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Make one attempt, as `Model.call` says. A reply that may be long is streamed (`STREAM_ABOVE_TOKENS`)."""
        streamed, silence_s, bound = output_tokens_max > STREAM_ABOVE_TOKENS, None, self._bound
        try:
            sent = chat_body(body, bound, streamed, self._counts_streams)
        except Untranslatable as error:
            return Failure(FailureKind.REJECTED, self._failures.line(str(error)), sent=False)
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
            text = f"the request is none of the Messages API: {type(error).__name__}: {error}"
            return Failure(FailureKind.REJECTED, self._failures.line(text), sent=False)
        if streamed:
            usual_s = attempt_timeout_s(self._timeouts, output_tokens_max, len(body))
            silence_s = max(silence_max_s(self._timeouts, len(body), begun) for begun in (False, True))
            silence_s *= max(timeout_s / usual_s, 1.0)  # a server that queues sends nothing until its turn
        if self._transport is None:
            await self.prepare()
        begun_s, used = time.monotonic(), self._keys.credential
        outcome = await self._sent(sent, timeout_s, silence_s, progress)
        if type(outcome) is not Failure:
            return outcome

        async def again(repeated: bytes) -> Reply | Failure:
            left_s = max(timeout_s - (time.monotonic() - begun_s), 0.001)
            return await self._sent(repeated, left_s, silence_s, progress)

        if await self._keys.after(outcome, used):
            outcome = await again(sent)
        if streamed and refuses_field(outcome, "stream_options"):
            self._counts_streams = False
            outcome = await again(chat_body(body, bound, streamed, counted=False))
        if refuses_field(outcome, bound):
            other = _OTHER_BOUND[bound]
            outcome = await again(chat_body(body, other, streamed, self._counts_streams))
            if not refuses_field(outcome, other):
                self._bound = other
        if not isinstance(outcome, Failure):
            return outcome
        if outcome.kind is FailureKind.REFUSED:
            usage = UNKNOWN_USAGE if outcome.error_type in _BILLED_REFUSALS else Usage()
            return refusal(model_in(body), outcome.message, usage)
        return self._failures.naming_model(outcome, body)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the API has no counter."""
        return None

    async def look(self, path: str, body: bytes | None, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request that costs nothing, by the way and with the headers of a call: a GET without a body.

        Return status, headers, and at most a megabyte of the response. Raises aiohttp's errors, TimeoutError or
        ConfigurationFault; `failure_of` turns each into a Failure.
        """
        context, proxy = await network_of(self.url, self._keys.credential)
        template = RequestTemplate(self.url + path, self._headers(self._keys.credential))
        return await free_call(template, context, proxy, body, timeout_s)

    def failure_of(self, error: BaseException) -> Failure:
        """Return the Failure of an error of `look`, or of a call."""
        return self._failures.of_exception(error)

    def refusal_of(self, status: int, headers: Mapping[str, str], data: bytes, path: str = "") -> Failure:
        """Return the Failure of a response of `look` whose status is no success. `path`: the path, where each server of
        the API has it."""
        return self._failures.of_response(status, headers, data, path)

    async def prepare(self) -> None:
        """Open the transport. The first call reports any error."""
        with contextlib.suppress(Exception):
            await self._open()

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        self._closed = True
        transport, self._transport = self._transport, None
        if self._load is not None:
            await self._load.close()
        if transport is not None:
            await transport.close()

    async def _sent(
        self, body: bytes, timeout_s: float, silence_s: float | None, progress: Callable[[int], None] | None
    ) -> Reply | Failure:
        try:
            transport = self._transport or await self._open()
            async with transport.send(COMPLETIONS, body, timeout_s=timeout_s, silence_s=silence_s) as answer:
                return await self._take(answer, progress)
        except Exception as error:  # every error of an attempt is a Failure
            return self.failure_of(error)

    async def _take(self, answer: Response, progress: Callable[[int], None] | None) -> Reply | Failure:
        """Return the reply in a response, or its failure."""
        status, headers = answer.status, answer.headers
        if reports_limits(headers):
            self._limit_headers = headers
        if not 200 <= status < 300:
            try:
                data = await answer.read()
            except (aiohttp.ClientError, TimeoutError, UnreadableResponse):
                data = b""  # without a whole explanation the status says enough
            return self._failures.of_response(status, headers, data, COMPLETIONS)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                try:
                    whole = await answer.read()
                except (aiohttp.ClientError, TimeoutError) as error:
                    return _salvaged(answer, error)
                if progress is not None:
                    progress(len(whole))
            else:
                whole, _ = await read_unlabelled(answer, kind, progress, ChunkAssembler)
            return read_completion(whole)
        except StreamError as error:
            return self._failures.of_stream_error(error, status, headers, COMPLETIONS)
        except PageResponse as error:
            where = self._failures.where(COMPLETIONS)
            return self._failures.unreadable(f"{where}: {error}", status, remedy=CHAT_ADDRESS)
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), status, isinstance(error, UnreadableAnswer))

    async def _open(self) -> AiohttpTransport:
        async with self._opening:
            if self._closed:
                raise ModelClosed
            if self._transport is None:
                context, proxy = await network_of(self.url, self._keys.credential)
                transport = AiohttpTransport(
                    connections_max=self._concurrency, context=context, proxy=proxy, connect_s=self._timeouts.connect_s
                )
                await transport.take(self._templates(self._keys.credential))
                self._transport = transport
            return self._transport

    async def _take_key(self, credential: Credential) -> None:
        """Use a renewed key for requests from now on."""
        await (await self._open()).take(self._templates(credential))

    def _templates(self, credential: Credential) -> dict[str, RequestTemplate]:
        return {COMPLETIONS: RequestTemplate(self.url + COMPLETIONS, self._headers(credential))}

    def _headers(self, credential: Credential) -> list[tuple[str, str]]:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json"), ("User-Agent", "cortex")]
        if credential.api_key:
            headers.append((self._dialect.key_header, self._dialect.key_value(credential.api_key)))
        return headers + list(credential.custom_headers)


def address_of(row: Provider, dialect: ChatDialect, credential: Credential) -> str:
    """Return the address to which the client appends its paths: a host without a path has them below the row's root."""
    resource = credential.platform.resource if credential.platform is not None else ""
    address = credential.base_url or (dialect.address.format(resource) if dialect.address else row.base_url)
    address = address.rstrip("/")
    return address if urlsplit(address).path else address + row.root


def _salvaged(answer: Response, error: Exception) -> Reply:
    """Return the reply in what came before an error of the connection, if it is whole JSON; else raise the error."""
    try:
        return read_completion(answer.received())
    except (UnreadableResponse, StreamError):
        raise error from None


def model_of(spec: ClientSpec) -> ChatModel:
    """Return the client for an account: ``Provider.client`` of every provider that serves chat completions."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    return ChatModel(spec, row_of(spec.provider or spec.credential.provider), spec.credential)
