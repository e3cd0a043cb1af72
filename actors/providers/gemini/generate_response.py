"""Responses of the Gemini API's `generateContent`: from their bytes to a canonical reply.

The form: https://ai.google.dev/api/generate-content#generatecontentresponse; `GenerateContentResponse` of the package
`google-genai` 3.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from actors.providers.chat_completions.response import input_of, name_in, refusal, reply_of, split_usage
from actors.providers.chat_completions.tool_signatures import signature_block
from actors.providers.transport.body import UnreadableAnswer, json_bytes
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.json_text import plain_value
from cortex.values.bounds.counts import count_of
from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL, TOOL_USE
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage

STOP_REASONS: Final[Mapping[str, str]] = {
    "STOP": END_TURN, "MAX_TOKENS": MAX_TOKENS, "SAFETY": REFUSAL, "RECITATION": REFUSAL, "LANGUAGE": REFUSAL,
    "BLOCKLIST": REFUSAL, "PROHIBITED_CONTENT": REFUSAL, "SPII": REFUSAL, "IMAGE_SAFETY": REFUSAL,
    "IMAGE_PROHIBITED_CONTENT": REFUSAL,
}  # fmt: skip
"""`finishReason` -> canonical stop reason. Others are kept in lower case (`cortex.values.endings`)."""


def read_generated(body: bytes) -> Reply:
    """Return the reply in a response.

    Raises UnreadableAnswer for one that may have been paid for, UnreadableResponse for a body that is no JSON, and
    StreamError for one that names an error.
    """
    found = msgspec.json.decode(plain_value(body))
    if not isinstance(found, dict):
        raise UnreadableAnswer("the answer is no object")
    if found.get("error"):
        raise StreamError(found["error"], False)
    model, usage = name_in(found.get("modelVersion")), _usage(found.get("usageMetadata"))
    candidates = found.get("candidates")
    if not isinstance(candidates, list) or not candidates or not isinstance(candidates[0], dict):
        feedback = found.get("promptFeedback")
        blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
        if blocked:
            return refusal(model, f"the prompt was blocked: {blocked}", usage)
        raise UnreadableAnswer("the answer holds no candidate")
    reason = name_in(candidates[0].get("finishReason"))
    content = candidates[0].get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    blocks = _blocks(parts if isinstance(parts, list) else [], cut=reason == "MAX_TOKENS")
    stop_reason = STOP_REASONS.get(reason, reason.lower())
    if stop_reason == END_TURN and any(block["type"] == "tool_use" for block in blocks):
        stop_reason = TOOL_USE
    return reply_of(blocks, stop_reason, model, usage, name_in(found.get("responseId")))


def _blocks(parts: list[Any], cut: bool) -> list[dict[str, Any]]:
    """Return the blocks of a content: texts that follow one another are one text. ``cut``: its end is missing."""
    blocks: list[dict[str, Any]] = []
    for at, part in enumerate(parts):
        if not isinstance(part, dict):
            continue
        text, call = part.get("text"), part.get("functionCall")
        if isinstance(text, str):
            kind = "thinking" if part.get("thought") is True else "text"
            if blocks and blocks[-1]["type"] == kind:
                blocks[-1][kind] += text
            elif text:
                blocks.append({"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {}))
        elif isinstance(call, dict):
            given = json_bytes(call.get("args") or {}).decode()
            name = name_in(call.get("id")) or f"call_{at}"
            if signature := name_in(part.get("thoughtSignature")):
                blocks += signature_block(name, {"google": {"thought_signature": signature}})
            blocks.append({"type": "tool_use", "id": name, "name": name_in(call.get("name")),
                           "input": input_of(given, cut)})  # fmt: skip
    return blocks


def _usage(reported: Any) -> Usage:
    """Return the usage: thoughts are output that is counted beside the candidates, cached tokens part of the prompt."""
    if not isinstance(reported, dict):
        return UNKNOWN_USAGE
    counts = [count_of(reported.get(name) or 0) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return UNKNOWN_USAGE
    output = sum(known)
    return split_usage(
        reported.get("promptTokenCount"), output, reported.get("totalTokenCount"),
        reported.get("cachedContentTokenCount"), None, bool(output),
    )  # fmt: skip
