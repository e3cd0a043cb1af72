"""The simulated provider over HTTP, with the official SDK's typed client and, for what that hides, a bare one."""

from __future__ import annotations

import asyncio
import io
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import pytest

from actors.providers.transport.server_load import load_in
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from tests.support.patience import PATIENCE_S

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
TURN: Any = [{"role": "user", "content": "Reply with exactly 'one two three four five six seven eight nine ten'"}]
SAID = "one two three four five six seven eight nine ten"


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[SimulatorServer, anthropic.AsyncAnthropic]]:
    server = await serve(SimulatorSettings(**{"error": 0.0, **settings}))
    client = anthropic.AsyncAnthropic(api_key="sk-test", base_url=server.url, max_retries=0, timeout=PATIENCE_S)
    try:
        yield server, client
    finally:
        await client.close()
        await server.close()


async def create(client: anthropic.AsyncAnthropic, **more: Any) -> anthropic.types.Message:
    return await client.messages.create(**{"model": "sim", "max_tokens": 100, "messages": TURN, **more})


async def test_create() -> None:
    async with running() as (server, client):
        message = await create(client, metadata={"user_id": "call-1"}, system="Be brief.")
        assert [block.type for block in message.content] == ["text"]
        assert message.content[0].type == "text" and message.content[0].text == SAID
        assert (message.role, message.model, message.stop_reason) == ("assistant", "sim", "end_turn")
        assert message.usage.input_tokens > 10 and message.usage.output_tokens == 13
        assert message.id.startswith("msg_sim")
        raw = await client.messages.with_raw_response.create(model="sim", max_tokens=3, messages=TURN)
        cut = await raw.parse()
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
        assert raw.headers["request-id"].startswith("req_sim")
        assert "anthropic-ratelimit-requests-limit" not in raw.headers
        assert server.provider.stats()["complete_answers"] == 2
        assert server.provider.answers_to_user("call-1") == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_model_that_thinks_needs_room_for_both(streamed: bool) -> None:
    """The official SDK reads the blocks; thinking counts against ``max_tokens`` and can be turned off."""

    async def answered(max_tokens: int, **more: Any) -> tuple[list[str], str, str | None, int]:
        if not streamed:
            message = await create(client, max_tokens=max_tokens, **more)
        else:
            async with client.messages.stream(model="sim", max_tokens=max_tokens, messages=TURN, **more) as stream:
                message = await stream.get_final_message()
        text = "".join(block.text for block in message.content if block.type == "text")
        return [block.type for block in message.content], text, message.stop_reason, message.usage.output_tokens

    async with running(thinking_tokens=64) as (_, client):
        assert await answered(8) == (["thinking"], "", "max_tokens", 8)
        assert await answered(64) == (["thinking"], "", "max_tokens", 64)
        assert await answered(66) == (["thinking", "text"], "one two", "max_tokens", 66)
        assert await answered(100) == (["thinking", "text"], SAID, "end_turn", 64 + 13)
        assert await answered(100, thinking={"type": "disabled"}) == (["text"], SAID, "end_turn", 13)


