"""A request of which only the body is new, over aiohttp's connections and through its parser.

``ClientSession.post`` makes for each request what is the same for all of them: the address taken apart, headers merged
and put into bytes, cookies looked for, a task that writes, an object for the answer with its own timers. That is two
thirds of what a call takes of the CPU. Here aiohttp puts the head of a request into bytes once; then a connection of
its pool is taken, head and body are written, and its parser's answer is read. What a session would add beyond that
(redirects, cookies, a proxy, a second try) is not wanted here, or goes by the session (``direct``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from multidict import CIMultiDictProxy, istr
from yarl import URL

from actors.provider.reply import BODY_BYTES_MAX, bounded

_LENGTH: Final = istr("Content-Length")
_ENCODING: Final = istr("Content-Encoding")
_LENGTH_LINE: Final = b"Content-Length: 1\r\n"
_SWITCHING: Final = 101


class Head:
    """All of a request but its body, and where it goes. Holds the key: never shown."""

    __slots__ = ("after", "before", "request", "seconds")

    def __init__(self, request: aiohttp.ClientRequest, sent: bytes, connect_s: float) -> None:
        """``sent``: what aiohttp sends before a body of one byte. Raises ``ValueError`` where that has no length."""
        self.request = request
        """By this the pool knows which of its connections will do, and how to make one."""
        before, length, after = sent.partition(_LENGTH_LINE)
        if not length:
            raise ValueError("aiohttp says nothing of the length of a body")
        self.before, self.after = before, after[: -len(b"\r\n")]
        self.seconds = aiohttp.ClientTimeout(connect=connect_s)

    def with_body(self, body: bytes, traceparent: str) -> bytes:
        """The whole request."""
        trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
        return b"%bContent-Length: %d\r\n%b%b\r\n%b" % (self.before, len(body), self.after, trace, body)


class _Looked:
    """Stands for a connection's protocol and its transport, and keeps what is written."""

    def __init__(self) -> None:
        self.transport, self.written = self, b""

    def is_closing(self) -> bool:
        return False

    def write(self, some: bytes) -> None:
        self.written += some


async def head_of(
    session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], connect_s: float
) -> Head | None:  # fmt: skip
    """What aiohttp would send of a POST with these headers; None where this aiohttp is put together in another way, or
    refuses: then all goes by the session, which says why."""
    loop, looked = asyncio.get_running_loop(), _Looked()
    try:
        request = aiohttp.ClientRequest(
            "POST", url, headers=headers, data=b"0", loop=loop, response_class=aiohttp.ClientResponse, session=session
        )
        writer = StreamWriter(looked, loop)  # type: ignore[arg-type]
        await writer.write_headers(f"POST {request.url.raw_path_qs} HTTP/1.1", request.headers)
        writer.send_headers()
        return Head(request, looked.written, connect_s)
    except (AttributeError, TypeError, ValueError):
        return None


class PreparedExchange:
    """One such request on its way; leaving the block gives the connection back, or closes it when the body was not
    read. Raises what a session does."""

    __slots__ = ("_bytes", "_connection", "_connector", "_head", "_late", "_payload", "_timeout_s", "_timer")

    def __init__(self, connector: aiohttp.BaseConnector, head: Head, whole: bytes, timeout_s: float) -> None:
        """``whole``: head and body. ``timeout_s`` bounds the exchange."""
        self._connector, self._head, self._bytes, self._timeout_s = connector, head, whole, timeout_s
        self._connection: Connection | None = None
        self._payload: aiohttp.StreamReader | None = None
        self._late = False

    async def __aenter__(self) -> PreparedAnswer:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._is_late)
        try:
            return await self._asked()
        except BaseException:
            self._leave(keep=False)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(keep=error is None)

    async def _asked(self) -> PreparedAnswer:
        seconds = self._head.seconds
        alone = seconds.connect is not None and seconds.connect < self._timeout_s
        if not alone:  # the exchange's own time is over first
            seconds = aiohttp.ClientTimeout(connect=self._timeout_s)
        try:
            protocol = await self._connected(seconds)
        except TimeoutError as error:
            if not alone:
                raise
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._head.request.url} in time") from error
        if self._late:
            raise TimeoutError
        protocol.set_response_params(read_until_eof=True)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection was closed before the request was written")
        transport.write(self._bytes)
        try:
            while True:
                message, self._payload = await protocol.read()
                if not 100 <= message.code < 200 or message.code == _SWITCHING:
                    return PreparedAnswer(message.code, message.headers, self._payload)
        except HttpProcessingError as error:
            raise aiohttp.ClientPayloadError(f"{error.code}, {error.message}") from error

    async def _connected(self, seconds: aiohttp.ClientTimeout) -> ResponseHandler:
        """A connection of the pool, or a new one. What came over one that nobody had asked is no answer to this: such a
        one is closed."""
        while True:
            connection = self._connection = await self._connector.connect(self._head.request, [], seconds)
            protocol = connection.protocol
            assert protocol is not None, "a connection has one until it is given back"
            if not protocol.should_close:
                return protocol
            connection.close()

    def _is_late(self) -> None:
        """The time of the whole exchange is over: whoever reads hears of it."""
        self._late = True
        if self._connection is not None and (protocol := self._connection.protocol) is not None:
            protocol.set_exception(TimeoutError())
            if self._payload is not None:
                self._payload.set_exception(TimeoutError())

    def _leave(self, keep: bool) -> None:
        self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release() if keep else connection.close()  # what is not read to its end is closed in any case


class PreparedAnswer:
    """The answer to such a request."""

    __slots__ = ("_payload", "headers", "status")

    def __init__(self, status: int, headers: CIMultiDictProxy[str], payload: aiohttp.StreamReader) -> None:
        self.status, self._payload = status, payload
        self.headers: Mapping[str, str] = headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Unreadable beyond `BODY_BYTES_MAX`."""
        return bounded(self._payload.iter_any())

    async def read(self) -> bytes:
        """The whole body, under the same bound."""
        length = self.headers.get(_LENGTH, "")
        if _ENCODING in self.headers or not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return b"".join([chunk async for chunk in self.chunks()])
        payload = self._payload
        return payload.read_nowait() if payload.is_eof() else await payload.read()  # a short one came with its head
