"""Transport through the SDK's own client: with its traces, middleware and errors, at a quarter of the speed.

It is the only transport to a provider whose requests are signed, or carry a token that is renewed
(`dialect.SdkDialect.signed`). The SDK and its client are arguments, since only `actors.providers.messages.client`
imports the SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from actors.ports.model import TRACEPARENT
from actors.providers.transport.aiohttp_transport import Exchange, Response
from actors.providers.transport.body import BODY_BYTES_MAX, bounded
from actors.providers.transport.failures import RequestUnprepared
from actors.providers.transport.unlabelled import AWS_EVENT_STREAM

if TYPE_CHECKING:
    import httpx2


class SdkTransport:
    """`Transport` that sends every request through the SDK's client.

    ``made_there``: True passes the body as fields, from which the client for a cloud makes a request of its own:
    another path, another body, a signature. False sends the body unchanged.
    """

    def __init__(self, client: Any, sdk: ModuleType, *, connect_s: float, made_there: bool = False) -> None:
        self.client = client
        self._sdk = sdk
        self._connect_s = connect_s
        self._made_there = made_there

    def send(
        self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None, bytes_max: int = BODY_BYTES_MAX
    ) -> Exchange:  # fmt: skip
        content: dict[str, Any] = {"body": msgspec.json.decode(body)} if self._made_there else {"content": body}
        return _SdkExchange(self.client, self._sdk, path, content, timeout_s, silence_s, self._connect_s, bytes_max)

    async def close(self) -> None:
        await self.client.close()


class _SdkExchange:
    def __init__(
        self,
        client: Any,
        sdk: ModuleType,
        path: str,
        content: dict[str, Any],
        timeout_s: float,
        silence_s: float | None,
        connect_s: float,
        bytes_max: int,
    ) -> None:
        self._bytes_max = bytes_max
        self._client, self._sdk, self._path, self._content = client, sdk, path, content
        self._silence_s, self._connect_s = silence_s, connect_s
        self._deadline = asyncio.timeout(timeout_s)
        self._response: Any = None

    async def __aenter__(self) -> Response:
        import httpx2

        timeout = httpx2.Timeout(self._silence_s, connect=self._connect_s, pool=self._connect_s)
        # A stream's connection is not used again: see `AiohttpTransport`.
        headers = {} if self._silence_s is None else {"Connection": "close"}
        if trace := TRACEPARENT.get():
            headers["traceparent"] = trace
        await self._deadline.__aenter__()
        try:
            self._response = await self._client.post(
                self._path,
                **self._content,
                cast_to=httpx2.Response,
                options={"timeout": timeout, "headers": headers},
                stream=True,
                stream_cls=self._sdk.AsyncStream[Any],
            )
        except self._sdk.APIStatusError as error:
            self._response = error.response
        except BaseException as error:
            await self._deadline.__aexit__(type(error), error, error.__traceback__)
            if isinstance(error, self._sdk.APIError | TimeoutError) or not isinstance(error, Exception):
                raise
            raise RequestUnprepared from error  # an error while the request is sent is one of the SDK's own
        return _SdkResponse(self._response, self._client, self._bytes_max)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._response is not None:
                await self._response.aclose()
        finally:
            await self._deadline.__aexit__(kind, error, trace)


class _SdkResponse:
    def __init__(self, response: httpx2.Response, client: Any, bytes_max: int) -> None:
        self._response, self._bytes_max = response, bytes_max
        self._client = client
        self._parts: list[bytes] = []
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        chunks = bounded(self._response.aiter_bytes(), self._bytes_max)
        framed = self.headers.get("content-type", "").partition(";")[0].strip().lower() == AWS_EVENT_STREAM
        return self._unframed(chunks) if framed else chunks

    async def _unframed(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the events in AWS's frames as the Messages API sends them."""
        async for event in self._client._make_sse_decoder().aiter_bytes(chunks):
            yield b"".join(b"data: %s\n" % line.encode() for line in event.data.splitlines()) + b"\n"

    async def read(self) -> bytes:
        async for chunk in self.chunks():
            self._parts.append(chunk)
        return b"".join(self._parts)

    def received(self) -> bytes:
        return b"".join(self._parts)
