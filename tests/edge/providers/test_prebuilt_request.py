"""Requests whose head stands ready: the same bytes as a session's, and what becomes of their connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import aiohttp
import pytest
from multidict import CIMultiDict
from yarl import URL

from actors.ports.model import TRACEPARENT
from actors.providers.messages.client import AnthropicModel
from actors.providers.transport import aiohttp_transport, prebuilt_request
from actors.providers.transport.aiohttp_transport import AiohttpTransport, RequestTemplate
from actors.providers.transport.connection import HttpConnection
from actors.providers.transport.prebuilt_request import PrebuiltExchange, RequestHead
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import (
    LATE_S,
    MESSAGE,
    Answer,
    Asked,
    Step,
    compact,
    http,
    pass_time,
    scripted,
)
from tests.edge.support.wired_model import BODY, CREDENTIAL, always
from tests.support.patience import PATIENCE_S

PATH = "/v1/messages"
HEAD_SENT = b"POST /v1/messages HTTP/1.1\r\nContent-Length: 1\r\n\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


async def road_to(url: str, connections_max: int = 10, connect_s: float = PATIENCE_S) -> AiohttpTransport:
    road = AiohttpTransport(connections_max=connections_max, context=None, proxy=None, connect_s=connect_s)
    headers = [("X-Api-Key", "abc"), ("content-type", "application/json"), ("x-many", "1"), ("x-many", "é")]
    await road.take({PATH: RequestTemplate(f"{url}{PATH}?beta=true", headers)})
    return road


async def said(road: AiohttpTransport, body: bytes = BODY, timeout_s: float = PATIENCE_S) -> bytes:
    async with road.send(PATH, body, timeout_s=timeout_s, silence_s=None) as answer:
        assert answer.status == 200
        return await answer.read()


@pytest.fixture
async def raw() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that keeps each request as it comes, to the byte."""
    kept: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l"))
        kept.append(head + await reader.readexactly(length))
        writer.write(b"".join(part for part in http(MESSAGE, connection="close") if isinstance(part, bytes)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", kept
    server.close()


@pytest.mark.parametrize("trace", ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"])
async def test_the_bytes_are_those_that_a_session_sends(raw: tuple[str, list[bytes]], trace: str) -> None:
    url, kept = raw
    road = await road_to(url)
    held = TRACEPARENT.set(trace)
    try:
        await said(road)
        road._heads = {}  # by the session
        await said(road)
    finally:
        TRACEPARENT.reset(held)
        await road.close()
    ours, theirs = kept
    assert sorted(ours.split(b"\r\n")) == sorted(theirs.split(b"\r\n")), "the order of headers is nobody's concern"
    assert ours.startswith(b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: 127.0.0.1:")
    if not trace:
        assert ours == theirs


async def test_a_word_before_the_answer_is_not_the_answer() -> None:
    async with scripted(always([EARLY_HINTS, *http(MESSAGE)])) as server:
        road = await road_to(server.url)
        assert [await said(road), await said(road)] == [compact(MESSAGE)] * 2
        await road.close()
    assert server.connections == 1


async def test_a_connection_is_kept_where_its_answer_was_read_and_closed_where_not() -> None:
    async with scripted(always(http(MESSAGE))) as server:
        road = await road_to(server.url)
        for _ in range(3):
            await said(road)
        await road.close()
    assert server.connections == 1
    long = [http(MESSAGE)[0][:-5], Step.HANG]  # type: ignore[index]
    async with scripted(always(long)) as server:
        road = await road_to(server.url, connections_max=1)
        for _ in range(2):
            async with road.send(PATH, BODY, timeout_s=PATIENCE_S, silence_s=None) as answer:
                assert answer.status == 200  # and its body is left alone
        await road.close()
    assert server.connections == 2, "the first gave its place in the pool back"


@pytest.mark.parametrize(
    "answer",
    [[Step.LATE], [http(MESSAGE)[0][:9], Step.LATE], [http(MESSAGE)[0][:-9], Step.LATE]],  # type: ignore[index]
)
async def test_the_time_of_the_whole_exchange_ends_it_wherever_it_stands(answer: Answer) -> None:
    over = False
    async with scripted(lambda _: http(MESSAGE) if over else answer) as server:
        road = await road_to(server.url, connections_max=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PATIENCE_S) as limit:
                await said(road, timeout_s=0.9 * LATE_S)
        assert not limit.expired()
        over = True
        assert await said(road) == compact(MESSAGE), "its place in the pool is free, its connection is not used again"
        await road.close()
    assert server.connections == 2


async def test_the_time_of_an_exchange_that_is_over_ends_nothing() -> None:
    """Neither the connection while it rests, nor the next call over it."""
    passed_s = iter([0.0, LATE_S, 0.0])

    async def slow(_: Asked) -> Answer:
        pass_time(next(passed_s))
        await asyncio.sleep(0.01)  # whatever is due now has its turn before the answer
        return http(MESSAGE)

    async with scripted(slow) as server:
        road = await road_to(server.url, connections_max=1)
        await said(road, timeout_s=0.9 * LATE_S)
        await said(road, timeout_s=PATIENCE_S + LATE_S)
        await said(road)
        await road.close()
    assert server.connections == 1


async def test_what_came_unasked_over_a_connection_is_nobodys_answer() -> None:
    """A proxy that tells a connection which rests that its time is over, say."""
    came = asyncio.Event()
    answers = iter([http(MESSAGE), http({**MESSAGE, "id": "msg_02"})])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                answer = next(answers)[0]
                assert isinstance(answer, bytes)
                writer.write(answer)
                await asyncio.sleep(0.05)
                writer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
                came.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    road = await road_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert await said(road) == compact(MESSAGE)
    await came.wait()
    await asyncio.sleep(0.05)
    assert b"msg_02" in await said(road)
    await road.close()
    server.close()


async def test_who_finds_no_place_in_the_pool_was_not_sent() -> None:
    """By the time to connect; where the attempt's own time is shorter, by that."""
    asked = asyncio.Event()

    def script(_: Asked) -> Answer:
        asked.set()
        return [Step.HANG]

    async with scripted(script) as server:
        road = await road_to(server.url, connections_max=1)
        first = asyncio.create_task(said(road))
        await asked.wait()
        road._heads[PATH].connect_s = 0.1  # from now on, so that the first one has all the time that it takes
        with pytest.raises(aiohttp.ConnectionTimeoutError):
            await said(road)
        with pytest.raises(TimeoutError) as late:
            await said(road, timeout_s=0.01)
        assert not isinstance(late.value, aiohttp.ClientError)
        patient = RequestHead(next(iter(road._heads.values())).request, HEAD_SENT, connect_s=2 * PATIENCE_S)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PATIENCE_S) as limit, PrebuiltExchange(road._pool, patient, BODY, "", 0.01):
                pass
        assert not limit.expired(), "its own time is shorter than that to connect"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await road.close()
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "changed", ["http.StreamWriter", "client_proto.ResponseHandler.closed", "client_proto.ResponseHandler.should_close"]
)
async def test_where_aiohttp_is_put_together_otherwise_all_goes_by_the_session(
    changed: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def other(*_: object, **__: object) -> None:
        raise TypeError("it takes other arguments now")

    monkeypatch.setattr(f"aiohttp.{changed}", other)
    async with scripted(always(http(MESSAGE))) as server:
        async with aiohttp.ClientSession() as session:
            assert await prebuilt_request.head_of(session, URL(server.url), CIMultiDict(), PATIENCE_S) is None
        monkeypatch.undo()  # the session knows its own parts
        monkeypatch.setattr(aiohttp_transport, "head_of", AsyncMock(return_value=None))
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        await model.close()
    assert isinstance(reply, Reply) and len(server.asked) == 1


async def test_a_header_that_would_be_two_is_not_sent() -> None:
    async with scripted(always(http(MESSAGE))) as server, aiohttp.ClientSession() as session:
        headers = CIMultiDict({"x-key": "abc\r\nx-other: 1"})
        assert await prebuilt_request.head_of(session, URL(server.url), headers, PATIENCE_S) is None
    assert not server.asked


async def test_the_length_is_told_once_whatever_other_headers_end_like_it() -> None:
    async with scripted(always(http(MESSAGE))) as server:
        road = await road_to(server.url)
        headers = [("X-Content-Length", "1"), ("x-said", "Content-Length: 1")]
        await road.take({PATH: RequestTemplate(f"{server.url}{PATH}", headers)})
        await said(road)
        await road.close()
    (asked,) = server.asked
    assert asked.body == BODY and asked.headers["x-content-length"] == "1"


async def test_a_trace_is_one_header() -> None:
    async with scripted(always(http(MESSAGE))) as server:
        road = await road_to(server.url)
        held = TRACEPARENT.set("00-1-2-01\r\nx-other: 1")
        with pytest.raises(ValueError, match="control characters"):
            await said(road)
        TRACEPARENT.reset(held)
        await road.close()
    assert not server.asked


@pytest.mark.parametrize(
    ("status", "size"), [(b"413 Too Large", 8 << 20), (b"413 Too Large", 100_000), (b"200 OK", 8 << 20)]
)
async def test_a_connection_on_which_the_request_was_not_taken_whole_is_not_used_again(
    status: bytes, size: int
) -> None:  # fmt: skip
    """A gateway answers a large request by its head, and would read the rest of it as the next one; the kernel may have
    taken all of it."""
    refused, whole = asyncio.Event(), iter([True, False])
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        if next(whole):
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
            await refused.wait()
        else:
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            writer.write(b"".join(part for part in http(MESSAGE) if isinstance(part, bytes)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    road = await road_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with road.send(PATH, b"x" * size, timeout_s=PATIENCE_S, silence_s=None) as answer:
        assert answer.status == int(status[:3])
    assert await said(road) == compact(MESSAGE)
    refused.set()
    await road.close()
    server.close()
    assert connections == 2


async def test_what_is_left_of_a_request_that_was_given_up_is_not_sent() -> None:
    """Else whoever reads slowly has it whole, answers, and is paid, after it was told as timed out."""
    began, late, read = asyncio.Event(), asyncio.Event(), asyncio.Event()
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            began.set()
            await late.wait()
            came.append(await reader.readexactly(32 << 20))
        except (asyncio.IncompleteReadError, ConnectionError):
            came.append(b"")
        read.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    road = await road_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    call = asyncio.create_task(said(road, b"x" * (32 << 20), timeout_s=0.9 * LATE_S))
    await began.wait()
    pass_time()
    with pytest.raises(TimeoutError):
        await call
    late.set()
    async with asyncio.timeout(PATIENCE_S):
        await read.wait()
    assert came == [b""]
    await road.close()
    server.close()


async def test_a_head_that_comes_with_the_end_of_the_time_is_no_leave_to_wait_on() -> None:
    """The answer's head and the timer in one round of the loop: the body would have no end otherwise."""
    head = http(MESSAGE)[0][:-9]  # type: ignore[index]
    async with scripted(always([head, Step.HANG])) as server:
        road = await road_to(server.url)
        exchange = road.send(PATH, BODY, timeout_s=2 * PATIENCE_S, silence_s=None)
        assert isinstance(exchange, prebuilt_request.PrebuiltExchange)
        feed = HttpConnection.data_received

        def late(connection: HttpConnection, data: bytes) -> None:
            feed(connection, data)
            connection.fail(TimeoutError)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(HttpConnection, "data_received", late)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE_S) as limit, exchange as answer:
                    await answer.read()
            assert not limit.expired()
        assert not exchange._connection
        await road.close()


async def test_who_waits_for_a_pool_that_is_closed_was_not_cancelled() -> None:
    asked = asyncio.Event()

    def script(_: Asked) -> Answer:
        asked.set()
        return [Step.HANG]

    async with scripted(script) as server:
        road = await road_to(server.url, connections_max=1)
        first = asyncio.create_task(said(road))
        await asked.wait()
        second = asyncio.create_task(said(road))
        await asyncio.sleep(0.05)
        await road.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await second
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_an_answer_that_is_no_http_was_sent() -> None:
    async with scripted(always([b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Step.CUT])) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        failure = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        await model.close()
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TRANSIENT and failure.sent
