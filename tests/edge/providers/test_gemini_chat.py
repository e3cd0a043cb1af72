"""Gemini over chat completions: efforts of reasoning, and signatures of tool calls that go back with the tool's result. The
shapes are written by hand from https://ai.google.dev/gemini-api/docs/openai, .../thought-signatures and the reports that
``tool_signatures`` names."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actors.providers.chat_completions.dialect import GEMINI_EFFORTS
from actors.providers.chat_completions.request import ChatVariant, chat_body, fields_with
from actors.providers.chat_completions.response import read_completion
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.chat_completions.tool_signatures import PREFIX, UNSIGNED
from actors.providers.client.wire_form import Untranslatable
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.gemini.generate_request import generate_body
from actors.providers.gemini.generate_response import read_generated
from actors.providers.registry import load, row_of
from actors.providers.responses.request import responses_body
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http
from tests.support.patience import PATIENCE_S

SIGNED = {"google": {"thought_signature": "CrICAdHtim827fQ=="}}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
ASKED: dict[str, Any] = {"model": "gemini-3-flash", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
MISSING = (
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and "
    "missing thought_signature may lead to degraded model performance. Additional data, function call `default_api:look` , "
    "position 2. Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details."
)


def call(name: str, extra: Any = None) -> dict[str, Any]:
    made = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return made if extra is None else made | {"extra_content": extra}


def completion(*calls: dict[str, Any]) -> bytes:
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return compact({"id": "x", "model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE})


def after(reply: Reply) -> bytes:
    """Return the request with the tool's result behind a reply."""
    said = json.loads(reply.body)["content"]
    told = [{"type": "tool_result", "tool_use_id": each["id"], "content": "42"} for each in said if each["type"] == "tool_use"]
    turns = [*ASKED["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return msgspec.json.encode(ASKED | {"messages": turns})


def calls_of(body: bytes) -> list[dict[str, Any]]:
    return json.loads(body)["messages"][1]["tool_calls"]


# -- signatures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calls",
    [
        [call("a", SIGNED)],
        [call("a", SIGNED), call("b")],  # of parallel calls the first has one
        [call("a", {"vertex": {"thought_signature": "AY89a18I"}})],
        [call("a", SIGNED), call("b", {"google": {"thought_signature": "other", "more": [1]}})],
        [call("a")],
        [call("a", {}), call("b", None)],
    ],
)
def test_what_stands_beside_a_tool_call_goes_back_with_it(calls: list[dict[str, Any]]) -> None:
    reply = read_completion(completion(*calls))
    expected = [each if each.get("extra_content") else {n: v for n, v in each.items() if n != "extra_content"} for each in calls]
    assert calls_of(chat_body(after(reply))) == expected
    assert reply.stop_reason == "tool_use" and reply.text == ""


def test_a_streamed_signature_goes_back_too() -> None:
    """It comes with the first piece of its call, or behind the last one."""
    first, last = ChunkAssembler(), ChunkAssembler()
    piece = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    for stream, pieces in ((first, [piece | {"extra_content": SIGNED}, rest]), (last, [piece, rest | {"extra_content": SIGNED}])):
        for at, delta in enumerate(pieces):
            choice = {"index": 0, "delta": {"tool_calls": [delta]}, "finish_reason": "tool_calls" if at else None}
            stream.feed(b"data: " + compact({"id": "x", "model": "m", "choices": [choice]}) + b"\n\n")
        stream.feed(b"data: [DONE]\n\n")
        assert calls_of(chat_body(after(read_completion(stream.message())))) == [call("a", SIGNED)]


def test_another_api_gets_no_signature_of_google() -> None:
    body = after(read_completion(completion(call("a", SIGNED))))
    assert b"thought_signature" not in responses_body(body) and PREFIX.encode() not in responses_body(body)
    assert b"thought_signature" not in chat_body(body, variant=ChatVariant(signed=False))


def test_a_signature_of_a_batch_goes_back_in_the_part_of_its_call() -> None:
    part = {"functionCall": {"id": "a", "name": "look", "args": {}}, "thoughtSignature": "CrIC"}
    told = {"candidates": [{"content": {"parts": [{"text": "so:"}, part]}, "finishReason": "STOP"}], "modelVersion": "m"}
    for body in (after(read_generated(compact(told))), after(read_completion(completion(call("a", SIGNED))))):
        parts = json.loads(generate_body(body))["contents"][1]["parts"]
        assert parts[-1]["functionCall"]["id"] == "a" and parts[-1]["thoughtSignature"] in ("CrIC", "CrICAdHtim827fQ==")


def test_a_signature_that_somebody_changed_is_left_out() -> None:
    broken = [{"type": "thinking", "thinking": "", "signature": f"{PREFIX}{text}"} for text in ("", "{", "[1]", '{"id":7}')]
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    body = msgspec.json.encode(ASKED | {"messages": [*ASKED["messages"], {"role": "assistant", "content": [*broken, use]}]})
    assert calls_of(chat_body(body)) == [call("a")]


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (MISSING, [None, UNSIGNED, UNSIGNED]),
        ("extra_content: Extra inputs are not permitted", [SIGNED, None, None]),
    ],
)
async def test_a_server_that_misses_a_signature_or_refuses_it_is_asked_as_it_wants(words: str, sent: list[Any]) -> None:
    """A turn of another model has none, and a server that follows OpenAI to the letter takes none."""
    first = sent[0]

    def script(asked: Asked) -> Answer:
        extra = asked.json["messages"][1]["tool_calls"][0].get("extra_content")
        return http({"error": {"code": 400, "message": words}}, 400) if extra == first else http(completion(call("b")))

    with served(script) as server:
        account = opened(ProviderLocation(provider="gemini", base_url=server.url + "/v1beta/openai"), {"GEMINI_API_KEY": "k" * 20})
        model = load(row_of("gemini").client)(
            ClientSpec(endpoint=account.endpoint, provider="gemini", credential=account.credential)
        )
        body = after(read_completion(completion(call("a", first))))
        for _ in range(2):
            found = await model.call(body, output_tokens_max=9, timeout_s=PATIENCE_S)
            assert isinstance(found, Reply), found
        await model.close()
    assert [each.json["messages"][1]["tool_calls"][0].get("extra_content") for each in server.asked] == sent


