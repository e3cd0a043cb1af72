"""Lenient reader of a response of the Messages API that the strict one (``response.read_reply``) refuses.

A reply is paid for once the model has written it, so it is kept if its answer can be read, whatever is wrong beside the
answer. Only the content is required: blocks, or a text. Everything else is repaired or left out:

- usage that is absent or no count: the usage is unknown, and the attempt is charged at its worst case. So is a count of
  0 for a prompt or a text, which servers report that do not count (archestra-ai/archestra#5914, vercel/ai#17326)
- a stop reason that is absent: the ending is unknown (``cortex.values.endings``)
- type, role and model that are absent or others, unknown blocks, blocks without a type, a text that is a number
- bytes around the message: a byte order mark, data after the message, another encoding, gzip that no header announces
- half a surrogate pair, which UTF-8 cannot hold: the replacement character U+FFFD
- a message inside another object or list, as gateways send it, or in the forms of OpenAI and Ollama
- a body that was cut after its content

Reports of such responses, among others: BerriAI/litellm#11920 (null counts), anomalyco/opencode#44102 (null counts),
UKGovernmentBEIS/inspect_ai#3802 (half a surrogate pair), ollama/ollama#12879 (JSON as ``text/plain``),
SaladDay/cc-switch-cli#323 (``"content": null``). ``tests/edge/providers/flawed_bodies.py`` has a case for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from actors.providers.messages.sse import StreamAssembler
from actors.providers.transport.body import UnreadableAnswer, json_bytes
from actors.providers.transport.json_text import before_cut, first_value, text_of
from cortex.values.bounds.counts import count_of
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage

_WRAPPERS: Final = ("message", "data", "response", "result", "body", "output")
"""Fields in which gateways put a whole message."""
_DEPTH_MAX: Final = 4
_STOP_FIELDS: Final = ("stop_reason", "finish_reason", "done_reason")
"""Fields of a stop reason: of the Messages API, of OpenAI, of Ollama."""
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_WORDS_SHOWN: Final = 80


def read_flawed(body: bytes, charset: str = "") -> Reply:
    """Return the answer in a response that is no correct message. ``charset``: the one that its content type names.

    Raises UnreadableAnswer if the body is an answer of the provider's (JSON, or a stream) without a content that can be
    read, UnreadableResponse if it is something else, and StreamError for an error inside a stream.
    """
    text = text_of(body, charset)
    if text.startswith(("data:", "event:", ":")):
        assembler = StreamAssembler()
        assembler.feed(text.encode("utf-8", "replace"))
        text = assembler.message().decode()
    try:
        value, whole = first_value(text), True
    except RecursionError:
        raise UnreadableAnswer("the answer is no message: it is nested too deeply") from None
    except ValueError as error:
        value, whole = before_cut(text, "content", f"the answer is no JSON: {error}"), False
    found = _message_in(value)
    if found is None:
        raise UnreadableAnswer(f"the answer is no message: {_why(value)}")
    return _reply(*found, whole)


def _message_in(value: Any, depth: int = 0) -> tuple[dict[str, Any], Any] | None:
    """Return the message in a value, and the value that holds its stop reason; None without one."""
    if depth > _DEPTH_MAX:
        return None
    if isinstance(value, str):
        try:
            return _message_in(first_value(value), depth + 1) if value.lstrip().startswith(("{", "[")) else None
        except ValueError:
            return None
    if isinstance(value, list):
        return _message_in(value[0], depth + 1) if len(value) == 1 else None
    if not isinstance(value, dict):
        return None
    if _is_message(value):
        return value, value
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        found = _message_in(choices[0], depth + 1)
        return None if found is None else (found[0], choices[0])
    for name in _WRAPPERS:
        if (found := _message_in(value.get(name), depth + 1)) is not None:
            return found[0], found[1] if _stop_reason(found[1]) else value
    return None


def _is_message(value: Mapping[str, Any]) -> bool:
    """Return True if an object has the content of a message by the model."""
    if "content" not in value or value.get("role") in ("user", "system"):
        return False
    content, said = value["content"], value.get("role") == "assistant" or value.get("type") == "message"
    if isinstance(content, list) and any(_is_block(block) for block in content):
        return True
    names_error = isinstance(value.get("error"), dict)
    return said and not names_error and (content is None or isinstance(content, str | list))


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and (isinstance(block.get("type"), str) or isinstance(block.get("text"), str))


def _why(value: Any) -> str:
    """Return what a JSON value is that holds no message."""
    if isinstance(value, dict):
        names = ", ".join(str(name)[:_WORDS_SHOWN] for name in list(value)[:8])
        return f"an object with {names}" if names else "an empty object"
    return f"{type(value).__name__}, no object"


def _reply(message: dict[str, Any], ended: Any, whole: bool) -> Reply:
    """Return a message as a reply, repaired so that each reader of replies can take it."""
    content = message["content"]
    listed = content if isinstance(content, list) else [] if content is None else [content]
    blocks = [_block(block) for block in listed if block is not None]
    stop_reason, model = _stop_reason(ended), message.get("model")
    usage = _usage(message.get("usage"), any(block.get("text") for block in blocks)) if whole else UNKNOWN_USAGE
    repaired = {
        **message, "type": "message", "role": "assistant", "model": model if isinstance(model, str) else "",
        "content": blocks, "stop_reason": stop_reason or None,
    }  # fmt: skip
    if usage.unknown:
        repaired.pop("usage", None)
    else:
        repaired["usage"] = message["usage"] | {name: count_of(message["usage"].get(name)) or 0 for name in _COUNTS}
    clean = stop_reason.encode("utf-8", "replace").decode()
    return Reply(json_bytes(repaired), clean, repaired["model"].encode("utf-8", "replace").decode(), usage)


def _block(block: Any) -> dict[str, Any]:
    """Return a block as an object with a type; a value that is no object is its own text."""
    if not isinstance(block, dict):
        return {"type": "text", "text": _as_text(block)}
    kind = block.get("type")
    if not isinstance(kind, str):
        kind = "text" if "text" in block else "unknown"
    if kind == "text" or "text" in block:
        return block | {"type": kind, "text": _as_text(block.get("text"))}
    return block | {"type": kind}


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _stop_reason(value: Any) -> str:
    """Return the stop reason of a message, by whatever name; empty where it has none."""
    if not isinstance(value, dict):
        return ""
    return next((value[name] for name in _STOP_FIELDS if isinstance(value.get(name), str)), "")


def _usage(reported: Any, has_text: bool) -> Usage:
    """Return the usage that was reported; `UNKNOWN_USAGE` if a count is missing, unreadable or impossible."""
    if not isinstance(reported, dict):
        return UNKNOWN_USAGE
    given, output = count_of(reported.get("input_tokens")), count_of(reported.get("output_tokens"))
    read, written = (
        0 if reported.get(name) is None else count_of(reported[name])
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens")
    )
    if given is None or output is None or read is None or written is None:
        return UNKNOWN_USAGE
    split = reported.get("cache_creation")
    hour = count_of(split.get("ephemeral_1h_input_tokens")) if isinstance(split, dict) and written else None
    return plausible(Usage(given, output, read, written, hour or 0), has_text)


def plausible(usage: Usage, has_text: bool) -> Usage:
    """Return the usage, or `UNKNOWN_USAGE` if it counts no token of the prompt, or none of a reply that has text."""
    if not usage.input_tokens_billed or (has_text and not usage.output_tokens):
        return UNKNOWN_USAGE
    return usage
