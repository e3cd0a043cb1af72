"""Client of the made-up provider: translates the canonical form; everything else is the shared transport's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.reload import CredentialReload
from actors.providers.registry import Provider, load, row_of
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate, Response
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.failures import FailureReader, ModelClosed
from actors.providers.transport.proxy_tls import network_of
from cortex.values.reply import Reply
from policies.failures.failure import Failure
from policies.limits.limit import RateLimits
from tests.support.toy_provider import wire

ASK, COUNT = "/ask", "/count"


class _Failures(FailureReader):
    """Reader of errors ``{"fault": {"slug", "text"}}`` and waits ``x-toy-wait: 250ms``."""

    def read_error(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        try:
            fault = msgspec.json.decode(body)["fault"]
            return fault["slug"], fault["text"], ""
        except (msgspec.DecodeError, LookupError, TypeError):
            return "", body.decode("utf-8", "replace"), ""

    def retry_after_s(self, headers: Mapping[str, str]) -> float | None:
        return wire.seconds(headers["x-toy-wait"]) if "x-toy-wait" in headers else None


class ToyModel:
    """``Model`` (``actors.ports.model``) of the made-up provider."""

    def __init__(self, spec: ClientSpec, row: Provider, credential: Credential) -> None:
        self.endpoint = spec.endpoint
        self.rate: RateLimits | None = None
        self._spec = spec
        self._url = (credential.base_url or row.base_url).rstrip("/")
        self._keys = CredentialReload(credential, self._take_key)
        self._failures = _Failures(row, load(row.errors), self._keys.redact)
        self._opening = asyncio.Lock()
        self._transport: AiohttpTransport | None = None
        self._closed = False

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Make one attempt; repeat it if the key was renewed meanwhile."""
        begun_s, used, sent = time.monotonic(), self._keys.credential, wire.encoded(body)
        outcome = await self._sent(sent, timeout_s)
        if await self._keys.after(outcome, used):
            outcome = await self._sent(sent, max(0.001, timeout_s - (time.monotonic() - begun_s)))
        return outcome

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the tokens of a prompt; the request is free of charge."""
        try:
            async with (await self._open()).send(COUNT, wire.encoded(body), timeout_s=5, silence_s=None) as response:
                return int(await response.read()) if response.status == 200 else None
        except Exception:
            return None

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._transport is not None:
            await self._transport.close()

    async def _sent(self, body: bytes, timeout_s: float) -> Reply | Failure:
        try:
            async with (await self._open()).send(ASK, body, timeout_s=timeout_s, silence_s=None) as response:
                return await self._outcome(response)
        except Exception as error:
            return self._failures.of_exception(error)

    async def _outcome(self, response: Response) -> Reply | Failure:
        self.rate = wire.rate_limits(response.headers) or self.rate
        data = await response.read()
        if response.status != 200:
            return self._failures.of_response(response.status, response.headers, data)
        try:
            return wire.decoded(data)
        except UnreadableResponse as error:
            return self._failures.unreadable(str(error), response.status)

    async def _open(self) -> AiohttpTransport:
        async with self._opening:
            if self._closed:
                raise ModelClosed
            if self._transport is None:
                context, proxy = await network_of(self._url, self._keys.credential)
                self._transport = AiohttpTransport(
                    connections_max=self._spec.concurrency, context=context, proxy=proxy,
                    connect_s=self._spec.timeouts.connect_s,
                )  # fmt: skip
                await self._transport.take(self._templates(self._keys.credential))
            return self._transport

    async def _take_key(self, credential: Credential) -> None:
        await (await self._open()).take(self._templates(credential))

    def _templates(self, credential: Credential) -> dict[str, RequestTemplate]:
        headers = [("X-Toy-Key", credential.api_key), ("Content-Type", "application/json")]
        return {path: RequestTemplate(self._url + path, headers) for path in (ASK, COUNT)}


def model_of(spec: ClientSpec) -> ToyModel:
    """Return the client of an account."""
    assert spec.credential is not None, "an account there has a key"
    return ToyModel(spec, row_of(spec.provider), spec.credential)
