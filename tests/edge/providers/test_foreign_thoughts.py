"""Thoughts of other models, in a conversation that goes on at Claude, by each road; and in lines of other batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.ports.message_batches import BatchRequest
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.providers.registry import load, row_of
from actors.routing.model_factory import ConnectionSpec
from cortex.state.events import Row
from cortex.values.chat_form.request import RESPONSES_MARK, chat_request, written_request
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.batch_job import Crash, Job, limits
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http
from tests.support.patience import PATIENCE_S

GOOGLE, OPENAI, UNSIGNED, CLAUDE = 'tool_call:{"id":"a","extra_content":{}}', "rs_1:gAAA=", "", "EqQBCgIYAhIM+/="
REFUSED = {"type": "error", "error": {"type": "invalid_request_error", "message": "messages.1.content.0: Invalid `signature` in `thinking` block"}}
MESSAGE = {
    "id": "x", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "stop_sequence": None,
    "content": [{"type": "text", "text": "42"}], "usage": {"input_tokens": 9, "output_tokens": 1},
}  # fmt: skip


def conversation(*signatures: str) -> bytes:
    """Return the request that follows a tool call, before which a model has thought."""
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": each} for each in signatures]
    said = [*thoughts, {"type": "tool_use", "id": "a", "name": "look", "input": {}}]
    told = [{"type": "tool_result", "tool_use_id": "a", "content": "42"}]
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": turns})


def signatures_of(asked: Asked) -> list[str]:
    return [block["signature"] for block in asked.json["messages"][1]["content"] if block["type"] == "thinking"]


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
@pytest.mark.parametrize("foreign", [(GOOGLE,), (OPENAI,), (UNSIGNED,), (GOOGLE, OPENAI)])
async def test_thoughts_that_claude_has_not_signed_are_left_out_once_it_refuses_them(foreign: Any, told: dict[str, str]) -> None:
    def script(asked: Asked) -> Answer:
        wrong = set(signatures_of(asked)) & {GOOGLE, OPENAI, UNSIGNED}
        return http(REFUSED, 400, **told) if wrong else http(MESSAGE)

    with served(script) as server:
        model = AnthropicModel(Credential(api_key="k" * 20), base_url=server.url)
        for _ in range(2):
            found = await model.call(conversation(*foreign, CLAUDE), output_tokens_max=9, timeout_s=PATIENCE_S)
            assert isinstance(found, Reply), found
        await model.close()
    assert [signatures_of(each) for each in server.asked] == [[*foreign, CLAUDE], [CLAUDE], [CLAUDE]]
    assert [block["type"] for block in server.asked[-1].json["messages"][1]["content"]] == ["thinking", "tool_use"]


async def test_a_signature_of_its_own_that_claude_refuses_is_asked_once_more_and_then_refused() -> None:
    with served(lambda asked: http(REFUSED, 400)) as server:
        model = AnthropicModel(Credential(api_key="k" * 20), base_url=server.url)
        found = await model.call(conversation(CLAUDE), output_tokens_max=9, timeout_s=PATIENCE_S)
        await model.close()
    assert isinstance(found, Failure) and found.kind is FailureKind.REJECTED and len(server.asked) == 2


# -- by each road ----------------------------------------------------------------------------------------------------

FOREIGN = {GOOGLE, OPENAI, UNSIGNED}


def lines_in(asked: Asked) -> list[dict[str, Any]]:
    return [each["params"] for each in asked.json["requests"]]


class Claude:
    """Server of the Messages API and its batches, which refuses thoughts that it has not signed."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[str, Any]] = {}
        self.accepted = 0

    def __call__(self, asked: Asked) -> Answer:
        path = asked.target.partition("?")[0].removeprefix("/v1/messages")
        if path == asked.target:  # /metrics, say
            return http(b"", 404)
        if asked.method == "POST" and not path:
            return http(self.answer(asked.json), 200 if self.fits(asked.json) else 400)
        if asked.method == "POST":
            name = f"msgbatch_{len(self.batches)}"
            self.batches[name] = {each["custom_id"]: each["params"] for each in asked.json["requests"]}
            return http(self.status(name))
        if path == "/batches":
            return http({"data": [self.status(name) for name in reversed(self.batches)], "has_more": False})
        name, _, results = path.removeprefix("/batches/").partition("/")
        return http(b"".join(map(self.line, *zip(*self.batches[name].items(), strict=True)))) if results else http(self.status(name))

    def status(self, name: str) -> dict[str, Any]:
        counts = {"succeeded": len(self.batches[name])}
        return {"id": name, "processing_status": "ended", "request_counts": counts, "created_at": "2026-11-29T09:00:00Z"}

    def fits(self, params: dict[str, Any]) -> bool:
        turns = [turn["content"] for turn in params["messages"] if isinstance(turn["content"], list)]
        return not any(block.get("signature") in FOREIGN for turn in turns for block in turn if block["type"] == "thinking")

    def answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self.accepted += self.fits(params)
        return MESSAGE if self.fits(params) else REFUSED

    def line(self, custom_id: str, params: dict[str, Any]) -> bytes:
        told = {"type": "succeeded", "message": MESSAGE} if self.fits(params) else {"type": "errored", "error": REFUSED}
        return compact({"custom_id": custom_id, "result": told}) + b"\n"


