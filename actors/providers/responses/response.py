"""Responses of the Responses API: from the bytes of a response to a canonical reply.

The form: https://platform.openai.com/docs/api-reference/responses/object; `Response` of the package `openai` 3.57. A
reply is paid for once the model has written it, so it is kept if its answer can be read, whatever is wrong beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from actors.providers.chat_completions.logprobs import canonical_logprobs
from actors.providers.chat_completions.response import (
    CachedTokens,
    Empty,
    input_of,
    name_in,
    reply_of,
    split_usage,
    text_reply,
)
from actors.providers.responses.request import THOUGHTS_PREFIX
from actors.providers.transport.body import UnreadableAnswer
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.json_text import plain_value
from cortex.values.bounds.counts import CountFromOne
from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL, TOOL_USE
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage

INCOMPLETE_REASONS: Final[Mapping[str, str]] = {
    "max_output_tokens": MAX_TOKENS,
    "content_filter": REFUSAL,
    "max_tokens": MAX_TOKENS, "length": MAX_TOKENS,  # gateways that translate from other forms
}  # fmt: skip
"""`incomplete_details.reason` -> canonical stop reason. Others are kept as they are (`cortex.values.endings`)."""

_UNFINISHED: Final = frozenset({"queued", "in_progress", "cancelled"})
"""Statuses of a response that a server has not worked out, and will not: it was not asked to work in the background."""


class _Text(msgspec.Struct, gc=False, kw_only=True):
    type: Literal["output_text"]
    logprobs: Empty | None = None
    text: str


class _Item(msgspec.Struct, gc=False, kw_only=True):
    """Message of one text that is no remark beside the answer, or thoughts whose words are not told."""

    type: Literal["message", "reasoning"]
    content: Annotated[list[_Text], msgspec.Meta(max_length=1)] | None = None
    phase: Literal["final_answer"] | None = None
    summary: Empty | None = None


class _Usage(msgspec.Struct, gc=False, kw_only=True):
    input_tokens: CountFromOne
    input_tokens_details: CachedTokens | None = None
    output_tokens: CountFromOne
    total_tokens: int


class _TextResponse(msgspec.Struct, gc=False, kw_only=True):
    """Response of a text alone, whose tokens are counted. Before the text of a model that reasons stands an item of
    reasoning, without words unless a summary was asked for (alexrudall/ruby-openai#613, "the 0-th output with gpt-5";
    https://community.openai.com/t/1307301, ``"summary": []``).

    The fields, here and within, stand as OpenAI sends them: the decoder looks for each behind the one before.
    """

    id: str
    status: Literal["completed"]
    error: None = None
    model: str
    output: Annotated[list[_Item], msgspec.Meta(min_length=1, max_length=2)]
    usage: _Usage


_text_response: Final = msgspec.json.Decoder(_TextResponse).decode


def read_response(body: bytes, charset: str = "") -> Reply:
    """Return the response in `body` as a canonical reply. `charset`: the one that its content type names. That of a
    text alone is put together from its pieces (fast path), equal to the long way, byte for byte, by test.

    Raises UnreadableAnswer for an answer without an output that can be read, UnreadableResponse for a body that is no
    JSON, and StreamError for one that names an error: a response that failed has status 200.
    """
    try:
        found = _text_response(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_any(body, charset)
    output, counts = found.output, found.usage
    item = output[-1]
    if not item.content or item.type != "message" or (len(output) > 1 and output[0].content):
        return _read_any(body, charset)
    text, given, written, read, kept = item.content[0].text, counts.input_tokens, counts.output_tokens, 0, 0
    if (details := counts.input_tokens_details) is not None and (details.cached_tokens or details.cache_write_tokens):
        read, kept = details.cached_tokens or 0, details.cache_write_tokens or 0
    fresh = given - read - kept
    if not text or not found.id or fresh < 0 or given + written != counts.total_tokens:
        return _read_any(body, charset)
    return text_reply(found.id, found.model, text, END_TURN, fresh, written, read, kept)


def _read_any(body: bytes, charset: str) -> Reply:
    """Return any response as a canonical reply, as `read_response` does."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(plain_value(body, charset, "output"))
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"the answer is no response: {type(found).__name__}, no object")
    if isinstance(found.get("response"), dict) and "output" not in found:
        found = found["response"]  # the last event of a stream, which a gateway sent alone
    status, output = name_in(found.get("status")), found.get("output")
    incomplete = found.get("incomplete_details")
    reason = name_in(incomplete.get("reason")) if isinstance(incomplete, dict) else ""
    content, refused = _content(output if isinstance(output, list) else [], bool(reason))
    if found.get("error"):
        raise StreamError(found["error"], bool(content))
    if status == "failed" or status in _UNFINISHED:
        raise StreamError({"message": f"the response ended as {status}", "type": "server_error"}, bool(content))
    if not isinstance(output, list):
        raise UnreadableAnswer(f"the answer is no response: it has no output, but {', '.join(list(found)[:8])}")
    stop_reason = _stop_reason(status, reason, content, refused)
    usage = usage_of(found, bool(content))
    logprobs = canonical_logprobs({"content": _logprobs(output)}, "".join(each.get("text", "") for each in content))
    return reply_of(content, stop_reason, name_in(found.get("model")), usage, name_in(found.get("id")), logprobs)


