"""A request of which only the body is new.

``ClientSession.post`` makes for each request what is the same for all of them: the address taken apart, headers merged
and put into bytes, cookies looked for, a task that writes, an object for the answer with its own timers. That is three
fifths of what a call takes of the CPU. Here aiohttp puts the head of a request into bytes once and makes the
connections; each then takes head and body as they are, and its answers apart (``connection``). What a session would add
beyond that (redirects, cookies, a proxy, a second try) is not wanted here, or goes by the session (``direct``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final

import aiohttp
from multidict import istr
from yarl import URL

from actors.providers.transport.body import bounded
from actors.providers.transport.connection import HttpConnection
from actors.providers.transport.connection_pool import ConnectionPool
from actors.providers.transport.content_encoding import decoded

_ENCODING: Final = istr("Content-Encoding")
_LENGTH_LINE: Final = b"\r\nContent-Length: 1\r\n"
_KERNEL_BYTES: Final = 1 << 16
"""A longer request may be answered before all of it was taken."""

_log = logging.getLogger("cortex.client")


class RequestHead:
    """All of a request but its body, and where it goes. Holds the key: never shown."""

    __slots__ = ("after", "before", "connect_s", "request")

    def __init__(self, request: aiohttp.ClientRequest, sent: bytes, connect_s: float) -> None:
        """``sent``: what aiohttp sends before a body of one byte. Raises ``ValueError`` where that tells no length, or
        two."""
        self.request = request
        """By this aiohttp knows how to make a connection."""
        before, *rest = sent.split(_LENGTH_LINE)
        if len(rest) != 1:
            raise ValueError(f"aiohttp tells the length of a body {len(rest)} times")
        self.before, self.after = before, rest[0][: -len(b"\r\n")]
        self.connect_s = connect_s

    def with_body(self, body: bytes, traceparent: str) -> bytes:
        """The whole request. Raises ``ValueError`` for a trace that would be more than one header."""
        if not traceparent.isprintable():
            raise ValueError("the name of a span has no control characters")
        trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
        return b"%b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (self.before, len(body), self.after, trace, body)


class _RecordingTransport(asyncio.Transport):
    """Stands for a connection, and keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.transport, self.written = self, b""

    def is_closing(self) -> bool:
        return False

    def write(self, some: bytes) -> None:  # type: ignore[override]
        self.written += some


async def head_of(
    session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], connect_s: float
) -> RequestHead | None:  # fmt: skip
    """What aiohttp would send of a POST with these headers; None where this aiohttp is put together in another way, or
    refuses: then all goes by the session, which says why."""
    try:
        from aiohttp.http import StreamWriter

        loop, looked = asyncio.get_running_loop(), _RecordingTransport()
        request = aiohttp.ClientRequest(
            "POST", url, headers=headers, data=b"0", loop=loop, response_class=aiohttp.ClientResponse, session=session
        )
        writer = StreamWriter(looked, loop)  # type: ignore[arg-type]
        await writer.write_headers(f"POST {request.url.raw_path_qs} HTTP/1.1", request.headers)
        writer.send_headers()
        head = RequestHead(request, looked.written, connect_s)
        _checked_takeover(session.connector, head)
        return head
    except Exception as error:  # whatever another aiohttp raises
        _log.warning("requests go by aiohttp's session, at two fifths of the speed: %s", type(error).__name__)
        return None


def _checked_takeover(connector: Any, head: RequestHead) -> None:
    """A connection is asked for, and taken over, as this aiohttp knows it: what is other than it was is seen before
    anything is paid. Raises whatever comes of that."""
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

    inspect.signature(connector.connect).bind(head.request, [], aiohttp.ClientTimeout())
    theirs = ResponseHandler(asyncio.get_running_loop())
    theirs.connection_made(_RecordingTransport())
    known = all(hasattr(Connection, name) for name in ("protocol", "transport", "close"))
    if not known or theirs.should_close is not False or theirs.closed is None:
        raise TypeError("a connection is put together in another way")
    theirs.connection_lost(None)
    if not theirs.closed.done():
        raise TypeError("a connection is closed in another way")


class PrebuiltExchange:
    """One such request on its way; leaving the block gives the connection back, or closes it when the body was not
    read, or the request not taken whole. Raises aiohttp's errors, as a session does."""

    __slots__ = ("_connection", "_head", "_long", "_pool", "_request", "_timeout_s", "_timer")

    def __init__(self, pool: ConnectionPool, head: RequestHead, body: bytes, trace: str, timeout_s: float) -> None:
        """``timeout_s`` bounds the exchange. Raises ``ValueError`` for a trace that would be more than one header."""
        self._pool, self._head, self._timeout_s = pool, head, timeout_s
        self._request = head.with_body(body, trace)
        self._long = len(self._request) >= _KERNEL_BYTES
        self._connection: HttpConnection | None = None

    async def __aenter__(self) -> PrebuiltResponse:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout_s
        connection = self._connection = self._pool.lend_rested() or await self._lent()
        self._timer = loop.call_at(until_s, connection.fail, TimeoutError)
        try:
            head, self._request = connection.ask(self._request), b""
            await head
        except BaseException:
            self._leave(keep=False)
            raise
        return PrebuiltResponse(connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(keep=error is None)

    async def _lent(self) -> HttpConnection:
        connect_s = self._head.connect_s
        try:
            return await self._pool.lend(self._head.request, min(connect_s, self._timeout_s))
        except TimeoutError as error:
            if connect_s >= self._timeout_s:  # the exchange's own time is over first
                raise
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._head.request.url} in time") from error

    def _leave(self, keep: bool) -> None:
        self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        refused = self._long and not 200 <= connection.status < 300
        if keep and connection.keeps and connection.whole and not refused and not connection.unsent:
            self._pool.give_back(connection)
        else:  # perhaps whoever refused a long request has not taken all of it
            self._pool.drop(connection)


class PrebuiltResponse:
    """The answer to such a request, until its block is left."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Unreadable beyond `BODY_BYTES_MAX`."""
        return bounded(self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        if _ENCODING in self.headers:
            yield await self.read()
            return
        connection, at = self._connection, 0
        while True:
            while at < len(connection.parts):
                at += 1
                yield connection.parts[at - 1]
            if connection.whole:
                return
            await connection.more()

    async def read(self) -> bytes:
        """The whole body, under the same bound."""
        body = await self._connection.read()
        return decoded(body, self.headers[_ENCODING]) if _ENCODING in self.headers else body
