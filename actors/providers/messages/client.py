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
from actors.providers.credentials.credential import Credential, RequestAuth, checked_url
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages import sdk_template
from actors.providers.messages.batches import BATCHES, BatchTransport, ProviderBatches
from actors.providers.messages.dialect import dialect_of
from actors.providers.messages.errors import MessagesFailures
from actors.providers.messages.rate_limit_headers import rate_limits, tells_limits
from actors.providers.messages.response import read_reply
from actors.providers.messages.sdk_transport import EVENT_STREAM, SdkTransport
from actors.providers.messages.sse import StreamAssembler, StreamError, asking_to_stream
from actors.providers.registry import row_of
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate, Response, Transport
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.proxy_tls import network_of
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import TimeoutPolicy, silence_max_s
from policies.limits.limit import RateLimits

if TYPE_CHECKING:
    import httpx2

STREAM_ABOVE_TOKENS: Final = 8_000
"""Replies that may be longer are streamed: at 50 tokens a second that is 160 s in which progress is to be seen, and
networks drop a connection that is silent for some minutes."""

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"

# What the counter takes of a Messages request (`MessageCountTokensParams` of the SDK; a test compares). It refuses
# the rest, `max_tokens` among it.
COUNTED_FIELDS: Final = frozenset(
    """messages model cache_control output_config speed system thinking tool_choice tools""".split()
)

