"""Whatever one line of a batch's results holds, the other lines are told; whatever is said of a batch, the outcome is a
status or a failure."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from actors.ports.message_batches import THE_REST, BatchStatus
from actors.providers.batches.exchange import BatchClient
from actors.providers.batches.file_batches import LineForm
from actors.providers.chat_completions.batch_results import read_chat
from actors.providers.chat_completions.batches import OpenAIBatches
from actors.providers.chat_completions.errors import ChatFailures
from actors.providers.gemini.batches import GeminiBatches
from actors.providers.messages.batches import ProviderBatches
from actors.providers.messages.errors import MessagesFailures
from actors.providers.mistral.batches import MistralBatches
from actors.providers.registry import row_of
from actors.providers.responses.client import _read as read_response_line
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.hostile_answers import ERROR, PLAIN, bodies
from tests.edge.support.scripted_http_server import compact

CHAT_LINES = LineForm(endpoint="/v1/chat/completions", body=bytes, empty="messages", read=read_chat)
RESPONSE_LINES = LineForm(endpoint="/v1/responses", body=bytes, empty="input", read=read_response_line)


OPENAI = {
    "id": "batch_1", "status": "completed", "created_at": 1, "input_file_id": "i", "output_file_id": "o",
    "error_file_id": "e", "metadata": {"cortex": "x"}, "request_counts": {"total": 3, "completed": 3, "failed": 0},
    "errors": {"data": [{"message": "m", "code": "c", "line": 1, "param": "p"}]},
}  # fmt: skip
MISTRAL = {
    "id": "job_1", "status": "FAILED", "created_at": 1, "input_files": ["i"], "output_file": "o", "error_file": "e",
    "metadata": {"cortex": "x"}, "total_requests": 3, "completed_requests": 3, "errors": [{"message": "m"}],
}  # fmt: skip
GEMINI = {
    "name": "batches/b1", "response": {"responsesFile": "files/o"}, "error": {"code": 8, "message": "x"}, "metadata": {
        "state": "BATCH_STATE_SUCCEEDED", "displayName": "cortex x", "createTime": "2026-01-01T00:00:00Z",
        "batchStats": {"requestCount": "3", "successfulRequestCount": "3"}, "inputConfig": {"fileName": "files/i"},
        "output": {"responsesFile": "files/o"},
    },
}  # fmt: skip
MESSAGES = {
    "id": "msgbatch_1", "processing_status": "ended", "created_at": "2026-01-01T00:00:00Z",
    "request_counts": {"processing": 0, "succeeded": 3, "errored": 0, "canceled": 0, "expired": 0},
}  # fmt: skip


def _openai_line(custom_id: str, body: Any, mark: str = "c") -> dict[str, Any]:
    return {"id": "r", "custom_id": mark + custom_id, "error": None, "response": {"status_code": 200, "body": body}}


def _message_line(custom_id: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "result": {"type": "succeeded", "message": PLAIN["messages"], "error": ERROR}}


def _openai(kind: type[OpenAIBatches], lines: LineForm) -> OpenAIBatches:
    return kind(None, None, ChatFailures(row_of("openai"), str), 5.0, lines)  # type: ignore[arg-type]


def _messages() -> ProviderBatches:
    failures = MessagesFailures(row_of("anthropic"), str)
    return ProviderBatches(None, None, failures, 5.0, bytes)  # type: ignore[arg-type]


def _gemini() -> GeminiBatches:
    return GeminiBatches(None, None, ChatFailures(row_of("gemini"), str), 5.0, CHAT_LINES)  # type: ignore[arg-type]


API: dict[str, tuple[Callable[[], BatchClient], Any, Any, Callable[[str], Any]]] = {
    "messages": (_messages, MESSAGES, {"data": [MESSAGES], "has_more": False}, _message_line),
    "openai": (
        lambda: _openai(OpenAIBatches, CHAT_LINES), OPENAI, {"data": [OPENAI], "has_more": False},
        lambda custom_id: _openai_line(custom_id, PLAIN["chat"]),
    ),
    "openai, kept": (
        lambda: _openai(OpenAIBatches, CHAT_LINES), OPENAI, {"data": [OPENAI]},
        lambda custom_id: _openai_line(custom_id, PLAIN["chat"], "k"),
    ),
    "openai, refused": (
        lambda: _openai(OpenAIBatches, CHAT_LINES), OPENAI, {"data": [OPENAI]},
        lambda custom_id: _openai_line(custom_id, ERROR) | {"response": {"status_code": 400, "body": ERROR}},
    ),
    "responses": (
        lambda: _openai(OpenAIBatches, RESPONSE_LINES), OPENAI, {"data": [OPENAI]},
        lambda custom_id: _openai_line(custom_id, PLAIN["responses"]),
    ),
    "mistral": (
        lambda: _openai(MistralBatches, CHAT_LINES), MISTRAL, {"data": [MISTRAL]},
        lambda custom_id: _openai_line(custom_id, PLAIN["chat"]),
    ),
    "gemini": (
        _gemini, GEMINI, {"operations": [GEMINI], "nextPageToken": ""},
        lambda custom_id: {"key": custom_id, "response": PLAIN["gemini"]},
    ),
}  # fmt: skip
EACH_API = pytest.mark.parametrize("api", API)


def wired(client: BatchClient, said: bytes, lines: list[bytes]) -> Any:
    """Return the client with these answers in place of a server's."""

    async def answered(*_: Any, **__: Any) -> Any:
        return said, {}

    async def given(*_: Any, **__: Any) -> AsyncIterator[bytes | Failure]:
        for line in lines:
            yield line

    client._answered, client._lines = answered, given  # type: ignore[method-assign]
    return client


