"""Fast transport: requests by template, sent over aiohttp's connections.

An SDK spends about 0.5 ms of CPU on building each request and wrapping each response, an aiohttp session 0.15 ms, and
two fifths of that where the head of the request is built already (``prebuilt_request``). What an SDK adds to a request
(address, authentication, version, its own headers) is the same for every call of one client, so the SDK is asked once
and its request is kept as a template. The bytes on the wire are the same, by test.
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

# Headers of a single request, or of what this client can do: aiohttp sets them.
_NOT_KEPT: Final = frozenset({"host", "content-length", "connection", "transfer-encoding", "accept-encoding"})


class Response(Protocol):
    """Response whose body is still to be read."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by name, in any case."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises UnreadableResponse beyond `BODY_BYTES_MAX`."""

    async def read(self) -> bytes:
        """Return the whole body, under the same bound."""

    def received(self) -> bytes:
        """Return what came of the body before `read` failed, decoded."""


class Exchange(Protocol):
    """Exchange of one request and its response. Leaving the block returns the connection, or closes it if the body was
    not read."""

    async def __aenter__(self) -> Response: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Transport(Protocol):
    """Sender of request bodies to paths of a provider."""

    def send(
        self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None, bytes_max: int = BODY_BYTES_MAX
    ) -> Exchange:  # fmt: skip
        """Return an exchange. `timeout_s` bounds it, in seconds; `silence_s`, given for a stream, bounds the time
        without a byte; `bytes_max` bounds the body of the response."""

    async def close(self) -> None:
        """Close every connection."""


class RequestTemplate:
    """Address and headers of a kind of request. They hold the key and are never shown.

    ``host``: name of the server whose address stands in the URL (``Credential.host``); empty: as the URL says.
    """

    __slots__ = ("headers", "server_name", "url")

    def __init__(self, url: str, headers: list[tuple[str, str]], host: str = "") -> None:
        self.url = URL(url, encoded=True).with_user(None)
        kept = CIMultiDict((name, value) for name, value in headers if name.lower() not in _NOT_KEPT)
        kept["Accept-Encoding"] = ACCEPTED
        self.server_name = host or None
        """Name that the server's certificate must be for; None: that of the URL."""
        if host:
            kept["Host"] = self.url.with_host(host).host_port_subcomponent or host
        self.headers = CIMultiDictProxy(kept)


class AiohttpTransport:
    """`Transport` by templates. Belongs to the event loop in which it was made."""

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
        """Prebuilt heads of requests by path; none where a proxy is used, which needs a session."""
        self._proxy = proxy
        self._connect_s = connect_s

        def connector(limit: int, one_request_each: bool = False) -> aiohttp.TCPConnector:
            secure = True if context is None else context
            return aiohttp.TCPConnector(limit=limit, ssl=secure, force_close=one_request_each)

        def session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

        self._pool = ConnectionPool(connector(0), connections_max)
        self._session = session(connector(connections_max))
        # llama.cpp closes the connection after a stream without announcing it, and a request sent on it is lost. A
        # further connection costs nothing beside a reply that is long enough to be streamed.
        self._session_of_streams = session(connector(connections_max, one_request_each=True))

    async def take(self, templates: Mapping[str, RequestTemplate]) -> None:
        """Use these templates for requests from now on; requests under way keep theirs."""
        heads: dict[str, RequestHead] = {}
        if self._proxy is None:
            for path, template in templates.items():
                head = await head_of(
                    self._session, template.url, template.headers, self._connect_s, template.server_name
                )
                if head is not None:
                    heads[path] = head
        self._templates, self._heads = templates, heads

    def send(
        self, path: str, body: bytes, *, timeout_s: float, silence_s: float | None, bytes_max: int = BODY_BYTES_MAX
    ) -> Exchange:  # fmt: skip
        """Return an exchange. `timeout_s` bounds it, in seconds; `silence_s`, given for a stream, bounds the time
        without a byte; `bytes_max` bounds the body of the response."""
        if silence_s is None and (head := self._heads.get(path)) is not None:
            return PrebuiltExchange(self._pool, head, body, TRACEPARENT.get(), timeout_s, bytes_max)
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
                server_hostname=template.server_name,
                # `connect` bounds everything before the request is written: lookup, connection, handshake, tunnel.
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=self._connect_s, sock_read=silence_s),
            ),
            bytes_max,
        )

    async def close(self) -> None:
        """Close every connection, even if closing one raises; calls that wait for a response fail."""
        async with contextlib.AsyncExitStack() as all_of_them:
            for each in (self._session_of_streams, self._session, self._pool):
                all_of_them.push_async_callback(each.close)


class _AiohttpExchange:
    __slots__ = ("_bytes_max", "_request")

    def __init__(self, request: aiohttp.client._RequestContextManager, bytes_max: int) -> None:
        self._request, self._bytes_max = request, bytes_max

    async def __aenter__(self) -> Response:
        return _AiohttpResponse(await self._request.__aenter__(), self._bytes_max)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, trace)


class _AiohttpResponse:
    __slots__ = ("_bytes_max", "_parts", "_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, bytes_max: int) -> None:
        self._response, self._bytes_max = response, bytes_max
        self._parts: list[bytes] = []
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return bounded(self._response.content.iter_any(), self._bytes_max)

    async def read(self) -> bytes:
        async for chunk in self.chunks():
            self._parts.append(chunk)
        return b"".join(self._parts)

    def received(self) -> bytes:
        return b"".join(self._parts)
