"""Schemas as OpenAI takes them, for answers and tools, and which of them it can enforce.

https://platform.openai.com/docs/guides/structured-outputs: a subset of JSON Schema. Each node has a type of its own,
also one of an ``enum`` ("In context=('properties', …, 'category'), schema must have a 'type' key.",
openclaw/clawpatch#60, can1357/oh-my-pi#211), and its values must fit that type ("enum value javascript does not
validate against {'type': 'null'}", can1357/oh-my-pi#1835). Nine formats are known ("'uri' is not a valid format",
can1357/oh-my-pi#206), in tools that are not strict too (cyanheads/git-mcp-server#47), whose arrays must have ``items``
("array schema missing items", digitalocean-labs/mcp-digitalocean#265). The Messages API wants the opposite: an ``enum``
with null and a type is refused there (BerriAI/litellm#37882).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
"""Values of ``format`` that OpenAI knows."""

_UNKNOWN: Final = frozenset({
    "allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "dependentRequired", "dependentSchemas",
})  # fmt: skip
"""Keywords that strict schemas may not hold."""
_MAPS: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NODES: Final = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_TYPED: Final = ("type", "$ref", "anyOf", "oneOf", "allOf")
"""Keywords of which one says what values a node takes."""
_REFERENCE: Final = frozenset({"$ref", "$defs", "definitions"})


def openai_schema(schema: Any) -> Any:
    """Return a schema that accepts the same values, but for formats, in the form that OpenAI takes.

    An ``enum`` or ``const`` gets the type of its values, those of several types become alternatives. A format that
    OpenAI does not know and a ``default``, which Azure refuses (openai/openai-agents-python#4390), become part of the
    description. An array without ``items`` has any.
    """
    if not isinstance(schema, dict):
        return schema
    form: dict[str, Any] = {name: _below(name, value) for name, value in schema.items()}
    told = [name for name in ("format", "default") if name in form and form[name] not in _kept(name)]
    if told:
        text = "{" + ", ".join(f"{name}: {form.pop(name)}" for name in told) + "}"
        form["description"] = f"{form['description']}\n\n{text}" if form.get("description") else text
    if "array" in _types(form) and not {"items", "prefixItems"} & form.keys():
        form["items"] = {}
    if isinstance(several := form.get("anyOf"), list):
        return _alternatives(form, several)
    return form if any(name in form for name in _TYPED) else _with_types(form)


def is_strict(schema: Any) -> bool:
    """Return whether OpenAI can enforce a schema: each node has a type, objects are closed and require all their
    fields. It refuses a strict schema that is not so; others are sent as plain ones, which it tries to follow."""
    if not isinstance(schema, dict) or _UNKNOWN & schema.keys():
        return False
    if "$ref" in schema and not schema.keys() <= _REFERENCE:
        return False  # "$ref cannot have keywords {'description'}" (camel-ai/camel#3001)
    if not any(name in schema for name in _TYPED) or ("array" in _types(schema) and "items" not in schema):
        return False
    if "object" in _types(schema) or "properties" in schema:
        fields = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(fields):
            return False
    below = [each for name in ("properties", "$defs", "definitions") for each in (schema.get(name) or {}).values()]
    below += [*(schema.get("anyOf") or ()), *([schema["items"]] if "items" in schema else [])]
    return all(is_strict(each) for each in below)


def _types(schema: Mapping[str, Any]) -> list[Any]:
    kind = schema.get("type")
    return kind if isinstance(kind, list) else [kind]


def _kept(name: str) -> frozenset[str]:
    return FORMATS if name == "format" else frozenset()


def _below(name: str, value: Any) -> Any:
    """Return the value of a keyword, with the schemas in it in their form."""
    if name in _MAPS and isinstance(value, dict):
        return {each: openai_schema(one) for each, one in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [openai_schema(one) for one in value]
    return openai_schema(value) if name in _NODES else value


def _alternatives(form: dict[str, Any], several: list[Any]) -> dict[str, Any]:
    """Return a node whose alternatives are each there once. Both ``string`` and ``null`` of a nullable ``enum`` become
    the whole ``enum`` in the form of tables (``cortex.values.json_schema.structured``)."""
    different = [one for place, one in enumerate(several) if one not in several[:place]]
    alone = different[0] if len(different) == 1 and isinstance(different[0], dict) else None
    if alone is None or alone.keys() & (form.keys() - {"anyOf"}):
        return form | {"anyOf": different}
    return {name: value for name, value in form.items() if name != "anyOf"} | alone


def _with_types(form: dict[str, Any]) -> dict[str, Any]:
    """Return a node whose values are listed, with their types; one without a list as it is."""
    listed = form.get("enum", [form["const"]] if "const" in form else None)
    if not isinstance(listed, list) or not listed:
        return form
    kinds: dict[str, list[Any]] = {}
    types = _TYPES | ({int: "number"} if any(isinstance(value, float) for value in listed) else {})
    for value in listed:
        kinds.setdefault(types[type(value)], []).append(value)
    if len(kinds) == 1:
        return {"type": next(iter(kinds))} | form
    rest = {name: value for name, value in form.items() if name != "enum"}
    each_type = [{"type": kind, **({} if kind == "null" else {"enum": each})} for kind, each in kinds.items()]
    return {"anyOf": each_type} | rest


_TYPES: Final[dict[type, str]] = {
    str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array", type(None): "null",
}  # fmt: skip
