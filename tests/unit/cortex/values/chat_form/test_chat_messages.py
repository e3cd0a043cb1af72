"""Requests of chat completions as canonical ones: each field has one counterpart, is a hint, or is refused by name."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest

from actors.providers.chat_completions.request import COMPLETION_BOUND, ChatVariant, written_body
from cortex.values.chat_form.messages import NoCounterpart, canonical_fields, messages_request
from cortex.values.chat_form.request import CHAT_MARK, chat_request, fields_of, may_stream

USER = [{"role": "user", "content": "Yes?"}]
ONE = {"model": "m", "max_tokens": 8, "messages": USER}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":0.10}'}}
PNG = "data:image/png;base64,AAAA"


def made(**fields: Any) -> dict[str, Any]:
    """Return what fields besides those of ``ONE`` become."""
    body = messages_request(chat_request(ONE | fields))
    found: dict[str, Any] = json.loads(body)
    return {name: value for name, value in found.items() if name not in ONE or value != ONE[name]}


FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "stop": ("END", {"stop_sequences": ["END"]}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.9, {"top_p": 0.9}),
    "user": ("u1", {"metadata": {"user_id": "u1"}}),
    "safety_identifier": ("u1", {"metadata": {"user_id": "u1"}}),
    "reasoning_effort": ("low", {"output_config": {"effort": "low"}}),
    "response_format": (
        {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "service_tier": ("default", {"service_tier": "standard_only"}),
    "tools": ([TOOL], {"tools": [{"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True}]}),
    "prompt_cache_key": ("k", {}),
    "prompt_cache_retention": ("24h", {}),
    "prompt_cache_options": ({"a": 1}, {}),
    "parallel_tool_calls": (True, {}),
}  # fmt: skip
"""Field -> a value, and what it becomes."""
NONE: dict[str, tuple[Any, Any]] = {
    "audio": ({"voice": "x", "format": "wav"}, None), "frequency_penalty": (0.5, 0), "presence_penalty": (0.5, 0.0),
    "function_call": ("auto", None), "functions": ([{"name": "f"}], None), "logit_bias": ({"5": 1}, {}),
    "logprobs": (True, False), "top_logprobs": (3, 0), "metadata": ({"a": "b"}, {}),
    "modalities": (["text", "audio"], ["text"]), "n": (2, 1), "prediction": ({"type": "content"}, None),
    "seed": (3, None), "store": (True, False), "stream": (True, False), "stream_options": ({"include_usage": True}, None),
    "verbosity": ("low", "medium"), "web_search_options": ({"a": 1}, None), "moderation": ({"a": 1}, None),
    "min_p": (0.1, None), "guided_choice": (["a"], None),
}  # fmt: skip
"""Field without a counterpart -> a value that is refused, and one that says what is so without the field."""


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_one_counterpart(name: str) -> None:
    value, expected = FIELDS[name]
    assert made(**{name: value}) == expected
    assert made(**{name: None}) == {}


@pytest.mark.parametrize("name", NONE)
def test_a_field_without_counterpart_is_refused_by_name_and_never_left_out(name: str) -> None:
    refused, default = NONE[name]
    with pytest.raises(NoCounterpart) as error:
        made(**{name: refused})
    assert str(error.value).startswith(f"{name}: ") and "\n" not in str(error.value)
    assert made(**{name: default}) == {}


def test_every_field_of_the_sdk_has_a_case() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Params

    own = {"tool_choice", "max_completion_tokens", *ONE}
    assert set(get_type_hints(Params)) <= {*FIELDS, *NONE, *own}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", None, {"type": "none"}),
        ({"type": "function", "function": {"name": "f"}}, None, {"type": "tool", "name": "f"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_the_choice_of_a_tool(choice: Any, parallel: bool | None, expected: dict[str, Any]) -> None:
    assert made(tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel)["tool_choice"] == expected
    assert "tool_choice" not in made(tool_choice=choice, parallel_tool_calls=parallel)


def test_effort_and_schema_stand_together() -> None:
    assert made(reasoning_effort="low", response_format=FIELDS["response_format"][0])["output_config"] == {
        "effort": "low", "format": {"type": "json_schema", "schema": SCHEMA},
    }  # fmt: skip
    assert made(reasoning_effort="none") == {"thinking": {"type": "disabled"}}


def test_a_conversation_with_tools_and_pictures() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PNG}}]
    found = made(messages=[
        {"role": "system", "content": "Be brief."}, {"role": "developer", "content": [{"type": "text", "text": "Now."}]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "hm", "tool_calls": [CALL, {**CALL, "id": "c2"}], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "auto"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BB"}}]},
    ])  # fmt: skip
    assert found["system"] == [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Now."}]
    assert found["messages"] == [
        {"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        ]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "hm"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 0.1}},
            {"type": "tool_use", "id": "c2", "name": "f", "input": {"a": 0.1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}]},
        ]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]},
        {"role": "user", "content": [
            {"type": "document", "title": "a.pdf",
             "source": {"type": "base64", "media_type": "application/pdf", "data": "BB"}},
        ]},
    ]  # fmt: skip


def test_numbers_stay_as_they_are_written() -> None:
    body = messages_request(CHAT_MARK + b'"max_tokens":8,"messages":[],"model":"m","temperature":0.10}')
    assert b'"temperature":0.10' in body


MALFORMED = {
    "late system": [*USER, {"role": "system", "content": "x"}],
    "name": [{"role": "user", "content": "x", "name": "Ann"}],
    "role": [{"role": "function", "name": "f", "content": "x"}],
    "audio": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    "file id": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
    "detail": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}]}],
    "data": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png,AA"}}]}],
    "thoughts": [*USER, {"role": "assistant", "content": "x", "reasoning_content": "y"}],
    "arguments": [*USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]}],
    "custom": [*USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}],
    "no url": [{"role": "user", "content": [{"type": "image_url"}]}],
    "no content": [{"role": "user"}],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_message_without_counterpart_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(NoCounterpart) as error:
        canonical_fields(ONE | {"messages": MALFORMED[name]})
    assert str(error.value).startswith("messages") and "\n" not in str(error.value)


def test_a_request_goes_out_over_chat_completions_as_it_was_written() -> None:
    values = {name: value for name, (value, _) in FIELDS.items()} | {name: value for name, (value, _) in NONE.items()}
    asked = {**values, **ONE, "tool_choice": {"type": "custom"}, "a_field_of_tomorrow": {"b": [1, 2.50]}}
    body = chat_request(asked)
    assert body.startswith(CHAT_MARK)
    sent = json.loads(written_body(body, variant=ChatVariant(COMPLETION_BOUND)))
    assert sent == {name: value for name, value in asked.items() if name != "max_tokens"} | {"max_completion_tokens": 8}
    assert "api" not in fields_of(body) and not may_stream(body)
    streamed = json.loads(written_body(chat_request(ONE), streamed=True))
    assert streamed == ONE | {"stream": True, "stream_options": {"include_usage": True}}
    assert may_stream(chat_request(ONE))