NOTHING: Final = RequestAuth()
_LOOK_BYTES_MAX: Final = 1 << 20
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AnthropicModel:
    """A model (`actors.ports.model.Model`) behind the Anthropic Messages API, wherever that is served.

    Where a cloud serves it (`Credential.platform`), Bedrock and Vertex AI say, the SDK's client for that cloud makes
    every request. A key that comes from a file is read again when it is refused, and the request sent once more.

    Made from what it is given alone. Connections are opened by the first call, in whose event loop it then lives;
    at most `concurrency` of them, so that many calls may be under way at once. With `through_sdk` every request goes
    through the SDK's own client, for its traces (`open_telemetry`, as the SDK's client option) and error handling,
    at a quarter of the speed. With `prepared`, which another one told of the same credential, the SDK is imported only
    where something else is wanted of it. Raises CredentialError for an address that is none.
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
        if base_url:
            credential = msgspec.structs.replace(credential, base_url=checked_url("the base URL", base_url))
        self._row, self._dialect = row_of(credential.provider), dialect_of(credential)
        self._base_url = checked_url("the base URL", credential.base_url) or self._row.base_url
        self.endpoint = endpoint or credential.endpoint.rstrip("/")
        self.concurrency = concurrency
        self._timeouts = timeouts or TimeoutPolicy()
        self._stream_above_tokens = stream_above_tokens
        self._through_sdk = through_sdk
        self._open_telemetry = open_telemetry
        self._keys = CredentialReload(credential, self._take_key)
        self._prepared = credential, prepared
        self._failures = MessagesFailures(self._row, self._keys.redact)
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._limit_headers: Mapping[str, str] | None = None
        self._counter_missing = not self._dialect.counts_tokens
        self.batches = ProviderBatches(
            self._batch_transport, self._keys, self._failures, self._timeouts.connect_s + self._timeouts.first_byte_s
        )
        """The provider's message batches, under the same credential."""

    def __repr__(self) -> str:
        return f"AnthropicModel({self.endpoint}, {self._keys.credential!r})"

    @property
    def counts_tokens(self) -> bool:
        """Whether ``count_tokens`` may bring something."""
        return not self._counter_missing

    @property
    def rate(self) -> RateLimits | None:
        """The rate limits of the last answer that told any."""
        return None if self._limit_headers is None else rate_limits(self._limit_headers)

    async def call(
        self,
        body: bytes,
        *,
        output_tokens_max: int,
        timeout_s: float,
        progress: Callable[[int], None] | None = None,
    ) -> Reply | Failure:
        """One attempt, as `Model.call` says. `body` has no `stream`; `timeout_s` bounds the attempt; `progress` is told
        the bytes of the answer so far, each time some come. Raises nothing but CancelledError."""
        silence_s = None
        if output_tokens_max > self._stream_above_tokens:
            body = asking_to_stream(body)
            silence_s = max(silence_max_s(self._timeouts, len(body), begun) for begun in (False, True))
        if self._transport is None:
            await self.prepare()  # takes seconds, which are none of the attempt's
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
            road = self._transport or await self._open()
            async with road.send(MESSAGES, body, timeout_s=timeout_s, silence_s=silence_s) as answer:
                return await self._take(answer, progress)
        except Exception as error:  # whatever went wrong in this attempt is told, never raised
            return self.failure_of(error)

    async def count_tokens(self, body: bytes) -> int | None:
        """Input tokens of this request by the provider's count; None where it cannot say, whatever the reason."""
        if self._counter_missing:
            return None
        try:
            fields = _FIELDS.decode(body)
            asked = msgspec.json.encode({name: raw for name, raw in fields.items() if name in COUNTED_FIELDS})
            road = self._transport or await self._open()
            timeout_s = self._timeouts.connect_s + self._timeouts.first_byte_s
            async with road.send(COUNT_TOKENS, asked, timeout_s=timeout_s, silence_s=None) as answer:
                said = await answer.read()
                if answer.status != 200:
                    failure = self._failures.of_response(answer.status, answer.headers, said)
                    unknown_model = failure.kind is FailureKind.BLOCKED
                    self._counter_missing = answer.status in (404, 405, 501) and not unknown_model
                    return None
                return msgspec.json.decode(said, type=_TokenCount).input_tokens
        except Exception:  # a count is a service, its absence no failure
            return None

    async def look(self, path: str, body: bytes | None, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """One request that costs nothing (without a body a GET), by the road and with the headers of any other call.

        Status, headers, and at most a megabyte of the answer. Raises what aiohttp raises, TimeoutError, or
        ConfigurationFault; `failure_of` tells what each means.
        """
        sdk, context, proxy = await self._way()
        template = (await self._templates(sdk, (path,)))[path]
        connector = aiohttp.TCPConnector(ssl=True if context is None else context)
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                "GET" if body is None else "POST", template.url, data=body, headers=template.headers, proxy=proxy,
                allow_redirects=False, timeout=timeout,
            ) as answer,
        ):  # fmt: skip
            return answer.status, answer.headers, await answer.content.read(_LOOK_BYTES_MAX)

    def failure_of(self, error: BaseException) -> Failure:
        """What an error of `look`, or of a call, means."""
        return self._failures.of_exception(error)

    def refusal_of(self, status: int, headers: Mapping[str, str], said: bytes) -> Failure:
        """What an answer of `look` means, whose status is no success."""
        return self._failures.of_response(status, headers, said)

    async def open(self) -> None:
        """Import the SDK and prepare the road now, so that the first call need not wait two seconds for it.

        Raises ConfigurationFault for a certificate file or folder that cannot be used.
        """
        if self._transport is None:
            await self._open()

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        self._closed = True
        road, self._transport = self._transport, None
        if road is not None:
            await road.close()
        await self.batches.close()

    async def _take(self, answer: Response, progress: Callable[[int], None] | None) -> Reply | Failure:
        """The reply in an answer, or the failure that it is."""
        status, headers = answer.status, answer.headers
        if tells_limits(headers):
            self._limit_headers = headers
        if not 200 <= status < 300:
            try:
                said = await answer.read()
            except (aiohttp.ClientError, TimeoutError, UnreadableResponse):
                said = b""  # an explanation cut short leaves the status, and that says enough
            return self._failures.of_response(status, headers, said)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind in ("text/event-stream", EVENT_STREAM):
                return read_reply(await _assembled(answer, progress))
            if kind == "application/json":
                whole = await answer.read()
                if progress is not None:
                    progress(len(whole))
                return self._read_whole(whole, answer)
            raise UnreadableResponse(f"the answer is of type {kind[:80] or 'unknown'}, not JSON")
        except StreamError as error:
            return self._failures.of_stream_error(error, status, headers)
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), status)

    def _read_whole(self, whole: bytes, answer: Response) -> Reply | Failure:
        try:
            return read_reply(whole)
        except UnreadableResponse:
            if whole.lstrip().startswith(b"{") and self._failures.names_error(whole):  # a gateway's "200, but"
                return self._failures.of_response(answer.status, answer.headers, whole)
            raise

    async def prepare(self) -> None:
        """Get ready for the first call: the SDK takes a second to import. What goes wrong, the first call will say."""
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
        """What is sent with each request, for models of the same credential elsewhere. Empty where the SDK is to be
        asked for each of them."""
        if self._through_sdk or not self._dialect.shares_headers:
            return NOTHING
        return await self._asked(await asyncio.to_thread(_import_sdk), (MESSAGES, COUNT_TOKENS, BATCHES))

    def _shared_auth(self) -> Mapping[str, RequestTemplate]:
        """What another model told, where that still holds: by path, what is sent. Empty: the SDK is to be asked."""
        credential, prepared = self._prepared
        shared = self._dialect.shares_headers and not self._through_sdk
        holds = shared and credential is self._keys.credential
        return sdk_template.templates_of(prepared) if holds else {}

    async def _way(self) -> tuple[ModuleType, ssl.SSLContext | None, str | None]:
        """The SDK; and the rest of the way."""
        sdk = await asyncio.to_thread(_import_sdk)
        await asyncio.to_thread(_import_modules, self._row.modules)
        return sdk, *await self._wire()

    async def _wire(self) -> tuple[ssl.SSLContext | None, str | None]:
        """Return the trusted certificates, None for plain HTTP; and the proxy, None for a direct connection."""
        return await network_of(await self.address(), self._keys.credential)

    async def address(self) -> str:
        """Where requests go; for a cloud, as the SDK knows it."""
        if self._base_url:
            return self._base_url
        import httpx2

        sdk = await asyncio.to_thread(_import_sdk)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(_nowhere), trust_env=False) as nowhere:
            return str(self._client(sdk, nowhere).base_url)

    async def _take_key(self, credential: Credential) -> None:
        """A renewed key, for what is sent from now on. A road that is being made has the old one: it is waited for."""
        sdk = await asyncio.to_thread(_import_sdk)
        async with self._opening:
            road = self._transport
            if isinstance(road, SdkTransport):
                road.client.api_key = credential.api_key
            elif isinstance(road, AiohttpTransport):
                await road.take(await self._templates(sdk, (MESSAGES, COUNT_TOKENS), credential))
            if self.batches.transport is not None:
                self.batches.transport.take((await self._templates(sdk, (BATCHES,), credential))[BATCHES])

    async def _make_transport(self) -> Transport:
        if told := self._shared_auth():
            return await self._direct(told, *await self._wire())
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
        road = AiohttpTransport(
            connections_max=self.concurrency, context=context, proxy=proxy, connect_s=self._timeouts.connect_s
        )
        await road.take(templates)
        return road

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
        """What the SDK would send to each path: it is asked to, and a transport that goes nowhere looks on."""
        return sdk_template.templates_of(await self._asked(sdk, paths, credential))


def _nowhere(request: httpx2.Request) -> httpx2.Response:
    """A transport that goes nowhere."""
    raise AssertionError(f"{request.url} was to be looked at, not asked")


class _TokenCount(msgspec.Struct):
    input_tokens: int


async def _assembled(answer: Response, progress: Callable[[int], None] | None) -> bytes:
    assembler = StreamAssembler()
    total = 0
    async for chunk in answer.chunks():
        total += len(chunk)
        if progress is not None:
            progress(total)
        assembler.feed(chunk)
        if assembler.done:
            break
    return assembler.message()


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
