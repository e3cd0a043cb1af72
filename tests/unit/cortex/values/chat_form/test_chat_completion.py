"""Completions of canonical replies: what OpenAI's own client reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actors.providers.chat_completions.response import STOP_REASONS, read_completion, with_whole
from actors.providers.chat_completions.stream import ChunkAssembler
from cortex.values.chat_form.completion import FINISH_REASONS, completion_of
from cortex.values.reply import Usage, canonical_reply

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def completed(content: list[dict[str, Any]], stop_reason: str = "end_turn") -> dict[str, Any]:
    reply = canonical_reply(content, stop_reason=stop_reason, model="m", usage=Usage(5, 7, 2, 1), name="msg_1")
    body, name = completion_of(reply.body, 1_700_000_000.5)
    assert name == "msg_1"
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([text("yes")], {"content": "yes"}),
        ([text("y"), text("es")], {"content": "yes"}),
        ([THOUGHT, text("yes")], {"content": "yes", "reasoning_content": "hm"}),
        ([], {"content": None}),
        ([USE], {"content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]}),
        ([{**USE, "input": '{"a":'}], {"content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}]}),
    ],
)  # fmt: skip
def test_the_message(content: list[dict[str, Any]], message: dict[str, Any]) -> None:
    found = completed(content)
    assert found["choices"] == [{
        "index": 0, "message": {"role": "assistant", "refusal": None} | message, "logprobs": None, "finish_reason": "stop",
    }]  # fmt: skip
    assert (found["object"], found["created"], found["model"]) == ("chat.completion", 1_700_000_000, "m")
    assert found["usage"] == {
        "prompt_tokens": 8, "completion_tokens": 7, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip


@pytest.mark.parametrize("reason", [*FINISH_REASONS, "pause_turn"])
def test_the_finish_reason_is_read_back_as_the_reason(reason: str) -> None:
    finish = completed([text("x")], reason)["choices"][0]["finish_reason"]
    same = {"stop_sequence": "end_turn", "model_context_window_exceeded": "max_tokens"}.get(reason, reason)
    assert STOP_REASONS.get(finish, finish) == same


@pytest.mark.parametrize("reason", FINISH_REASONS)
def test_the_client_of_openai_reads_it(reason: str) -> None:
    from openai.types.chat import ChatCompletion

    found = ChatCompletion.model_validate(completed([THOUGHT, text("x"), USE], reason), strict=True)
    assert found.choices[0].message.content == "x" and found.usage is not None and found.usage.total_tokens == 15


def test_a_completion_that_came_stays_as_it_came() -> None:
    whole = b'{"id":"c-1","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop",\n' \
            b'"logprobs":{"content":[{"token":"yes","logprob":-0.10}]}}],"model":"m","usage":{"prompt_tokens":3,' \
            b'"completion_tokens":1,"total_tokens":4},"system_fingerprint":"fp"}\n'  # fmt: skip
    reply = with_whole(read_completion(whole), whole)
    assert (reply.text, reply.usage) == ("yes", Usage(3, 1))
    assert completion_of(reply.body, 0.0) == (whole.strip(), "c-1")


def test_a_completion_from_a_stream_is_one_of_openais_client() -> None:
    from openai.types.chat import ChatCompletion

    head = {"id": "c", "object": "chat.completion.chunk", "created": 5, "model": "m", "system_fingerprint": "fp"}
    stream = ChunkAssembler()
    for delta, finish in (({"role": "assistant", "content": "y"}, None), ({}, "stop")):
        stream.feed(b"data: %b\n\n" % msgspec.json.encode(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    whole = stream.message()
    body, name = completion_of(with_whole(read_completion(whole), whole).body, 0.0)
    found = ChatCompletion.model_validate_json(body)
    assert (name, found.created, found.system_fingerprint, found.choices[0].message.content) == ("c", 5, "fp", "y")


@pytest.mark.parametrize("flaw", [b"\xef\xbb\xbf%b", b"[%b]", b"%b trailing"])
def test_a_completion_that_had_to_be_mended_is_made_of_what_was_read(flaw: bytes) -> None:
    whole = flaw.replace(b"%b", b'{"id":"c","choices":[{"message":{"content":"y"},"finish_reason":"stop"}]}')
    try:
        reply = read_completion(whole)
    except Exception:
        pytest.skip("no reply can be read")
    body, _ = completion_of(with_whole(reply, whole).body, 0.0)
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == "y"
