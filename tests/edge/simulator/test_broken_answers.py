"""Answers that break on the way, over a real connection: what a client meets, and that none counts as complete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import pytest

from actors.providers.messages.flawed_response import read_flawed
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from tests.edge.support.socket_actors import until

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
BODY: dict[str, Any] = {
    "model": "sim",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Reply with exactly '" + "several words " * 20 + "end'"}],
}


@asynccontextmanager
async def broken(fault: str, **settings: Any) -> AsyncIterator[tuple[SimulatorServer, aiohttp.ClientSession]]:
    server = await serve(SimulatorSettings(error=0.0, faults={fault: 1.0}, **settings))
    try:
        async with aiohttp.ClientSession(headers=HEADERS) as session:
            yield server, session
    finally:
        await server.close()


async def read(
    server: SimulatorServer, session: aiohttp.ClientSession, **more: Any
) -> tuple[aiohttp.ClientResponse, bytes]:
    async with session.post(server.url + "/v1/messages", json=BODY | more) as got:
        return got, await got.read()


async def reads_in_vain(server: SimulatorServer, session: aiohttp.ClientSession, **more: Any) -> None:
    """The server has done the work, the reader has waited a moment more for what does not come, and leaves."""
    reading = asyncio.create_task(read(server, session, **more))
    try:
        await until(lambda: server.provider.stats()["worked"] == 1)
        assert await asyncio.wait([reading], timeout=0.05) == (set(), {reading})
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def counts(server: SimulatorServer) -> tuple[int, int]:
    stats = server.provider.stats()
    return stats["worked"], stats["complete_answers"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "worked"), [("reset", 0), ("reset_late", 1)])
async def test_a_reset(fault: str, worked: int, stream: bool) -> None:
    async with broken(fault) as (server, session):
        with pytest.raises((ConnectionResetError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)) as raised:
            await read(server, session, stream=stream)
        assert isinstance(raised.value, OSError)  # a reset, not an orderly end
        assert counts(server) == (worked, 0)


async def test_a_hang() -> None:
    async with broken("hang") as (server, session):
        await reads_in_vain(server, session)
        assert counts(server) == (1, 0)
    async with broken("hang", hang_s=0.01) as (server, session):
        with pytest.raises(aiohttp.ClientError):
            await read(server, session)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_truncated_body(stream: bool) -> None:
    async with broken("truncated") as (server, session):
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(server, session, stream=stream)
        assert counts(server) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_invalid_json(stream: bool) -> None:
    async with broken("invalid_json") as (server, session):
        got, body = await read(server, session, stream=stream)
        assert got.status == 200 and body
        assert got.content_type == ("text/event-stream" if stream else "application/json")
        entries = [body] if not stream else [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        with pytest.raises(json.JSONDecodeError):
            for each in entries:
                json.loads(each)
        assert counts(server) == (1, 0)


@pytest.mark.parametrize("words", ["several words " * 20, ""])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_can_be_read_from_invalid_json(stream: bool, words: str) -> None:
    """A message that is cut behind its content is an answer, and then the count of answers would be wrong."""
    async with broken("invalid_json") as (server, session):
        for number in range(60):  # each at another place
            asked = [{"role": "user", "content": f"Reply with exactly '{words}{number}'"}]
            _, body = await read(server, session, stream=stream, messages=asked)
            with pytest.raises((UnreadableResponse, StreamError)):
                read_flawed(body)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_content_type(stream: bool) -> None:
    async with broken("wrong_content_type") as (server, session):
        got, body = await read(server, session, stream=stream)
        assert (got.status, got.content_type) == (200, "text/html")
        assert body.startswith(b"<!doctype html>")
        assert counts(server) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_drip_is_whole_in_the_end(stream: bool) -> None:
    async with broken("slow_drip", drip_s=0.05) as (server, session):
        started = asyncio.get_running_loop().time()
        got, body = await read(server, session, stream=stream)
        assert asyncio.get_running_loop().time() - started > 0.04
        assert got.status == 200
        assert b"end" in body if stream else json.loads(body)["type"] == "message"
        assert counts(server) == (1, 1)
    async with broken("slow_drip", drip_s=600.0) as (server, session):
        await reads_in_vain(server, session, stream=stream)
        assert counts(server) == (1, 0)


async def test_an_error_inside_a_stream() -> None:
    async with broken("stream_error") as (server, session):
        got, body = await read(server, session, stream=True)
        assert got.status == 200 and b"message_start" in body and b"message_stop" not in body
        assert b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"' in body
        got, _ = await read(server, session)
        assert got.status == 529
        client = anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0)
        with pytest.raises(anthropic.APIStatusError) as raised:
            async with client.messages.stream(**BODY) as stream:
                await stream.get_final_message()
        assert raised.value.type == "overloaded_error"
        await client.close()
        assert counts(server) == (2, 0)


async def test_a_refusal() -> None:
    async with broken("refusal") as (server, session):
        _, body = await read(server, session)
        reported = json.loads(body)
        assert (reported["stop_reason"], reported["content"], reported["stop_details"]["type"]) == (
            "refusal",
            [],
            "refusal",
        )
        _, events = await read(server, session, stream=True)
        start = json.loads(events.split(b"data: ", 2)[1].split(b"\n")[0])["message"]
        assert start["stop_reason"] is None and "stop_details" not in start
        client = anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0)
        async with client.messages.stream(**BODY) as stream:
            message = await stream.get_final_message()
        assert (message.stop_reason, message.content) == ("refusal", [])
        await client.close()
        assert counts(server) == (3, 3)  # paid, and delivered


async def test_another_connection_is_not_harmed() -> None:
    async with broken("truncated") as (server, session):
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(server, session)
        server.provider.change({"faults": {}})
        got, body = await read(server, session)
        assert got.status == 200 and json.loads(body)["stop_reason"] == "end_turn"
        assert counts(server) == (2, 1)
