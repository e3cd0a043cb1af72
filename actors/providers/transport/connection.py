"""One HTTP/1.1 connection: requests go out as they are, one after another, and answers come through llhttp.

aiohttp's pool makes the connection (lookup, TLS, both families of addresses); from then on its transport is ours, and
`httptools`, the parser of uvicorn, takes the answers apart. aiohttp's own protocol makes a parser, a stream and a queue
for each answer, and takes as many Python functions again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict

from actors.providers.transport.body import BODY_BYTES_MAX, UnreadableResponse

if TYPE_CHECKING:
    from aiohttp.connector import Connection

HEAD_BYTES_MAX: Final = 1 << 17
"""Of all headers of an answer, and the words before it. Servers stop at 8 or 16 KB."""
PIECE_BYTES: Final = 1 << 16
"""A longer request is written in such pieces, the next when the last is on its way: of what lies below TLS a transport
tells nothing, and so all that is not sent but for a piece or two stays above it."""
_NOTHING: Final = memoryview(b"")
_SWITCHING: Final = 101
_WORDS: Final = 100
"""The least status: those up to 199 are words before the answer (RFC 9110, 15.2)."""


class HttpConnection(asyncio.Protocol):
    """Asks one thing at a time: `ask`, `read` or `more` until `whole`, and then `ask` again where it `keeps`.

    Raises aiohttp's errors, `UnreadableResponse` for an answer that has no end, and what `fail` is given.
    """

    __slots__ = (
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
        """Takes over what aiohttp made. Raises ClientConnectionError where it is closed already, or spoke unasked."""
        theirs, transport = made.protocol, made.transport
        if theirs is None or transport is None or transport.is_closing() or theirs.should_close:
            made.close()
            raise aiohttp.ClientConnectionError("whoever is there hangs up, or speaks before it is asked")
        self._loop = asyncio.get_running_loop()
        self._made, self._theirs, self._transport = made, theirs, transport
        self._head: asyncio.Future[None] | None = None
        """Whoever waits for status and headers; None while nothing is asked."""
        self._more: asyncio.Future[None] | None = None
        """Whoever waits for more of the body."""
        self._fields: list[tuple[bytes, bytes]] = []
        self._received = 0
        self._full = False
        """Does the transport want no more for now?"""
        self._unsent = _NOTHING
        """What of a long request is not written yet."""
        self.status = 0
        """0 until the head is there."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.parts: list[bytes] = []
        """Of the body, as they came."""
        self.on_body = self.parts.append
        self.whole = False
        self.keeps = True
        """May something be asked over it, after this?"""
        self.error: BaseException | None = None
        self.rested_s = 0.0
        """Since when it rests, by the loop's clock: whoever lets it rest says."""
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # those of aiohttp's client: small servers end lines as they please
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        transport.set_protocol(self)
        transport.set_write_buffer_limits(PIECE_BYTES)

    @property
    def usable(self) -> bool:
        """May something be asked over it, and is it open still? What closes it may be known before it is told."""
        return self.keeps and not self._transport.is_closing()

    @property
    def unsent(self) -> bool:
        """Is a part of the request still here?"""
        return bool(self._unsent) or self._transport.get_write_buffer_size() > 0

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Send a request. What it gives back is done when status and headers are there."""
        self._received, self.status, self.whole = 0, 0, False
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
        """As much of a long request as is taken for now."""
        while self._unsent and not self._full and not self._transport.is_closing():
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:] or _NOTHING  # else all is kept
            self._transport.write(piece)

    async def more(self) -> None:
        """Until something of the body came, or its end. One at a time."""
        if self.error is not None:
            raise self.error
        if not self.whole:
            self._more = self._loop.create_future()
            await self._more

    async def read(self) -> bytes:
        """The whole body, as it was sent. Raises Unreadable beyond `BODY_BYTES_MAX`."""
        while not self.whole:
            await self.more()
        parts = self.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(body) > BODY_BYTES_MAX:
            raise UnreadableResponse(f"the answer is longer than {BODY_BYTES_MAX} bytes")
        return body

    def rest(self, now_s: float) -> None:
        """Nothing is asked any more."""
        self._head, self.rested_s = None, now_s
        self.parts.clear()

    def fail(self, error: BaseException | type[BaseException]) -> None:
        """End it: whoever waits for an answer, or comes for more of it, hears this."""
        self.error = error if isinstance(error, BaseException) else error()
        for waiting in (self._head, self._more):
            if waiting is not None and not waiting.done():
                waiting.set_exception(self.error)
                break
        self.close()

    def close(self) -> None:
        """Hang up at once. What is left of a request is not sent: else it would be answered, and paid, though nobody
        waits. (`close` of a transport would send it, wait for the other end under TLS, and bears no second call there.)
        """
        self.keeps, self._unsent = False, _NOTHING
        self._transport.abort()

    # What the transport tells.

    def pause_writing(self) -> None:
        """It holds enough."""
        self._full = True

    def resume_writing(self) -> None:
        """It has room again. What is written from in here may fail, and then asyncio closes one transport twice."""
        self._full = False
        if self._unsent:
            self._loop.call_soon(self._write_on)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer; of none that anybody asked for, and this connection is of no use."""
        if self._head is None:
            self.close()
            return
        self._received += len(data)
        if self._received > len(data) + (BODY_BYTES_MAX if self.status else HEAD_BYTES_MAX):
            self.fail(UnreadableResponse(f"the answer is longer than {BODY_BYTES_MAX} bytes, or its head has no end"))
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self.whole:  # and something after it, or another protocol
                self.close()
            else:
                self.fail(aiohttp.ClientPayloadError(f"the answer is no HTTP: {error}"))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def eof_received(self) -> None:
        """They sent the last of it: what closes under TLS is told some rounds of the loop later."""
        self.keeps = False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by us or by them: the pool's place is free, and a body without a length has its end."""
        self.keeps, self._unsent = False, _NOTHING
        self._theirs.connection_lost(exc)
        self._made.close()
        del self._parser  # it holds methods of this
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
        """RFC 9112, 6.3: a body of which neither its length nor chunks are told."""
        codings = ",".join(self.headers.getall("transfer-encoding", ())).lower()
        return "content-length" not in self.headers and "chunked" not in codings

    # What the parser tells. `on_body` is in `__init__`.

    def on_message_begin(self) -> None:
        """The first byte of an answer, or of something after it: raising ends the parser's work."""
        if self.whole:
            raise ValueError("more than was asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; after the body those that nobody looks at."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """All headers: of the answer, or of a word before it."""
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
        """The end of an answer."""
        if self.status:
            self.whole, self.keeps = True, self.keeps and self._parser.should_keep_alive()
