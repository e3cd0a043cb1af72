"""Requests of chat completions: from the canonical form (`cortex.values.canonical`) to the body that is sent.

The form: https://platform.openai.com/docs/api-reference/chat/create; `CompletionCreateParams` of the package `openai`
3.57. What has no counterpart there is refused (`Untranslatable`), not left out; only hints that change no answer are
left out: `cache_control`, and the thoughts of earlier turns, which the form cannot take back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from actors.providers.registry import CHAT_PARAMETERS

COMPLETION_BOUND: Final = "max_completion_tokens"
"""Field of the bound at OpenAI: tokens of the reply, those of reasoning included. Its reasoning models refuse the other
one ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")."""
TOKENS_BOUND: Final = "max_tokens"
"""Field of the bound that every server knows. A server that does not know `max_completion_tokens` may pass over it, and
the reply would have no bound."""

SCHEMA_NAME: Final = "answer"
"""Name of a schema, which the form requires."""

_NO_VALUES: Final = (b"null", b"")
_IGNORED: Final = frozenset({"cache_control", "stream", "diagnostics"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
_TIERS: Final = {"standard_only": "default"}
_STRICT_UNKNOWN: Final = frozenset({"allOf", "oneOf", "not", "if", "then", "else", "patternProperties"})
"""Keywords that strict schemas may not hold (https://platform.openai.com/docs/guides/structured-outputs)."""


class Untranslatable(ValueError):
    """Part of a request that chat completions have no counterpart for. One line that names it."""


class _Turn(msgspec.Struct):
    role: str
    content: msgspec.Raw


class _Question(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: msgspec.Raw
    role: Literal["user"]


class _OneQuestion(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Request of one text, with the bounds and the schema of its job: nearly all that tables and flows make."""

    max_tokens: msgspec.Raw
    messages: tuple[_Question]
    model: msgspec.Raw
    system: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()


_ONE_QUESTION: Final = msgspec.json.Decoder(_OneQuestion)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TURNS: Final = msgspec.json.Decoder(list[_Turn])
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode
_Pairs = tuple[tuple[str, Any], ...]


def chat_body(body: bytes, bound: str, streamed: bool = False, counted: bool = True) -> bytes:
    """Return the body of a canonical request, in the form of chat completions.

    `bound`: field that holds the bound of the reply (`COMPLETION_BOUND`, `TOKENS_BOUND`). `streamed`: ask for events;
    `counted`: with the usage in the last one. Raises `Untranslatable`.
    """
    if not streamed and (quick := _quick(body, bound)):
        return quick
    fields = _FIELDS.decode(body)
    made: dict[str, Any] = {"model": fields.pop("model", b'""')}
    messages: list[Any] = []
    if (system := fields.pop("system", None)) is not None and bytes(system) not in _NO_VALUES:
        messages.append(_system(system))
    made["messages"] = messages
    for turn in _TURNS.decode(fields.pop("messages", b"[]")):
        if _is_text(turn.content):
            messages.append(turn)
        elif turn.role == "assistant":
            messages.append(_said(_decode(turn.content)))
        else:
            messages += _asked(turn.role, _decode(turn.content))
    if (tokens := fields.pop("max_tokens", None)) is not None:
        made[bound] = tokens
    for name, value in fields.items():
        if name in _IGNORED or bytes(value) in _NO_VALUES:
            continue
        if name in _SAME:
            made[name] = value
        else:
            made |= _translated(name, bytes(value))
    if streamed:
        made |= _STREAMED if counted else {"stream": True}
    return _encode(made)


def _quick(body: bytes, bound: str) -> bytes:
    """Return the same for a request of one text, put together from its pieces; empty for any other (fast path).

    Equal to the long way but for the order of fields, by test.
    """
    try:
        request = _ONE_QUESTION.decode(body)
    except msgspec.DecodeError:
        return b""
    text, system = bytes(request.messages[0].content), bytes(request.system)
    if text[:1] != b'"' or (system and system[:1] != b'"'):
        return b""
    before = b'{"role":"system","content":%b},' % system if system else b""
    after = _joined(bytes(request.output_config)) if request.output_config else b""
    return b'{"model":%b,"messages":[%b{"role":"user","content":%b}],"%b":%b%b}' % (
        request.model, before, text, bound.encode(), request.max_tokens, after,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _joined(config: bytes) -> bytes:
    """Return the fields of an ``output_config`` as they follow others in an object."""
    pairs = _translated("output_config", config)
    return b"".join(b",%b:%b" % (_encode(name), bytes(value)) for name, value in pairs)


_SAME: Final = frozenset(CHAT_PARAMETERS)
_STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}


def model_in(body: bytes) -> str:
    """Return the model that a request names; empty where it names none."""
    try:
        return msgspec.json.decode(body, type=_Named).model
    except msgspec.DecodeError:
        return ""


class _Named(msgspec.Struct):
    model: str = ""


def _is_text(value: msgspec.Raw) -> bool:
    """Return whether a JSON value is a text: it is then passed on as it is written."""
    return bytes(value).startswith(b'"')


@lru_cache(maxsize=256)
def _translated(name: str, value: bytes) -> _Pairs:
    """Return the fields that a canonical field becomes. Nearly all requests of a job have the same ones."""
    translate = _TRANSLATIONS.get(name)
    if translate is None:
        raise Untranslatable(f"{name}: chat completions have no such field: leave it out")
    return tuple((key, msgspec.Raw(_encode(each))) for key, each in translate(_decode(value)).items())


# -- messages --------------------------------------------------------------------------------------------------------


def _system(value: msgspec.Raw) -> dict[str, Any]:
    if _is_text(value):
        return {"role": "system", "content": value}
    return {"role": "system", "content": "\n\n".join(_text(block, "system") for block in _decode(value))}


def _asked(role: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a user's turn: the results of tools have messages of their own, which come first."""
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    parts = [_part(block) for block in blocks if block.get("type") != "tool_result"]
    if not parts and results:
        return results
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": role, "content": parts[0]["text"] if alone else parts}]


def _said(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of the model's turn: its text and its tool uses."""
    uses = [_use(block) for block in blocks if block.get("type") == "tool_use"]
    rest = [block for block in blocks if block.get("type") != "tool_use" and block.get("type") not in _THOUGHTS]
    text = "".join(_text(block, "assistant") for block in rest)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not uses else None}
    return message | {"tool_calls": uses} if uses else message


def _use(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _encode(block.get("input") or {}).decode()
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content") or ""
    if not isinstance(content, str):
        content = "\n\n".join(_text(each, "tool_result") for each in content)
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _text(block: Mapping[str, Any], where: str) -> str:
    if block.get("type") != "text":
        raise Untranslatable(f"{where}: chat completions take text there, no block of type {block.get('type')!r}")
    return str(block["text"])


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a user's message that a block becomes."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "image" and isinstance(source, dict):
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        if source.get("type") == "base64":
            return {"type": "image_url", "image_url": {"url": _data_url(source)}}
    if kind == "document" and isinstance(source, dict):
        title = block.get("title") or "document"
        if source.get("type") == "text":
            return {"type": "text", "text": source["data"]}
        if source.get("type") == "base64":
            name = title if "." in title else f"{title}.pdf"
            return {"type": "file", "file": {"filename": name, "file_data": _data_url(source)}}
    what = f"{kind} of {source.get('type')!r}" if isinstance(source, dict) else repr(kind)
    raise Untranslatable(f"messages: chat completions have no counterpart of a block of type {what}")


def _data_url(source: Mapping[str, Any]) -> str:
    return f"data:{source['media_type']};base64,{source['data']}"


# -- other fields ----------------------------------------------------------------------------------------------------


def _tools(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [_tool(each) for each in tools]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise Untranslatable(f"tools: {tool['type']!r} is run by the provider of the Messages API")
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
    return {"type": "function", "function": function | {n: tool[n] for n in ("description", "strict") if n in tool}}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    how: Any = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind))
    if kind == "tool":
        how = {"type": "function", "function": {"name": choice["name"]}}
    if how is None:
        raise Untranslatable(f"tool_choice: chat completions know no {kind!r}")
    return {"tool_choice": how} | ({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {})


def _output_config(config: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            made["reasoning_effort"] = value
        elif name == "format" and value.get("type") == "json_schema":
            schema = value["schema"]
            named = {"name": SCHEMA_NAME, "strict": is_strict(schema), "schema": schema}
            made["response_format"] = {"type": "json_schema", "json_schema": named}
        else:
            raise Untranslatable(f"output_config.{name}: chat completions have no such field: leave it out")
    return made


def is_strict(schema: Any) -> bool:
    """Return whether a schema can be enforced as a strict one: objects are closed and require all their fields.

    OpenAI refuses a strict schema that is not so. Others are sent as plain ones, which it tries to follow.
    """
    if not isinstance(schema, dict):
        return not isinstance(schema, bool)
    if _STRICT_UNKNOWN & schema.keys():
        return False
    if schema.get("type") == "object" or "properties" in schema:
        fields = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(fields):
            return False
    below = [*(schema.get("properties") or {}).values(), *(schema.get("$defs") or {}).values()]
    below += [*(schema.get("anyOf") or ()), *([schema["items"]] if "items" in schema else [])]
    return all(is_strict(each) for each in below)


def _thinking(thinking: Mapping[str, Any]) -> dict[str, Any]:
    kind = thinking.get("type")
    if kind == "adaptive":
        return {}
    if kind == "disabled":
        return {"reasoning_effort": "none"}
    raise Untranslatable("thinking: chat completions have no budget of it: set output_config.effort in its place")


def _stop(sequences: list[str]) -> dict[str, Any]:
    return {"stop": sequences} if sequences else {}


def _user(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"user": metadata["user_id"]} if metadata.get("user_id") else {}


def _tier(tier: str) -> dict[str, Any]:
    return {"service_tier": _TIERS.get(tier, tier)}


_TRANSLATIONS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "output_config": _output_config,
    "thinking": _thinking,
    "stop_sequences": _stop,
    "metadata": _user,
    "service_tier": _tier,
}
