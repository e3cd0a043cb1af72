"""Client of the Messages API: a bounded request in, a reply or a typed failure out.

The Messages form is also the canonical form of requests and replies (`cortex.values.canonical`), so this client
translates nothing: it serves every provider whose row names it (`actors.providers.registry`).

The only module that imports `anthropic`, and it does so late: the import takes two seconds. The SDK's client (retries
off, every timeout explicit) prepares requests, aiohttp's connections carry them. Retries and budgets are the core's;
the client makes one attempt and returns its outcome.

Requests a second, one core, 100 at once, a server that answers in 20 ms (see `benchmarks/`): `messages.create` 900,
`client.post` 1,200 (`through_sdk=True`), prepared by the SDK and sent over aiohttp's connections 4,500, of 5,000.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.base_url import read_base_url
from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages import sdk_template
from actors.providers.messages.batches import BATCHES, BatchTransport, ProviderBatches
from actors.providers.messages.dialect import dialect_of
from actors.providers.messages.errors import MessagesFailures
from actors.providers.messages.flawed_response import charset_in, plain_json, plain_value, read_flawed
from actors.providers.messages.rate_limit_headers import rate_limits, reports_limits
from actors.providers.messages.response import read_message, read_reply
from actors.providers.messages.sdk_transport import SdkTransport
from actors.providers.messages.sse import StreamAssembler, asking_to_stream
from actors.providers.registry import is_own_server, row_of
from actors.providers.remedies import ADDRESS
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate, Response, Transport
from actors.providers.transport.body import PageResponse, UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.free_call import free_call
from actors.providers.transport.proxy_tls import network_of
from actors.providers.transport.server_load import Load, ServerLoad
from actors.providers.transport.unlabelled import read_unlabelled
from cortex.values.reply import Reply
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import TimeoutPolicy, attempt_timeout_s, silence_max_s
from policies.limits.limit import RateLimits

if TYPE_CHECKING:
    import httpx2

STREAM_ABOVE_TOKENS: Final = 8_000
"""Bound of a reply in tokens from which it is streamed. At 50 tokens a second that is 160 s without progress to be
seen, and networks drop a connection that is silent for some minutes."""

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"

# Fields of a request that the counter takes (`MessageCountTokensParams` of the SDK; a test compares). It refuses all
# others, `max_tokens` among them.
COUNTED_FIELDS: Final = frozenset(
    """messages model cache_control output_config speed system thinking tool_choice tools""".split()
)

NOTHING: Final = RequestAuth()
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AnthropicModel:
    """Model (`actors.ports.model.Model`) behind the Messages API, at any provider that serves it.

    The credential's provider decides how requests are prepared and sent (`dialect.SdkDialect`). A key that comes from a
    file is read again when it is refused, and the request is sent once more.

    The model is made from its arguments alone, never from the environment. The first call opens connections and binds
    the model to its event loop. `concurrency` is the most connections, and so the most calls under way. With
    `through_sdk` the SDK's own client sends every request, for its traces (`open_telemetry`, as the SDK's client
    option) and error handling, at a quarter of the speed. `prepared` holds requests that another model of the same
    credential has prepared: the SDK is then imported only for anything else. Raises CredentialError for an address that
    is no URL.
    """

    def __init__(
        self,
        credential: Credential,
        *,
        base_url: str = "",
        endpoint: str = "",
        concurrency: int = 100,
        timeouts: TimeoutPolicy | None = None,
        stream_above_tokens: int = STREAM_ABOVE_TOKENS,
        through_sdk: bool = False,
        open_telemetry: Any = False,
        prepared: RequestAuth = NOTHING,
    ) -> None:
        self._row, self._dialect = row_of(credential.provider), dialect_of(credential)
        if base_url or credential.base_url:
            base_url = read_base_url("the base URL", base_url or credential.base_url, self._row.appended)
            credential = msgspec.structs.replace(credential, base_url=base_url)
        self._base_url = base_url or self._row.base_url
        self.endpoint = endpoint or credential.endpoint.rstrip("/")
        self.concurrency = concurrency
        self._timeouts = timeouts or TimeoutPolicy()
        self._stream_above_tokens = stream_above_tokens
        self._through_sdk = through_sdk
        self._open_telemetry = open_telemetry
        self._keys = CredentialReload(credential, self._take_key)
        self._prepared = credential, prepared
        self._failures = MessagesFailures(self._row, self._keys.redact, self._base_url)
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._limit_headers: Mapping[str, str] | None = None
        self._counter_missing = not self._dialect.counts_tokens
        self._load = ServerLoad(self._base_url, lambda: self._keys.credential) if is_own_server(self.endpoint) else None
        self.batches = ProviderBatches(
            self._batch_transport, self._keys, self._failures, self._timeouts.connect_s + self._timeouts.first_byte_s
        )
        """Message batches of the provider, under the same credential."""

    def __repr__(self) -> str:
        return f"AnthropicModel({self.endpoint}, {self._keys.credential!r})"

    @property
    def counts_tokens(self) -> bool:
        """False if ``count_tokens`` returns None in any case."""
        return not self._counter_missing

    @property
    def rate(self) -> RateLimits | None:
        """Rate limits in the last response that had any; None before."""
        return None if self._limit_headers is None else rate_limits(self._limit_headers)

    def at_server(self) -> Load:
        """Return the load that the server told since the last call of this, as `Model` says."""
        return None if self._load is None else self._load.take()

    async def call(
        self,
        body: bytes,
        *,
        output_tokens_max: int,
        timeout_s: float,
        progress: Callable[[int], None] | None = None,
    ) -> Reply | Failure:
        """Make one attempt, as `Model.call` says. A reply that may be long is streamed (`STREAM_ABOVE_TOKENS`)."""
        silence_s = None
        if output_tokens_max > self._stream_above_tokens:
            usual_s = attempt_timeout_s(self._timeouts, output_tokens_max, len(body))
            body = asking_to_stream(body)
            silence_s = max(silence_max_s(self._timeouts, len(body), begun) for begun in (False, True))
            silence_s *= max(timeout_s / usual_s, 1.0)  # a server that queues sends nothing until its turn
        if self._transport is None:
            await self.prepare()  # takes seconds, which do not count against the attempt's time
        begun_s, used = time.monotonic(), self._keys.credential
        outcome = await self._sent(body, timeout_s, silence_s, progress)
        if type(outcome) is Failure and await self._keys.after(outcome, used):
            left_s = timeout_s - (time.monotonic() - begun_s)
            outcome = await self._sent(body, max(left_s, 0.001), silence_s, progress)
        return outcome

    async def _sent(
        self, body: bytes, timeout_s: float, silence_s: float | None, progress: Callable[[int], None] | None
    ) -> Reply | Failure:
        try:
            transport = self._transport or await self._open()
            async with transport.send(MESSAGES, body, timeout_s=timeout_s, silence_s=silence_s) as answer:
                found = await self._take(answer, progress)
            return self._failures.naming_model(found, body) if type(found) is Failure else found
        except Exception as error:  # every error of an attempt is a Failure
            return self.failure_of(error)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the input tokens of a request by the provider's count; None where it has none, for any reason."""
        if self._counter_missing:
            return None
        try:
            fields = _FIELDS.decode(body)
            asked = msgspec.json.encode({name: raw for name, raw in fields.items() if name in COUNTED_FIELDS})
            transport = self._transport or await self._open()
            timeout_s = self._timeouts.connect_s + self._timeouts.first_byte_s
            async with transport.send(COUNT_TOKENS, asked, timeout_s=timeout_s, silence_s=None) as answer:
                data = await answer.read()
                if answer.status != 200:
                    failure = self._failures.of_response(answer.status, answer.headers, data)
                    unknown_model = failure.kind is FailureKind.BLOCKED
                    self._counter_missing = answer.status in NO_SUCH_PATH and not unknown_model
                    return None
                return msgspec.json.decode(data, type=_TokenCount).input_tokens
        except Exception:  # a missing count is no failure
            return None

    async def look(self, path: str, body: bytes | None, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request that costs nothing, by the way and with the headers of any other call: a GET without a body.

        Return status, headers, and at most a megabyte of the response. Raises aiohttp's errors, TimeoutError or
        ConfigurationFault; `failure_of` turns each into a Failure.
        """
        sdk, context, proxy = await self._way()
        template = (await self._templates(sdk, (path,)))[path]
        return await free_call(template, context, proxy, body, timeout_s)

    def failure_of(self, error: BaseException) -> Failure:
        """Return the Failure of an error of `look`, or of a call."""
        return self._failures.of_exception(error)

    def refusal_of(self, status: int, headers: Mapping[str, str], data: bytes, path: str = "") -> Failure:
        """Return the Failure of a response of `look` whose status is no success. `path`: the path, where each server of
        the API has it."""
        return self._failures.of_response(status, headers, data, path)

    async def open(self) -> None:
        """Import the SDK and make the transport now, so that the first call need not wait two seconds for it.

        Raises ConfigurationFault for a certificate file or folder that cannot be used.
        """
        if self._transport is None:
            await self._open()

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        self._closed = True
        transport, self._transport = self._transport, None
        if self._load is not None:
            await self._load.close()
        if transport is not None:
            await transport.close()
        await self.batches.close()

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
            return self._failures.of_response(status, headers, data, MESSAGES)
        kind, _, parameters = headers.get("content-type", "").partition(";")
        kind = kind.strip().lower()
        try:
            if kind == "application/json":
                try:
                    whole = await answer.read()
                except (aiohttp.ClientError, TimeoutError) as error:
                    return _salvaged(answer, error)
                if progress is not None:
                    progress(len(whole))
                return self._read_whole(whole, answer, parameters)
            # The body says what it is: gateways and proxies label JSON as text, and plain answers as streams.
            whole, streamed = await read_unlabelled(answer, kind, progress, StreamAssembler)
            return read_message(whole) if streamed else self._read_whole(whole, answer, parameters)
        except StreamError as error:
            return self._failures.of_stream_error(error, status, headers)
        except PageResponse as error:
            return self._failures.unreadable(f"{self._failures.where(MESSAGES)}: {error}", status, remedy=ADDRESS)
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), status, isinstance(error, UnreadableAnswer))

    def _read_whole(self, whole: bytes, answer: Response, parameters: str) -> Reply | Failure:
        """Return the reply in a whole body. ``parameters``: those of its content type."""
        try:
            return read_reply(whole)
        except UnreadableResponse:
            try:
                return read_flawed(whole, charset_in(parameters))
            except UnreadableResponse:
                plain = plain_json(whole)
                if plain.startswith(b"{") and self._failures.names_error(plain):  # a gateway's "200, but"
                    return self._failures.of_response(answer.status, answer.headers, plain, MESSAGES)
                raise

    async def prepare(self) -> None:
        """Get ready for the first call: the SDK takes a second to import. The first call reports any error."""
        with contextlib.suppress(Exception):
            await self._open()

    async def _open(self) -> Transport:
        async with self._opening:
            if self._closed:
                raise ModelClosed
            if self._transport is None:
                self._transport = await self._make_transport()
            return self._transport

    async def _batch_transport(self) -> BatchTransport:
        if self._closed:
            raise ModelClosed
        if (template := self._shared_auth().get(BATCHES)) is not None:
            context, proxy = await self._wire()
        else:
            sdk, context, proxy = await self._way()
            template = (await self._templates(sdk, (BATCHES,)))[BATCHES]
        connect_s, silence_s = self._timeouts.connect_s, self._timeouts.first_byte_s
        return BatchTransport(template, context=context, proxy=proxy, connect_s=connect_s, silence_s=silence_s)

    async def prepared(self) -> RequestAuth:
        """Return address and headers of each kind of request, for models of the same credential in other processes.
        Empty where each of them needs the SDK."""
        if self._through_sdk or not self._dialect.shares_headers:
            return NOTHING
        return await self._asked(await asyncio.to_thread(_import_sdk), (MESSAGES, COUNT_TOKENS, BATCHES))

    def _shared_auth(self) -> Mapping[str, RequestTemplate]:
        """Return the requests that another model has prepared, by path; empty where they do not hold for the present
        credential."""
        credential, prepared = self._prepared
        shared = self._dialect.shares_headers and not self._through_sdk
        holds = shared and credential is self._keys.credential
        return sdk_template.templates_of(prepared) if holds else {}

    async def _way(self) -> tuple[ModuleType, ssl.SSLContext | None, str | None]:
        """Return the SDK, and what ``_wire`` returns."""
        sdk = await asyncio.to_thread(_import_sdk)
        await asyncio.to_thread(_import_modules, self._row.modules)
        return sdk, *await self._wire()

    async def _wire(self) -> tuple[ssl.SSLContext | None, str | None]:
        """Return the trusted certificates, None for plain HTTP; and the proxy, None for a direct connection."""
        return await network_of(await self.address(), self._keys.credential)

    async def address(self) -> str:
        """Return the URL of the API; that of a cloud is known to the SDK."""
        if self._base_url:
            return self._base_url
        import httpx2

        sdk = await asyncio.to_thread(_import_sdk)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(_nowhere), trust_env=False) as nowhere:
            return str(self._client(sdk, nowhere).base_url)

    async def _take_key(self, credential: Credential) -> None:
        """Use a renewed key for requests from now on. A transport that is being made has the old one: wait for it."""
        sdk = await asyncio.to_thread(_import_sdk)
        async with self._opening:
            transport = self._transport
            if isinstance(transport, SdkTransport):
                transport.client.api_key = credential.api_key
            elif isinstance(transport, AiohttpTransport):
                await transport.take(await self._templates(sdk, (MESSAGES, COUNT_TOKENS), credential))
            if self.batches.transport is not None:
                self.batches.transport.take((await self._templates(sdk, (BATCHES,), credential))[BATCHES])

    async def _make_transport(self) -> Transport:
        if shared := self._shared_auth():
            return await self._direct(shared, *await self._wire())
        sdk, context, proxy = await self._way()
        if self._through_sdk or self._dialect.signed:
            import httpx2

            http_client = sdk.DefaultAioHttpClient(
                limits=httpx2.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency),
                verify=True if context is None else context,
                proxy=proxy,
                trust_env=False,
                follow_redirects=False,  # a redirect could carry custom headers to another host
            )
            client = self._client(sdk, http_client)
            made_there = self._keys.credential.platform is not None
            return SdkTransport(client, sdk, connect_s=self._timeouts.connect_s, made_there=made_there)
        return await self._direct(await self._templates(sdk, (MESSAGES, COUNT_TOKENS)), context, proxy)

    async def _direct(
        self, templates: Mapping[str, RequestTemplate], context: ssl.SSLContext | None, proxy: str | None
    ) -> AiohttpTransport:
        transport = AiohttpTransport(
            connections_max=self.concurrency, context=context, proxy=proxy, connect_s=self._timeouts.connect_s
        )
        await transport.take(templates)
        return transport

    def _client(self, sdk: ModuleType, http_client: httpx2.AsyncClient, credential: Credential | None = None) -> Any:
        credential = credential or self._keys.credential
        return sdk_template.client_of(
            sdk, credential, http_client, base_url=self._base_url, timeouts=self._timeouts,
            open_telemetry=self._open_telemetry,
        )  # fmt: skip

    async def _asked(
        self, sdk: ModuleType, paths: tuple[str, ...], credential: Credential | None = None
    ) -> RequestAuth:
        return await sdk_template.asked(lambda nowhere: self._client(sdk, nowhere, credential), paths)

    async def _templates(
        self, sdk: ModuleType, paths: tuple[str, ...], credential: Credential | None = None
    ) -> Mapping[str, RequestTemplate]:
        """Return what the SDK would send to each path (``sdk_template``)."""
        return sdk_template.templates_of(await self._asked(sdk, paths, credential))


def _nowhere(request: httpx2.Request) -> httpx2.Response:
    """Refuse every request: the client is only asked for its address."""
    raise AssertionError(f"{request.url}: no request may be sent here")


class _TokenCount(msgspec.Struct):
    input_tokens: int


def _salvaged(answer: Response, error: Exception) -> Reply:
    """Return the reply in what came before an error of the connection, if it is whole JSON; else raise the error.

    Servers announce too long a body, or leave out the last chunk: the answer is there, and was paid.
    """
    try:
        return read_message(plain_value(answer.received()))
    except (UnreadableResponse, StreamError):
        raise error from None


def _import_sdk() -> ModuleType:
    import anthropic

    return anthropic


def _import_modules(names: tuple[str, ...]) -> None:
    """Import what the SDK's client will import at its first request; that takes a second. A missing module is named by
    that request."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def model_of(spec: ClientSpec) -> AnthropicModel:
    """Return the client for an account: ``Provider.client`` of every provider that serves the Messages API."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    return AnthropicModel(
        spec.credential, endpoint=spec.endpoint, concurrency=spec.concurrency, timeouts=spec.timeouts,
        prepared=spec.prepared,
    )  # fmt: skip
