"""Requests of the Gemini API's `generateContent`: from the canonical form (`cortex.values.canonical`).

The form: https://ai.google.dev/api/generate-content; `GenerateContentConfig` of the package `google-genai` 3.6. What
has no counterpart there is refused (`Untranslatable`), not left out; only hints that change no answer are left out:
`cache_control`, the user's name in `metadata`, and the thoughts of earlier turns but for the signatures of tool calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from actors.providers.chat_completions.tool_signatures import bare_signature, signatures_in
from actors.providers.client.canonical_request import (
    FIELDS,
    IGNORED,
    THOUGHTS,
    effort_of,
    has_value,
    is_own_tool,
    no_block,
    result_in,
    text_in,
)
from actors.providers.client.wire_form import Untranslatable

_API: Final = "batches of Gemini"
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode

SAME: Final[Mapping[str, str]] = {
    "temperature": "temperature", "top_p": "topP", "top_k": "topK", "seed": "seed",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty", "max_tokens": "maxOutputTokens",
    "stop_sequences": "stopSequences",
}  # fmt: skip
"""Fields that `generationConfig` has under another name."""
BUDGETS: Final[Mapping[str, int]] = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
"""Budgets of thoughts in tokens by effort, for models of the generation 2
(https://ai.google.dev/gemini-api/docs/openai#thinking)."""
LEVELS: Final[Mapping[str, str]] = {
    "none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high",
}  # fmt: skip
"""Levels of thoughts by effort, for later models, which cannot do without thoughts (same page)."""
_ROLES: Final = {"user": "user", "assistant": "model"}
_MODES: Final = {"auto": "AUTO", "any": "ANY", "none": "NONE"}


def generate_body(body: bytes) -> bytes:
    """Return the body of a canonical request, in the form of `generateContent`. Raises `Untranslatable`."""
    given = {name: _decode(value) for name, value in FIELDS.decode(body).items() if has_value(value)}
    model, config = str(given.pop("model", "")), {}
    made: dict[str, Any] = {"contents": _contents(given.pop("messages", []))}
    if system := _system(given.pop("system", None)):
        made["systemInstruction"] = {"parts": [{"text": system}]}
    for name, value in given.items():
        if name in IGNORED or name == "metadata":
            continue
        if name in SAME:
            config[SAME[name]] = value
            continue
        translate = _TRANSLATIONS.get(name)
        if translate is None:
            raise Untranslatable(f"{name}: {_API} have no such field: leave it out, or leave --via batches out")
        fields, more = translate(value, model)
        made |= fields
        config |= more
    return _encode(made | ({"generationConfig": config} if config else {}))


def _system(system: Any) -> str:
    if isinstance(system, list):
        return "\n\n".join(text_in(block, "system", _API) for block in system)
    return system or ""


# -- turns -----------------------------------------------------------------------------------------------------------


def _contents(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names: dict[str, str] = {}
    if strange := next((turn["role"] for turn in turns if turn["role"] not in _ROLES), ""):
        raise Untranslatable(f"messages: {_API} have no turns of the role {strange!r}: put the text into system")
    return [{"role": _ROLES[turn["role"]], "parts": _parts(turn["content"], names)} for turn in turns]


def _parts(content: Any, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the parts of a turn. ``names``: tools that were used so far, by the id of the use; those of this turn are
    added."""
    if isinstance(content, str):
        return [{"text": content}]
    signatures = signatures_in(content)
    parts = []
    for block in content:
        if block.get("type") not in THOUGHTS:
            signature = bare_signature(signatures.get(str(block.get("id", ""))))
            parts.append(_part(block, names) | ({"thoughtSignature": signature} if signature else {}))
    return parts


def _part(block: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"text": block["text"]}
    if kind == "tool_use":
        names[block["id"]] = block["name"]
        return {"functionCall": {"id": block["id"], "name": block["name"], "args": block.get("input") or {}}}
    if kind == "tool_result":
        told = {"error" if block.get("is_error") else "output": result_in(block, _API)}
        used = block["tool_use_id"]
        return {"functionResponse": {"id": used, "name": names.get(used, used), "response": told}}
    if kind in ("image", "document") and isinstance(source, dict):
        if source.get("type") == "base64":
            return {"inlineData": {"mimeType": source["media_type"], "data": source["data"]}}
        if kind == "document" and source.get("type") == "text":
            return {"text": source["data"]}
    raise no_block(block, _API)


# -- other fields ----------------------------------------------------------------------------------------------------

Fields = tuple[dict[str, Any], dict[str, Any]]
"""Fields of the request, and of its `generationConfig`."""


def _tools(tools: list[dict[str, Any]], model: str) -> Fields:
    return {"tools": [{"functionDeclarations": [_tool(each) for each in tools if is_own_tool(each)]}]}, {}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    about = {"description": tool["description"]} if "description" in tool else {}
    return {"name": tool["name"], **about, "parametersJsonSchema": tool.get("input_schema") or {"type": "object"}}


def _tool_choice(choice: Mapping[str, Any], model: str) -> Fields:
    kind = str(choice.get("type"))
    if kind == "tool":
        calling = {"mode": "ANY", "allowedFunctionNames": [choice["name"]]}
    elif kind in _MODES:
        calling = {"mode": _MODES[kind]}
    else:
        raise Untranslatable(f"tool_choice: {_API} know no {kind!r}")
    if choice.get("disable_parallel_tool_use"):
        raise Untranslatable(f"tool_choice.disable_parallel_tool_use: {_API} have no such field: leave it out")
    return {"toolConfig": {"functionCallingConfig": calling}}, {}


def _output_config(config: Mapping[str, Any], model: str) -> Fields:
    made: dict[str, Any] = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            made |= _effort(value, model)[1]
        elif name == "format" and value.get("type") == "json_schema":
            made |= {"responseMimeType": "application/json", "responseJsonSchema": value["schema"]}
        else:
            raise Untranslatable(f"output_config.{name}: {_API} have no such field: leave it out")
    return {}, made


def _effort(effort: str, model: str) -> Fields:
    if not effort:
        return {}, {}
    if effort not in BUDGETS:
        raise Untranslatable(f"effort: {_API} know no {effort!r}: give low, medium or high")
    old = model.removeprefix("models/").startswith("gemini-2")
    return {}, {"thinkingConfig": {"thinkingBudget": BUDGETS[effort]} if old else {"thinkingLevel": LEVELS[effort]}}


def _thinking(thinking: Mapping[str, Any], model: str) -> Fields:
    return _effort(effort_of(thinking, _API), model)


def _tier(tier: str, model: str) -> Fields:
    if tier not in ("auto", "standard_only", "default"):
        raise Untranslatable(f"service_tier: {_API} have no {tier!r}: leave it out")
    return {}, {}


_TRANSLATIONS: Final[Mapping[str, Callable[[Any, str], Fields]]] = {
    "tools": _tools, "tool_choice": _tool_choice, "output_config": _output_config, "thinking": _thinking,
    "reasoning_effort": _effort, "service_tier": _tier,
}  # fmt: skip
