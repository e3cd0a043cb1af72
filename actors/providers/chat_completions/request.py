"""Requests of chat completions: from the canonical form (`cortex.values.canonical`) to the body that is sent.

The form: https://platform.openai.com/docs/api-reference/chat/create; `CompletionCreateParams` of the package `openai`
3.57. What has no counterpart there is refused (`Untranslatable`), not left out; only hints that change no answer are
left out: `cache_control`, and the thoughts of earlier turns, which the form cannot take back but for the signatures of
tool calls (`tool_signatures`) and where a server wants them (`thinking_mode`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from actors.providers.chat_completions.thinking_mode import (
    SwitchedTranslator,
    is_forced,
    is_off,
    said_in_words,
    switched_effort,
    switched_thinking,
    thoughts_in,
)
from actors.providers.chat_completions.tool_signatures import UNSIGNED, signatures_in
from actors.providers.client.canonical_request import (
    FIELDS,
    SCHEMA_NAME,
    THOUGHTS,
    TURNS,
    FieldTranslator,
    data_url,
    effort_of,
    file_name,
    has_value,
    is_own_tool,
    is_text,
    no_block,
    one_question,
    result_in,
    system_in,
    text_in,
    tier_of,
    user_of,
)
from actors.providers.client.strict_schema import is_strict, openai_schema
from actors.providers.client.wire_form import Untranslatable
from actors.providers.registry import CHAT_PARAMETERS
from cortex.values.chat_form.request import fields_of

COMPLETION_BOUND: Final = "max_completion_tokens"
"""Field of the bound at OpenAI: tokens of the reply, those of reasoning included. Its reasoning models refuse the other
one ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")."""
TOKENS_BOUND: Final = "max_tokens"
"""Field of the bound that every server knows. A server that does not know `max_completion_tokens` may pass over it, and
the reply would have no bound."""

_API: Final = "chat completions"
_QUESTION: Final = b',"messages":[{"role":"user","content":'
_SYSTEM_AND_QUESTION: Final = b',"messages":[{"role":"system","content":%b},{"role":"user","content":'
_STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}}
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode


class ChatVariant(NamedTuple):
    """Spelling of a request of chat completions."""

    bound: str = TOKENS_BOUND
    """Field that holds the bound of the reply (`COMPLETION_BOUND`, `TOKENS_BOUND`)."""
    counts_streams: bool = True
    """False: the server refuses to count the tokens of streams, which are then charged at their worst case."""
    signed: bool | None = True
    """Whether signatures of tool calls are given back (`tool_signatures`). None: the server misses one, so that calls
    without it pass for signed; False: it refuses them."""
    translator: FieldTranslator | None = None
    """Translator of the fields beside the messages (`fields_with`); None: that of a provider that takes any effort."""
    thoughts: bool = False
    """True: the thoughts of earlier turns are given back (`thinking_mode`)."""
    forced: bool | None = True
    """False: the server refuses to force its model to use a tool, which may choose then. None: unless the request has
    switched thinking off (`thinking_mode`)."""


USUAL: Final = ChatVariant()


def chat_body(body: bytes, streamed: bool = False, variant: ChatVariant = USUAL) -> bytes:
    """Return the body of a canonical request, in the form of chat completions; `streamed`: ask for events. That of a
    request of one text is put together from its pieces (fast path), equal to the long way but for the order of fields,
    by test. Raises `Untranslatable`."""
    if streamed or (found := one_question(body)) is None:
        return _any_body(body, streamed, variant)
    request, text, system = found
    before = _SYSTEM_AND_QUESTION % system if system else _QUESTION
    config = request.output_config
    after = (variant.translator or _FIELDS).joined(bytes(config)) if config else b""
    return b"".join((
        b'{"model":', request.model, before, text, b'}],"', variant.bound.encode(), b'":', request.max_tokens, after,
        b"}",
    ))  # fmt: skip


def _any_body(body: bytes, streamed: bool, variant: ChatVariant) -> bytes:
    """Return the body of any canonical request, as `chat_body` does."""
    fields = FIELDS.decode(body)
    made: dict[str, Any] = {"model": fields.pop("model", b'""')}
    messages: list[Any] = []
    if (system := fields.pop("system", None)) is not None and has_value(system):
        messages.append({"role": "system", "content": system_in(system, _API)})
    made["messages"] = messages
    for turn in TURNS.decode(fields.pop("messages", b"[]")):
        if is_text(turn.content):
            messages.append(said_in_words(turn) if variant.thoughts and turn.role == "assistant" else turn)
        elif turn.role == "assistant":
            said = _decode(turn.content)
            messages.append(_said(said, variant.signed) | (thoughts_in(said) if variant.thoughts else {}))
        else:
            messages += _asked(turn.role, _decode(turn.content))
    if (tokens := fields.pop("max_tokens", None)) is not None:
        made[variant.bound] = tokens
    made |= (variant.translator or _FIELDS).fields(fields)
    if not variant.forced and is_forced(made.get("tool_choice")) and (variant.forced is False or not is_off(made)):
        made["tool_choice"] = "auto"
    if streamed:
        made |= _STREAMED if variant.counts_streams else {"stream": True}
    return _encode(made)


