"""Requests and responses of the Gemini API's `generateContent`: from the canonical form and back, by cases made by hand from
https://ai.google.dev/api/generate-content."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actors.providers.client.wire_form import Untranslatable
from actors.providers.gemini.generate_request import generate_body
from actors.providers.gemini.generate_response import read_generated
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from actors.simulator.api import gemini_wire
from cortex.values.reply import Usage

ASKED = {"model": "gemini-2.5-flash", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
USE = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}
TOLD = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAA="}}
PAPER = {"type": "document", "source": {"type": "text", "data": "a page"}}


def made(**fields: Any) -> dict[str, Any]:
    return json.loads(generate_body(msgspec.json.encode(ASKED | fields)))


def test_a_plain_request() -> None:
    assert made() == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 5},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"system": "s"}, {"systemInstruction": {"parts": [{"text": "s"}]}}),
        ({"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
         {"systemInstruction": {"parts": [{"text": "a\n\nb"}]}}),
        ({"tools": [{"name": "look", "description": "d", "input_schema": SCHEMA}]},
         {"tools": [{"functionDeclarations": [{"name": "look", "description": "d", "parametersJsonSchema": SCHEMA}]}]}),
        ({"tool_choice": {"type": "tool", "name": "look"}},
         {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}, {}),
    ],
)  # fmt: skip
def test_fields_of_a_request(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(**fields) == made() | expected


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        ("gemini-2.5-flash", {"temperature": 0.5, "top_k": 3, "seed": 7, "stop_sequences": ["x"]},
         {"temperature": 0.5, "topK": 3, "seed": 7, "stopSequences": ["x"]}),
        ("gemini-2.5-flash", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
         {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}),
        ("gemini-2.5-flash", {"output_config": {"effort": "low"}}, {"thinkingConfig": {"thinkingBudget": 1_024}}),
        ("gemini-2.5-flash", {"thinking": {"type": "disabled"}}, {"thinkingConfig": {"thinkingBudget": 0}}),
        ("gemini-3-flash", {"reasoning_effort": "high"}, {"thinkingConfig": {"thinkingLevel": "high"}}),
        ("models/gemini-3-flash", {"thinking": {"type": "disabled"}}, {"thinkingConfig": {"thinkingLevel": "minimal"}}),
        ("gemini-3-flash", {"thinking": {"type": "adaptive"}}, {}),
    ],
)  # fmt: skip
def test_settings_of_a_request(model: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(model=model, **fields)["generationConfig"] == {"maxOutputTokens": 5} | expected


def test_turns_of_a_conversation() -> None:
    turns = [
        {"role": "user", "content": [PICTURE, PAPER, {"type": "text", "text": "what is it?"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, USE]},
        {"role": "user", "content": [TOLD, {**TOLD, "is_error": True, "content": "no"}]},
    ]
    assert made(messages=turns)["contents"] == [
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAA="}}, {"text": "a page"}, {"text": "what is it?"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "t1", "name": "look", "args": {"a": 1}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "t1", "name": "look", "response": {"output": "42"}}},
            {"functionResponse": {"id": "t1", "name": "look", "response": {"error": "no"}}},
        ]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"container": "c"}, "container: "), ({"logprobs": True}, "logprobs: "), ({"service_tier": "priority"}, "service_tier: "),
        ({"output_config": {"effort": "max"}}, "effort: "), ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking: "),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, "tool_choice.disable_parallel_tool_use: "),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools: "),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages: "),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}, "messages: "),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Untranslatable, match=f"^{named}"):
        made(**fields)


def told(parts: list[Any], reason: str = "STOP", **facts: Any) -> bytes:
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason}
    return msgspec.json.encode({"candidates": [candidate], "modelVersion": "m", "responseId": "r"} | facts)


COUNTS = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 5, "totalTokenCount": 18, "cachedContentTokenCount": 4}


def test_a_reply_with_its_thoughts_and_counts() -> None:
    """Thoughts are output that is counted beside the candidates."""
    reply = read_generated(told([{"text": "hm", "thought": True}, {"text": "Hel"}, {"text": "lo"}], usageMetadata=COUNTS))
    assert (reply.text, reply.stop_reason, reply.model, reply.usage) == ("Hello", "end_turn", "m", Usage(6, 8, 4))
    assert [block["type"] for block in json.loads(reply.body)["content"]] == ["thinking", "text"]


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [("MAX_TOKENS", "max_tokens"), ("SAFETY", "refusal"), ("RECITATION", "refusal"), ("OTHER", "other"), ("", "")],
)
def test_why_a_reply_ended(reason: str, stop_reason: str) -> None:
    assert read_generated(told([{"text": "x"}], reason)).stop_reason == stop_reason


def test_a_function_call_is_a_tool_use_though_it_ends_as_a_text() -> None:
    reply = read_generated(told([{"functionCall": {"name": "look", "args": {"a": 1}}}]))
    assert reply.stop_reason == "tool_use"
    assert json.loads(reply.body)["content"] == [{"type": "tool_use", "id": "call_0", "name": "look", "input": {"a": 1}}]


def test_a_prompt_that_was_blocked_is_a_refusal() -> None:
    counts = {"promptTokenCount": 10, "totalTokenCount": 10}
    reply = read_generated(msgspec.json.encode({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": counts}))
    assert (reply.stop_reason, reply.text) == ("refusal", "the prompt was blocked: SAFETY")


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"{}", UnreadableAnswer), (b"[1]", UnreadableAnswer), (b'{"candidates":[7]}', UnreadableAnswer), (b"<p>", UnreadableResponse),
     (b'{"error":{"code":500,"message":"no"}}', StreamError)],
)  # fmt: skip
def test_what_is_no_reply(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_generated(body)


def test_a_reply_without_counts_is_charged_at_its_worst_case() -> None:
    assert read_generated(told([{"text": "x"}])).usage.unknown


def test_the_simulated_provider_reads_what_the_client_writes_and_back() -> None:
    asked = ASKED | {"system": "s", "tools": [{"name": "look", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
    back = json.loads(gemini_wire.messages_request(json.loads(generate_body(msgspec.json.encode(asked))), "gemini-2.5-flash"))
    assert back == asked
