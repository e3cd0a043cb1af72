"""The fast road: requests prepared once by the SDK, sent over aiohttp's connections.

The SDK spends about 0.5 ms of CPU on building each request and wrapping each answer, an aiohttp session 0.15 ms, and
two fifths of that where the head of its request stands ready (``prepared``). What the SDK adds to a request (address,
authentication, version, its own headers) is the same for every call of one client, so it is asked once, and its answer
is kept as a template. The bytes on the wire are the same, by test.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Protocol

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from actors.ports.model import TRACEPARENT
from actors.providers.transport.body import BODY_BYTES_MAX, bounded
from actors.providers.transport.connection_pool import ConnectionPool
from actors.providers.transport.content_encoding import ACCEPTED
from actors.providers.transport.prebuilt_request import PrebuiltExchange, RequestHead, head_of

# These belong to one request, or to what this side of the wire can do: aiohttp sets them.
_NOT_KEPT: Final = frozenset({"host", "content-length", "connection", "transfer-encoding", "accept-encoding"})


class Response(Protocol):
    """An answer whose body is still to be read."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, in any case."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Unreadable beyond `BODY_BYTES_MAX`."""

    async def read(self) -> bytes:
        """The whole body, under the same bound."""


class Exchange(Protocol):
    """One request on its way; leaving the block gives the connection back, or closes it when the body was not read."""

    async def __aenter__(self) -> Response: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Transport(Protocol):
    """A way to send prepared bytes to a path of the provider's."""

    def send(self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None) -> Exchange:
        """`timeout_s` bounds the whole exchange; `silence_s`, given for a stream, the time without a byte."""

    async def close(self) -> None:
        """Close every connection."""


class RequestTemplate:
    """Where a request goes and with which headers, as the SDK built them. Holds the key: never shown."""

    __slots__ = ("headers", "url")

    def __init__(self, url: str, headers: list[tuple[str, str]]) -> None:
        self.url = URL(url, encoded=True).with_user(None)
        kept = CIMultiDict((name, value) for name, value in headers if name.lower() not in _NOT_KEPT)
        kept["Accept-Encoding"] = ACCEPTED
        self.headers = CIMultiDictProxy(kept)


class AiohttpTransport:
    """Sends bodies by template. Belongs to the event loop it was made in."""

    def __init__(
        self,
        *,
        connections_max: int,
        context: ssl.SSLContext | None,
        proxy: str | None,
        connect_s: float,
    ) -> None:
        self._templates: Mapping[str, RequestTemplate] = {}
        self._heads: dict[str, RequestHead] = {}
        """Of those that need no session: none where a proxy wants a word of its own."""
        self._proxy = proxy
        self._connect_s = connect_s

        def connector(limit: int, one_request_each: bool = False) -> aiohttp.TCPConnector:
            secure = True if context is None else context
            return aiohttp.TCPConnector(limit=limit, ssl=secure, force_close=one_request_each)

        def session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

        self._pool = ConnectionPool(connector(0), connections_max)
        self._session = session(connector(connections_max))
        # llama.cpp hangs up after a stream without having said so, and a request sent on that connection is lost. One
        # connection more is nothing beside a reply that is long enough to be streamed.
        self._session_of_streams = session(connector(connections_max, one_request_each=True))

    async def take(self, templates: Mapping[str, RequestTemplate]) -> None:
        """Send by these from now on; requests under way go on with theirs."""
        heads: dict[str, RequestHead] = {}
        if self._proxy is None:
            for path, template in templates.items():
                head = await head_of(self._session, template.url, template.headers, self._connect_s)
                if head is not None:
                    heads[path] = head
        self._templates, self._heads = templates, heads

    def send(self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None) -> Exchange:
        """`timeout_s` bounds the whole exchange; `silence_s`, given for a stream, the time without a byte."""
        if silence_s is None and (head := self._heads.get(path)) is not None:
            return PrebuiltExchange(self._pool, head, body, TRACEPARENT.get(), timeout_s)
        template = self._templates[path]
        session = self._session if silence_s is None else self._session_of_streams
        headers: Mapping[str, str] = template.headers
        if trace := TRACEPARENT.get():
            headers = CIMultiDict(template.headers, traceparent=trace)
        return _AiohttpExchange(
            session.post(
                template.url,
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                # `connect` bounds everything before the request is written: lookup, connection, handshake, tunnel.
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=self._connect_s, sock_read=silence_s),
            )
        )

    async def close(self) -> None:
        """Close every connection, whatever one of them says to it; who waits for an answer hears of it."""
        async with contextlib.AsyncExitStack() as all_of_them:
            for each in (self._session_of_streams, self._session, self._pool):
                all_of_them.push_async_callback(each.close)


class _AiohttpExchange:
    __slots__ = ("_request",)

    def __init__(self, request: aiohttp.client._RequestContextManager) -> None:
        self._request = request

    async def __aenter__(self) -> Response:
        return _AiohttpResponse(await self._request.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, trace)


class _AiohttpResponse:
    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return bounded(self._response.content.iter_any())

    async def read(self) -> bytes:
        length = self._response.content_length
        if length is None or length > BODY_BYTES_MAX or "Content-Encoding" in self.headers:
            return b"".join([chunk async for chunk in self.chunks()])
        return await self._response.read()