def written_body(body: bytes, streamed: bool = False, variant: ChatVariant = USUAL) -> bytes:
    """Return the body of a request that its user wrote in this form (`cortex.values.chat_form.request`), as it stands
    but for the name of its bound."""
    fields: dict[str, Any] = {}
    fields |= fields_of(body)
    if (tokens := fields.pop(TOKENS_BOUND, None)) is not None:
        fields[variant.bound] = tokens
    if streamed:
        fields |= _STREAMED if variant.counts_streams else {"stream": True}
    return _encode(fields)


# -- messages --------------------------------------------------------------------------------------------------------


def _asked(role: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a user's turn: the results of tools have messages of their own, which come first."""
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    parts = [_part(block) for block in blocks if block.get("type") != "tool_result"]
    if not parts and results:
        return results
    alone = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": role, "content": parts[0]["text"] if alone else parts}]


def _said(blocks: list[dict[str, Any]], signed: bool | None) -> dict[str, Any]:
    """Return the message of the model's turn: its text and its tool uses."""
    uses = [_use(block) for block in blocks if block.get("type") == "tool_use"]
    if uses and signed is not False:
        found = signatures_in(blocks)
        if not found and signed is None:
            found = {uses[0]["id"]: dict(UNSIGNED)}
        uses = [use | {"extra_content": found[use["id"]]} if use["id"] in found else use for use in uses]
    rest = [block for block in blocks if block.get("type") != "tool_use" and block.get("type") not in THOUGHTS]
    text = "".join(text_in(block, "assistant", _API) for block in rest)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not uses else None}
    return message | {"tool_calls": uses} if uses else message


def _use(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _encode(block.get("input") or {}).decode()
    return {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}}


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result_in(block, _API)}


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a user's message that a block becomes."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": block["text"]}
    if kind == "image" and isinstance(source, dict):
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": source["url"]}}
        if source.get("type") == "base64":
            return {"type": "image_url", "image_url": {"url": data_url(source)}}
    if kind == "document" and isinstance(source, dict):
        if source.get("type") == "text":
            return {"type": "text", "text": source["data"]}
        if source.get("type") == "base64":
            return {"type": "file", "file": {"filename": file_name(block), "file_data": data_url(source)}}
    raise no_block(block, _API)


# -- other fields ----------------------------------------------------------------------------------------------------


def _tools(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [_tool(each) for each in tools if is_own_tool(each)]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = openai_schema(tool.get("input_schema") or {"type": "object"})
    function = {"name": tool["name"], "parameters": parameters}
    return {"type": "function", "function": function | {n: tool[n] for n in ("description", "strict") if n in tool}}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    how: Any = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind))
    if kind == "tool":
        how = {"type": "function", "function": {"name": choice["name"]}}
    if how is None:
        raise Untranslatable(f"tool_choice: chat completions know no {kind!r}")
    return {"tool_choice": how} | ({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {})


def _output_config(config: Mapping[str, Any], effort: Effort) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            made |= effort(value)
        elif name == "format" and value.get("type") == "json_schema":
            schema = openai_schema(value["schema"])
            named = {"name": SCHEMA_NAME, "strict": is_strict(schema), "schema": schema}
            made["response_format"] = {"type": "json_schema", "json_schema": named}
        else:
            raise Untranslatable(f"output_config.{name}: chat completions have no such field: leave it out")
    return made


def _thinking(thinking: Mapping[str, Any], effort: Effort) -> dict[str, Any]:
    found = effort_of(thinking, _API)
    return effort(found) if found else {}


def _effort(effort: Any, efforts: Efforts) -> dict[str, Any]:
    if efforts is not None and effort not in efforts:
        known = f"{', '.join(list(efforts)[:-1])} or {list(efforts)[-1]}"
        raise Untranslatable(f"effort: the models of this provider know no {effort!r}: give {known}")
    return {"reasoning_effort": effort if efforts is None else efforts[effort]}


def _stop(sequences: list[str]) -> dict[str, Any]:
    return {"stop": sequences} if sequences else {}


Efforts = Mapping[str, str] | None
"""Efforts of reasoning that a provider takes, and what each is sent as; None: any, as it is."""
Effort = Callable[[Any], dict[str, Any]]
"""Function from an effort to the fields that it becomes."""


def fields_with(efforts: Efforts, switched: bool = False) -> FieldTranslator:
    """Return the translator of the fields beside the messages, for a provider that takes these efforts. `switched`: its
    thinking is switched by a field of its own (`thinking_mode`)."""
    effort: Effort = switched_effort if switched else partial(_effort, efforts=efforts)
    translations: dict[str, Callable[[Any], dict[str, Any]]] = {
        "tools": _tools,
        "tool_choice": _tool_choice,
        "output_config": partial(_output_config, effort=effort),
        "thinking": partial(switched_thinking, api=_API) if switched else partial(_thinking, effort=effort),
        "stop_sequences": _stop,
        "metadata": user_of,
        "service_tier": tier_of,
    }
    same = frozenset(CHAT_PARAMETERS)
    if efforts is not None or switched:
        translations["reasoning_effort"] = effort
        same -= {"reasoning_effort"}
    return (SwitchedTranslator if switched else FieldTranslator)(translations, same, _API)


_FIELDS: Final = fields_with(None)
