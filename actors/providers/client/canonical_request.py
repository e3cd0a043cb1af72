"""Parts of canonical requests (`cortex.values.canonical`), as clients of other wire forms read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from actors.providers.client.wire_form import Untranslatable

SCHEMA_NAME: Final = "answer"
"""Name of a schema, which OpenAI's forms require."""
IGNORED: Final = frozenset({"cache_control", "stream", "diagnostics"})
"""Fields that change no answer: they are left out where a form has no counterpart."""
THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that hold thoughts of earlier turns."""

OR_MESSAGES: Final = ", or give --api messages, at a server that has the Messages API"
"""End of an error about what another API has no counterpart for: a server of the user's own may have both."""
_NO_VALUES: Final = (b"null", b"")
_QUOTE: Final = ord('"')
_TIERS: Final = {"standard_only": "default"}


class Turn(msgspec.Struct):
    """Turn of a conversation."""

    role: str
    content: msgspec.Raw


class _Question(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: msgspec.Raw
    role: Literal["user"]


class OneQuestion(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """Request of one text, with the bounds and the schema of its job: nearly all that tables and flows make."""

    max_tokens: msgspec.Raw
    messages: tuple[_Question]
    model: msgspec.Raw
    system: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()


_decode_question: Final = msgspec.json.Decoder(OneQuestion).decode
FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
TURNS: Final = msgspec.json.Decoder(list[Turn])

Translations = Mapping[str, Callable[[Any], dict[str, Any]]]
"""Functions from the value of a canonical field to the fields that it becomes, by its name."""


class _Named(msgspec.Struct):
    model: str = ""


def model_in(body: bytes) -> str:
    """Return the model that a request names; empty where it names none."""
    try:
        return msgspec.json.decode(body, type=_Named).model
    except msgspec.DecodeError:
        return ""


def one_question(body: bytes) -> tuple[OneQuestion, bytes, bytes] | None:
    """Return a request of one text, with its question and its system prompt (empty: none) as JSON texts; None for any
    other request."""
    try:
        request = _decode_question(body)
    except msgspec.DecodeError:
        return None
    text, system = bytes(request.messages[0].content), bytes(request.system) if request.system else b""
    if text[0] != _QUOTE or (system and system[0] != _QUOTE):
        return None
    return request, text, system


def has_value(value: msgspec.Raw | None) -> bool:
    """Return whether a field is there and not null."""
    return value is not None and bytes(value) not in _NO_VALUES


def is_text(value: msgspec.Raw) -> bool:
    """Return whether a JSON value is a text: it is then passed on as it is written."""
    return bytes(value).startswith(b'"')


def text_in(block: Mapping[str, Any], where: str, api: str) -> str:
    """Return the text of a block. Raises Untranslatable for one of another type. `api`: name of the form for people."""
    if block.get("type") != "text":
        text = f"{where}: {api} take text there, no block of type {block.get('type')!r}"
        raise Untranslatable(f"{text}: leave it out{OR_MESSAGES}")
    return str(block["text"])


def system_in(value: msgspec.Raw, api: str) -> Any:
    """Return a system prompt as one text, as JSON if it is one already. Raises Untranslatable."""
    if is_text(value):
        return value
    return "\n\n".join(text_in(block, "system", api) for block in msgspec.json.decode(value))


def result_in(block: Mapping[str, Any], api: str) -> str:
    """Return the content of a tool's result as one text. Raises Untranslatable."""
    content = block.get("content") or ""
    return content if isinstance(content, str) else "\n\n".join(text_in(each, "tool_result", api) for each in content)


def data_url(source: Mapping[str, Any]) -> str:
    """Return a ``base64`` source of an image or a document as a data URL."""
    return f"data:{source['media_type']};base64,{source['data']}"


def file_name(block: Mapping[str, Any]) -> str:
    """Return the name of a document's file."""
    title = str(block.get("title") or "document")
    return title if "." in title else f"{title}.pdf"


def no_block(block: Mapping[str, Any], api: str) -> Untranslatable:
    """Return the error for a block that a form has no counterpart of."""
    kind, source = block.get("type"), block.get("source")
    what = f"{kind} of {source.get('type')!r}" if isinstance(source, dict) else repr(kind)
    return Untranslatable(f"messages: {api} have no counterpart of a block of type {what}")


def is_own_tool(tool: Mapping[str, Any]) -> bool:
    """Return True for a tool of the user's. Raises Untranslatable for one that the provider of the Messages API
    runs."""
    if tool.get("type", "custom") != "custom":
        raise Untranslatable(f"tools: {tool['type']!r} is run by the provider of the Messages API")
    return True


def effort_of(thinking: Mapping[str, Any], api: str) -> str:
    """Return the effort that a ``thinking`` asks for; empty: that of the model. Raises Untranslatable for a budget."""
    kind = thinking.get("type")
    if kind == "adaptive":
        return ""
    if kind == "disabled":
        return "none"
    text = f"thinking: {api} have no budget of it: set output_config.effort in its place"
    raise Untranslatable(text + OR_MESSAGES)


def user_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that ``metadata`` becomes."""
    return {"user": metadata["user_id"]} if metadata.get("user_id") else {}


def tier_of(tier: str) -> dict[str, Any]:
    """Return the fields that ``service_tier`` becomes."""
    return {"service_tier": _TIERS.get(tier, tier)}


class FieldTranslator:
    """Translator of the fields beside the messages. Nearly all requests of a job have the same ones, so what each
    becomes is kept.

    ``same``: fields that are sent as they are; ``api``: name of the form for people.
    """

    def __init__(self, translations: Translations, same: frozenset[str], api: str) -> None:
        self._translations, self._same, self._api = translations, same, api
        self.pairs = lru_cache(maxsize=256)(self._pairs)
        """Function ``(name, value as JSON) -> fields`` that a canonical field becomes, as pairs."""
        self.joined = lru_cache(maxsize=256)(self._joined)
        """Function ``(an output_config as JSON) -> bytes``: its fields as they follow others in an object."""

    def fields(self, given: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the fields that canonical fields become. Raises Untranslatable."""
        made: dict[str, msgspec.Raw] = {}
        for name, value in given.items():
            if name in IGNORED or not has_value(value):
                continue
            if name in self._same:
                made[name] = _both(made[name], value) if name in made else value
                continue
            for key, each in self.pairs(name, bytes(value)):
                made[key] = _both(made[key], each) if key in made else each
        return made

    def _pairs(self, name: str, value: bytes) -> tuple[tuple[str, msgspec.Raw], ...]:
        translate = self._translations.get(name)
        if translate is None:
            raise Untranslatable(f"{name}: {self._api} have no such field: leave it out")
        found = translate(msgspec.json.decode(value))
        return tuple((key, msgspec.Raw(msgspec.json.encode(each))) for key, each in found.items())

    def _joined(self, config: bytes) -> bytes:
        pairs = () if config in _NO_VALUES else self.pairs("output_config", config)
        return b"".join(b",%b:%b" % (msgspec.json.encode(name), bytes(value)) for name, value in pairs)


def _both(one: msgspec.Raw, other: msgspec.Raw) -> msgspec.Raw:
    """Return the fields of two JSON objects in one, or the values of two lists, each once; else the other value."""
    fields, more = msgspec.json.decode(one), msgspec.json.decode(other)
    if isinstance(fields, dict) and isinstance(more, dict):
        return msgspec.Raw(msgspec.json.encode(fields | more))
    if isinstance(fields, list) and isinstance(more, list):
        return msgspec.Raw(msgspec.json.encode([*fields, *(each for each in more if each not in fields)]))
    return other
