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
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from actors.providers.batches.exchange import BatchTransport
from actors.providers.client.http_model import STREAM_ABOVE_TOKENS, FreeWay, HttpModel
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.base_url import read_base_url
from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.messages import sdk_template
from actors.providers.messages.batches import BATCHES, ProviderBatches
from actors.providers.messages.dialect import dialect_of
from actors.providers.messages.errors import MessagesFailures
from actors.providers.messages.foreign_thoughts import OWN, other_thoughts, without_foreign
from actors.providers.messages.rate_limit_headers import rate_limits, reports_limits
from actors.providers.messages.response import read_message
from actors.providers.messages.sdk_transport import SdkTransport
from actors.providers.messages.sse import StreamAssembler, asking_to_stream
from actors.providers.registry import row_of
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate, Transport
from actors.providers.transport.failures import ModelClosed
from actors.providers.transport.proxy_tls import network_of
from cortex.values.bounds.counts import CountFromOne
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import FailureKind
from policies.failures.timeout import TimeoutPolicy

if TYPE_CHECKING:
    import httpx2

MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"

# Fields of a request that the counter takes (`MessageCountTokensParams` of the SDK; a test compares). It refuses all
# others, `max_tokens` among them.
COUNTED_FIELDS: Final = frozenset(
    """messages model cache_control output_config speed system thinking tool_choice tools""".split()
)

NOTHING: Final = RequestAuth()


def _body(body: bytes, streamed: bool, variant: object) -> bytes:
    if variant is not None:
        body = without_foreign(body)
    return asking_to_stream(body) if streamed else body


MESSAGES_FORM: Final = WireForm(
    path=MESSAGES, body=_body, read=read_message, stream=StreamAssembler, failures=MessagesFailures,
    reports_limits=reports_limits, rate_limits=rate_limits, other=other_thoughts, in_lines=lambda variant: OWN,
)  # fmt: skip
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AnthropicModel(HttpModel):
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
        metrics_from: Sequence[str] = (),
    ) -> None:
        row, self._dialect = row_of(credential.provider), dialect_of(credential)
        if base_url or credential.base_url:
            base_url = read_base_url("the base URL", base_url or credential.base_url, row.appended)
            credential = msgspec.structs.replace(credential, base_url=base_url)
        self._base_url = base_url or row.base_url
        super().__init__(
            MESSAGES_FORM, row, credential, endpoint=endpoint or credential.endpoint.rstrip("/"), url=self._base_url,
            concurrency=concurrency, timeouts=timeouts or TimeoutPolicy(), stream_above_tokens=stream_above_tokens,
            metrics_from=metrics_from,
        )  # fmt: skip
        self._through_sdk = through_sdk
        self._open_telemetry = open_telemetry
        self._prepared = credential, prepared
        self._counter_missing = not self._dialect.counts_tokens
        self.batches = ProviderBatches(
            self._batch_transport, self._keys, self._failures, self._timeouts.connect_s + self._timeouts.first_byte_s,
            self.line_body,
        )  # fmt: skip
        """Message batches of the provider, under the same credential."""

    @property
    def counts_tokens(self) -> bool:
        """False if ``count_tokens`` returns None in any case."""
        return not self._counter_missing

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

    async def _free_way(self, path: str) -> FreeWay:
        sdk, context, proxy = await self._way()
        return (await self._templates(sdk, (path,)))[path], context, proxy

    async def open(self) -> None:
        """Import the SDK and make the transport now, so that the first call need not wait two seconds for it.

        Raises ConfigurationFault for a certificate file or folder that cannot be used.
        """
        if self._transport is None:
            await self._open()

    async def close(self) -> None:
        """Close every connection; calls under way end as TRANSIENT."""
        await super().close()
        await self.batches.close()

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
        return sdk_template.templates_of(prepared, credential.host) if holds else {}

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
        """Use a renewed key from now on. A transport that is being made has the old one: wait for it."""
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
        prepared = await self._asked(sdk, paths, credential)
        return sdk_template.templates_of(prepared, (credential or self._keys.credential).host)


def _nowhere(request: httpx2.Request) -> httpx2.Response:
    """Refuse every request: the client is only asked for its address."""
    raise AssertionError(f"{request.url}: no request may be sent here")


class _TokenCount(msgspec.Struct):
    input_tokens: CountFromOne


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
        prepared=spec.prepared, metrics_from=spec.metrics_from,
    )  # fmt: skip
