"""What comes over a connection, to the byte and in any pieces, and what becomes of the connection."""

from __future__ import annotations

import asyncio
import gzip
import sys
import tracemalloc
import zlib
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from actors.providers.transport import connection as module
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.connection import HttpConnection
from actors.providers.transport.content_encoding import decoded
from tests.support.patience import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 2\r\nX-Empty:\r\nX-Said: \xc3\xa9\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\nx-trailer: 1\r\n\r\n"
UNTIL_CLOSED = OK + b"content-type: text/plain\r\n\r\nhi"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
TWO_CODINGS = b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi"
OLD = b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi"
BARE_LINES = b"HTTP/1.1 200\ncontent-length: 2\n\nhi"
UPGRADABLE = OK + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nhi"


class Wire(asyncio.Transport):
    """A transport that keeps what is written and tells its protocol that it is closed when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.written: list[bytes] = []
        self.ended = False
        self.pieces_max = sys.maxsize
        """So many, and it wants no more until a test makes room."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (module.PIECE_BYTES, None)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written.append(data)
        if len(self.written) == self.pieces_max:
            self.protocol.pause_writing()

    def make_room(self, pieces: int) -> None:
        self.pieces_max = len(self.written) + pieces
        self.protocol.resume_writing()

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


class Made:
    """What aiohttp's pool gives."""

    def __init__(self, wire: Wire) -> None:
        self.transport: Wire | None = wire
        self.protocol = ResponseHandler(asyncio.get_running_loop())
        self.protocol.connection_made(wire)
        self.given_back = 0

    def close(self) -> None:
        self.given_back += 1


def connected() -> tuple[HttpConnection, Wire, Made]:
    wire = Wire()
    made = Made(wire)
    connection = HttpConnection(made)  # type: ignore[arg-type]
    assert wire.protocol is connection
    return connection, wire, made


async def took(answer: bytes, size: int) -> tuple[int, bytes, bool, HttpConnection]:
    """Status and body of one answer that comes in pieces of so many bytes, and then the end where it is needed."""
    connection, wire, _ = connected()
    head = connection.ask(b"request")
    assert wire.written == [b"request"]
    for at in range(0, len(answer), size):
        connection.data_received(answer[at : at + size])
    if answer == UNTIL_CLOSED:
        connection.connection_lost(None)
    await asyncio.wait_for(head, PATIENCE_S)
    return connection.status, await asyncio.wait_for(connection.read(), PATIENCE_S), connection.keeps, connection


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize(
    ("answer", "keeps"),
    [
        (LENGTH, True), (CHUNKED, True), (HINTS + LENGTH, True), (HINTS + HINTS + CHUNKED, True), (UPGRADABLE, True),
        (UNTIL_CLOSED, False), (LAST, False), (OLD, False), (BARE_LINES, True),
    ],
)  # fmt: skip
async def test_an_answer_is_the_same_in_whatever_pieces_it_comes(answer: bytes, keeps: bool, size: int) -> None:
    status, body, kept, connection = await took(answer, size)
    assert (status, body, kept) == (200, b"hi", keeps)
    if answer is LENGTH:
        assert dict(connection.headers) == {"Content-Length": "2", "X-Empty": "", "X-Said": "é"}
        assert connection.headers["x-said"] == "é", "by name, in any case"
    assert "link" not in connection.headers and "x-trailer" not in connection.headers


async def test_one_answer_after_another_over_one_connection() -> None:
    connection, wire, made = connected()
    for answer, body in ((LENGTH, b"hi"), (HINTS + CHUNKED, b"hi"), (LENGTH.replace(b"hi", b"ho"), b"ho")):
        head = connection.ask(b"request")
        connection.data_received(answer)
        await head
        assert await connection.read() == body and connection.keeps
        connection.rest(1.0)
    assert not wire.ended and not made.given_back


