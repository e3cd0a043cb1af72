"""Translation of requests of chat completions into canonical ones, those of the Messages API.

The form that is read: https://platform.openai.com/docs/api-reference/chat/create; ``CompletionCreateParams`` of the
package ``openai`` 3.57. A field that has no counterpart is refused (``NoCounterpart``), never left out, but for hints
that change no answer (``_HINTS``) and for values that are the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cortex.values.chat_form.request import CHAT_MARK, WRITTEN, fields_of
from cortex.values.template import as_written

SAMPLING: Final = ("temperature", "top_k", "top_p")
"""Fields that both forms have under one name."""

_HINTS: Final = frozenset({"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"})
_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logprobs": (False,), "store": (False,),
    "logit_bias": ({},), "metadata": ({},), "modalities": (["text"],), "stream": (False,), "tools": ([],),
    "top_logprobs": (0,), "verbosity": ("medium",), "parallel_tool_calls": (True,), "stop": ([],),
}  # fmt: skip
"""Values that say what is so without the field."""
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_TIERS: Final = {"auto": "auto", "default": "standard_only"}
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}
_SYSTEM: Final = frozenset({"system", "developer"})
_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "system": frozenset({"content"}), "developer": frozenset({"content"}), "user": frozenset({"content"}),
    "assistant": frozenset({"content", "tool_calls", "refusal"}), "tool": frozenset({"content", "tool_call_id"}),
}  # fmt: skip
"""Fields of a message that are translated, by its role."""

_decode: Final = msgspec.json.Decoder(float_hook=as_written).decode
"""Decoder that keeps numbers as they are written."""
_ARGUMENTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NoCounterpart(ValueError):
    """Part of a request that the Messages API has no counterpart for, or that is malformed. One line that names it."""


def messages_request(body: bytes) -> bytes:
    """Return the canonical request for a request that ``chat_request`` made. Raises ``NoCounterpart``, also for one of
    another form."""
    if not body.startswith(CHAT_MARK):
        api = body.removeprefix(WRITTEN).partition(b'"')[0].decode("utf-8", "replace")
        raise NoCounterpart(f"a request of OpenAI's {api} is asked over that API alone, and this model over another")
    try:
        fields = {name: _decode(value) for name, value in fields_of(body).items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoCounterpart(f"the request is no JSON object: {error}") from None
    made = canonical_fields(fields)
    return msgspec.json.encode({name: made[name] for name in sorted(made)})


def canonical_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the canonical fields for those of a request of chat completions. ``max_tokens`` is its bound, if any.

    Raises ``NoCounterpart``.
    """
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in _HINTS or _plain(value) in _DEFAULTS.get(name, ()):
            continue
        translate = _TRANSLATIONS.get(name)
        if translate is None:
            raise NoCounterpart(f"{name}: the Messages API has no such field: leave it out, or ask a server of chat "
                                "completions")  # fmt: skip
        try:
            found = translate(value)
        except (LookupError, TypeError, AttributeError) as error:
            raise NoCounterpart(f"{name}: malformed: {type(error).__name__}: {error}") from None
        for key, each in found.items():
            made[key] = {**made[key], **each} if type(each) is dict and key in made else each
    if made.get("tool_choice") == {"disable_parallel_tool_use": True}:
        made["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    if "tool_choice" in made and "tools" not in made:
        del made["tool_choice"]  # without tools nothing can be chosen
    return made


def _plain(value: Any) -> Any:
    return float(bytes(value)) if type(value) is msgspec.Raw else value


# -- messages --------------------------------------------------------------------------------------------------------


def _messages(messages: list[Any]) -> dict[str, Any]:
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role = message["role"]
        known = _KEYS.get(role)
        if known is None:
            raise NoCounterpart(f"{where}.role is {role!r}: the Messages API has no such role")
        for name, value in message.items():
            if value is not None and name != "role" and name not in known:
                raise NoCounterpart(f"{where}.{name}: the Messages API has no such field: leave it out")
        content = message.get("content")
        if role in _SYSTEM:
            if turns:
                raise NoCounterpart(f"{where}: a {role} message after the first turn has no counterpart")
            system += [{"type": "text", "text": text} for text in _texts(content, where)]
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": _told(content, where)}
            if turns and turns[-1]["role"] == "user" and _all_results(turns[-1]["content"]):
                turns[-1]["content"].append(result)
            else:
                turns.append({"role": "user", "content": [result]})
        elif role == "assistant":
            turns.append({"role": "assistant", "content": _said(message, where)})
        else:
            turns.append({"role": "user", "content": _asked(content, where)})
    made: dict[str, Any] = {"messages": turns}
    if system:
        made["system"] = system[0]["text"] if len(system) == 1 else system
    return made


def _all_results(content: Any) -> bool:
    return isinstance(content, list) and all(block["type"] == "tool_result" for block in content)


def _texts(content: Any, where: str) -> list[str]:
    """Return the texts of a content of texts alone."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise NoCounterpart(f"{where}.content: it must be a text or a list of parts")
    for part in content:
        if part.get("type") != "text":
            raise NoCounterpart(f"{where}.content: a part of type {part.get('type')!r} has no counterpart there")
    return [part["text"] for part in content]


def _told(content: Any, where: str) -> Any:
    texts = _texts(content, where)
    return texts[0] if isinstance(content, str) else [{"type": "text", "text": text} for text in texts]


def _said(message: Mapping[str, Any], where: str) -> Any:
    """Return the content of a turn of the model."""
    content, calls = message.get("content"), message.get("tool_calls") or []
    if isinstance(content, str) and not calls and not message.get("refusal"):
        return content
    blocks: list[dict[str, Any]] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or ():
        kind = part.get("type")
        if kind not in ("text", "refusal"):
            raise NoCounterpart(f"{where}.content: a part of type {kind!r} has no counterpart there")
        blocks += [{"type": "text", "text": part[kind]}] if part[kind] else []
    blocks += [{"type": "text", "text": message["refusal"]}] if message.get("refusal") else []
    for call in calls:
        if call.get("type", "function") != "function":
            raise NoCounterpart(f"{where}.tool_calls: a call of type {call['type']!r} has no counterpart")
        function = call["function"]
        try:
            given = _ARGUMENTS.decode(function.get("arguments") or "{}")
        except msgspec.DecodeError:
            raise NoCounterpart(f"{where}.tool_calls: arguments of {function.get('name')!r} are no object") from None
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks


def _asked(content: Any, where: str) -> Any:
    """Return the content of a turn of the user."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NoCounterpart(f"{where}.content: it must be a text or a list of parts")
    return [_block(part, where) for part in content]


def _block(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        image = part["image_url"]
        if image.get("detail") not in (None, "auto"):
            raise NoCounterpart(f"{where}.content: the detail of an image has no counterpart: leave it out")
        return {"type": "image", "source": _source(image["url"], where)}
    if kind == "file" and part["file"].get("file_data"):
        made = {"type": "document", "source": _source(part["file"]["file_data"], where)}
        return made | ({"title": part["file"]["filename"]} if part["file"].get("filename") else {})
    what = "a file by its id" if kind == "file" else f"a part of type {kind!r}"
    raise NoCounterpart(f"{where}.content: {what} has no counterpart in the Messages API")


def _source(url: str, where: str) -> dict[str, Any]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, comma, data = url.partition(",")
    media, _, packed = head.removeprefix("data:").partition(";")
    if not comma or packed != "base64" or not media:
        raise NoCounterpart(f"{where}.content: a data URL must have the form data:TYPE;base64,DATA")
    return {"type": "base64", "media_type": media, "data": data}


# -- other fields ----------------------------------------------------------------------------------------------------


def _tools(tools: list[Any]) -> dict[str, Any]:
    return {"tools": [_tool(each) for each in tools]}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise NoCounterpart(f"tools: a tool of type {tool.get('type')!r} has no counterpart")
    function = tool["function"]
    made = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return made | {name: function[name] for name in ("description", "strict") if function.get(name)}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, str) and choice in _CHOICES:
        return {"tool_choice": {"type": _CHOICES[choice]}}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"tool_choice": {"type": "tool", "name": choice["function"]["name"]}}
    raise NoCounterpart("tool_choice: the Messages API knows none of this form")


