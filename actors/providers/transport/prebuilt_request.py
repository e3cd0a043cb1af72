"""Requests with a prebuilt head: only the body is new.

``ClientSession.post`` repeats for each request what is the same for all: parsing the address, merging and encoding
headers, looking for cookies, a task that writes, an object for the response with its own timers. That is three fifths
of a call's CPU time. This module has aiohttp encode the head of a request once and make the connections; each
connection then writes head and body as they are, and parses its responses (``connection``). What a session adds beyond
that (redirects, cookies, a second try) is not wanted, or goes by the session: a proxy (``aiohttp_transport``).
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

from actors.providers.transport.body import BODY_BYTES_MAX, bounded
from actors.providers.transport.connection import HttpConnection
from actors.providers.transport.connection_pool import ConnectionPool
from actors.providers.transport.content_encoding import decoded, decoded_beginning

_ENCODING: Final = istr("Content-Encoding")
_LENGTH_LINE: Final = b"\r\nContent-Length: 1\r\n"
_KERNEL_BYTES: Final = 1 << 16
"""Size from which a request may be answered before the server has taken all of it."""

_log = logging.getLogger("cortex.client")


class RequestHead:
    """Encoded head of a request, and its address. It holds the key and is never shown."""

    __slots__ = ("after", "before", "connect_s", "request")

    def __init__(self, request: aiohttp.ClientRequest, sent: bytes, connect_s: float) -> None:
        """``sent``: the bytes that aiohttp sends before a body of one byte. Raises ``ValueError`` where they hold no
        length, or two."""
        self.request = request
        """Request from which aiohttp knows how to make a connection."""
        before, *rest = sent.split(_LENGTH_LINE)
        if len(rest) != 1:
            raise ValueError(f"aiohttp tells the length of a body {len(rest)} times")
        self.before, self.after = before, rest[0][: -len(b"\r\n")]
        self.connect_s = connect_s

    def with_body(self, body: bytes, traceparent: str) -> bytes:
        """Return the whole request. Raises ``ValueError`` for a trace that would be more than one header."""
        if not traceparent.isprintable():
            raise ValueError("the name of a span has no control characters")
        trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
        return b"%b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (self.before, len(body), self.after, trace, body)


class _RecordingTransport(asyncio.Transport):
    """Transport that records what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.transport, self.written = self, b""

    def is_closing(self) -> bool:
        return False

    def write(self, some: bytes) -> None:  # type: ignore[override]
        self.written += some


async def head_of(
    session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str], connect_s: float,
    server_name: str | None = None,
) -> RequestHead | None:  # fmt: skip
    """Return the head that aiohttp would send of a POST with these headers, to a server whose certificate is for
    ``server_name``, None: for the host of the URL; None where this release of aiohttp is built
    in another way, or refuses: then all requests go by the session, which reports why."""
    try:
        from aiohttp.http import StreamWriter

        loop, looked = asyncio.get_running_loop(), _RecordingTransport()
        request = aiohttp.ClientRequest(
            "POST", url, headers=headers, data=b"0", loop=loop, response_class=aiohttp.ClientResponse, session=session,
            server_hostname=server_name,
        )
        writer = StreamWriter(looked, loop)  # type: ignore[arg-type]
        await writer.write_headers(f"POST {request.url.raw_path_qs} HTTP/1.1", request.headers)
        writer.send_headers()
        head = RequestHead(request, looked.written, connect_s)
        _checked_takeover(session.connector, head)
        return head
    except Exception as error:  # another release of aiohttp may raise anything
        _log.warning("requests go by aiohttp's session, at two fifths of the speed: %s", type(error).__name__)
        return None


def _checked_takeover(connector: Any, head: RequestHead) -> None:
    """Rehearse how a connection is made and taken over, so that a difference in this release of aiohttp is seen before
    anything is paid. Raises any error of that."""
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
    """`Exchange` of a request with a prebuilt head. Leaving the block returns the connection, or closes it if the body
    was not read, or the request not taken whole. Raises aiohttp's errors, as a session does."""

    __slots__ = ("_bytes_max", "_connection", "_head", "_long", "_pool", "_request", "_timeout_s", "_timer")

    def __init__(
        self, pool: ConnectionPool, head: RequestHead, body: bytes, trace: str, timeout_s: float,
        bytes_max: int = BODY_BYTES_MAX,
    ) -> None:  # fmt: skip
        """``timeout_s`` bounds the exchange, in seconds, ``bytes_max`` the body of its response. Raises ``ValueError``
        for a trace that would be more than one header."""
        self._pool, self._head, self._timeout_s, self._bytes_max = pool, head, timeout_s, bytes_max
        self._request = head.with_body(body, trace)
        self._long = len(self._request) >= _KERNEL_BYTES
        self._connection: HttpConnection | None = None

    async def __aenter__(self) -> PrebuiltResponse:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout_s
        connection = self._connection = self._pool.lend_rested() or await self._lent()
        self._timer = loop.call_at(until_s, connection.fail, TimeoutError)
        try:
            head, self._request = connection.ask(self._request, self._bytes_max), b""
            await head
        except BaseException:
            self._leave(keep=False)
            raise
        return PrebuiltResponse(connection, self._bytes_max)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(keep=error is None)

    async def _lent(self) -> HttpConnection:
        connect_s = self._head.connect_s
        try:
            return await self._pool.lend(self._head.request, min(connect_s, self._timeout_s))
        except TimeoutError as error:
            if connect_s >= self._timeout_s:  # the exchange's own time ends first
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
        else:  # a server that refused a long request may not have taken all of it
            self._pool.drop(connection)


class PrebuiltResponse:
    """`Response` to such a request, until its block is left."""

    __slots__ = ("_bytes_max", "_connection", "headers", "status")

    def __init__(self, connection: HttpConnection, bytes_max: int) -> None:
        self._connection, self._bytes_max = connection, bytes_max
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises UnreadableAnswer for one that is too long."""
        return bounded(self._chunks(), self._bytes_max)

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
        """Return the whole body, under the same bound."""
        body = await self._connection.read()
        return decoded(body, self.headers[_ENCODING], self._bytes_max) if _ENCODING in self.headers else body

    def received(self) -> bytes:
        """Return what came of the body before `read` failed."""
        came = b"".join(self._connection.parts)
        return decoded_beginning(came, self.headers[_ENCODING], self._bytes_max) if _ENCODING in self.headers else came