async def test_stream() -> None:
    async with running() as (server, client):
        whole = await create(client)
        kinds = []
        async with client.messages.stream(model="sim", max_tokens=100, messages=TURN) as stream:
            async for event in stream:
                kinds.append(event.type)
            message = await stream.get_final_message()
        raw = await client.messages.create(model="sim", max_tokens=100, messages=TURN, stream=True)
        events = [event async for event in raw]
        assert message.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"}) | {
            "usage": message.usage.model_dump()
        }
        assert message.usage.output_tokens == whole.usage.output_tokens
        assert message.usage.input_tokens == whole.usage.input_tokens
        assert [event.type for event in events] == [
            "message_start",
            "content_block_start",
            *["content_block_delta"] * 2,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert kinds.count("text") == 2
        stats = server.provider.stats()
        assert (stats["complete_answers"], stats["distinct_bodies_answered"]) == (3, 1)  # streamed is the same call


async def test_forced_tool_and_structured_output() -> None:
    schema = {"type": "object", "properties": {"relevant": {"type": "boolean"}}}
    asked: Any = [{"role": "user", "content": "Question: cats\n\nNote: cats eat fish"}]
    tools: Any = [{"name": "record", "input_schema": schema}]
    forced: Any = {"type": "tool", "name": "record"}
    async with running() as (_, client):
        message = await create(client, messages=asked, tools=tools, tool_choice=forced)
        async with client.messages.stream(
            model="sim", max_tokens=100, messages=asked, tools=tools, tool_choice=forced
        ) as stream:
            streamed = await stream.get_final_message()
        for each in (message, streamed):
            assert each.stop_reason == "tool_use"
            assert each.content[0].type == "tool_use"
            assert (each.content[0].name, each.content[0].input) == ("record", {"relevant": True})
        shaped = await create(
            client, messages=asked, output_config={"format": {"type": "json_schema", "schema": schema}}
        )
        assert shaped.content[0].type == "text" and shaped.content[0].text == '{"relevant":true}'


async def test_count_tokens_and_models() -> None:
    async with running(models=("one", "two"), context_window=9_000) as (server, client):
        counted = await client.messages.count_tokens(model="one", messages=TURN, system="Be brief.")
        message = await create(client, model="one", system="Be brief.")
        assert counted.input_tokens == message.usage.input_tokens
        with pytest.raises(anthropic.BadRequestError, match="max_tokens: Extra inputs are not permitted"):
            await client.messages.count_tokens(model="one", messages=TURN, extra_body={"max_tokens": 5})
        assert server.provider.stats()["token_counts"] == 1
        models = [model async for model in client.models.list()]
        assert [(model.id, model.max_input_tokens) for model in models] == [("one", 9_000), ("two", 9_000)]
        assert (await client.models.retrieve("two")).display_name == "Simulated two"
        with pytest.raises(anthropic.NotFoundError, match="model: three"):
            await create(client, model="three")
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("three")


async def test_a_key_there_must_be() -> None:
    async with running(keys=("good",)) as (server, _), aiohttp.ClientSession() as bare:
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "bad"}, 401),
            ({"authorization": "Basic good"}, 401),
            ({"authorization": "Bearer "}, 401),
            ({"x-api-key": "good"}, 200),
            ({"authorization": "Bearer good"}, 200),
        ):
            sent = headers | {"anthropic-version": "2023-06-01"}
            body = {"model": "sim", "max_tokens": 9, "messages": TURN}
            async with bare.post(server.url + "/v1/messages", json=body, headers=sent) as got:
                reported = await got.json()
                assert got.status == status, headers
                if status == 401:
                    assert reported["error"]["type"] == "authentication_error"
                    assert reported["request_id"] == got.headers["request-id"]
        async with bare.post(server.url + "/v1/messages", json={}, headers={"x-api-key": "good"}) as got:
            assert (got.status, (await got.json())["error"]["message"]) == (
                400,
                "anthropic-version: header is required",
            )
        assert server.provider.stats()["unauthorised"] == 4
        async with bare.get(server.url + "/_sim/settings") as got:
            assert (await got.json())["keys"] == 1


async def test_unknown_paths_and_methods() -> None:
    async with running() as (server, _), aiohttp.ClientSession(headers=HEADERS) as bare:
        for method, path, status in (
            ("GET", "/v1/messages", 405),
            ("POST", "/v1/models", 405),
            ("GET", "/v1/nothing", 404),
            ("GET", "/", 404),
            ("GET", "/v1/messages/batches/msgbatch_no", 404),
            ("PUT", "/v1/messages/batches/msgbatch_no", 404),
            ("GET", "/_sim/nothing", 404),
        ):
            async with bare.request(method, server.url + path) as got:
                assert got.status == status, path
                assert (await got.json())["type"] == "error"


async def test_typed_errors() -> None:
    expected: list[tuple[dict[str, float], type[anthropic.APIStatusError], str]] = [
        ({"throttled": 1.0}, anthropic.RateLimitError, "rate_limit_error"),
        ({"overloaded": 1.0}, anthropic.InternalServerError, "overloaded_error"),
        ({"server_error": 1.0}, anthropic.InternalServerError, "api_error"),
        ({"billing": 1.0}, anthropic.APIStatusError, "billing_error"),
        ({"credit": 1.0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"unauthorised": 1.0}, anthropic.AuthenticationError, "authentication_error"),
        ({"tier_cap": 1.0}, anthropic.RateLimitError, "rate_limit_error"),
    ]
    async with running(throttled_retry_after_s=9) as (server, client):
        for faults, error_type, name in expected:
            server.provider.change({"faults": faults})
            with pytest.raises(error_type) as raised:
                await create(client)
            assert raised.value.type == name
            assert raised.value.response.headers.get("retry-after") == ("9" if "throttled" in faults else None)
            assert raised.value.error_code == ("enforced_spend_limit_reached" if "tier_cap" in faults else None)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            server.provider.change({"faults": {}, "context_window": 10})
            await create(client)