# -- efforts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
@pytest.mark.parametrize("written", ["output_config", "reasoning_effort"])
async def test_efforts_are_those_that_gemini_takes(effort: str, written: str) -> None:
    """Others are refused before anything is sent, and a request with other fields, which takes the long way, likewise."""
    field = {"output_config": {"effort": effort}} if written == "output_config" else {"reasoning_effort": effort}
    for more in ({}, {"stop_sequences": ["x"]}):
        body = msgspec.json.encode(ASKED | field | more)
        if effort in GEMINI_EFFORTS:
            made = json.loads(chat_body(body, variant=ChatVariant(translator=fields_with(GEMINI_EFFORTS))))
            assert made["reasoning_effort"] == GEMINI_EFFORTS[effort]
            assert "reasoning_effort" in json.loads(chat_body(body)), "as it is at other providers"
        else:
            with pytest.raises(Untranslatable, match=f"^effort: .* know no '{effort}': give none, minimal, low, medium or high"):
                chat_body(body, variant=ChatVariant(translator=fields_with(GEMINI_EFFORTS)))


def test_thinking_that_is_switched_off_is_the_effort_none() -> None:
    body = msgspec.json.encode(ASKED | {"thinking": {"type": "disabled"}})
    assert json.loads(chat_body(body, variant=ChatVariant(translator=fields_with(GEMINI_EFFORTS))))["reasoning_effort"] == "none"


@pytest.mark.parametrize(("provider", "known"), [("gemini", True), ("vertex-gemini", True), ("openai", False), ("groq", False)])
def test_each_provider_of_gemini_knows_its_efforts(provider: str, known: bool) -> None:
    reference = row_of(provider).dialect
    efforts = getattr(load(reference), "efforts", None) if reference else None
    assert (efforts == GEMINI_EFFORTS) is known


async def test_an_effort_that_gemini_does_not_know_costs_nothing() -> None:
    with served(lambda _: http(completion(call("a")))) as server:
        account = opened(ProviderLocation(provider="gemini", base_url=server.url + "/v1beta/openai"), {"GEMINI_API_KEY": "k" * 20})
        model = load(row_of("gemini").client)(
            ClientSpec(endpoint=account.endpoint, provider="gemini", credential=account.credential)
        )
        body = msgspec.json.encode(ASKED | {"output_config": {"effort": "max"}})
        found = await model.call(body, output_tokens_max=9, timeout_s=PATIENCE_S)
        await model.close()
    assert isinstance(found, Failure) and (found.kind, found.sent, server.asked) == (FailureKind.REJECTED, False, [])