@pytest.mark.parametrize("more", [b"HTTP/1.1 408 Late\r\ncontent-length: 0\r\n\r\n", b"x", b"HTTP/1.1 4"])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("rests", [True, False])
async def test_what_comes_after_an_answer_spoils_the_connection_and_not_the_answer(
    more: bytes, together: bool, rests: bool
) -> None:
    connection, wire, _ = connected()
    head = connection.ask(b"request")
    connection.data_received(LENGTH + (more if together else b""))
    await head
    assert await connection.read() == b"hi"
    if rests:
        connection.rest(1.0)
    if not together:
        connection.data_received(more)
    assert not connection.keeps and wire.ended


@pytest.mark.parametrize(
    ("answer", "lost", "expected"),
    [
        (b"", None, aiohttp.ServerDisconnectedError),
        (OK, None, aiohttp.ServerDisconnectedError),
        (HINTS, None, aiohttp.ServerDisconnectedError),
        (b"", ConnectionResetError(104, "reset"), aiohttp.ClientOSError),
        (LENGTH[:-1], None, aiohttp.ClientPayloadError),
        (LENGTH[:-1], ConnectionResetError(104, "reset"), aiohttp.ClientPayloadError),
        (CHUNKED[:-12], None, aiohttp.ClientPayloadError),
        (UNTIL_CLOSED, ConnectionResetError(104, "reset"), aiohttp.ClientPayloadError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None, aiohttp.ClientPayloadError),
        (b"HTTP/1.1 000 Nothing\r\ncontent-length: 2\r\n\r\nhi", None, aiohttp.ClientPayloadError),
        (OK + TWO_CODINGS + b"1\r\nh\r\n", None, aiohttp.ClientPayloadError),
        (OK + b"content-length: x\r\n\r\n", None, aiohttp.ClientPayloadError),
        (OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\nhi", None, aiohttp.ClientPayloadError),
    ],
)
async def test_a_broken_answer_is_an_error_by_name(
    answer: bytes, lost: Exception | None, expected: type[Exception]
) -> None:
    connection, _, made = connected()
    head = connection.ask(b"request")
    if answer:
        connection.data_received(answer)
    connection.connection_lost(lost)
    with pytest.raises(expected):
        await asyncio.wait_for(head, PATIENCE_S)
        await asyncio.wait_for(connection.read(), PATIENCE_S)
    assert not connection.keeps and made.given_back == 1
    closed = made.protocol.closed
    assert closed is None or closed.done(), "aiohttp's connector waits for it when it is closed"


async def test_another_protocol_is_an_answer_and_the_last() -> None:
    connection, wire, _ = connected()
    head = connection.ask(b"request")
    connection.data_received(b"HTTP/1.1 101 Other\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nxx")
    await head
    assert (connection.status, await connection.read(), connection.keeps) == (101, b"", False) and wire.ended


async def test_who_waits_for_more_hears_of_the_end() -> None:
    connection, _, _ = connected()
    head = connection.ask(b"request")
    connection.data_received(LENGTH[:-1])
    await head
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.fail(TimeoutError)
    with pytest.raises(TimeoutError):
        await reading
    with pytest.raises(TimeoutError):  # and so does whoever comes later
        await connection.read()


async def test_what_has_no_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_BYTES_MAX", 1_000)
    for begins in (OK, OK + b"x-long: ", OK + b"transfer-encoding: chunked\r\n\r\nfffffff\r\n"):
        connection, wire, _ = connected()
        head = connection.ask(b"request", 1_000)
        connection.data_received(begins)
        for _ in range(200):
            if not wire.ended:
                connection.data_received(b"x: 123456\r\n" if begins is OK else b"x" * 10)
        with pytest.raises(UnreadableResponse):
            await head
            await connection.read()
        assert wire.ended and connection._received < 1_200
    connection, _, _ = connected()  # longer than that, but at once
    head = connection.ask(b"request", 1_000)
    connection.data_received(OK + b"content-length: 1001\r\n\r\n" + b"x" * 1_001)
    await head
    with pytest.raises(UnreadableResponse, match="1,000 bytes"):
        await connection.read()


@pytest.mark.parametrize("size", [0, 1, module.PIECE_BYTES, module.PIECE_BYTES + 1, 5 * module.PIECE_BYTES - 1])
async def test_a_long_request_is_written_in_pieces(size: int) -> None:
    connection, wire, _ = connected()
    request = bytes(index % 251 for index in range(size))
    connection.ask(request)
    assert b"".join(wire.written) == request
    assert all(len(piece) <= module.PIECE_BYTES for piece in wire.written)
    assert not connection.unsent


async def test_what_a_transport_does_not_take_of_a_long_request_waits_and_is_known_to() -> None:
    connection, wire, _ = connected()
    request = bytes(index % 251 for index in range(4 * module.PIECE_BYTES + 1))
    wire.pieces_max = 1
    connection.ask(request)
    for written, room in ((1, 2), (3, 2)):
        assert len(wire.written) == written and connection.unsent
        wire.make_room(room)
        await asyncio.sleep(0)
    assert b"".join(wire.written) == request and not connection.unsent
    wire.written.clear()
    held = sys.getrefcount(request)
    connection.data_received(LENGTH)
    connection.rest(0.0)
    connection.ask(b"short")
    assert wire.written == [b"short"]
    assert sys.getrefcount(request) == held == 2, "nothing of it is kept once it is sent"


@pytest.mark.parametrize("end", ["closed", "lost", "breaking"])
async def test_of_a_request_that_is_given_up_nothing_more_is_written(end: str) -> None:
    connection, wire, _ = connected()
    wire.pieces_max = 1
    head = connection.ask(bytes(2 * module.PIECE_BYTES))
    if end == "closed":
        connection.fail(TimeoutError)
    elif end == "lost":
        connection.connection_lost(None)
    else:
        wire.ended = True
    wire.make_room(9)
    await asyncio.sleep(0)
    assert len(wire.written) == 1
    assert end == "breaking" or head.exception() is not None


async def test_a_connection_that_spoke_or_was_closed_before_it_was_ours_is_not_taken() -> None:
    for spoil in ("spoke", "closing", "gone"):
        wire = Wire()
        made = Made(wire)
        if spoil == "spoke":
            made.protocol.data_received(b"HTTP/1.1 408")
        elif spoil == "closing":
            wire.abort()
        else:
            made.transport = None
        with pytest.raises(aiohttp.ClientConnectionError):
            HttpConnection(made)  # type: ignore[arg-type]
        assert made.given_back == 1 and wire.protocol is None


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


BODY = b"a body of words " * 40


@pytest.mark.parametrize(
    ("sent", "encoding"),
    [
        (BODY, ""), (BODY, "identity"), (gzip.compress(BODY), "gzip"), (gzip.compress(BODY), " X-GZip "),
        (gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), "gzip"), (zlib.compress(BODY), "deflate"),
        (raw_deflate(BODY), "deflate"),
    ],
)  # fmt: skip
def test_a_body_is_what_it_was_before_it_was_encoded(sent: bytes, encoding: str) -> None:
    assert decoded(sent, encoding) == BODY