async def test_rate_limit_headers() -> None:
    async with running(rpm=2) as (_, client):
        began_s = time.monotonic()
        for remaining in ("1", "0"):
            raw = await client.messages.with_raw_response.create(model="sim", max_tokens=9, messages=TURN)
            assert raw.headers["anthropic-ratelimit-requests-limit"] == "2"
            assert raw.headers["anthropic-ratelimit-requests-remaining"] == remaining
            assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        with pytest.raises(anthropic.RateLimitError) as raised:
            await create(client)
        # Half a minute after the first request, which was some time ago, in whole seconds.
        assert 30 - math.ceil(time.monotonic() - began_s) <= int(raised.value.response.headers["retry-after"]) <= 30
        assert raised.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"


async def test_settings_and_counts_at_run_time() -> None:
    async with running(credit_calls=1) as (server, client), aiohttp.ClientSession() as bare:
        await create(client)
        with pytest.raises(anthropic.BadRequestError, match="credit balance is too low"):
            await create(client)
        async with bare.post(server.url + "/_sim/settings", json={"credit_calls": 5, "seed": 3}) as got:
            assert (got.status, (await got.json())["seed"]) == (200, 3)
        await create(client, metadata={"user_id": "me"})
        async with bare.get(server.url + "/_sim/stats", params={"user_id": "me"}) as got:
            stats = await got.json()
        assert (stats["requests"], stats["worked"], stats["complete_answers"]) == (3, 2, 2)
        assert (stats["refused_credit"], stats["credit_calls_left"], stats["answers_to_user"]) == (1, 4, 1)
        for bad in ({"nothing": 1}, {"faults": {"hang": 2}}, [1]):
            async with bare.post(server.url + "/_sim/settings", json=bad) as got:
                assert got.status == 400
                assert "\n" not in (await got.json())["error"]["message"]


async def test_many_at_once_and_large_bodies() -> None:
    async with running(slots=1) as (server, client), aiohttp.ClientSession(headers=HEADERS) as bare:
        slots = server.provider.slots
        assert slots is not None
        await slots.acquire()  # until all have come

        async def one(number: int) -> int:
            body = {"model": "sim", "max_tokens": 9, "messages": [{"role": "user", "content": f"Say a{number}"}]}
            async with bare.post(server.url + "/v1/messages", json=body) as got:
                return len(await got.read()) and got.status

        calls = [asyncio.create_task(one(number)) for number in range(80)]
        while server.provider.stats()["in_flight"] < len(calls):  # noqa: ASYNC110 - nobody says when a request has come
            await asyncio.sleep(0.001)
        slots.release()
        assert set(await asyncio.gather(*calls)) == {200}
        stats = server.provider.stats()
        assert (stats["complete_answers"], stats["second_complete_answers"], stats["in_flight"]) == (80, 0, 0)
        assert stats["in_flight_max"] == len(calls)
        long = await create(client, messages=[{"role": "user", "content": "Say hello. " + "word " * 150_000}])
        assert long.usage.input_tokens > 150_000
        async with bare.post(server.url + "/v1/messages", data=io.BytesIO(b" " * (33 * 1024 * 1024))) as got:
            assert (got.status, (await got.json())["error"]["type"]) == (413, "request_too_large")


async def test_who_goes_away_is_not_answered() -> None:
    async with running(latency_ms=60_000, latency_spread=0) as (server, client):
        call = asyncio.create_task(create(client))
        while not server.provider.stats()["in_flight"]:  # noqa: ASYNC110 - nobody says when a request has come
            await asyncio.sleep(0.001)
        call.cancel()
        while server.provider.stats()["in_flight"]:  # noqa: ASYNC110 - nor when who asked has gone
            await asyncio.sleep(0.001)
        stats = server.provider.stats()
        assert (stats["in_flight"], stats["worked"], stats["complete_answers"]) == (0, 1, 0)