def _response_format(form: Mapping[str, Any]) -> dict[str, Any]:
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind != "json_schema":
        raise NoCounterpart(f"response_format: {kind!r} has no counterpart: give a json_schema")
    given = form["json_schema"]
    if given.get("description"):
        raise NoCounterpart("response_format: the description of a schema has no counterpart: put it into the schema")
    return {"output_config": {"format": {"type": "json_schema", "schema": given["schema"]}}}


def _effort(effort: Any) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if effort not in _EFFORTS:
        raise NoCounterpart(f"reasoning_effort: {effort!r} has no counterpart: give low, medium, high or none")
    return {"output_config": {"effort": effort}}


def _service_tier(tier: Any) -> dict[str, Any]:
    if tier not in _TIERS:
        raise NoCounterpart(f"service_tier: {tier!r} has no counterpart: leave it out")
    return {"service_tier": _TIERS[tier]}


def _same(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value}


_TRANSLATIONS: Final[Mapping[str, Callable[[Any], dict[str, Any]]]] = {
    "model": _same("model"),
    "max_tokens": _same("max_tokens"),
    "messages": _messages,
    "stop": lambda stop: {"stop_sequences": [stop] if isinstance(stop, str) else stop},
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": lambda parallel: {"tool_choice": {"disable_parallel_tool_use": not parallel}},
    "response_format": _response_format,
    "reasoning_effort": _effort,
    "service_tier": _service_tier,
    "user": lambda user: {"metadata": {"user_id": user}},
    "safety_identifier": lambda user: {"metadata": {"user_id": user}},
    **{name: _same(name) for name in SAMPLING},
}
