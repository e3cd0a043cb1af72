"""Streams of servers that differ from OpenAI's: when an answer ends, and which piece belongs to which tool call.

The chunks are made by hand after the issues and sources that each row names.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.providers.chat_completions.response import read_completion
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.transport.body import UnreadableAnswer
from cortex.values.endings import Ending
from cortex.values.reply import Usage, as_said
from tests.edge.support.scripted_http_server import compact

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m"}
NOUGHT = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
USAGE = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


def chunk(delta: dict[str, Any], reason: Any = None, **more: Any) -> dict[str, Any]:
    return HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]} | more


def read(chunks: list[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> ChunkAssembler:
    found = ChunkAssembler()
    for each in chunks:
        found.feed(b"data: %s\n\n" % compact(each))
    found.feed(end)
    return found


@pytest.mark.parametrize(
    ("open_", "usage"),
    [
        (None, None),  # OpenAI
        (None, NOUGHT),  # vLLM with `continuous_usage_stats`
        ("", NOUGHT),  # LocalAI 2: mudler/LocalAI#1886
        ("", None),  # Ollama 0.1: ollama/ollama#4357; SGLang 0.4.3: sgl-project/sglang#3912
        ("null", None),  # KoboldCpp: PowerShell/AIShell#350
    ],
)
def test_an_answer_ends_with_a_finish_reason_that_is_one(open_: Any, usage: Any) -> None:
    more = {} if usage is None else {"usage": usage}
    pieces = [chunk({"content": each}, open_, **more) for each in ("The ", "answer ", "is 42")]
    reply = read_completion(read([*pieces, chunk({}, "stop", usage=USAGE)], b"").message())
    assert (reply.text, reply.ending, reply.usage) == ("The answer is 42", Ending.WHOLE, Usage(9, 5))
    cut = read(pieces, b"")
    assert not cut.whole
    with pytest.raises(UnreadableAnswer):
        cut.message()
    assert read_completion(read(pieces).message()).text == "The answer is 42", "the mark of the end is one, too"


def piece(index: int | None, name: str | None, function: str | None, arguments: Any) -> dict[str, Any]:
    given = {"index": index, "id": name, "function": {"name": function, "arguments": arguments}}
    return {key: value for key, value in given.items() if value is not None}


TWO = [("a", "look", {"x": 1}), ("b", "look", {"x": 2})]
CALLS: dict[str, tuple[list[list[dict[str, Any]]], list[tuple[str, str, Any]]]] = {
    "OpenAI, in pieces by index": (
        [[piece(0, "a", "look", "")], [piece(0, None, None, '{"x":')], [piece(1, "b", "look", "")],
         [piece(0, None, None, "1}"), piece(1, None, None, '{"x":2}')]], TWO,
    ),
    "Gemini, each in a chunk: NousResearch/hermes-agent#62937": (
        [[piece(0, "a", "look", '{"x":1}')], [piece(0, "b", "look", '{"x":2}')]], TWO,
    ),
    "a bridge to Gemini, all in one chunk: omnigent-ai/omnigent#28": (
        [[piece(0, "a", "look", '{"x":1}'), piece(0, "b", "look", '{"x":2}')]], TWO,
    ),
    "Gemini's empty ids: Arize-ai/phoenix#11376": (
        [[piece(0, "", "look", '{"x":1}')], [piece(0, "", "look", '{"x":2}')]],
        [("call_0", "look", {"x": 1}), ("call_1", "look", {"x": 2})],
    ),
    "vLLM, in pieces at index 0: InternLM/lmdeploy#3412": (
        [[piece(0, "a", "look", "")], [piece(0, "", None, '{"x":1}')],
         [piece(0, "b", "look", "")], [piece(0, "", None, '{"x":2}')]], TWO,
    ),
    "SGLang, each piece with its id: InternLM/lmdeploy#3412": (
        [[piece(0, "a", "look", "")], [piece(0, "a", None, '{"x":1}')],
         [piece(0, "b", "look", "")], [piece(0, "b", None, '{"x":2}')]], TWO,
    ),
    "early vLLM, an id for each piece: default of `DeltaToolCall.id`": (
        [[piece(0, "a", "look", "")], [piece(0, "z", None, '{"x":')], [piece(0, "y", None, "1}")]],
        [("y", "look", {"x": 1})],
    ),
    "early vLLM with a named `tool_choice`: its `DeltaToolCall(function=DeltaFunctionCall(name=…), index=i)`": (
        [[piece(0, "a", "look", "")], [piece(0, "z", "look", '{"x')], [piece(0, "y", "look", '":')],
         [piece(0, "x", "look", "1}")], [piece(0, "w", "look", "")]],
        [("w", "look", {"x": 1})],
    ),
    "the same without an index": (
        [[piece(None, "a", "look", '{"x')], [piece(None, "z", "look", '":1}')], [piece(None, "y", "look", "")]],
        [("y", "look", {"x": 1})],
    ),
    "another name with another id, at one index": (
        [[piece(0, "a", "look", '{"x":1}')], [piece(0, "b", "see", '{"x":')], [piece(0, "b", None, "2}")]],
        [("a", "look", {"x": 1}), ("b", "see", {"x": 2})],
    ),
    "the same without an index, as before it had one": (
        [[piece(None, "a", "look", "")], [piece(None, "z", None, '{"x":')], [piece(None, "y", None, "1}")]],
        [("y", "look", {"x": 1})],
    ),
    "no index, ids": ([[piece(None, "a", "look", '{"x":1}')], [piece(None, "b", "look", '{"x":2}')]], TWO),
    "no index, ids, in pieces": (
        [[piece(None, "a", "look", '{"x":')], [piece(None, None, None, "1}")],
         [piece(None, "b", "look", '{"x":')], [piece(None, "b", None, "2}")]], TWO,
    ),
    "neither index nor id": (
        [[piece(None, None, "look", {"x": 1}), piece(None, None, "see", {})]],
        [("call_0", "look", {"x": 1}), ("call_1", "see", {})],
    ),
    "name and id in each piece": (
        [[piece(0, "a", "look", '{"x":')], [piece(0, "a", "look", "1}")]], [("a", "look", {"x": 1})],
    ),
    "the name in each piece, no id": (
        [[piece(0, None, "look", '{"x":')], [piece(0, None, "look", "1}")], [piece(0, None, "look", "")]],
        [("call_0", "look", {"x": 1})],
    ),
    "arguments as an object, and again: Ollama": (
        [[piece(0, "a", "look", {"x": 1})], [piece(0, "a", "look", {"x": 1})]], [("a", "look", {"x": 1})],
    ),
    "a call without arguments, and the next": (
        [[piece(0, "a", "look", "")], [piece(0, "b", "see", "{}")]], [("a", "look", {}), ("b", "see", {})],
    ),
}  # fmt: skip
"""Tool calls of the chunks of a stream, and the uses that they are: id, name, input."""


@pytest.mark.parametrize(("deltas", "uses"), CALLS.values(), ids=CALLS)
def test_each_piece_of_a_tool_call_goes_to_its_call(deltas: Any, uses: Any) -> None:
    stream = [*(chunk({"tool_calls": each}) for each in deltas), chunk({}, "tool_calls", usage=USAGE)]
    said = as_said(read_completion(read(stream).message()))
    assert [(use.id, use.name, use.input) for use in said.uses] == uses


def test_a_signature_stays_with_its_call() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    stream = [
        chunk({"tool_calls": [piece(0, "a", "look", "{}") | signed]}),
        chunk({"tool_calls": [piece(0, "b", "look", "{}")]}, "tool_calls"),
    ]
    reply = read_completion(read(stream).message())
    assert [(use.id, use.name) for use in as_said(reply).uses] == [("a", "look"), ("b", "look")]
    assert reply.body.count(b'"signature"') == 1 and reply.body.index(b'"signature"') < reply.body.index(b'"id":"a"')
