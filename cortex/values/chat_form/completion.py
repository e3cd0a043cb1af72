"""Completions: from a canonical reply to the object that chat completions answer with.

The form: https://platform.openai.com/docs/api-reference/chat/object; ``ChatCompletion`` of the package ``openai`` 3.57.
Where a server of chat completions answered, the reply holds its completion as it came, under ``COMPLETION``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL, STOP_SEQUENCE, TOOL_USE
from cortex.values.endings import CONTEXT_WINDOW

COMPLETION: Final = "chat_completion"
"""Field of a canonical reply with the completion that a server of chat completions sent, unchanged."""
RESPONSE: Final = "openai_response"
"""The same, of a response of the Responses API."""
EMBEDDING_LIST: Final = "embedding_list"
"""The same, of a list of vectors."""
FINISH_REASONS: Final[Mapping[str, str]] = {
    END_TURN: "stop", STOP_SEQUENCE: "stop", MAX_TOKENS: "length", CONTEXT_WINDOW: "length", TOOL_USE: "tool_calls",
    REFUSAL: "content_filter",
}  # fmt: skip
"""Canonical stop reason -> finish reason. Others are kept as they are."""

_encode: Final = msgspec.json.Encoder().encode


class _Reply(msgspec.Struct):
    content: list[dict[str, Any]] = []
    id: str = ""
    model: str = ""
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    chat_completion: msgspec.Raw = msgspec.Raw()
    openai_response: msgspec.Raw = msgspec.Raw()
    embedding_list: msgspec.Raw = msgspec.Raw()


class _Named(msgspec.Struct):
    id: str = ""


_reply: Final = msgspec.json.Decoder(_Reply)


def with_completion(reply: bytes, completion: bytes, field: str = COMPLETION) -> bytes:
    """Return a canonical reply, one JSON object, with the completion that it was made from; both as JSON. ``field``:
    ``COMPLETION``, or the one of another API's answer."""
    return b'%b,"%b":%b}' % (reply[:-1], field.encode(), completion)


def completion_of(reply: bytes, at_s: float) -> tuple[bytes, str]:
    """Return the completion for a canonical reply, as JSON, and its id; empty: it has none. A reply that holds the
    answer of another API of OpenAI's gives that.

    ``at_s``: time for its field ``created``, in seconds since 1970, where the reply holds no completion. Raises
    ``msgspec.DecodeError`` for bytes that are no canonical reply.
    """
    found = _reply.decode(reply)
    if raw := bytes(found.chat_completion or found.openai_response or found.embedding_list):
        try:
            return raw, msgspec.json.decode(raw, type=_Named).id
        except msgspec.DecodeError:
            return raw, ""
    reason = found.stop_reason or ""
    choice = {
        "index": 0, "message": _message(found.content), "logprobs": None,
        "finish_reason": FINISH_REASONS.get(reason, reason) or None,
    }  # fmt: skip
    made: dict[str, Any] = {
        "id": found.id, "object": "chat.completion", "created": int(at_s), "model": found.model, "choices": [choice],
    }  # fmt: skip
    return _encode(made | ({} if found.usage is None else {"usage": _usage(found.usage)})), found.id


def _message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    thoughts = "".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking")
    calls = [
        {"id": block.get("id", ""), "type": "function",
         "function": {"name": block.get("name", ""), "arguments": _arguments(block.get("input"))}}
        for block in blocks if block.get("type") == "tool_use"
    ]  # fmt: skip
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if thoughts:
        message["reasoning_content"] = thoughts  # as DeepSeek, SGLang and llama.cpp name it
    return message | ({"tool_calls": calls} if calls else {})


def _arguments(given: Any) -> str:
    """Return the arguments of a tool as text: of a reply that was cut they may be no object, but the text that came."""
    return given if isinstance(given, str) else _encode({} if given is None else given).decode()


def _usage(counts: Mapping[str, Any]) -> dict[str, Any]:
    read, written = _count(counts, "cache_read_input_tokens"), _count(counts, "cache_creation_input_tokens")
    prompt, output = _count(counts, "input_tokens") + read + written, _count(counts, "output_tokens")
    return {
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": read},
    }  # fmt: skip


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) else 0