@pytest.mark.parametrize(
    ("sent", "encoding", "words"),
    [
        (b"not gzip", "gzip", "no gzip"), (gzip.compress(BODY)[:-9], "gzip", "cut"), (BODY, "br", "nobody asked"),
        (gzip.compress(BODY), "gzip, gzip", "nobody asked"), (zlib.compress(BODY)[:-9], "deflate", "cut"),
        (gzip.compress(BODY) + b"rest", "gzip", "no gzip"),
    ],
)  # fmt: skip
def test_a_body_that_is_not_what_it_is_said_to_be(sent: bytes, encoding: str, words: str) -> None:
    with pytest.raises(aiohttp.ClientPayloadError, match=words):
        decoded(sent, encoding)


def test_a_small_body_that_becomes_a_large_one_is_not_held() -> None:
    assert decoded(gzip.compress(b"x" * 1_000), "gzip", 1_000) == b"x" * 1_000
    for sent in (gzip.compress(b"x" * 1_001), gzip.compress(b"x" * 600) * 2, gzip.compress(bytes(20_000_000))):
        tracemalloc.start()
        with pytest.raises(UnreadableResponse):
            decoded(sent, "gzip", 1_000)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 1_000_000
    assert decoded(b"", "gzip") == b"", "an answer without a body"
    with pytest.raises(UnreadableResponse, match="pieces"):
        decoded(gzip.compress(b"") * 101, "gzip")
