"""The road through the SDK's own client: its traces, its middleware, its errors, at a third of the speed.

The SDK and its client come as arguments, since only `actors.model` imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from actors.model_port import TRACEPARENT
from actors.provider.direct import Answer, Exchange, bounded

if TYPE_CHECKING:
    import httpx2


class SdkRoad:
    """Every request through the SDK's client, its body as it is."""

    def __init__(self, client: Any, sdk: ModuleType, *, connect_s: float) -> None:
        self._client = client
        self._sdk = sdk
        self._connect_s = connect_s

    def send(self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None) -> Exchange:
        return _SdkExchange(self._client, self._sdk, path, body, timeout_s, silence_s, self._connect_s)

    async def close(self) -> None:
        await self._client.close()


class _SdkExchange:
    def __init__(
        self,
        client: Any,
        sdk: ModuleType,
        path: str,
        body: bytes,
        timeout_s: float,
        silence_s: float | None,
        connect_s: float,
    ) -> None:
        self._client, self._sdk, self._path, self._body = client, sdk, path, body
        self._silence_s, self._connect_s = silence_s, connect_s
        self._deadline = asyncio.timeout(timeout_s)
        self._response: Any = None

    async def __aenter__(self) -> Answer:
        import httpx2

        timeout = httpx2.Timeout(self._silence_s, connect=self._connect_s, pool=self._connect_s)
        # A stream's connection is not used again: see `DirectRoad`.
        headers = {} if self._silence_s is None else {"Connection": "close"}
        if trace := TRACEPARENT.get():
            headers["traceparent"] = trace
        await self._deadline.__aenter__()
        try:
            self._response = await self._client.post(
                self._path,
                content=self._body,
                cast_to=httpx2.Response,
                options={"timeout": timeout, "headers": headers},
                stream=True,
                stream_cls=self._sdk.AsyncStream[Any],
            )
        except self._sdk.APIStatusError as error:
            self._response = error.response
        except BaseException as error:
            await self._deadline.__aexit__(type(error), error, error.__traceback__)
            raise
        return _SdkAnswer(self._response)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._response is not None:
                await self._response.aclose()
        finally:
            await self._deadline.__aexit__(kind, error, trace)


class _SdkAnswer:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return bounded(self._response.aiter_bytes())

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])
