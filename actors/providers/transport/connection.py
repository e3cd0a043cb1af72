"""HTTP/1.1 connection: whole requests are written one after another, responses are parsed by llhttp.

aiohttp's pool makes the connection (lookup, TLS, both families of addresses). This module then takes over its
transport, and `httptools`, the parser of uvicorn, parses responses. aiohttp's own protocol makes a parser, a stream and
a queue for each response, and calls as many Python functions again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

from actors.providers.transport.body import BODY_BYTES_MAX, NO_HTTP, UnreadableResponse, too_long

if TYPE_CHECKING:
    from aiohttp.connector import Connection

HEAD_BYTES_MAX: Final = 1 << 17
"""Most bytes of all headers of a response, informational responses included. Servers stop at 8 or 16 KB."""
PIECE_BYTES: Final = 1 << 16
"""Size of the pieces in which a longer request is written, the next when the last one is on its way. A transport does
not report what it holds below TLS, so all unsent bytes but a piece or two stay above it."""
_NOTHING: Final = memoryview(b"")
_SWITCHING: Final = 101
_WORDS: Final = 100
"""Least HTTP status. Those up to 199 are informational responses before the final one (RFC 9110, 15.2)."""


class HttpConnection(asyncio.Protocol):
    """Connection for one exchange at a time: `ask`, `read` or `more` until `whole`, and then `ask` again if it `keeps`.

    Raises aiohttp's errors, `UnreadableResponse` for a response without an end, and the error that `fail` is given.
    """

    __slots__ = (
        "_bytes_max",
        "_fields",
        "_full",
        "_head",
        "_loop",
        "_made",
        "_more",
        "_parser",
        "_received",
        "_theirs",
        "_transport",
        "_unsent",
        "error",
        "headers",
        "keeps",
        "on_body",
        "parts",
        "rested_s",
        "status",
        "whole",
    )  # fmt: skip

    def __init__(self, made: Connection) -> None:
        """Take over a connection of aiohttp's. Raises ClientConnectionError where it is closed already, or has received
        bytes unasked."""
        theirs, transport = made.protocol, made.transport
        if theirs is None or transport is None or transport.is_closing() or theirs.should_close:
            made.close()
            raise aiohttp.ClientConnectionError("the server closes the connection, or sends bytes before a request")
        self._loop = asyncio.get_running_loop()
        self._made, self._theirs, self._transport = made, theirs, transport
        self._head: asyncio.Future[None] | None = None
        """Future of status and headers; None while no request is sent."""
        self._more: asyncio.Future[None] | None = None
        """Future of more of the body."""
        self._fields: list[tuple[bytes, bytes]] = []
        self._received = 0
        self._bytes_max = BODY_BYTES_MAX
        self._full = False
        """True while the transport takes no more bytes."""
        self._unsent = _NOTHING
        """Part of a long request that is not written yet."""
        self.status = 0
        """HTTP status; 0 until the head has come."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.parts: list[bytes] = []
        """Parts of the body, as they came."""
        self.on_body = self.parts.append
        self.whole = False
        self.keeps = True
        """True if the connection may be used again after this exchange."""
        self.error: BaseException | None = None
        self.rested_s = 0.0
        """Time at which the connection became idle, by the loop's clock; `rest` sets it."""
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # those of aiohttp's client: small servers end lines as they please
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        transport.set_protocol(self)
        transport.set_write_buffer_limits(PIECE_BYTES)

    @property
    def usable(self) -> bool:
        """True if the connection is open and may be used again. The transport may know of a close before it reports
        one."""
        return self.keeps and not self._transport.is_closing()

    @property
    def unsent(self) -> bool:
        """True if a part of the request is not sent yet."""
        return bool(self._unsent) or self._transport.get_write_buffer_size() > 0

    def ask(self, request: bytes, bytes_max: int = BODY_BYTES_MAX) -> asyncio.Future[None]:
        """Send a request. The future is done when status and headers have come. ``bytes_max``: most bytes of the body.
        """
        self._received, self._bytes_max, self.status, self.whole = 0, bytes_max, 0, False
        self._fields.clear()
        self.parts.clear()
        head = self._head = self._loop.create_future()
        if len(request) <= PIECE_BYTES:
            self._transport.write(request)
        else:
            self._unsent = memoryview(request)
            self._write_on()
        return head

    def _write_on(self) -> None:
        """Write as much of a long request as the transport takes for now."""
        while self._unsent and not self._full and not self._transport.is_closing():
            # an empty slice would keep the whole request in memory
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:] or _NOTHING
            self._transport.write(piece)

    async def more(self) -> None:
        """Wait until a part of the body has come, or its end. Only one caller may wait."""
        if self.error is not None:
            raise self.error
        if not self.whole:
            self._more = self._loop.create_future()
            await self._more

    async def read(self) -> bytes:
        """Return the whole body, as it was sent. Raises UnreadableAnswer for one that is too long."""
        while not self.whole:
            await self.more()
        parts = self.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(body) > self._bytes_max:
            raise too_long(self._bytes_max)
        return body

    def rest(self, now_s: float) -> None:
        """Become idle at this time of the loop's clock."""
        self._head, self.rested_s = None, now_s
        self.parts.clear()

    def fail(self, error: BaseException | type[BaseException]) -> None:
        """Close the connection with an error, which the caller that waits for the response, or asks for more of it,
        gets."""
        self.error = error if isinstance(error, BaseException) else error()
        for waiting in (self._head, self._more):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self.error)
                break
        self.close()

    def close(self) -> None:
        """Abort the connection. The rest of a request is not sent: it would else be answered, and paid, for no caller.

        `close` of a transport would send that rest, wait for the other end under TLS, and fail there at a second call.
        """
        self.keeps, self._unsent = False, _NOTHING
        self._transport.abort()

    # Callbacks of the transport.

    def pause_writing(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        """Go on writing, in a later callback: a write in this one may fail, and asyncio then closes one transport
        twice."""
        self._full = False
        if self._unsent:
            self._loop.call_soon(self._write_on)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a response; close the connection where no request is under way."""
        if self._head is None:
            self.close()
            return
        self._received += len(data)
        if self._received > len(data) + (self._bytes_max if self.status else HEAD_BYTES_MAX):
            self.fail(too_long(self._bytes_max) if self.status else UnreadableResponse("the answer's head has no end"))
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self.whole:  # bytes after the response, or another protocol
                self.close()
            else:
                self.fail(aiohttp.ClientPayloadError(f"{NO_HTTP}: {error}"))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def eof_received(self) -> None:
        """Note that the server sends no more: under TLS the close is reported some rounds of the loop later."""
        self.keeps = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the pool's place, and end a body that has no length."""
        self.keeps, self._unsent = False, _NOTHING
        self._theirs.connection_lost(exc)
        self._made.close()
        del self._parser  # it holds methods of this object
        if self._head is None or self.whole or self.error is not None:
            return
        if not self.status:
            lost = aiohttp.ClientOSError(*exc.args) if isinstance(exc, OSError) else aiohttp.ServerDisconnectedError()
            self.fail(lost)
        elif exc is None and self._ends_with_connection():
            self.whole = True
            if self._more is not None and not self._more.done():
                self._more.set_result(None)
        else:
            came = sum(map(len, self.parts))
            self.fail(aiohttp.ClientPayloadError(f"the answer ended after {came} bytes of its body: {exc or 'cut'}"))

    def _ends_with_connection(self) -> bool:
        """Return whether the body has neither a length nor chunks (RFC 9112, 6.3)."""
        codings = ",".join(self.headers.getall("transfer-encoding", ())).lower()
        return "content-length" not in self.headers and "chunked" not in codings

    # Callbacks of the parser. `on_body` is in `__init__`.

    def on_message_begin(self) -> None:
        """Refuse a second response: raising ends the parser's work."""
        if self.whole:
            raise ValueError("a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers after the body are not used."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Take all headers, of the response or of an informational one before it."""
        status = self._parser.get_status_code()
        if status < _WORDS:
            raise ValueError(f"a status of {status}")
        if status < 2 * _WORDS and status != _SWITCHING:
            self._fields.clear()
            return
        self.headers = CIMultiDict(
            [(name.decode("ascii"), value.decode("utf-8", "surrogateescape")) for name, value in self._fields]
        )
        self.status = status
        head = self._head
        if head is not None and not head.done():
            head.set_result(None)

    def on_message_complete(self) -> None:
        """Note the end of a response."""
        if self.status:
            self.whole, self.keeps = True, self.keeps and self._parser.should_keep_alive()
