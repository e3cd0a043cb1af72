"""Requests of the Responses API: each field of a canonical request has one counterpart, is refused, or is a hint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.files.batch_request import PARAMS
from actors.providers.client.wire_form import Untranslatable
from actors.providers.responses.request import ResponsesVariant, counted_body, responses_body
from actors.simulator.api.responses_wire import messages_request
from tests.edge.providers.test_chat_request import _RESULT, _SAID, _TEXT, LOOSE, PNG, SCHEMA, USER

PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
CALL = {"type": "function_call", "call_id": "t1", "name": "add", "arguments": '{"a":1}'}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "rs_1:c2VjcmV0"}
TOOLS = [{"name": "t"}]
TOLD = "reasoning.encrypted_content"


def made(thoughts: bool = True, streamed: bool = False, **fields: Any) -> dict[str, Any]:
    request = {"model": "m", "max_tokens": 20, "messages": USER} | fields
    return json.loads(responses_body(json.dumps(request).encode(), streamed, ResponsesVariant(thoughts)))


def test_a_request_of_texts_alone_leaves_nothing_at_the_provider() -> None:
    assert made(system="Be brief. é") == {
        "model": "m", "instructions": "Be brief. é", "input": "Yes?", "max_output_tokens": 20, "store": False,
    }  # fmt: skip
    assert made(streamed=True)["stream"] is True
    assert made(store=True)["store"] is True


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop_sequences": []}, {}),
        ({"metadata": {"user_id": "u1"}}, {"user": "u1"}),
        ({"service_tier": "standard_only"}, {"service_tier": "default"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning": {"effort": "none"}}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"output_config": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
        ({"output_config": {"effort": "low"}, "reasoning": {"summary": "auto"}},
         {"reasoning": {"effort": "low", "summary": "auto"}}),
        ({"reasoning": {"summary": "auto"}, "output_config": {"effort": "low"}},
         {"reasoning": {"effort": "low", "summary": "auto"}}),
        ({"reasoning_effort": "high", "verbosity": "low"},
         {"reasoning": {"effort": "high"}, "text": {"verbosity": "low"}}),
        ({"temperature": 0, "top_p": 0.5, "include": ["reasoning.encrypted_content"]},
         {"temperature": 0, "top_p": 0.5, "include": ["reasoning.encrypted_content"]}),
        ({"cache_control": {"type": "ephemeral"}, "stream": False, "tools": None}, {}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        ({"tool_choice": {"type": "tool", "name": "t", "disable_parallel_tool_use": True}},
         {"tool_choice": {"type": "function", "name": "t"}, "parallel_tool_calls": False}),
        ({"tools": [{"name": "t", "description": "d", "input_schema": SCHEMA}, {"name": "u", "strict": True}]},
         {"tools": [{"type": "function", "name": "t", "description": "d", "parameters": SCHEMA, "strict": False},
                    {"type": "function", "name": "u", "parameters": {"type": "object"}, "strict": True}],
          "include": [TOLD]}),
        ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "verbosity": "low"},
         {"text": {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA},
                   "verbosity": "low"}}),
        ({"output_config": {"format": {"type": "json_schema", "schema": LOOSE}}},
         {"text": {"format": {"type": "json_schema", "name": "answer", "strict": False, "schema": LOOSE}}}),
    ],
)  # fmt: skip
def test_fields_beside_the_messages(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    usual = ("model", "max_output_tokens", "input", "store")
    assert {name: value for name, value in made(**fields).items() if name not in usual} == expected


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({"role": "assistant", "content": "No."}, [{"role": "assistant", "content": "No."}]),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
         [{"role": "user", "content": "a"}]),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": PNG}]},
         [{"role": "user", "content": [
             {"type": "input_text", "text": "a"},
             {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]}]),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]},
         [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"}]}]),
        ({"role": "user", "content": [{"type": "document", "title": "scan", "source": PDF}]},
         [{"role": "user", "content": [
             {"type": "input_file", "filename": "scan.pdf", "file_data": "data:application/pdf;base64,AAAA"}]}]),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}]},
         [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x/y.pdf"}]}]),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "T"}}]},
         [{"role": "user", "content": "T"}]),
        ({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
            {"type": "tool_result", "tool_use_id": "t2"},
            {"type": "tool_result", "tool_use_id": "t3", "content": [{"type": "image", "source": PNG}]},
            {"type": "text", "text": "and now?"}]},
         [{"type": "function_call_output", "call_id": "t1", "output": "5"},
          {"type": "function_call_output", "call_id": "t2", "output": ""},
          {"type": "function_call_output", "call_id": "t3", "output": [
              {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]},
          {"role": "user", "content": "and now?"}]),
        ({"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I "},
            {"type": "text", "text": "look."}, USE]},
         [{"role": "assistant", "content": "I look."}, CALL]),
        ({"role": "assistant", "content": [THOUGHT, USE]},
         [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}],
           "encrypted_content": "c2VjcmV0"}, CALL]),
        ({"role": "assistant", "content": [{"type": "text", "text": "a"}, THOUGHT]},
         [{"role": "assistant", "content": "a"}]),  # nothing stands behind it
    ],
)  # fmt: skip
def test_turns_are_items(turn: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    assert made(messages=[turn])["input"] == expected


@pytest.mark.parametrize(
    ("fields", "included"),
    [
        ({}, None),  # an answer without tools is the last one
        ({"tools": []}, None),
        ({"tools": TOOLS}, [TOLD]),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, [TOLD]),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "t"}}, None),  # the answer of a typed row
        ({"tools": TOOLS, "include": ["x"]}, ["x", TOLD]),
        ({"include": [TOLD], "tools": TOOLS}, [TOLD]),
    ],
)
def test_thoughts_are_asked_for_where_they_can_be_given_back(fields: dict[str, Any], included: list[str] | None) -> None:
    assert made(**fields).get("include") == included
    assert made(streamed=True, **fields).get("include") == included
    request = json.dumps({"model": "m", "max_tokens": 20, "messages": USER} | fields).encode()
    assert json.loads(responses_body(request, variant=ResponsesVariant(asked=False))).get("include") == fields.get("include")
    assert "include" not in json.loads(counted_body(request)), "the counter knows no such field"


def test_thoughts_can_be_left_out() -> None:
    assert made(thoughts=False, messages=[{"role": "assistant", "content": [THOUGHT, USE]}])["input"] == [CALL]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"container": "c"}, "container"),
        ({"stop_sequences": ["END"]}, "stop_sequences: .*--api chat"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, r"output_config\.effort"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"output_config": {"task_budget": {}}}, r"output_config\.task_budget"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "search_result"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "image of 'file'"),
        ({"system": [{"type": "image", "source": PNG}]}, "system"),
        ({"tool_choice": {"type": "of-tomorrow"}}, "of-tomorrow"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_and_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Untranslatable, match=named):
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


@given(st.text(), st.none() | st.text(min_size=1), st.sampled_from([{}, {"format": {"type": "json_schema", "schema": LOOSE}}]))
def test_the_fast_path_makes_the_same_request(text: str, system: str | None, config: dict[str, Any]) -> None:
    request: dict[str, Any] = {"max_tokens": 8, "messages": [{"content": text, "role": "user"}], "model": "m"}
    request |= {"output_config": config} if config else {}
    request |= {"system": system} if system else {}
    quick = responses_body(json.dumps(request).encode())
    slow = responses_body(json.dumps(request | {"stop_sequences": []}).encode())
    assert json.loads(quick) == json.loads(slow)


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
    back = json.loads(messages_request(responses_body(json.dumps(request).encode())))
    assert _in_blocks(back) == _in_blocks(request)


def _in_blocks(request: dict[str, Any]) -> dict[str, Any]:
    """Each turn as a list of blocks, with its neighbours of the same role."""
    turns: list[dict[str, Any]] = []
    for turn in request["messages"]:
        content = turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turns and turns[-1]["role"] == turn["role"]:
            turns[-1]["content"] = turns[-1]["content"] + blocks
        else:
            turns.append({"role": turn["role"], "content": blocks})
    return request | {"messages": turns}
