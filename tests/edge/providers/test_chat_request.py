"""Requests of chat completions: each field of a canonical request has one counterpart, is refused, or is a hint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.files.batch_request import PARAMS
from actors.providers.chat_completions.request import COMPLETION_BOUND, TOKENS_BOUND, ChatVariant, chat_body
from actors.providers.client.canonical_request import model_in
from actors.providers.client.wire_form import Untranslatable
from actors.simulator.api.chat_wire import messages_request

USER = [{"role": "user", "content": "Yes?"}]
SCHEMA = {
    "type": "object", "properties": {"label": {"type": "string", "enum": ["a", "b"]}}, "required": ["label"],
    "additionalProperties": False,
}  # fmt: skip
LOOSE = {"type": "object", "properties": {"label": {"type": "string"}}, "additionalProperties": False}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


def made(bound: str = TOKENS_BOUND, streamed: bool = False, **fields: Any) -> dict[str, Any]:
    request = {"model": "m", "max_tokens": 8, "messages": USER} | fields
    return json.loads(chat_body(json.dumps(request).encode(), streamed, ChatVariant(bound)))


def test_a_request_of_texts_alone() -> None:
    assert made(system="Be brief. é") == {
        "model": "m", "max_tokens": 8,
        "messages": [{"role": "system", "content": "Be brief. é"}, {"role": "user", "content": "Yes?"}],
    }  # fmt: skip


def test_the_bound_has_the_name_that_the_server_takes_and_a_stream_has_its_usage() -> None:
    assert made(COMPLETION_BOUND)["max_completion_tokens"] == 8
    assert "max_tokens" not in made(COMPLETION_BOUND)
    streamed = made(streamed=True)
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop_sequences": ["END"]}, {"stop": ["END"]}),
        ({"stop_sequences": []}, {}),
        ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
        ({"service_tier": "standard_only"}, {"service_tier": "default"}),
        ({"service_tier": "flex"}, {"service_tier": "flex"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"temperature": 0, "top_p": 0.5, "seed": 3, "verbosity": "low"},
         {"temperature": 0, "top_p": 0.5, "seed": 3, "verbosity": "low"}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"cache_control": {"type": "ephemeral"}, "stream": False, "tools": None}, {}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        ({"tool_choice": {"type": "tool", "name": "t", "disable_parallel_tool_use": True}},
         {"tool_choice": {"type": "function", "function": {"name": "t"}}, "parallel_tool_calls": False}),
        ({"tools": [{"name": "t", "description": "d", "input_schema": SCHEMA}]},
         {"tools": [{"type": "function", "function": {"name": "t", "description": "d", "parameters": SCHEMA}}]}),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
         {"response_format": {"type": "json_schema",
                              "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}}),
        ({"output_config": {"format": {"type": "json_schema", "schema": LOOSE}}},
         {"response_format": {"type": "json_schema",
                              "json_schema": {"name": "answer", "strict": False, "schema": LOOSE}}}),
    ],
)  # fmt: skip
def test_fields_beside_the_messages(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = made(**fields)
    assert {name: value for name, value in found.items() if name not in ("model", "max_tokens", "messages")} == expected


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
         [{"role": "user", "content": "a"}]),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": PNG}]},
         [{"role": "user", "content": [
             {"type": "text", "text": "a"},
             {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]},
         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]),
        ({"role": "user", "content": [{"type": "document", "title": "scan", "source": {
            "type": "base64", "media_type": "application/pdf", "data": "AAAA"}}]},
         [{"role": "user", "content": [{"type": "file", "file": {
             "filename": "scan.pdf", "file_data": "data:application/pdf;base64,AAAA"}}]}]),
        ({"role": "user", "content": [{"type": "document", "source": {
            "type": "text", "media_type": "text/plain", "data": "T"}}]}, [{"role": "user", "content": "T"}]),
        ({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
            {"type": "tool_result", "tool_use_id": "t2"}, {"type": "text", "text": "and now?"}]},
         [{"role": "tool", "tool_call_id": "t1", "content": "5"}, {"role": "tool", "tool_call_id": "t2", "content": ""},
          {"role": "user", "content": "and now?"}]),
        ({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
         [{"role": "assistant", "content": "I look.", "tool_calls": [
             {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}]}]),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {}}]},
         [{"role": "assistant", "content": None, "tool_calls": [
             {"id": "t1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]}]),
    ],
)  # fmt: skip
def test_turns_of_blocks(turn: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert made(messages=[turn])["messages"] == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"container": "c"}, "container"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, "output_config.effort in its place, or give --api messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": PNG}]}]}]}, "'image': leave it out, or give --api messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "search_result"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "image of 'file'"),
        ({"system": [{"type": "image", "source": PNG}]}, "system"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_and_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Untranslatable, match=named.replace(".", r"\.")):
        made(**fields)


def test_each_field_of_the_canonical_form_is_decided() -> None:
    """A field that is added to the form has to be translated or refused here, not passed over."""
    refused = set()
    for name in PARAMS.keys() - {"model", "max_tokens", "messages", "system"}:
        try:
            made(**{name: {} if PARAMS[name][0] is dict else [] if PARAMS[name][0] is list else "x"})
        except (Untranslatable, LookupError):
            refused.add(name)
    assert refused == {"container", "inference_geo", "speed", "thinking", "tool_choice", "user_profile_id"}


def test_the_model_of_a_request_is_found() -> None:
    assert (model_in(b'{"max_tokens":1,"model":"gpt"}'), model_in(b"{}"), model_in(b"[")) == ("gpt", "", "")


@given(
    st.text(), st.none() | st.text(min_size=1), st.sampled_from([{}, {"format": {"type": "json_schema", "schema": LOOSE}}]),
    st.sampled_from([TOKENS_BOUND, COMPLETION_BOUND]),
)  # fmt: skip
def test_the_fast_path_makes_the_same_request(text: str, system: str | None, config: dict[str, Any], bound: str) -> None:
    request: dict[str, Any] = {"max_tokens": 8, "messages": [{"content": text, "role": "user"}], "model": "m"}
    request |= {"output_config": config} if config else {}
    request |= {"system": system} if system else {}
    body = json.dumps(request).encode()
    quick = chat_body(body, variant=ChatVariant(bound))
    slow = chat_body(json.dumps(request | {"stop_sequences": []}).encode(), variant=ChatVariant(bound))
    assert json.loads(quick) == json.loads(slow)


_TEXT = st.text(min_size=1, max_size=20)
_USE = st.builds(
    lambda number, name, value: {"type": "tool_use", "id": f"t{number}", "name": name, "input": {"v": value}},
    st.integers(0, 9), st.sampled_from(["add", "look"]), st.integers() | st.text(max_size=5),
)  # fmt: skip
_RESULT = st.builds(lambda n, text: {"type": "tool_result", "tool_use_id": f"t{n}", "content": text}, st.integers(0, 9), _TEXT)
_SAID = st.one_of(_TEXT, st.lists(_USE, min_size=1, max_size=2))


@given(st.lists(st.tuples(_TEXT, _SAID | st.none(), st.lists(_RESULT, max_size=2)), min_size=1, max_size=4), _TEXT | st.none())
def test_translated_forth_and_back_a_conversation_is_the_same(turns: list[Any], system: str | None) -> None:
    """Forth by the client, back by the simulated provider, which has code of its own."""
    messages: list[dict[str, Any]] = []
    for asked, said, results in turns:
        messages.append({"role": "user", "content": results or asked})
        if said is not None:
            messages.append({"role": "assistant", "content": said})
    request: dict[str, Any] = {"max_tokens": 9, "messages": messages, "model": "m"}
    request |= {"system": system} if system else {}
    back = json.loads(messages_request(chat_body(json.dumps(request).encode(), variant=ChatVariant(COMPLETION_BOUND))))
    assert back == _joined(request)


def _joined(request: dict[str, Any]) -> dict[str, Any]:
    """Neighbouring turns of tool results are one turn of the Messages API."""
    turns: list[dict[str, Any]] = []
    for turn in request["messages"]:
        content = turn["content"]
        before = turns[-1] if turns else None
        if before and turn["role"] == before["role"] == "user" and isinstance(content, list) and isinstance(before["content"], list):
            before["content"] = before["content"] + content
        else:
            turns.append(dict(turn))
    return request | {"messages": turns}