async def test_closing_lets_go_of_what_hangs() -> None:
    server = await serve(SimulatorSettings(faults={"hang": 1.0}))
    async with aiohttp.ClientSession(headers=HEADERS) as bare:
        body = {"model": "sim", "max_tokens": 9, "messages": TURN}
        hanging = asyncio.create_task(bare.post(server.url + "/v1/messages", json=body).__aenter__())
        while not server.provider.stats()["in_flight"]:  # noqa: ASYNC110 - nobody says when a request has come
            await asyncio.sleep(0.001)
        await asyncio.wait_for(server.close(), PATIENCE_S)
        with pytest.raises(aiohttp.ClientError):
            await hanging


async def test_a_server_with_slots_keeps_further_requests_waiting_and_refuses_none() -> None:
    async with running(slots=1) as (server, client):
        provider = server.provider
        assert provider.slots is not None
        await provider.slots.acquire()
        waiting = asyncio.create_task(create(client))
        while not provider.stats()["in_flight"]:  # noqa: ASYNC110 - nobody says when a request has come
            await asyncio.sleep(0.001)
        assert not waiting.done() and provider.stats()["complete_answers"] == 0
        provider.slots.release()
        assert (await waiting).stop_reason == "end_turn"
        assert not provider.slots.locked()
        provider.change({"slots": None})
        assert provider.slots is None
        assert (await create(client)).stop_reason == "end_turn"


async def metrics(server: SimulatorServer) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(server.url + "/metrics") as got:
        lines = [line for line in (await got.text()).splitlines() if not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_with_a_full_cache_keeps_requests_waiting_and_tells_so(streamed: bool) -> None:
    async with running(slots=8, kv_tokens=1_000, latency_ms_per_output_token=1.0) as (server, client):
        batch = server.provider.batch
        assert batch is not None and server.provider.slots is None
        held = batch.batch.add(batch.now(), 990, 1, 1e9)
        batch.now()
        waiting = asyncio.create_task(said(client, streamed))
        while not batch.waiting:  # noqa: ASYNC110 - nobody says when a request has come
            await asyncio.sleep(0.001)
        told = await metrics(server)
        assert (told["vllm:num_requests_running"], told["vllm:num_requests_waiting"]) == (1, 1)
        assert (told["vllm:kv_cache_usage_perc"], told["vllm:num_preemptions_total"]) == (0.99, 0)
        assert load_in("\n".join(f"{name} {value}" for name, value in told.items())) == (1, 1)
        assert not waiting.done()
        batch.drop(held)
        assert await waiting == SAID
        assert (batch.working, batch.waiting, batch.batch.kv_usage) == (0, 0, 0)
        server.provider.change({"kv_tokens": None})
        assert server.provider.batch is None and server.provider.slots is not None
        assert "vllm:kv_cache_usage_perc" not in await metrics(server)


async def said(client: anthropic.AsyncAnthropic, streamed: bool) -> str:
    if not streamed:
        message = await create(client)
        assert message.content[0].type == "text"
        return message.content[0].text
    async with client.messages.stream(model="sim", max_tokens=100, messages=TURN) as stream:
        return "".join([text async for text in stream.text_stream])


async def test_preemptions_are_told() -> None:
    async with running(slots=8, kv_tokens=1_000) as (server, _):
        batch = server.provider.batch
        assert batch is not None
        at_s = batch.now()
        for _ in range(2):  # at one time: the second would wait for the first, once that has written three tokens
            batch.batch.add(at_s, 499, 400, 0.01)
        while not batch.batch.preemptions:
            await asyncio.sleep(0.001)
            batch.now()
        assert (await metrics(server))["vllm:num_preemptions_total"] == 1


async def test_a_client_that_goes_gives_its_place_back() -> None:
    async with running(slots=1, prefill_tps=1.0) as (server, client):
        batch = server.provider.batch
        assert batch is not None
        gone = asyncio.create_task(said(client, False))
        while not batch.working:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        gone.cancel()
        while batch.working:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert batch.waiting == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_an_empty_request_is_refused_and_not_counted(path: str) -> None:
    async with running() as (server, _), aiohttp.ClientSession() as session:
        async with session.post(server.url + path, data=b"{}", headers=HEADERS | {"authorization": "Bearer k"}) as answer:
            assert answer.status == 400 and "model" in (await answer.json())["error"]["message"]
        stats = server.provider.stats()
        assert (stats["requests"], stats["bad_requests"]) == (0, 0)
