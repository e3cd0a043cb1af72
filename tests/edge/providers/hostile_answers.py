"""Answers of each wire form with one or two values in them that no honest server writes, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tests.edge.support.scripted_http_server import compact

HOLE: Final = "@@hole@@"
_HALF: Final = '"\\ud83d"'
_DEEP: Final = 3_000

WEIRD: Final = (
    "9e18", "-1", "0", "-0", "1.5", "1e400", "-1e400", "NaN", "-Infinity", "true", "null", "2147483648",
    "18446744073709551616", "1" + "0" * 400, "-1" + "0" * 400, "1" + "0" * 5_000, '""', '"x"', '"12"', '"null"',
    _HALF, f'"{{\\"a\\":{_HALF[1:-1]}}}"', '"{\\"a\\":\\"\\\\ud83d\\"}"', '"{oops"', '"' + "9" * 5_000 + '"',
    '"' + '{\\"a\\":' * _DEEP + '"', '"' + "[" * _DEEP + "]" * _DEEP + '"', "[]", "{}", "[1]", "[null]", "[[]]",
    '{"a":1}', '{"error":{"message":7}}', '{"type":"text","text":7}', f'{{"a":{_HALF}}}', "[" * 99 + "]" * 99,
    "[" * 900 + "]" * 900, "[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP,
    '"0001-01-01T00:00:00"', '"9999-12-31T23:59:59.999999"', '"2026-01-01T00:00:00+23:59"', "1e15", "253402300800",
)  # fmt: skip
"""JSON texts of such values: numbers beyond every type, halves of surrogate pairs, texts that hold broken JSON, depth
beyond every stack, times at the ends of calendars."""

LOGPROBS: Final = {
    "content": [
        {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.1, "bytes": [97]}]}
    ]
}
ERROR: Final = {
    "type": "error",
    "error": {
        "type": "overloaded_error", "message": "busy", "code": "x", "param": "p", "status": "UNAVAILABLE",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"}],
        "innererror": {"code": "c"}, "metadata": {"raw": "r", "headers": {"retry-after": "3"}},
    },
}  # fmt: skip

PLAIN: Final[dict[str, Any]] = {
    "messages": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
        "usage": {
            "input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 2,
            "cache_creation": {"ephemeral_1h_input_tokens": 2, "ephemeral_5m_input_tokens": 0},
        },
    },
    "chat": {
        "id": "c", "model": "m", "created": 1,
        "choices": [{
            "index": 0, "finish_reason": "stop", "logprobs": LOGPROBS, "message": {
                "role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "q",
                "tool_calls": [{"id": "x", "index": 0, "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
        }],
        "usage": {
            "prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "cost": 0.1,
            "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 1},
        },
    },
    "responses": {
        "id": "r", "model": "m", "status": "completed", "incomplete_details": {"reason": "max_output_tokens"},
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "a", "logprobs": LOGPROBS["content"]}]},
            {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        ],
        "usage": {
            "input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "input_tokens_details": {"cached_tokens": 1},
        },
    },
    "embeddings": {
        "model": "m", "data": [{"index": 0, "embedding": [0.5, 0.1]}, {"index": 1, "embedding": "AAAAPw=="}],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    },
    "gemini": {
        "candidates": [{"content": {"parts": [
            {"text": "a"}, {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"},
        ]}, "finishReason": "STOP", "index": 0}],
        "modelVersion": "m", "responseId": "q", "promptFeedback": {"blockReason": "x"},
        "usageMetadata": {
            "promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 9, "thoughtsTokenCount": 1,
        },
    },
}  # fmt: skip
"""Whole answer of each wire form."""


def _of_message(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, **more}


STREAMED: Final[dict[str, list[Any]]] = {
    "messages": [
        _of_message("message_start", message={**PLAIN["messages"], "content": [], "stop_reason": None}),
        _of_message("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}),
        _of_message("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "x"}),
        _of_message("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"}),
        _of_message("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        _of_message("content_block_delta", index=1, delta={"type": "text_delta", "text": "a"}),
        _of_message("content_block_delta", index=1, delta={"type": "citations_delta", "citation": {"a": 1}}),
        _of_message("content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        _of_message("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": '{"a":1}'}),
        _of_message("ping"),
        _of_message("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
        _of_message("message_stop"),
    ],
    "chat": [
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"content": "a", "reasoning_content": "q"}, "logprobs": LOGPROBS}]},
        {"choices": [{"index": 0, "delta": {"content": [{"type": "text", "text": "b"}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a"'}}
        ]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}},
    ],
    "responses": [
        _of_message("response.created", response={"id": "r", "model": "m", "status": "in_progress", "output": []}),
        _of_message("response.output_item.added", output_index=0, item={"type": "message", "id": "i", "content": []}),
        _of_message(
            "response.output_text.delta", output_index=0, content_index=0, delta="a", logprobs=LOGPROBS["content"]
        ),
        _of_message("response.output_item.added", output_index=1, item={"type": "function_call", "arguments": ""}),
        _of_message("response.function_call_arguments.delta", output_index=1, delta="{}"),
        _of_message("response.output_item.done", output_index=1, item={"type": "function_call", "arguments": "{}"}),
        _of_message("response.completed", response={**PLAIN["responses"], "output": []}),
    ],
    "embeddings": [{"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}],
}  # fmt: skip
"""Events of a streamed answer of each wire form."""


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a value, itself first."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from paths(each, (*at, name))


def pierced(value: Any, at: tuple[Any, ...]) -> Any:
    """Return a copy of a value with `HOLE` in one place."""
    if not at:
        return HOLE
    copied = msgspec.json.decode(msgspec.json.encode(value))
    inside = copied
    for name in at[:-1]:
        inside = inside[name]
    inside[at[-1]] = HOLE
    return copied


def filled(value: Any, weird: str) -> bytes:
    """Return a value as JSON, with this text in its holes."""
    return compact(value).replace(compact(HOLE), weird.encode())


def bodies(base: Any, chance: random.Random, most: int) -> Iterator[bytes]:
    """Yield JSON bodies: each place with some of `WEIRD`, in all `most` at most."""
    places = list(paths(base))
    for number in range(most):
        yield filled(pierced(base, places[number % len(places)]), chance.choice(WEIRD))


def streams(form: str, chance: random.Random, most: int) -> Iterator[bytes]:
    """Yield bodies of streams with such an event; some end early, some have no mark of their end."""
    base = STREAMED[form]
    places = [at for at in paths(base) if at]
    for number in range(most):
        weird = chance.choice(WEIRD)
        events = pierced(base, places[number % len(places)])
        kept = events[: chance.choice((len(events), len(events), chance.randrange(1, len(events) + 1)))]
        parts = []
        for event in kept:
            name = event.get("type", "") if isinstance(event, dict) and form != "chat" else ""
            named = f"event: {name}\n".encode() if isinstance(name, str) and name != HOLE and name else b""
            parts.append(named + b"data: " + filled(event, weird) + b"\n\n")
        yield b"".join(parts) + (b"data: [DONE]\n\n" if chance.random() < 0.5 else b"")
