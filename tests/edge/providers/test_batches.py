"""The provider's Message Batches over real HTTP: what is made, listed, looked at, read and cancelled; and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from actors.ports.message_batches import BatchRequest, BatchStatus, surely_not_made
from actors.providers.credentials.credential import Credential
from actors.providers.messages.batch_results import read_result
from actors.providers.messages.client import AnthropicModel
from actors.providers.pricing import known
from actors.simulator.frontends.http_app import serve
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import LATE_S, MESSAGE, Asked, Step, compact, http, scripted
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-verysecretkey-0123456789"
CREDENTIAL = Credential(api_key=KEY)
SOON = SimulatorSettings(error=0.0, batch_ms=5)


def rows(count: int, lead: str = "r") -> list[BatchRequest]:
    return [BatchRequest(f"{lead}{i}", body(f"Say a{i}")) for i in range(count)]


def body(text: str) -> bytes:
    return msgspec.json.encode({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": text}]})


@asynccontextmanager
async def simulated(road: str, settings: SimulatorSettings = SOON) -> AsyncIterator[Any]:
    """The batches of a simulated provider: in this process, or over HTTP."""
    if road == "in process":
        yield SimulatedModel(settings).batches
        return
    server = await serve(settings)
    model = AnthropicModel(CREDENTIAL, base_url=server.url)
    try:
        yield model.batches
    finally:
        await model.close()
        await server.close()


ROADS = pytest.mark.parametrize("road", ["in process", "http"])


async def ended(batches: Any, name: str) -> BatchStatus:
    while True:
        found = await batches.look(name)
        assert isinstance(found, BatchStatus), found
        if found.ended:
            return found
        await asyncio.sleep(0.005)


async def read(batches: Any, name: str) -> dict[str, Reply | Failure]:
    return {custom_id: outcome async for custom_id, outcome in batches.results(name)}


@ROADS
async def test_a_batch_from_its_making_to_its_results(road: str) -> None:
    async with simulated(road) as batches:
        assert await batches.listed("", 0.0, 10) == []
        name = await batches.submit(rows(30), PATIENCE_S)
        assert (await ended(batches, name)).requests == 30
        found = await read(batches, name)
    assert sorted(found) == sorted(f"r{i}" for i in range(30))
    reply = found["r7"]
    assert isinstance(reply, Reply)
    assert (reply.text, reply.usage.output_tokens) == ("a7", 1)
    assert msgspec.json.decode(reply.body)["usage"]["service_tier"] == "batch"


@ROADS
async def test_the_list_goes_back_to_the_one_that_is_known(road: str) -> None:
    async with simulated(road, SimulatorSettings(batch_ms=60_000)) as batches:
        names = [await batches.submit(rows(i + 1), PATIENCE_S) for i in range(4)]
        since = await batches.listed(names[1], 0.0, 100)
        assert [(each.name, each.requests, each.ended) for each in since] == [
            (names[3], 4, False),
            (names[2], 3, False),
        ]
        assert [each.name for each in await batches.listed("", 0.0, 1)] == [names[3]]
        assert len(await batches.listed("gone", 0.0, 100)) == 4
        assert await batches.listed("gone", since[0].created_at_s + 3600, 100) == []


async def test_the_list_is_read_page_after_page() -> None:
    names = [f"msgbatch_{i}" for i in range(250)]

    def answer(asked: Asked) -> Any:
        query = dict(part.split("=") for part in asked.target.partition("?")[2].split("&"))
        at = names.index(query["after_id"]) + 1 if "after_id" in query else 0
        some = names[at : at + int(query["limit"])]
        return http({"data": [plain(name) for name in some], "has_more": at + len(some) < len(names)})

    async with scripted(answer) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        found = await model.batches.listed("msgbatch_240", 0.0, 1_000)
        await model.close()
    assert [each.name for each in found] == names[:240]  # type: ignore[union-attr]
    assert len(server.asked) == 3


@ROADS
async def test_each_row_has_its_own_failure(road: str) -> None:
    """Errored by its type, expired, cancelled: none of these was paid for."""
    settings = SimulatorSettings(error=0.0, batch_ms=5, faults={"overloaded": 0.5}, batch_expired=0.3)
    async with simulated(road, settings) as batches:
        name = await batches.submit([*rows(60), BatchRequest("bad", b'{"model":"m"}')], PATIENCE_S)
        await ended(batches, name)
        found = await read(batches, name)
    failures = [each for each in found.values() if isinstance(each, Failure)]
    kinds = {(each.kind, each.status, each.error_type) for each in failures}
    assert (FailureKind.OVERLOADED, 529, "overloaded_error") in kinds
    assert (FailureKind.EXPIRED, 0, "expired") in kinds
    assert isinstance(found["bad"], Failure)
    assert found["bad"].kind in (FailureKind.REJECTED, FailureKind.OVERLOADED, FailureKind.EXPIRED)
    assert len(found) == 61 and any(isinstance(each, Reply) for each in found.values())


@ROADS
async def test_a_cancelled_batch_tells_which_rows_were_not_worked_off(road: str) -> None:
    async with simulated(road, SimulatorSettings(batch_ms=60_000)) as batches:
        name = await batches.submit(rows(5), PATIENCE_S)
        assert await batches.cancel(name) is None
        await ended(batches, name)
        found = await read(batches, name)
    assert {(each.kind, each.sent) for each in found.values()} == {(FailureKind.CANCELLED, False)}  # type: ignore[union-attr]


@ROADS
async def test_a_full_queue_and_an_empty_account_make_no_batch(road: str) -> None:
    async with simulated(road, SimulatorSettings(batch_ms=60_000, batch_queue=10)) as batches:
        assert isinstance(await batches.submit(rows(6), PATIENCE_S), str)
        full = await batches.submit(rows(6, "s"), PATIENCE_S)
        assert (full.kind, full.status, full.retry_after_s) == (FailureKind.THROTTLED, 429, 1.0)
        assert len(await batches.listed("", 0.0, 10)) == 1
    async with simulated(road, SimulatorSettings(credit_calls=0)) as batches:
        blocked = await batches.submit(rows(1), PATIENCE_S)
        assert (blocked.kind, surely_not_made(blocked)) == (FailureKind.BLOCKED, True)


async def test_a_batch_nobody_knows() -> None:
    async with simulated("http") as batches:
        found = await batches.look("msgbatch_none")
        assert (found.kind, found.status) == (FailureKind.REJECTED, 404)
        assert isinstance((await read(batches, "msgbatch_none"))[""], Failure)
        for name in ("../messages", "", "a b", "x" * 300):
            assert isinstance(await batches.look(name or "/"), Failure)
    async with simulated("in process") as batches:
        assert (await batches.look("msgbatch_none")).kind == FailureKind.LOST


# -- over a server that lies -----------------------------------------------------------------------------------------


def plain(name: str, **more: Any) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {"id": name, "processing_status": "ended", "request_counts": {"succeeded": 1}, "created_at": now} | more


async def asked_of(script: Any, act: Any) -> tuple[Any, list[Asked]]:
    async with scripted(script) as server:
        model = AnthropicModel(CREDENTIAL, base_url=server.url)
        try:
            return await act(model.batches), server.asked
        finally:
            await model.close()


@pytest.mark.parametrize(
    ("answer", "kind", "sure"),
    [
        (http({"error": {"type": "invalid_request_error", "message": "no"}}, 400), FailureKind.REJECTED, True),
        (
            http({"error": {"type": "rate_limit_error", "message": "full"}}, 429, retry_after="7"),
            FailureKind.THROTTLED,
            True,
        ),
        (http({"error": {"type": "overloaded_error", "message": "later"}}, 529), FailureKind.OVERLOADED, True),
        (http({"error": {"type": "api_error", "message": "oops"}}, 500), FailureKind.TRANSIENT, False),
        (http(b"bad gateway", 502, "text/plain"), FailureKind.TRANSIENT, False),
        ([Step.RESET], FailureKind.TRANSIENT, False),
        ([Step.LATE], FailureKind.TIMED_OUT, False),
        (http(b'{"id":'), FailureKind.TRANSIENT, False),
        (http(plain("../../secrets")), FailureKind.TRANSIENT, False),
    ],
)
async def test_whether_a_failed_submission_may_have_made_a_batch(answer: Any, kind: FailureKind, sure: bool) -> None:
    failure, asked = await asked_of(lambda _: answer, lambda batches: batches.submit(rows(2), 0.9 * LATE_S))
    assert (failure.kind, surely_not_made(failure)) == (kind, sure)
    assert len(asked) == 1  # one attempt, whatever came of it


async def test_a_submission_that_cannot_leave_makes_no_batch() -> None:
    model = AnthropicModel(CREDENTIAL, base_url="http://127.0.0.1:9")
    failure = await model.batches.submit(rows(1), PATIENCE_S)
    await model.close()
    assert isinstance(failure, Failure)
    assert surely_not_made(failure)


async def test_the_key_goes_to_the_own_address_alone_and_along_with_every_request() -> None:
    """A batch names another host for its results: that one is never asked."""
    async with scripted(lambda _: http(b"")) as elsewhere:

        def answer(asked: Asked) -> Any:
            if asked.target.endswith("/results"):
                return http(line("a", {"type": "succeeded", "message": MESSAGE}), content_type="application/x-jsonl")
            return http(plain("msgbatch_1", results_url=f"{elsewhere.url}/steal"))

        async def act(batches: Any) -> Any:
            await batches.submit(rows(1), PATIENCE_S)
            await batches.look("msgbatch_1")
            await batches.cancel("msgbatch_1")
            return await read(batches, "msgbatch_1")

        found, asked = await asked_of(answer, act)
    assert isinstance(found["a"], Reply)
    assert elsewhere.asked == []
    assert [(each.method, each.target) for each in asked] == [
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches/msgbatch_1"),
        ("POST", "/v1/messages/batches/msgbatch_1/cancel"),
        ("GET", "/v1/messages/batches/msgbatch_1/results"),
    ]
    assert {each.headers["authorization"] for each in asked} == {f"Bearer {KEY}"}
    assert asked[0].json["requests"] == [{"custom_id": "r0", "params": msgspec.json.decode(body("Say a0"))}]


async def test_a_redirect_is_not_followed() -> None:
    async with scripted(lambda _: http(b"")) as elsewhere:
        moved = http(b"", 307, location=f"{elsewhere.url}/steal")
        failure, _ = await asked_of(lambda _: moved, lambda batches: batches.look("msgbatch_1"))
    assert (failure.kind, elsewhere.asked) == (FailureKind.BLOCKED, [])


def line(custom_id: str, result: dict[str, Any]) -> bytes:
    return compact({"custom_id": custom_id, "result": result}) + b"\n"


async def test_what_cannot_be_read_is_left_out_and_a_cut_is_told() -> None:
    good = {"type": "succeeded", "message": MESSAGE}
    text = b"".join(
        [line("a", good), b"\n", b"no json\n", line("b", {"type": "succeeded", "message": {"id": 1}}), line("c", {"type": "new"}),
         line("d", {"type": "errored", "error": {"type": "error", "error": {"type": "invalid_request_error", "message": f"bad {KEY}"}}}),
         line("e", good)]
    )  # fmt: skip
    whole = http(text, content_type="application/x-jsonl")
    found, _ = await asked_of(lambda _: whole, lambda batches: read(batches, "msgbatch_1"))
    assert sorted(found) == ["a", "b", "c", "d", "e"]
    assert [type(found[name]) for name in "ae"] == [Reply, Reply]
    assert (found["b"].kind, found["b"].answer_came) == (FailureKind.UNREADABLE, True)  # it was paid for
    assert (found["d"].kind, found["d"].status, found["d"].message) == (FailureKind.REJECTED, 400, "bad [redacted]")
    head, answer = whole[0].split(b"\r\n\r\n", 1)  # type: ignore[union-attr]
    cut = [head + b"\r\n\r\n" + answer[: len(answer) // 3], Step.CUT]
    found, _ = await asked_of(lambda _: cut, lambda batches: read(batches, "msgbatch_1"))
    assert found[""].kind == FailureKind.TRANSIENT


async def test_lines_come_whole_however_the_pieces_are_cut() -> None:
    text = b"".join(line(f"r{i}", {"type": "succeeded", "message": MESSAGE}) for i in range(20))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-jsonl\r\ncontent-length: %d\r\n\r\n" % len(text)
    pieces = [head, *(text[at : at + 37] for at in range(0, len(text), 37))]
    found, _ = await asked_of(lambda _: pieces, lambda batches: read(batches, "msgbatch_1"))
    assert [name for name, each in found.items() if isinstance(each, Reply)] == [f"r{i}" for i in range(20)]


# -- prices ----------------------------------------------------------------------------------------------------------


def test_the_price_of_the_batch_road_comes_from_the_price_data() -> None:
    from genai_prices import Usage, calc_price

    from policies.estimates.price import cost_nusd, usd

    price, window = known("claude-haiku-4-5", batch=True)
    plain_price, plain_window = known("claude-haiku-4-5")
    assert price is not None and plain_price is not None
    assert (window, price.source) == (plain_window, "genai-prices: claude-haiku-4-5, processing=batch")
    assert price.output_usd_per_mtok == plain_price.output_usd_per_mtok / 2

    class Used:
        input_tokens, output_tokens = 123_457, 8_901
        cache_read_tokens = cache_creation_tokens = cache_creation_1h_tokens = 0

    theirs = calc_price(
        Usage(input_tokens=123_457, output_tokens=8_901), model_ref="claude-haiku-4-5", provider_id="anthropic",
        price_context={"processing": "batch"},
    )  # fmt: skip
    assert usd(cost_nusd(price, Used())) == pytest.approx(float(theirs.total_price), abs=1e-9)


@pytest.mark.parametrize("kind", ["timeout_error", "api_error", "overloaded_error", "invalid_request_error"])
def test_no_row_of_a_batch_that_errored_may_be_billed(kind: str) -> None:
    facts = {"custom_id": "a", "result": {"type": "errored", "error": {"type": "error", "error": {"type": kind}}}}
    found = read_result(msgspec.json.encode(facts))
    assert isinstance(found[1], Failure)
    assert not found[1].may_be_billed and found[1].error_type == kind


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (compact({"custom_id": "a", "result": {"type": "succeeded", "message": MESSAGE | {"usage": None}}}), "yes — é"),
        (compact({"custom_id": "a", "result": {"message": MESSAGE}}), "yes — é"),
        (compact({"custom_id": "a", "result": {"type": "success", "message": MESSAGE}}), "yes — é"),
        (b"\xef\xbb\xbf" + line("a", {"type": "succeeded", "message": MESSAGE}), "yes — é"),
        (line("a", {"type": "succeeded", "message": MESSAGE}).replace("é".encode(), b"\\ud83d"), "yes — \ufffd"),
        (line("a", {"type": "succeeded", "message": MESSAGE}).replace("é".encode(), b"\xff"), "yes — \ufffd"),
        (line("a", {"type": "succeeded", "message": {"content": 7}}), None),
        (line("a", {"type": "succeeded"}), None),
    ],
)
def test_a_line_with_a_flaw_beside_its_answer_is_kept(made: bytes, text: str | None) -> None:
    found = read_result(made)
    assert found[0] == "a"
    if text is None:
        assert isinstance(found[1], Failure)
        assert (found[1].kind, found[1].answer_came) == (FailureKind.UNREADABLE, True)
    else:
        assert isinstance(found[1], Reply) and found[1].text == text
