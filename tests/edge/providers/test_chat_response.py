"""Completions become canonical replies: content, ending and usage, whole or streamed, of any server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.providers.chat_completions import response
from actors.providers.chat_completions.response import read_completion, usage_of, with_whole
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.values.endings import Ending
from cortex.values.reply import UNKNOWN_USAGE, Malformed, Reply, Usage, as_said
from tests.edge.support.scripted_http_server import compact

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1.50}'}}


def completion(message: dict[str, Any], reason: Any = "stop", usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "gpt", "choices": [choice], "usage": usage}


def blocks(body: bytes) -> list[dict[str, Any]]:
    return json.loads(body)["content"]


def test_a_plain_completion() -> None:
    reply = read_completion(compact(completion({"content": "yes — é"})))
    assert (reply.text, reply.stop_reason, reply.model, reply.usage) == ("yes — é", "end_turn", "gpt", Usage(10, 3))
    assert json.loads(reply.body)["id"] == "chatcmpl-1"


def test_thoughts_between_tags_are_kept_as_such_where_nothing_else_is_said() -> None:
    [block] = blocks(read_completion(compact(completion({"content": "<think>hm, well</think>\n"}))).body)
    assert (block["type"], block["thinking"]) == ("thinking", "hm, well")
    assert read_completion(compact(completion({"content": "<think>hm</think>yes"}))).text == "<think>hm</think>yes"


@pytest.mark.parametrize(
    ("message", "reason", "more", "stop_reason", "ending"),
    [
        ({"content": "a"}, "stop", {}, "end_turn", Ending.WHOLE),
        ({"content": "a"}, "stop", {"stop_reason": "END"}, "stop_sequence", Ending.WHOLE),  # vLLM
        ({"content": "a"}, "length", {}, "max_tokens", Ending.CUT),
        ({"content": "a"}, "model_length", {}, "model_context_window_exceeded", Ending.CUT),  # Mistral
        ({"content": "a"}, "eos", {}, "end_turn", Ending.WHOLE),  # Together
        ({"content": "la la la"}, "repetition", {}, "max_tokens", Ending.CUT),  # vLLM: BerriAI/litellm#27101
        ({"content": "a"}, None, {}, "", Ending.UNKNOWN),
        ({"content": "a"}, "of-tomorrow", {}, "of-tomorrow", Ending.UNKNOWN),
        ({"content": ""}, "content_filter", {}, "refusal", Ending.REFUSED),
        ({"content": None, "refusal": "No."}, "stop", {}, "refusal", Ending.REFUSED),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "stop", {}, "refusal", Ending.REFUSED),
        ({"content": None}, "stop", {}, "end_turn", Ending.EMPTY),
        ({"content": "<think>hm</think>"}, "stop", {}, "end_turn", Ending.EMPTY),
        ({"content": "\n<think>\nhm</think>\n<think></think>\n"}, "stop", {}, "end_turn", Ending.EMPTY),
        ({"content": "<think>hm</think>yes"}, "stop", {}, "end_turn", Ending.WHOLE),
        ({"content": "<think>hm"}, "stop", {}, "end_turn", Ending.WHOLE),
        ({"content": "<think>hm"}, "length", {}, "max_tokens", Ending.CUT),
        ({"content": "", "reasoning_content": "hm"}, "length", {}, "max_tokens", Ending.CUT),
        ({"content": None, "tool_calls": [CALL]}, "tool_calls", {}, "tool_use", Ending.TOOL_USE),
        ({"content": None, "tool_calls": [CALL]}, "stop", {}, "tool_use", Ending.TOOL_USE),  # a forced tool
        ({"content": None, "function_call": {"name": "add", "arguments": "{}"}}, "function_call", {}, "tool_use",
         Ending.TOOL_USE),
    ],
)  # fmt: skip
def test_endings(message: dict[str, Any], reason: Any, more: dict[str, Any], stop_reason: str, ending: Ending) -> None:
    reply = read_completion(compact(completion(message, reason, **more)))
    assert (reply.stop_reason, reply.ending) == (stop_reason, ending)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": "a", "reasoning_content": "hm"}, [("thinking", "hm"), ("text", "a")]),  # DeepSeek, SGLang
        ({"content": "a", "reasoning": "hm"}, [("thinking", "hm"), ("text", "a")]),  # vLLM, OpenRouter
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]},
         [("thinking", "hm"), ("text", "a")]),  # Mistral
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [("text", "ab")]),
        ({"content": 5}, [("text", "5")]),
        ({"content": "\ud800"}, [("text", "\ufffd")]),
    ],
)  # fmt: skip
def test_content(message: dict[str, Any], content: list[tuple[str, str]]) -> None:
    reply = read_completion(json.dumps(completion(message)).encode())
    assert [(block["type"], block[block["type"]]) for block in blocks(reply.body)] == content


@pytest.mark.parametrize(
    ("arguments", "reason", "given"),
    [
        ('{"a": 1.50}', "tool_calls", '{"a":1.50}'),  # numbers to the digit
        ("", "tool_calls", "{}"),
        ({"a": 1}, "tool_calls", '{"a":1}'),  # Ollama
        (None, "tool_calls", "{}"),
        ('{"a": 1, "b": "x', "length", '{"a":1}'),
        ('{"a": 1, "b"', "tool_calls", json.dumps('{"a": 1, "b"')),
        ("[1]", "tool_calls", '"[1]"'),
    ],
)  # fmt: skip
def test_arguments_of_tools(arguments: Any, reason: str, given: str) -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": arguments}}
    body = read_completion(compact(completion({"content": None, "tool_calls": [call]}, reason))).body.decode()
    assert f'"id":"c1","name":"add","input":{given}' in body


def test_broken_arguments_are_the_models_and_ask_for_another_reply() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": '}}
    with pytest.raises(Malformed):
        as_said(read_completion(compact(completion({"content": None, "tool_calls": [call]}, "tool_calls"))))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(10, 3)),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}, Usage(6, 3, 4)),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}}, Usage(4, 3, 4, 2)),
        (USAGE | {"prompt_tokens_details": None, "prompt_cache_hit_tokens": 4}, Usage(6, 3, 4)),  # DeepSeek
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 99}}, Usage(0, 3, 10)),
        (USAGE | {"completion_tokens_details": {"reasoning_tokens": 2}}, Usage(10, 3)),  # OpenAI: a part
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}, Usage(32, 103)),  # xAI: beside them
        ({"prompt_tokens": 10, "completion_tokens": 3}, Usage(10, 3)),
        ({"prompt_tokens": 10, "completion_tokens": None}, UNKNOWN_USAGE),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, UNKNOWN_USAGE),
        ({"prompt_tokens": True, "completion_tokens": 3}, UNKNOWN_USAGE),
        (None, UNKNOWN_USAGE),
    ],
)  # fmt: skip
def test_usage(usage: Any, expected: Usage) -> None:
    assert usage_of(completion({"content": "a"}, usage=usage), True) == expected


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"<html>", UnreadableResponse),
        (b"5", UnreadableAnswer),
        (b'{"choices": []}', UnreadableAnswer),
        (b'{"choices": [{"finish_reason": "stop"}]}', UnreadableAnswer),
        (b'{"error": {"code": 502, "message": "upstream"}}', StreamError),  # OpenRouter, with status 200
        (compact(completion({"content": "half"}, "error", error={"code": 502, "message": "upstream"})), StreamError),
        (compact(completion({"content": None}, "insufficient_system_resource")), StreamError),  # DeepSeek
    ],
)  # fmt: skip
def test_what_is_no_completion(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_completion(body)


def test_a_completion_that_was_cut_is_an_answer_that_came_and_is_kept_if_its_choices_are_whole() -> None:
    body = compact(completion({"content": 'a "whole" answer \u00e9'}))
    kept = body.index(b'"usage":{') + len(b'"usage":{')  # a field of which something came
    for cut in range(20, len(body)):
        if cut >= kept:
            reply = read_completion(body[:cut])
            assert (reply.text, reply.stop_reason, reply.usage) == ('a "whole" answer \u00e9', "end_turn", UNKNOWN_USAGE), cut
        else:
            with pytest.raises(UnreadableAnswer, match="cut before its content was whole"):
                read_completion(body[:cut])
    assert with_whole(read_completion(body[:-5]), body[:-5]) == read_completion(body[:-5])
    with pytest.raises(UnreadableResponse, match="is no JSON") as error:
        read_completion(b"Bad gateway")
    assert type(error.value) is UnreadableResponse


def test_a_byte_order_mark_is_passed_over() -> None:
    assert read_completion(b"\xef\xbb\xbf" + compact(completion({"content": "a"}))).text == "a"


def test_a_text_that_is_no_utf_8_is_kept() -> None:
    body = compact(completion({"content": "yes"})).replace(b'"yes"', b'"yes \xff"')
    assert read_completion(body).text == "yes \ufffd"


def long_way(body: bytes) -> Reply:
    """Reply to a completion that a gateway sent as a list, which only the long way reads."""
    return read_completion(b"[%b]" % body)


def test_the_fast_path_reads_the_same_reply() -> None:
    counts = (0, 0), (4, None), (0, 2), (6, 4), (8, 4), (11, 0), ("4", 0), (-1, 0)
    cached = [{"prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": kept}} for read, kept in counts]
    cached += [{}, {"prompt_tokens_details": None, "prompt_cache_hit_tokens": 4}, {"cached_tokens": 5}]
    for text, reason, output, more, thought, refusal, stopped in itertools.product(
        ("hi", "", "é\n\"\ud83d\ude00"), ("stop", "length"), (3, 0), cached, (0, 5), (None, "No."), (None, "END", 7)
    ):
        usage = {"prompt_tokens": 10, "completion_tokens": output, "total_tokens": 10 + output + thought} | more
        body = json.dumps(completion({"content": text, "refusal": refusal}, reason, usage, stop_reason=stopped)).encode()
        assert read_completion(body) == long_way(body), body


@pytest.mark.parametrize(
    ("message", "usage"),
    [
        ({"refusal": None, "annotations": []}, {"prompt_tokens_details": {"cached_tokens": 9, "audio_tokens": 0},
         "completion_tokens_details": {"reasoning_tokens": 2}}),  # OpenAI
        ({"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": [],
          "reasoning_content": None, "reasoning": None}, {"prompt_tokens_details": None}),  # vLLM
        ({}, {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}}),  # DeepSeek
        ({"reasoning_content": ""}, {"prompt_tokens_details": {"cached_tokens": 9}}),  # llama.cpp
    ],
)  # fmt: skip
def test_a_text_of_each_server_is_read_by_the_fast_path(message: dict[str, Any], usage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = compact(completion({"content": "a", **message}, usage=USAGE | usage))
    slow = long_way(body)
    monkeypatch.setattr(response, "_content", None)  # without the long way
    assert read_completion(body) == slow


# -- streams ---------------------------------------------------------------------------------------------------------


def chunks(*deltas: dict[str, Any], reason: Any = "stop", usage: Any = USAGE, apart: bool = True) -> list[dict[str, Any]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt"}
    found = [head | {"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in deltas]
    last = head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [*found, last, head | {"choices": [], "usage": usage}] if apart else [*found, last | {"usage": usage}]


def events(values: list[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: %s\n\n" % compact(each) for each in values) + end


def assembled(data: bytes, *cuts: int) -> ChunkAssembler:
    found = ChunkAssembler()
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        found.feed(data[start:end])
    return found


TOOL_DELTAS = (
    {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "id": "c1", "type": "function",
                                                           "function": {"name": "add", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}},
                    {"index": 1, "id": "c2", "function": {"name": "look", "arguments": "{}"}}]},
)  # fmt: skip


@given(st.data())
def test_a_stream_cut_anywhere_is_the_unstreamed_completion(data: st.DataObject) -> None:
    stream = events(chunks({"role": "assistant", "content": ""}, {"reasoning": "h"}, {"reasoning": "m"}, {"content": "yé"},
                           {"content": "s"}))  # fmt: skip
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    found = assembled(stream, *cuts)
    assert found.done
    assert read_completion(found.message()) == read_completion(
        compact(completion({"reasoning": "hm", "content": "yés"}))
    )


def test_tool_calls_are_put_together_by_their_index() -> None:
    reply = read_completion(assembled(events(chunks(*TOOL_DELTAS, reason="tool_calls"))).message())
    assert [(use.id, use.name, use.input) for use in as_said(reply).uses] == [("c1", "add", {"a": 1}), ("c2", "look", {})]


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (events(chunks({"content": "a"}, apart=False)), Usage(10, 3)),  # Mistral, Gemini: with the finish reason
        (events(chunks({"content": "a"}), b""), Usage(10, 3)),  # no [DONE]
        (events(chunks({"content": "a"})[:-1]), UNKNOWN_USAGE),  # a server that sends no usage
        (b": OPENROUTER PROCESSING\n\n" + events(chunks({"content": "a"})), Usage(10, 3)),
    ],
)
def test_ends_of_streams(stream: bytes, usage: Usage) -> None:
    found = assembled(stream)
    assert found.done, "nothing more is waited for"
    assert read_completion(found.message()).usage == usage


def test_a_stream_that_ends_before_its_finish_reason_is_no_answer() -> None:
    with pytest.raises(UnreadableAnswer):
        assembled(events(chunks({"content": "a"})[:1], b"")).message()
    with pytest.raises(UnreadableResponse):
        assembled(b"data: {").message()


def test_an_error_inside_a_stream_says_whether_text_came() -> None:
    error = {"error": {"code": 429, "message": "slow down"}}
    for before, came in ([], False), (chunks({"content": "a"})[:1], True):
        with pytest.raises(StreamError) as caught:
            assembled(events([*before, error]))
        assert caught.value.text_came == came
