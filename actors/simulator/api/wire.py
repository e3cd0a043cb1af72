"""JSON of the provider: messages, errors, and the events of a stream."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from actors.simulator import tokenizer
from actors.simulator.api.logprobs import token_logprobs
from actors.simulator.api.reasoner import SimulatedAnswer
from actors.simulator.api.vectors import as_base64, vector
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import ParsedRequest

STREAM_TOKENS = 8
"""Tokens in one event of a stream."""

THOUGHT = "The answer is looked for."
"""Text of every thinking block, whatever its tokens: real providers return a summary."""

_encode = msgspec.json.Encoder().encode


def request_id(number: int, seed: int) -> str:
    """Return the ``request-id`` of a response, unique within one simulated provider."""
    return f"req_sim{seed:04x}{number:010x}"


def content(answer: SimulatedAnswer, ask: ParsedRequest, message_id: str) -> list[dict[str, Any]]:
    """Return the content blocks of a message; empty for an empty answer without thinking."""
    if ask.dimensions:
        return [{"type": "text", "text": as_base64(vector(text, ask.dimensions))} for text in ask.texts]
    if not answer.thinking_tokens:
        return _answer_blocks(answer, ask, message_id)
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": message_id}
    if answer.thinking_tokens == answer.output_tokens:
        return [thought]  # cut before the answer began
    return [thought, *_answer_blocks(answer, ask, message_id)]


def _answer_blocks(answer: SimulatedAnswer, ask: ParsedRequest, message_id: str) -> list[dict[str, Any]]:
    name = f"toolu_{message_id.removeprefix('msg_')}"
    if answer.tool:
        return [{"type": "tool_use", "id": name, "name": answer.tool, "input": answer.given}]
    if ask.tool:
        try:
            given = msgspec.json.decode(answer.text)
        except msgspec.DecodeError:
            given = {}
        return [{"type": "tool_use", "id": name, "name": ask.tool, "input": given}]
    return [{"type": "text", "text": answer.text}] if answer.text else []


def message(
    answer: SimulatedAnswer, ask: ParsedRequest, message_id: str, billed: tuple[int, int], tier: str = "standard"
) -> dict[str, Any]:
    """Return the whole message as plain values. ``billed``: input and output tokens of its usage."""
    refused = answer.stop_reason == "refusal"
    facts: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": ask.model,
        "content": content(answer, ask, message_id),
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "usage": {
            "input_tokens": billed[0],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": billed[1],
            "service_tier": tier,
        },
    }
    if ask.dimensions:
        facts["as_base64"] = ask.as_base64
    if ask.top_logprobs is not None and answer.text and not (answer.tool or ask.tool):
        facts["logprobs"] = token_logprobs(answer, ask)
    if refused:
        facts["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return facts


def encoded(value: Any) -> bytes:
    """Return compact JSON."""
    return _encode(value)


def error(refusal: ErrorResponse, request: str | None) -> dict[str, Any]:
    """Return the body of an error response."""
    facts: dict[str, Any] = {"type": refusal.error_type, "message": refusal.message}
    if refusal.error_code:
        facts["details"] = {"error_code": refusal.error_code}
    return {"type": "error", "error": facts, "request_id": request}


def events(facts: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return the events of a stream, each with its number of output tokens."""
    return [(opening(facts), 0), *pieces_of(facts), (closing(facts), 0)]


def error_event(refusal: ErrorResponse) -> bytes:
    """Return the event of an error inside a stream."""
    return event("error", error(refusal, None))


def whole(facts: dict[str, Any]) -> bytes:
    """Return the body of a message."""
    return _encode(facts)


BEHIND_CONTENT: Final = b',"stop_reason":'
"""Beginning of what stands behind the content of a message."""


def event(name: str, value: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(value))


def opening(facts: dict[str, Any]) -> bytes:
    """Return the events before the first piece of content."""
    usage = facts["usage"] | {"output_tokens": 1}
    start = facts | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    start.pop("stop_details", None)
    return event("message_start", {"type": "message_start", "message": start}) + event("ping", {"type": "ping"})


def pieces_of(facts: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Yield the events of the content, each with its number of output tokens."""
    for index, block in enumerate(facts["content"]):
        if block["type"] == "text":
            empty, parts, delta, field = block | {"text": ""}, _texts(block["text"]), "text_delta", "text"
        elif block["type"] == "thinking":
            empty, parts = block | {"thinking": "", "signature": ""}, _texts(block["thinking"])
            delta, field = "thinking_delta", "thinking"
        else:
            given = _encode(block["input"]).decode()
            empty, parts, delta, field = block | {"input": {}}, _texts(given), "input_json_delta", "partial_json"
        begin = {"type": "content_block_start", "index": index, "content_block": empty}
        yield event("content_block_start", begin), 0
        for part in parts:
            piece = {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: part}}
            yield event("content_block_delta", piece), tokenizer.count(part)
        if block["type"] == "thinking":
            signed = {"type": "signature_delta", "signature": block["signature"]}
            yield event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": signed}), 0
        yield event("content_block_stop", {"type": "content_block_stop", "index": index}), 0


def _texts(text: str) -> list[str]:
    return tokenizer.chunks(text, STREAM_TOKENS)


def closing(facts: dict[str, Any]) -> bytes:
    """Return the events after the last piece of content."""
    delta = {"stop_reason": facts["stop_reason"], "stop_sequence": facts["stop_sequence"]}
    if "stop_details" in facts:
        delta["stop_details"] = facts["stop_details"]
    usage = {name: facts["usage"][name] for name in _COUNTED}
    end = {"type": "message_delta", "delta": delta, "usage": usage}
    return event("message_delta", end) + event("message_stop", {"type": "message_stop"})


_COUNTED = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
