"""Batches of OpenAI over real HTTP: what is uploaded, made, listed, looked at, read and cancelled; and what goes wrong."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from actors.ports.message_batches import UNKNOWN_REQUESTS, BatchRequest, BatchStatus, surely_not_made
from actors.providers.batches.file_batches import FOREIGN
from actors.providers.batches.result_lines import UnreadableLine
from actors.providers.chat_completions.batch_results import read_chat_result
from actors.providers.chat_completions.client import ChatModel, model_of
from actors.providers.chat_completions.errors import ChatFailures
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.pricing import known
from actors.providers.registry import row_of
from actors.simulator.frontends.http_app import serve
from actors.simulator.settings import SimulatorSettings
from cortex.values.chat_form.completion import completion_of
from cortex.values.chat_form.request import chat_request
from cortex.values.reply import Reply
from policies.estimates.batching import NOT_BEGUN, QUEUE_FULL
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, http
from tests.support.patience import PATIENCE_S

KEY = "sk-made-up-0123456789"
SOON = SimulatorSettings(error=0.0, batch_ms=5)


def body(text: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": text}]} | fields)


def rows(count: int) -> list[BatchRequest]:
    return [BatchRequest(f"r{i}", body(f"Say a{i}")) for i in range(count)]


def client(url: str) -> ChatModel:
    account = opened(ProviderLocation(provider="openai", base_url=url), {"OPENAI_API_KEY": KEY})
    return model_of(ClientSpec(endpoint=account.endpoint, provider="openai", credential=account.credential))


@asynccontextmanager
async def simulated(settings: SimulatorSettings = SOON) -> AsyncIterator[Any]:
    server = await serve(settings)
    model = client(server.url)
    try:
        yield model.batches
    finally:
        await model.close()
        await server.close()


async def ended(batches: Any, name: str) -> BatchStatus:
    while True:
        found = await batches.look(name)
        assert isinstance(found, BatchStatus), found
        if found.ended:
            return found
        await asyncio.sleep(0.005)


async def results(batches: Any, name: str) -> dict[str, Reply | Failure]:
    return {custom_id: outcome async for custom_id, outcome in batches.results(name)}


async def test_a_batch_from_its_making_to_its_results() -> None:
    async with simulated() as batches:
        name = await batches.submit(rows(5), PATIENCE_S)
        assert isinstance(name, str)
        first = (await batches.look(name)).first_id
        status = await ended(batches, name)
        assert (status.name, status.requests, first) == (name, 5, "r0")
        found = await results(batches, name)
    assert {key: reply.text for key, reply in found.items() if isinstance(reply, Reply)} == {f"r{i}": f"a{i}" for i in range(5)}


async def test_a_request_in_the_form_of_chat_keeps_its_completion() -> None:
    chat = chat_request({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "Say a"}]})
    async with simulated() as batches:
        name = await batches.submit([BatchRequest("a", chat), BatchRequest("b", body("Say b"))], PATIENCE_S)
        await ended(batches, name)
        found = await results(batches, name)
    kept, plain = found["a"], found["b"]
    assert isinstance(kept, Reply) and isinstance(plain, Reply)
    assert json.loads(completion_of(kept.body, 0.0)[0])["id"].startswith("chatcmpl-")
    assert b"chat_completion" in kept.body and b"chat_completion" not in plain.body


async def test_the_list_goes_back_to_the_one_that_is_known_and_names_the_first_request() -> None:
    async with simulated() as batches:
        names = [await batches.submit(rows(1 + at), PATIENCE_S) for at in range(3)]
        found = await batches.listed(names[0], 0.0, 9)
        assert [(each.name, each.first_id) for each in found] == [(names[2], "r0"), (names[1], "r0")]
        assert [each.name for each in await batches.listed("", 0.0, 1)] == [names[2]]
        assert await batches.listed("", 4e9, 9) == []


async def test_each_row_has_its_own_failure() -> None:
    bad = [BatchRequest("odd", body("x", container="c")), BatchRequest("empty", b'{"model":"m","max_tokens":2}')]
    async with simulated() as batches:
        name = await batches.submit([*rows(2), *bad], PATIENCE_S)
        await ended(batches, name)
        found = await results(batches, name)
    assert isinstance(found["r0"], Reply) and isinstance(found["r1"], Reply)
    odd, empty = found["odd"], found["empty"]
    assert isinstance(odd, Failure) and isinstance(empty, Failure)
    assert (odd.kind, empty.kind) == (FailureKind.REJECTED, FailureKind.REJECTED)
    assert "container: chat completions have no such field" in odd.message
    assert not odd.may_be_billed and not empty.may_be_billed


async def test_what_expired_is_told_and_not_billed() -> None:
    async with simulated(SimulatorSettings(error=0.0, batch_ms=5, batch_expired=1.0)) as batches:
        name = await batches.submit(rows(2), PATIENCE_S)
        await ended(batches, name)
        found = await results(batches, name)
    assert {(each.kind, each.may_be_billed) for each in found.values() if isinstance(each, Failure)} == {(FailureKind.EXPIRED, False)}
    assert len(found) == 2


async def test_a_cancelled_batch_tells_which_rows_were_not_worked_off() -> None:
    async with simulated(SimulatorSettings(error=0.0, batch_ms=60_000)) as batches:
        name = await batches.submit(rows(3), PATIENCE_S)
        assert await batches.cancel(name) is None
        assert (await ended(batches, name)).requests == 3
        found = await results(batches, name)
    assert {each.kind for each in found.values() if isinstance(each, Failure)} == {FailureKind.CANCELLED}
    assert len(found) == 3


async def test_a_full_queue_is_told_by_the_batch_that_did_not_begin() -> None:
    async with simulated(SimulatorSettings(error=0.0, batch_ms=60_000, batch_queue=4)) as batches:
        names = [await batches.submit(rows(3), PATIENCE_S) for _ in range(2)]
        assert isinstance(await batches.look(names[0]), BatchStatus)
        found = await batches.look(names[1])
    assert isinstance(found, Failure)
    assert (found.kind, found.error_type, found.sent) == (FailureKind.THROTTLED, QUEUE_FULL, False)
    assert "Enqueued token limit reached" in found.message


async def test_a_file_that_is_refused_as_a_whole_is_no_rows_fault() -> None:
    two = [BatchRequest("a", body("x")), BatchRequest("b", body("x", model="other"))]
    async with simulated() as batches:
        name = await batches.submit(two, PATIENCE_S)
        found = await batches.look(name)
    assert isinstance(found, Failure) and (found.error_type, found.sent) == (NOT_BEGUN, False)
    assert "does not match the rest of the batch" in found.message


async def test_a_batch_that_is_checked_has_no_count_and_one_of_others_is_foreign() -> None:
    facts = {"id": "batch_1", "created_at": 5, "status": "validating", "request_counts": {"total": 0}, "metadata": None}
    with served(lambda _: http(facts)) as server:
        model = client(server.url)
        assert await model.batches.look("batch_1") == BatchStatus("batch_1", False, UNKNOWN_REQUESTS, 5.0, FOREIGN)
        found = await model.batches.look("../files")
        assert isinstance(found, Failure) and "is no id of a message batch" in found.message
        await model.close()
    assert all(each.headers["authorization"] == f"Bearer {KEY}" for each in server.asked)


@pytest.mark.parametrize(
    ("path", "answer", "sure"),
    [
        ("/v1/files", http({"error": {"message": "no"}}, 500), True),
        ("/v1/files", http({"odd": 1}), True),
        ("/v1/batches", http({"error": {"message": "no"}}, 400), True),
        ("/v1/batches", http({"error": {"message": "no"}}, 500), False),
        ("/v1/batches", http({"odd": 1}), False),
    ],
)
async def test_whether_a_failed_submission_may_have_made_a_batch(path: str, answer: Answer, sure: bool) -> None:
    with served(lambda asked: answer if asked.target == path else http({"id": "file-1"})) as server:
        model = client(server.url)
        found = await model.batches.submit(rows(1), PATIENCE_S)
        await model.close()
    assert isinstance(found, Failure) and surely_not_made(found) is sure


async def test_the_upload_is_a_form_and_the_batch_names_its_first_request() -> None:
    def script(asked: Asked) -> Answer:
        return http({"id": "file-1" if asked.target == "/v1/files" else "batch_1"})

    with served(script) as server:
        model = client(server.url)
        assert await model.batches.submit(rows(2), PATIENCE_S) == "batch_1"
        await model.close()
    upload, made = server.asked
    assert upload.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert made.json == {
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": {"cortex": "r0"},
    }  # fmt: skip


LINES: list[tuple[dict[str, Any], FailureKind, bool]] = [
    ({"response": None, "error": {"code": "batch_expired", "message": "late"}}, FailureKind.EXPIRED, False),
    ({"response": None, "error": {"code": "batch_cancelled", "message": "no"}}, FailureKind.CANCELLED, False),
    ({"response": None, "error": {"code": "x", "message": "no"}}, FailureKind.TRANSIENT, False),
    ({"response": None, "error": None}, FailureKind.TRANSIENT, False),
    ({"response": {"status_code": 400, "body": {"error": {"message": "bad", "type": "invalid_request_error"}}}},
     FailureKind.REJECTED, False),
    ({"response": {"status_code": 429, "body": {"error": {"message": "slow", "code": "rate_limit_exceeded"}}}},
     FailureKind.THROTTLED, False),
    ({"response": {"status_code": 504, "body": {"error": {"message": "late"}}}}, FailureKind.TRANSIENT, False),
    ({"response": {"status_code": 200, "body": {"choices": []}}}, FailureKind.UNREADABLE, True),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "billed"), LINES)
def test_the_failure_in_a_line(line: dict[str, Any], kind: FailureKind, billed: bool) -> None:
    failures = ChatFailures(row_of("openai"), lambda text: text)
    found = read_chat_result(msgspec.json.encode({"custom_id": "ca", "id": "b"} | line), failures)
    assert found[0] == "a" and isinstance(found[1], Failure)
    assert (found[1].kind, found[1].may_be_billed) == (kind, billed)


@pytest.mark.parametrize(
    ("line", "custom_id"),
    [
        (b"no json", ""), (b'{"id":"x"}', ""), (b'{"custom_id":7}', ""), (b'{"custom_id":"ca"', "a"),
        (b'{"custom_id":"ca","response":7}', "a"), (b'{"custom_id":"ca","custom_id":"cb"', ""),
        (b'{"custom_id":"ca","response":"\\"custom_id\\":\\"cb\\"', "a"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_names_its_request_where_it_can(line: bytes, custom_id: str) -> None:
    with pytest.raises(UnreadableLine) as caught:
        read_chat_result(line, ChatFailures(row_of("openai"), lambda text: text))
    assert caught.value.custom_id == custom_id and line.decode() in str(caught.value)


def test_the_error_of_a_line_may_have_any_form() -> None:
    failures = ChatFailures(row_of("openai"), lambda text: text)
    for error, text in (("no such model", "no such model"), ({"code": 404, "message": "gone"}, "gone"), ([1], "gave no message")):
        outcome = read_chat_result(msgspec.json.encode({"custom_id": "ca", "error": error}), failures)[1]
        assert isinstance(outcome, Failure) and text in outcome.message and not outcome.may_be_billed


def test_the_price_is_half() -> None:
    plain, batch = known("gpt-5-mini", provider="openai")[0], known("gpt-5-mini", batch=True, provider="openai")[0]
    assert plain is not None and batch is not None
    assert batch.output_usd_per_mtok == plain.output_usd_per_mtok / 2


async def test_the_client_of_openai_reads_the_simulated_batches() -> None:
    from openai import AsyncOpenAI

    line = {"custom_id": "a-b", "method": "POST", "url": "/v1/chat/completions", "body": json.loads(body("Say a"))}
    server = await serve(SOON)
    try:
        sdk = AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0)
        file = await sdk.files.create(file=("x.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
        batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert batch.status == "validating"
        while batch.status not in ("completed", "failed"):
            await asyncio.sleep(0.01)
            batch = await sdk.batches.retrieve(batch.id)
        assert batch.request_counts is not None and batch.request_counts.completed == 1 and batch.output_file_id
        content = await sdk.files.content(batch.output_file_id)
        found = json.loads(content.text)
        await sdk.close()
    finally:
        await server.close()
    assert (found["custom_id"], found["response"]["body"]["choices"][0]["message"]["content"]) == ("a-b", "a")