def _stop_reason(status: str, reason: str, content: list[dict[str, Any]], refused: bool) -> str:
    if refused:
        return REFUSAL
    if status == "incomplete" or reason:
        return INCOMPLETE_REASONS.get(reason, reason or "incomplete")
    if any(block["type"] == "tool_use" for block in content):
        return TOOL_USE
    return END_TURN if status in ("completed", "") else status


def usage_of(found: Mapping[str, Any], has_content: bool) -> Usage:
    """Return the usage of a response in the canonical form; `UNKNOWN_USAGE` where a count is missing or impossible.

    Tokens that were read from a cache or written to it are part of `input_tokens`, and are taken out; those of
    reasoning are part of `output_tokens`, and stay.
    """
    reported = found.get("usage")
    if not isinstance(reported, dict):
        return UNKNOWN_USAGE
    details = reported.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    return split_usage(
        reported.get("input_tokens"), reported.get("output_tokens"), reported.get("total_tokens"),
        details.get("cached_tokens"), details.get("cache_write_tokens"), has_content,
    )  # fmt: skip


# -- items -----------------------------------------------------------------------------------------------------------


def _content(items: list[Any], cut: bool) -> tuple[list[dict[str, Any]], bool]:
    """Return the blocks of an output, and whether it is a refusal. `cut`: its end is missing.

    Remarks of a model while it works (`phase`: `commentary`) are no part of an answer that has a final one. The
    encrypted form of thoughts, some kilobytes, is kept where a tool is asked for: the model will then go on.
    """
    blocks: list[dict[str, Any]] = []
    refused = False
    items = [item for item in items if isinstance(item, dict)]
    final = any(item.get("phase") == "final_answer" for item in items)
    goes_on = any(item.get("type") == "function_call" for item in items)
    for at, item in enumerate(items):
        kind = item.get("type")
        if kind == "reasoning":
            blocks += _thought(item, goes_on)
        elif kind == "function_call":
            name = name_in(item.get("call_id")) or name_in(item.get("id")) or f"call_{at}"
            given = input_of(item.get("arguments"), cut)
            blocks.append({"type": "tool_use", "id": name, "name": name_in(item.get("name")), "input": given})
        elif kind in ("message", None):
            text, refusal = _said(item.get("content"))
            if final and item.get("phase") == "commentary":
                blocks += [{"type": "thinking", "thinking": text, "signature": ""}] if text else []
            elif text or refusal:
                blocks.append({"type": "text", "text": text or refusal})
            refused = refused or bool(refusal)
    return blocks, refused


def _logprobs(items: list[Any]) -> list[Any]:
    """Return the log probabilities of the tokens of all texts of an output, in the form of chat completions."""
    contents = [item.get("content") for item in items if isinstance(item, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    listed = [part.get("logprobs") for part in parts if part.get("type") == "output_text"]
    return [each for entries in listed if isinstance(entries, list) for each in entries]


def _said(content: Any) -> tuple[str, str]:
    """Return text and refusal of a message."""
    if isinstance(content, str):
        return content, ""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    text = "".join(name_in(part.get("text")) for part in parts if part.get("type") != "refusal")
    return text, "".join(name_in(part.get("refusal")) for part in parts)


def _thought(item: Mapping[str, Any], goes_on: bool) -> list[dict[str, Any]]:
    """Return the block of an item of reasoning: its summary, or else its text. Its signature gives it back to the model
    (`responses.request`). An item that holds nothing is no block."""
    found: list[str] = []
    for field in ("summary", "content"):
        parts = item.get(field)
        found = found or [name_in(part.get("text")) for part in (parts if isinstance(parts, list) else [])
                          if isinstance(part, dict)]  # fmt: skip
    name, encrypted = name_in(item.get("id")), name_in(item.get("encrypted_content"))
    signature = f"{name}:{encrypted}" if goes_on and encrypted and name.startswith(THOUGHTS_PREFIX) else ""
    thought = "\n\n".join(filter(None, found))
    return [{"type": "thinking", "thinking": thought, "signature": signature}] if thought or signature else []
