"""Message Batches of the simulated provider: the state by the clock, and the whole road with the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import msgspec
import pytest

from actors.simulator.api.batches import NoSuchBatch, SimulatedBatchStore
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.request import BadRequest
from actors.simulator.settings import SimulatorSettings
from tests.support.patience import PATIENCE_S

NOW = 1_800_000_000.0


def params(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "sim", "max_tokens": 50, "messages": [{"role": "user", "content": text}]} | more


def rows(count: int) -> list[Any]:
    return [{"custom_id": f"row-{number}", "params": params(f"Say a{number}")} for number in range(count)]


def batches(**settings: Any) -> SimulatedBatchStore:
    return SimulatedBatchStore(
        SimulatedProvider(SimulatorSettings(**{"error": 0.0, "batch_ms": 1_000, "latency_spread": 0, **settings}))
    )


def body(requests: Any) -> bytes:
    return msgspec.json.encode({"requests": requests})


# ------------------------------------------------------------------------------------------ by the clock


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "requests: List should have 1 to 100000 items"),
        ("no", "requests: Expected `array`"),
        ([{"custom_id": "a"}], "requests: Object missing required field `params`"),
        ([{"custom_id": "a b", "params": {}}], "requests.0.custom_id: String should match pattern"),
        ([{"custom_id": "x" * 65, "params": {}}], "requests.0.custom_id: String should match pattern"),
        ([{"custom_id": "a", "params": {}}] * 2, "requests.1.custom_id: Each custom_id must be unique"),
    ],
)
def test_a_bad_batch_is_refused_whole(requests: Any, told: str) -> None:
    with pytest.raises(BadRequest) as error:
        batches().create(body(requests), NOW)
    assert str(error.value).startswith(told)


def test_rows_are_worked_off_in_step_with_time() -> None:
    all_ = batches()
    batch = all_.create(body(rows(100)), NOW)
    assert batch.to_json("http://x")["request_counts"]["processing"] == 100
    assert not all_.advance(batch, NOW + 0.5, 1_000)
    assert batch.done == 50
    assert all_.advance(batch, NOW + 1, 10) and batch.done == 60  # more is due: others get their turn first
    assert batch.ended_s is None
    assert not all_.advance(batch, NOW + 1, 1_000)
    facts = batch.to_json("http://x")
    assert (facts["processing_status"], facts["results_url"]) == (
        "ended",
        f"http://x/v1/messages/batches/{batch.name}/results",
    )
    assert facts["request_counts"] == {"processing": 0, "succeeded": 100, "errored": 0, "canceled": 0, "expired": 0}
    names = [msgspec.json.decode(line)["custom_id"] for line in batch.lines]
    assert sorted(names) == sorted(row["custom_id"] for row in rows(100))
    assert names != [row["custom_id"] for row in rows(100)]  # in no order to rely on


def test_every_row_has_its_own_end() -> None:
    all_ = batches(models=("sim",), context_window=1_000)
    requests = [
        *rows(2),
        {"custom_id": "long", "params": params("word " * 2_000)},
        {"custom_id": "bad", "params": {"model": "sim"}},
        {"custom_id": "unknown", "params": params("Say b", model="other")},
    ]
    batch = all_.create(body(requests), NOW)
    all_.advance(batch, NOW + 2, 100)
    facts = {each["custom_id"]: each["result"] for each in map(msgspec.json.decode, batch.lines)}
    assert facts["row-1"]["message"]["content"] == [{"type": "text", "text": "a1"}]
    assert facts["row-1"]["message"]["usage"]["service_tier"] == "batch"
    assert {name: facts[name]["error"]["error"]["type"] for name in ("long", "bad", "unknown")} == {
        "long": "invalid_request_error",
        "bad": "invalid_request_error",
        "unknown": "not_found_error",
    }
    assert batch.counts["errored"] == 3


def test_faults_of_a_row_and_none_of_a_connection() -> None:
    for fault, kind in (
        ("overloaded", "errored"),
        ("refusal", "succeeded"),
        ("reset", "succeeded"),
        ("hang", "succeeded"),
    ):
        all_ = batches(faults={fault: 1.0})
        batch = all_.create(body(rows(1)), NOW)
        all_.advance(batch, NOW + 2, 100)
        assert msgspec.json.decode(batch.lines[0])["result"]["type"] == kind


def test_a_cancelled_batch_keeps_what_it_has() -> None:
    all_ = batches()
    batch = all_.create(body(rows(10)), NOW)
    all_.advance(batch, NOW + 0.5, 100)
    all_.cancel(batch.name, NOW + 0.5)
    assert batch.to_json("")["processing_status"] == "canceling"
    all_.advance(batch, NOW + 2, 100)  # however late the next step comes
    assert (batch.counts["succeeded"], batch.counts["canceled"], batch.to_json("")["processing_status"]) == (
        5,
        5,
        "ended",
    )
    assert all_.cancel(batch.name, NOW + 9).cancelled_s == NOW + 0.5


def test_pages() -> None:
    all_ = batches()
    names = [all_.create(body(rows(1)), NOW + number).name for number in range(5)][::-1]
    assert len(set(names)) == 5  # the same batch twice is two batches
    page, more = all_.page(2, None, None)
    assert ([each.name for each in page], more) == (names[:2], True)
    page, more = all_.page(9, None, names[1])
    assert ([each.name for each in page], more) == (names[2:], False)
    page, more = all_.page(1, names[2], None)
    assert ([each.name for each in page], more) == ([names[1]], True)
    with pytest.raises(NoSuchBatch):
        all_.page(1, "none", None)


# ------------------------------------------------------------------------------------------ over HTTP


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[SimulatorServer, anthropic.AsyncAnthropic]]:
    server = await serve(SimulatorSettings(**{"error": 0.0, "batch_ms": 10, **settings}))
    client = anthropic.AsyncAnthropic(api_key="k", base_url=server.url, max_retries=0, timeout=PATIENCE_S)
    try:
        yield server, client
    finally:
        await client.close()
        await server.close()


async def ended(client: anthropic.AsyncAnthropic, name: str) -> anthropic.types.messages.MessageBatch:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await client.messages.batches.retrieve(name)
            if batch.processing_status == "ended":
                return batch
            await asyncio.sleep(0.003)


async def test_the_whole_road() -> None:
    async with running() as (server, client):
        made = await client.messages.batches.create(requests=rows(150))
        assert (made.type, made.processing_status, made.results_url) == ("message_batch", "in_progress", None)
        assert (made.request_counts.processing, made.request_counts.succeeded) == (150, 0)
        batch = await ended(client, made.id)
        assert (batch.request_counts.succeeded, batch.request_counts.processing) == (150, 0)
        assert batch.ended_at is not None and batch.expires_at > batch.created_at
        facts = {}
        async for line in await client.messages.batches.results(made.id):
            assert line.result.type == "succeeded"
            content = line.result.message.content[0]
            assert content.type == "text"
            facts[line.custom_id] = content.text
        assert facts == {f"row-{number}": f"a{number}" for number in range(150)}
        listed = [each.id async for each in client.messages.batches.list(limit=1)]
        assert listed == [made.id]
        gone = await client.messages.batches.delete(made.id)
        assert (gone.id, gone.type) == (made.id, "message_batch_deleted")
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(made.id)
        stats = server.provider.stats()
        assert (stats["batches"], stats["complete_answers"], stats["second_complete_answers"]) == (1, 150, 0)
        again = await client.messages.batches.create(requests=rows(3))
        await ended(client, again.id)
        assert server.provider.stats()["second_complete_answers"] == 3


async def test_cancelled_over_http() -> None:
    async with running(batch_ms=3_600_000, latency_spread=0) as (_, client):
        made = await client.messages.batches.create(requests=rows(5))
        with pytest.raises(anthropic.BadRequestError, match="still processing"):
            await client.messages.batches.delete(made.id)
        cancelled = await client.messages.batches.cancel(made.id)
        assert cancelled.cancel_initiated_at is not None
        batch = await ended(client, made.id)
        assert batch.request_counts.canceled == 5
        kinds = {line.result.type async for line in await client.messages.batches.results(made.id)}
        assert kinds == {"canceled"}


async def test_refused_over_http() -> None:
    async with running(credit_calls=0) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match="credit balance is too low"):
            await client.messages.batches.create(requests=rows(1))
        server.provider.change({"credit_calls": None})
        with pytest.raises(anthropic.BadRequestError, match="unique"):
            await client.messages.batches.create(requests=rows(1) * 2)
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            await client.messages.batches.list(limit=0)
