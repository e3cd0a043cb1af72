"""Requests of the Responses API: from the canonical form (`cortex.values.canonical`) to the body that is sent.

The form: https://platform.openai.com/docs/api-reference/responses/create; `ResponseCreateParams` of the package
`openai` 3.57. What has no counterpart there is refused (`Untranslatable`), not left out, but for hints that change no
answer.

- Nothing is kept at the provider (`store`): a call holds all that it needs, and a job is not to leave its rows there
  for 30 days, as OpenAI would by default (https://platform.openai.com/docs/guides/your-data). A row may say otherwise.
- Functions are not strict unless a tool says so, as over chat completions: OpenAI would make them so here, and close
  their schemas (https://platform.openai.com/docs/guides/migrate-to-responses).
- Thoughts of earlier turns are given back where the model's reply held them in encrypted form: a model of reasoning
  goes on where it stopped. Other thoughts are left out. That form has to be asked for, as nothing is kept
  (`ENCRYPTED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from actors.providers.client.canonical_request import (
    FIELDS,
    SCHEMA_NAME,
    THOUGHTS,
    TURNS,
    FieldTranslator,
    Translations,
    Turn,
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
from actors.providers.registry import RESPONSES_PARAMETERS
from cortex.values.chat_form.request import fields_of

BOUND: Final = "max_output_tokens"
"""Field of the bound: tokens of the reply, those of reasoning included."""
THOUGHTS_PREFIX: Final = "rs_"
"""Beginning of the ids of items of reasoning at OpenAI. The signature of a thought is its id, a colon, and its
encrypted form."""

LOGPROBS: Final = "message.output_text.logprobs"
"""Value of ``include`` that asks for the log probabilities of the answer's tokens."""
ENCRYPTED: Final = "reasoning.encrypted_content"
"""Value of ``include`` that asks for thoughts in encrypted form, which come unasked from no call that keeps nothing
("This enables reasoning items to be used in multi-turn conversations when using the Responses API statelessly",
``ResponseCreateParams.include`` of the package ``openai`` 3.57)."""
COUNTED_FIELDS: Final = frozenset({
    "input", "instructions", "model", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools", "truncation",
})  # fmt: skip
"""Fields that the counter of tokens takes (``InputTokenCountParams`` of the package ``openai`` 3.57), without those
that lead to what is kept at the provider."""

_API: Final = "responses"
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode
_ORDINARY: Final = {"store": False}


class ResponsesVariant(NamedTuple):
    """Spelling of a request of the Responses API."""

    thoughts: bool = True
    """False: thoughts of earlier turns are left out, for a server that cannot read them."""
    asked: bool = True
    """False: thoughts of the reply are not asked for in the form in which they can be given back, where a tool may
    follow them."""


USUAL: Final = ResponsesVariant()


def responses_body(body: bytes, streamed: bool = False, variant: ResponsesVariant = USUAL) -> bytes:
    """Return the body of a canonical request, in the form of the Responses API; `streamed`: ask for events. That of a
    request of one text is put together from its pieces (fast path), equal to the long way but for the order of fields,
    by test. Raises `Untranslatable`."""
    if streamed or (found := one_question(body)) is None:
        return _any_body(body, streamed, variant)
    request, text, system = found
    before = b',"instructions":%b,"input":' % system if system else b',"input":'
    after = _FIELDS.joined(bytes(request.output_config)) if request.output_config else b""
    return b"".join((
        b'{"model":', request.model, before, text, b',"max_output_tokens":', request.max_tokens, b',"store":false',
        after, b"}",
    ))  # fmt: skip


def _any_body(body: bytes, streamed: bool, variant: ResponsesVariant) -> bytes:
    """Return the body of any canonical request, as `responses_body` does."""
    fields = FIELDS.decode(body)
    made: dict[str, Any] = {"model": fields.pop("model", b'""')}
    if (system := fields.pop("system", None)) is not None and has_value(system):
        made["instructions"] = system_in(system, _API)
    made["input"] = _input(TURNS.decode(fields.pop("messages", b"[]")), variant.thoughts)
    if (tokens := fields.pop("max_tokens", None)) is not None:
        made[BOUND] = tokens
    made |= _ORDINARY | _FIELDS.fields(fields)
    if variant.asked and _goes_on(made):
        named = _decode(made.get("include", b"[]"))
        made["include"] = named if ENCRYPTED in named else [*named, ENCRYPTED]
    if streamed:
        made["stream"] = True
    return _encode(made)


def _goes_on(made: Mapping[str, Any]) -> bool:
    """Return whether a conversation may go on after the reply: it has tools, and none of them is forced by its name,
    which makes the use of it the answer."""
    return len(made.get("tools", b"[]")) > len(b"[]") and not bytes(made.get("tool_choice", b"")).startswith(b"{")


def counted_body(body: bytes, variant: ResponsesVariant = USUAL) -> bytes:
    """Return the body that asks for the number of tokens of a canonical request. Raises `Untranslatable`."""
    fields = FIELDS.decode(responses_body(body, variant=variant))
    return _encode({name: value for name, value in fields.items() if name in COUNTED_FIELDS})