async def told(client: Any) -> list[tuple[str, Reply | Failure]]:
    return [each async for each in client.results("batch_1")]


def hostile_lines(base: Any, chance: random.Random, most: int) -> Iterator[bytes]:
    yield from bodies(base, chance, most)
    whole = compact(base)
    for size in (1, len(whole) // 2, len(whole) - 1):
        yield whole[:size]
    for named in ("", "c", "*", "c*"):  # the id that ends results, and the one that stands for all requests
        yield whole.replace(b'"cbad"', compact(named)).replace(b'"kbad"', compact(named)).replace(b'"bad"', compact(named))
    yield b"\xff\xfe" + whole
    yield b"\x1f\x8b" + whole


@EACH_API
async def test_no_line_of_a_batch_keeps_the_others_back(api: str) -> None:
    made, batch, _, line = API[api]
    chance = random.Random(api)
    for hostile in hostile_lines(line("bad"), chance, 500):
        place = chance.randrange(3)
        lines = [compact(line(f"good{at}")) for at in range(3)]
        lines.insert(place, hostile)
        one_file = batch | {"error_file_id": None, "error_file": None} if isinstance(batch, dict) else batch
        found = await told(wired(made(), compact(one_file), [*lines, b""]))
        names = [name for name, _ in found]
        assert [name for name in names if name.startswith("good")] == ["good0", "good1", "good2"], hostile[:300]
        assert "" not in names and THE_REST not in names, hostile[:300]
        for _, outcome in found:
            assert msgspec.json.encode(outcome), "a journal holds it"
            if isinstance(outcome, Failure) and outcome.kind is FailureKind.UNREADABLE:
                assert outcome.answer_came


@EACH_API
async def test_a_fault_of_any_reader_is_the_answer_of_its_line_alone(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, batch, _, line = API[api]
    calls = 0

    def failing(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        raise OverflowError("any error of code to come")

    if api.startswith("openai") or api in ("responses", "mistral"):
        client = _openai(MistralBatches if api == "mistral" else OpenAIBatches, msgspec.structs.replace(CHAT_LINES, read=failing))
    else:
        client = made()
        module = "messages.batch_results.read_message" if api == "messages" else "gemini.batches.read_generated"
        monkeypatch.setattr(f"actors.providers.{module}", failing)
    one_file = batch | {"error_file_id": None, "error_file": None}
    found = await told(wired(client, compact(one_file), [compact(line(f"r{at}")) for at in range(3)] + [b""]))
    assert [name for name, _ in found] == ["r0", "r1", "r2"]
    if calls:
        assert all(isinstance(each, Failure) and each.kind is FailureKind.UNREADABLE for _, each in found)


@EACH_API
async def test_whatever_is_said_of_a_batch_is_a_status_or_a_failure(api: str) -> None:
    made, batch, page, _ = API[api]
    chance = random.Random(f"{api} status")
    for said in (*bodies(batch, chance, 400), *bodies({**batch, "status": "failed"}, chance, 60)):
        outcome = await wired(made(), said, []).look("batch_1")
        assert isinstance(outcome, BatchStatus | Failure), said[:300]
        assert msgspec.json.encode(outcome)
        for each in [each async for each in wired(made(), said, []).results("batch_1")]:
            assert isinstance(each[1], Failure)
        await wired(made(), said, []).discard("batch_1")
    for said in bodies(page, chance, 400):
        listed = await wired(made(), said, []).listed("", 0.0, 10)
        assert isinstance(listed, list | Failure), said[:300]
