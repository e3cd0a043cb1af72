"""A request of which only the body is new, over aiohttp's connections and through its parser.

``ClientSession.post`` makes for each request what is the same for all of them: the address taken apart, headers merged
and put into bytes, cookies looked for, a task that writes, an object for the answer with its own timers. That is two
thirds of what a call takes of the CPU. Here aiohttp puts the head of a request into bytes once; then a connection of
its pool is taken, head and body are written, and its parser's answer is read. What a session would add beyond that
(redirects, cookies, a proxy, a second try) is not wanted here, or goes by the session (``direct``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from multidict import CIMultiDictProxy, istr
from yarl import URL

from actors.provider.reply import BODY_BYTES_MAX, bounded

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

_LENGTH: Final = istr("Content-Length")
_ENCODING: Final = istr("Content-Encoding")
_LENGTH_LINE: Final = b"\r\nContent-Length: 1\r\n"
_SWITCHING: Final = 101
_KERNEL_BYTES: Final = 1 << 16
"""A longer request may be answered before all of it was taken."""
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

_log = logging.getLogger("cortex.client")


class Head:
    """All of a request but its body, and where it goes. Holds the key: never shown."""

    __slots__ = ("after", "before", "request", "seconds")

    def __init__(self, request: aiohttp.ClientRequest, sent: bytes, connect_s: float) -> None:
        """``sent``: what aiohttp sends before a body of one byte. Raises ``ValueError`` where that tells no length, or
        two."""
        self.request = request
        """By this the pool knows which of its connections will do, and how to make one."""
        before, *rest = sent.split(_LENGTH_LINE)
        if len(rest) != 1:
            raise ValueError(f"aiohttp tells the length of a body {len(rest)} times")
        self.before, self.after = before, rest[0][: -len(b"\r\n")]
        self.seconds = aiohttp.ClientTimeout(connect=connect_s)

    def with_body(self, body: bytes, traceparent: str) -> bytes:
        """The whole request. Raises ``ValueError`` for a trace that would be more than one header."""
        if not traceparent.isprintable():
            raise ValueError("the name of a span has no control characters")
        trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
        return b"%b\r\nContent-Length: %d\r\n%b%b\r\n%b" % (self.before, len(body), self.after, trace, body)


class _Looked(asyncio.Transport):
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
) -> Head | None:  # fmt: skip
    """What aiohttp would send of a POST with these headers; None where this aiohttp is put together in another way, or
    refuses: then all goes by the session, which says why."""
    try:
        from aiohttp.http import StreamWriter

        loop, looked = asyncio.get_running_loop(), _Looked()
        request = aiohttp.ClientRequest(
            "POST", url, headers=headers, data=b"0", loop=loop, response_class=aiohttp.ClientResponse, session=session
        )
        writer = StreamWriter(looked, loop)  # type: ignore[arg-type]
        await writer.write_headers(f"POST {request.url.raw_path_qs} HTTP/1.1", request.headers)
        writer.send_headers()
        head = Head(request, looked.written, connect_s)
        await _rehearsed(session.connector, head)
        return head
    except Exception as error:  # whatever another aiohttp raises
        _log.warning("requests go by aiohttp's session, at a third of the speed: %s", type(error).__name__)
        return None


async def _rehearsed(connector: Any, head: Head) -> None:
    """One answer through aiohttp's parser, as ``PreparedExchange`` takes it: what is other than it was is seen before
    anything is paid. Raises whatever comes of that."""
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

    inspect.signature(connector.connect).bind(head.request, [], head.seconds)
    protocol = ResponseHandler(asyncio.get_running_loop())
    protocol.connection_made(_Looked())
    protocol.set_response_params(read_until_eof=True)
    protocol.data_received(_ANSWER)
    message, payload = await asyncio.wait_for(protocol.read(), 1.0)
    answer = PreparedAnswer(message.code, message.headers, payload)
    known = all(hasattr(Connection, name) for name in ("protocol", "transport", "release", "close"))
    if not (known and answer.status == 200 and await answer.read() == b"{}" and protocol.should_close is False):
        raise TypeError("an answer is read in another way")
    payload.set_exception(TimeoutError())
    protocol.set_exception(TimeoutError())


class PreparedExchange:
    """One such request on its way; leaving the block gives the connection back, or closes it when the body was not
    read, or the request not taken whole. Raises what a session does, or what aiohttp's parser does."""

    __slots__ = ("_body", "_connection", "_connector", "_head", "_late", "_payload", "_timeout_s", "_timer", "_trace")

    def __init__(
        self, connector: aiohttp.BaseConnector, head: Head, body: bytes, trace: str, timeout_s: float
    ) -> None:  # fmt: skip
        """``timeout_s`` bounds the exchange."""
        self._connector, self._head, self._body, self._trace = connector, head, body, trace
        self._timeout_s = timeout_s
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
            if not alone or self._late:
                raise
            raise aiohttp.ConnectionTimeoutError(f"no connection to {self._head.request.url} in time") from error
        protocol.set_response_params(read_until_eof=True)
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection was closed before the request was written")
        transport.write(self._head.with_body(self._body, self._trace))
        while True:
            message, self._payload = await protocol.read()
            if not 100 <= message.code < 200 or message.code == _SWITCHING:
                break
        if self._late and not self._payload.is_eof():  # both came in one round of the loop, and nobody was told
            raise TimeoutError
        if not 200 <= message.code < 300 and len(self._body) >= _KERNEL_BYTES:
            protocol.force_close()  # perhaps whoever refused it has not taken all of it
        return PreparedAnswer(message.code, message.headers, self._payload)

    async def _connected(self, seconds: aiohttp.ClientTimeout) -> ResponseHandler:
        """A connection of the pool, or a new one. What came over one that nobody had asked is no answer to this: such a
        one is closed."""
        until_s = asyncio.get_running_loop().time() + (seconds.connect or self._timeout_s)
        for again in range(self._connector.limit + 1):
            if again:
                left_s = until_s - asyncio.get_running_loop().time()
                seconds = aiohttp.ClientTimeout(connect=max(left_s, 0.001))
            try:
                connection = self._connection = await self._connector.connect(self._head.request, [], seconds)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._connector.closed and task is not None and not task.cancelling():  # its pool was, not this call
                    raise aiohttp.ClientConnectionError("the connections were closed") from None
                raise
            if self._late:
                raise TimeoutError
            protocol = connection.protocol
            assert protocol is not None, "a connection has one until it is given back"
            if not protocol.should_close:
                return protocol
            connection.close()
        raise aiohttp.ClientConnectionError("whoever is there speaks before it is asked")

    def _is_late(self) -> None:
        """The time of the whole exchange is over: whoever reads hears of it."""
        self._late = True
        if self._connection is not None and (protocol := self._connection.protocol) is not None:
            protocol.set_exception(TimeoutError())
            if self._payload is not None:
                self._payload.set_exception(TimeoutError())

    def _leave(self, keep: bool) -> None:
        self._timer.cancel()
        connection, self._connection, self._body = self._connection, None, b""
        if connection is None:
            return
        transport = connection.transport
        if keep and transport is not None and not transport.get_write_buffer_size():
            connection.release()  # which closes it where its answer was not read to the end
            return
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # else what is left of the request is sent though nobody waits for its answer
        connection.close()


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