def written_body(body: bytes, streamed: bool = False) -> bytes:
    """Return the body of a request that its user wrote in this form (`cortex.values.chat_form.request`), as it stands
    but for `store`, which is false unless it says otherwise."""
    fields: dict[str, Any] = {}
    fields |= _ORDINARY | fields_of(body)
    if streamed:
        fields["stream"] = True
    return _encode(fields)


# -- items -----------------------------------------------------------------------------------------------------------


def _input(turns: list[Turn], thoughts: bool) -> Any:
    if len(turns) == 1 and turns[0].role == "user" and is_text(turns[0].content):
        return turns[0].content
    items: list[Any] = []
    for turn in turns:
        if is_text(turn.content):
            items.append(turn)
        elif turn.role == "assistant":
            items += _said(_decode(turn.content), thoughts)
        else:
            items += _asked(turn.role, _decode(turn.content))
    return items


def _asked(role: str, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of a user's turn: the results of tools are items of their own, which come first."""
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    parts = [_part(block) for block in blocks if block.get("type") != "tool_result"]
    if not parts and results:
        return results
    alone = len(parts) == 1 and parts[0]["type"] == "input_text"
    return [*results, {"role": role, "content": parts[0]["text"] if alone else parts}]


def _said(blocks: list[dict[str, Any]], thoughts: bool) -> list[dict[str, Any]]:
    """Return the items of the model's turn: thoughts, texts and tool uses in their order. A thought at the end has
    nothing to stand before, and is refused by OpenAI."""
    items: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") in THOUGHTS:
            items += _thought(block) if thoughts else []
        elif block.get("type") == "tool_use":
            items.append(_use(block))
        elif (text := text_in(block, "assistant", _API)) and items and items[-1].get("role") == "assistant":
            items[-1]["content"] += text
        else:
            items.append({"role": "assistant", "content": text})
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _use(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _encode(block.get("input") or {}).decode()
    return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": arguments}


def _thought(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    signature = block.get("signature")
    if not isinstance(signature, str) or not signature.startswith(THOUGHTS_PREFIX):
        return []
    name, _, encrypted = signature.partition(":")
    summary = [{"type": "summary_text", "text": block["thinking"]}] if block.get("thinking") else []
    return [{"type": "reasoning", "id": name, "summary": summary, "encrypted_content": encrypted}]


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    texts = not isinstance(content, list) or all(each.get("type") == "text" for each in content)
    output: Any = result_in(block, _API) if texts else [_part(each) for each in content or ()]
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a user's message that a block becomes."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "input_text", "text": block["text"]}
    if kind == "image" and isinstance(source, dict) and source.get("type") in ("url", "base64"):
        url = source["url"] if source["type"] == "url" else data_url(source)
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if kind == "document" and isinstance(source, dict):
        if source.get("type") == "text":
            return {"type": "input_text", "text": source["data"]}
        if source.get("type") == "url":
            return {"type": "input_file", "file_url": source["url"]}
        if source.get("type") == "base64":
            return {"type": "input_file", "filename": file_name(block), "file_data": data_url(source)}
    raise no_block(block, _API)


# -- other fields ----------------------------------------------------------------------------------------------------


def _tools(tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [_tool(each) for each in tools if is_own_tool(each)]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    about = {"description": tool["description"]} if "description" in tool else {}
    parameters = openai_schema(tool.get("input_schema") or {"type": "object"})
    return {"type": "function", "name": tool["name"], **about, "parameters": parameters,
            "strict": tool.get("strict") is True}  # fmt: skip


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    how: Any = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind))
    if kind == "tool":
        how = {"type": "function", "name": choice["name"]}
    if how is None:
        raise Untranslatable(f"tool_choice: {_API} know no {kind!r}")
    return {"tool_choice": how} | ({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {})


def _output_config(config: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            made |= _effort(value)
        elif name == "format" and value.get("type") == "json_schema":
            schema = openai_schema(value["schema"])
            named = {"type": "json_schema", "name": SCHEMA_NAME, "strict": is_strict(schema), "schema": schema}
            made["text"] = {"format": named}
        else:
            raise Untranslatable(f"output_config.{name}: {_API} have no such field: leave it out")
    return made


def _thinking(thinking: Mapping[str, Any]) -> dict[str, Any]:
    return _effort(effort_of(thinking, _API))


def _effort(effort: str) -> dict[str, Any]:
    return {"reasoning": {"effort": effort}} if effort else {}


def _verbosity(verbosity: str) -> dict[str, Any]:
    return {"text": {"verbosity": verbosity}}


def _logprobs(wanted: bool) -> dict[str, Any]:
    return {"include": [LOGPROBS]} if wanted else {}


def _stop(sequences: list[str]) -> dict[str, Any]:
    if sequences:
        raise Untranslatable(f"stop_sequences: {_API} have no such field: leave it out, or give --api chat")
    return {}


_TRANSLATIONS: Final[Translations] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "output_config": _output_config,
    "thinking": _thinking,
    "stop_sequences": _stop,
    "metadata": user_of,
    "service_tier": tier_of,
    "reasoning_effort": _effort,
    "verbosity": _verbosity,
    "logprobs": _logprobs,
}
_FIELDS: Final = FieldTranslator(_TRANSLATIONS, frozenset(RESPONSES_PARAMETERS) - _TRANSLATIONS.keys(), _API)