@pytest.mark.parametrize("road", ["direct", "batches", "resumed"])
async def test_each_road_to_claude_leaves_foreign_thoughts_out(tmp_path: Path, road: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(f"r{at}", conversation(each, CLAUDE), 9) for at, each in enumerate((*FOREIGN, CLAUDE))]
    claude, brief = Claude(), limits(submit_timeout_s=0.5)  # for so long a resumed job looks for a batch
    with served(claude) as server:
        connection = ConnectionSpec(endpoint=server.url, credential=Credential(api_key="k" * 20, base_url=server.url))
        if road == "resumed":
            crash = Crash(monkeypatch, after=False)
            await Job(tmp_path, connection, given=rows, limits=brief).until(lambda k: crash.reached)
            crash.lift()
        job = await Job(tmp_path, connection, given=rows, via="messages" if road == "direct" else "batches").to_end()
        sent = [line for asked in server.asked if asked.target.endswith("/batches") and asked.method == "POST" for line in lines_in(asked)]
    assert (job.facts["rows_succeeded"], job.facts["rows_failed"]) == (4, 0)
    if road != "direct":
        thoughts = [[block["signature"] for block in line["messages"][1]["content"] if block["type"] == "thinking"] for line in sent]
        assert sorted(thoughts) == [[CLAUDE], [CLAUDE], [CLAUDE], [CLAUDE, CLAUDE]]


# -- lines of batches ------------------------------------------------------------------------------------------------

KEYS = {"openai": "OPENAI_API_KEY", "openai-responses": "OPENAI_API_KEY", "mistral": "MISTRAL_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
WRITTEN = chat_request({"model": "m", "max_tokens": 9, "messages": SYSTEM})
OVER_RESPONSES = written_request(RESPONSES_MARK, {"model": "m", "max_output_tokens": 9, "input": "hi"})


def client(provider: str, url: str) -> Any:
    account = opened(ProviderLocation(provider=provider, base_url=url), {KEYS[provider]: "k" * 20})
    made = load(row_of(provider).client)
    return made(ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential))


@pytest.mark.parametrize("provider", KEYS)
@pytest.mark.parametrize("body", [conversation(CLAUDE), conversation(OPENAI, CLAUDE), WRITTEN, OVER_RESPONSES])
async def test_a_line_of_a_batch_is_what_the_direct_road_sends_once_nothing_of_it_is_refused(provider: str, body: bytes) -> None:
    def script(asked: Asked) -> Answer:
        said = asked.json["messages"][1]["content"] if asked.target == "/v1/messages" and "system" not in asked.json else ()
        return http(REFUSED, 400) if provider == "anthropic" and any(each.get("signature") in FOREIGN for each in said) else http({})

    with served(script) as server:
        model = client(provider, server.url)
        found = await model.call(body, output_tokens_max=9, timeout_s=PATIENCE_S)
        await model.close()
    if body == OVER_RESPONSES and provider != "openai-responses":
        assert (model.refusal(body), server.asked) == (found, []) and "over that API alone" in found.message
    else:
        assert msgspec.json.decode(model.line_body(body)) == server.asked[-1].json


@pytest.mark.parametrize(
    ("provider", "kept"),
    [("anthropic", [CLAUDE]), ("openai", []), ("mistral", []), ("openai-responses", ["rs_1"])],
)
def test_a_line_holds_no_thoughts_of_another_provider_before_any_was_refused(provider: str, kept: list[str]) -> None:
    line = msgspec.json.decode(client(provider, "http://127.0.0.1:9").line_body(conversation(GOOGLE, OPENAI, UNSIGNED, CLAUDE)))
    if provider == "openai-responses":
        assert [item["id"] for item in line["input"] if item.get("type") == "reasoning"] == kept
    else:
        said = line["messages"][1]["content"]
        assert [block["signature"] for block in said or () if block["type"] == "thinking"] == kept
        assert "extra_content" not in str(line)


async def test_a_row_that_claude_has_no_form_for_is_refused_in_its_batch_with_our_own_reason() -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "messages: at least one message is required"}}
    line = {"custom_id": "r0", "result": {"type": "errored", "error": error}}
    with served(lambda asked: http(compact(line) + b"\n" if asked.method == "GET" else Claude.status(claude, "b"))) as server:
        claude = Claude()
        claude.batches["b"] = {}
        model = client("anthropic", server.url)
        given = [BatchRequest("r0", OVER_RESPONSES), BatchRequest("r1", WRITTEN)]
        assert await model.batches.submit(given, PATIENCE_S) == "b"
        found = {name: outcome async for name, outcome in model.batches.results("b")}
        await model.close()
    refused, translated = (each["params"] for each in server.asked[0].json["requests"])
    assert refused["messages"] == [] and translated["system"] == "Be brief."
    assert found["r0"].kind is FailureKind.REJECTED and "over that API alone" in found["r0"].message
