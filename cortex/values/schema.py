"""JSON schemas for answers: requested in the provider's form, checked by msgspec on arrival.

A keyword is either checked or, if it cannot be checked, refused when the job is set up: an answer never counts as valid
by a rule that was not checked. ``format``, ``default`` and the like are descriptive, and are not checked.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from cortex.values.reply import Malformed

COLUMNS_MAX = 500
"""Largest number of top-level properties, which become columns."""

DESCRIBING = frozenset(
    "title description default examples format $schema $id $comment $defs definitions deprecated readOnly writeOnly "
    "discriminator contentEncoding contentMediaType".split()
)
"""Keywords that do not affect which answers are valid, or are read from elsewhere."""
_BOUNDS = {
    "string": {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"},
    "integer": {
        "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt",
        "multipleOf": "multiple_of",
    },
    "array": {"minItems": "min_length", "maxItems": "max_length"},
    "object": {"minProperties": "min_length", "maxProperties": "max_length"},
}  # fmt: skip
_BOUNDS["number"] = _BOUNDS["integer"]
WHOLE_MIN, WHOLE_MAX = -(1 << 63), (1 << 63) - 1
"""Bounds of an integer: a column of a table holds no larger ones."""
_KNOWN = {
    "string": frozenset(), "integer": frozenset(), "number": frozenset(), "boolean": frozenset(), "null": frozenset(),
    "array": frozenset({"items"}), "object": frozenset({"properties", "required", "additionalProperties"}),
}  # fmt: skip
_CHOICES = frozenset({"enum", "const", "anyOf", "oneOf", "allOf", "$ref"})
_ALL = frozenset().union(DESCRIBING, _CHOICES, {"type"}, *_KNOWN.values(), *_BOUNDS.values())


_decode, _convert = msgspec.json.Decoder().decode, msgspec.convert


class SchemaError(ValueError):
    """The schema is invalid, or answers cannot be checked by it. The message is one line."""


class AnswerShape:
    """Schema of an answer: an object with named fields. Raises ``SchemaError``."""

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, dict):
            raise SchemaError('not a JSON schema: give an object, like {"type": "object", "properties": {…}}')
        self.schema = schema
        top = resolved(schema, schema, "$")
        if top.get("type") != "object" or not isinstance(top.get("properties"), dict) or not top["properties"]:
            raise SchemaError('the top level must be {"type": "object"} with properties, which become the columns')
        if len(top["properties"]) > COLUMNS_MAX:
            raise SchemaError(f"it has {len(top['properties'])} properties: at most {COLUMNS_MAX} can be columns")
        self.properties: dict[str, Any] = top["properties"]
        """Schemas of the fields by name, in their order."""
        self._names = [*self.properties]
        self._type = _TypeBuilder(schema).of(schema, "$")
        try:
            msgspec.json.Decoder(self._type)
        except TypeError as error:
            raise SchemaError(f"answers cannot be checked by it: {_line(error)}") from None

    def read(self, text: str) -> dict[str, Any]:
        """Return the answer in this text, with or without a code fence, as plain data. Raises ``Malformed`` with the
        reason.
        """
        message = text.strip()
        if message.startswith("```"):
            message = message.split("\n", 1)[-1].rsplit("```", 1)[0].strip()
        try:
            found = _decode(message)
            _convert(found, self._type)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise Malformed(_line(error) if message else "the answer is empty") from None
        if type(found) is not dict:
            raise Malformed("the answer is no object")
        if self._names == [*found]:  # the fields in the requested order
            return found
        return {name: found.get(name) for name in self._names}

    def provider_form(self) -> dict[str, Any]:
        """Return the schema for the provider's structured outputs: objects closed, bounds moved into the description.

        https://platform.claude.com/docs/en/build-with-claude/structured-outputs; the SDK's ``transform_schema`` does
        the same.
        """
        return _closed(self.schema)


def resolved(schema: dict[str, Any], whole: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the schema that a ``$ref`` leads to, or the schema itself. Raises ``SchemaError``."""
    seen = []
    while isinstance(ref := schema.get("$ref"), str):
        if ref in seen:
            raise SchemaError(f"{at}: {ref} refers to itself")
        seen.append(ref)
        found: Any = whole
        if not ref.startswith("#/"):
            raise SchemaError(f"{at}: $ref {ref!r} leads out of the schema: put what it means under $defs")
        for step in ref[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise SchemaError(f"{at}: $ref {ref!r} leads to nothing in the schema")
        schema = found
    return schema


class _TypeBuilder:
    """Conversion of schemas into types that msgspec checks."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole
        self._under: list[str] = []

    def of(self, schema: Any, at: str) -> Any:
        if schema is True or schema == {}:
            return Any
        if not isinstance(schema, dict):
            raise SchemaError(f"{at} must be a schema, an object, not {schema!r:.40}")
        ref = schema.get("$ref")
        schema = resolved(schema, self._whole, at)
        if not isinstance(ref, str):
            return self._made(schema, at)
        if ref in self._under:
            raise SchemaError(f"{at}: {ref} contains itself: an answer that may nest without end cannot be asked for")
        self._under.append(ref)
        try:
            return self._made(schema, at)
        finally:
            self._under.pop()

    def _made(self, schema: dict[str, Any], at: str) -> Any:
        for name in schema:
            if name not in _ALL:
                near = difflib.get_close_matches(name, _ALL, n=1)
                hint = f"did you mean {near[0]}?" if near else "answers cannot be checked by it: leave it out"
                raise SchemaError(f"{at}: keyword {name!r}: {hint}")
        choices = [name for name in _CHOICES if name in schema]
        if len(choices) > 1:
            raise SchemaError(f"{at}: give one of {', '.join(sorted(choices))}, not all of them")
        if choices:
            return self._choice(choices[0], schema, at)
        kinds = schema.get("type")
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else None
        if kinds is None:
            return Any
        types = [self._kind(kind, schema, at) for kind in (kinds if isinstance(kinds, list) else [kinds])]
        return _union(types, at)

    def _choice(self, name: str, schema: dict[str, Any], at: str) -> Any:
        given = schema[name]
        if name in ("enum", "const"):
            values = given if name == "enum" and isinstance(given, list) else [given]
            return _one_of(values, f"{at}.{name}")
        if not isinstance(given, list) or not given:
            raise SchemaError(f"{at}.{name} must be a list of schemas")
        if name == "allOf" and len(given) > 1:
            raise SchemaError(f"{at}: allOf of several schemas cannot be checked: write them as one")
        return _union([self.of(each, f"{at}.{name}[{place}]") for place, each in enumerate(given)], at)

    def _kind(self, kind: Any, schema: dict[str, Any], at: str) -> Any:
        if kind not in _KNOWN:
            near = difflib.get_close_matches(str(kind), _KNOWN, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(_KNOWN)}"
            raise SchemaError(f"{at}: type {kind!r}: {hint}")
        make: dict[str, Callable[[], Any]] = {
            "string": lambda: str, "integer": lambda: int, "number": lambda: float, "boolean": lambda: bool,
            "null": lambda: None, "array": lambda: list[self.of(schema.get("items", True), f"{at}.items")],  # type: ignore[misc]
            "object": lambda: self._object(schema, at),
        }  # fmt: skip
        type_ = make[kind]()
        bounds = {ours: schema[theirs] for theirs, ours in _BOUNDS.get(kind, {}).items() if theirs in schema}
        if kind == "integer":
            bounds |= {} if bounds.keys() & {"ge", "gt"} else {"ge": WHOLE_MIN}
            bounds |= {} if bounds.keys() & {"le", "lt"} else {"le": WHOLE_MAX}
        if kind == "object" and bounds and schema.get("properties"):
            raise SchemaError(f"{at}: minProperties and maxProperties cannot be checked beside properties")
        if "pattern" in bounds:
            _checked_pattern(bounds["pattern"], at)
        try:
            return Annotated[type_, msgspec.Meta(**bounds)] if bounds else type_
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{at}: {_line(error)}") from None

    def _object(self, schema: dict[str, Any], at: str) -> Any:
        properties, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            raise SchemaError(f"{at}.properties must be an object of schemas")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError(f"{at}.required must be a list of names")
        for name in required:
            if name not in properties:
                near = difflib.get_close_matches(name, properties, n=1)
                raise SchemaError(f"{at}.required names {name!r}, which is no property"
                                  + (f": did you mean {near[0]}?" if near else ""))  # fmt: skip
        if not properties:
            return dict[str, Any if isinstance(more, bool) else self.of(more, f"{at}.additionalProperties")]  # type: ignore[misc]
        if not isinstance(more, bool):
            raise SchemaError(f"{at}: additionalProperties beside properties must be true or false")
        fields: list[Any] = []
        for place, (name, each) in enumerate(properties.items()):
            type_ = self.of(each, f"{at}.{name}")
            field = (f"f{place}", type_)
            fields.append(field if name in required else (f"f{place}", type_ | msgspec.UnsetType if type_ is not None
                                                          else msgspec.UnsetType | None, msgspec.UNSET))  # fmt: skip
        rename = {f"f{place}": name for place, name in enumerate(properties)}
        return msgspec.defstruct("Answer", fields, rename=rename, kw_only=True, forbid_unknown_fields=not more)


def _union(types: list[Any], at: str) -> Any:
    if not types:
        raise SchemaError(f"{at}: type is an empty list")
    joined: Any = types[0]
    for each in types[1:]:
        joined = joined | each if joined is not None or each is not None else None
    return joined


def _one_of(values: list[Any], at: str) -> Any:
    if not values:
        raise SchemaError(f"{at} is empty: no answer could be valid")
    bools = [each for each in values if isinstance(each, bool)]
    wrong = [each for each in values if not (each is None or isinstance(each, (str, int)))]
    if wrong or (bools and len(bools) < len(values)):
        raise SchemaError(f"{at} must list texts, whole numbers and null; or true and false")
    if bools:
        if len(set(bools)) < 2:
            raise SchemaError(f"{at}: true or false alone cannot be checked: let it be a boolean")
        return bool
    return Literal[tuple(values)]


def _checked_pattern(pattern: Any, at: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise SchemaError(f"{at}.pattern {pattern!r:.60}: {error}") from None


_PASSED = ("description", "title")
_FORMATS = frozenset("date-time time date duration email hostname uri ipv4 ipv6 uuid".split())


def _closed(schema: Any) -> dict[str, Any]:
    """The schema in keywords that the provider supports; other keywords become part of the description."""
    if not isinstance(schema, dict):
        return {}
    rest = dict(schema)
    form: dict[str, Any] = {}
    if isinstance(defs := rest.pop("$defs", None) or rest.pop("definitions", None), dict):
        form["$defs"] = {name: _closed(each) for name, each in defs.items()}
    if isinstance(ref := rest.pop("$ref", None), str):
        return form | {"$ref": ref.replace("#/definitions/", "#/$defs/")}
    kind = rest.pop("type", None)
    several = next((name for name in ("anyOf", "oneOf", "allOf") if name in rest), "")
    if several:
        form["allOf" if several == "allOf" else "anyOf"] = [_closed(each) for each in rest.pop(several)]
    elif isinstance(kind, list):
        form["anyOf"] = [_closed({**rest, "type": each}) for each in kind]
        rest = {}
    elif "enum" in rest or "const" in rest:
        form |= {name: rest.pop(name) for name in ("enum", "const") if name in rest}
    elif kind is not None:
        form["type"] = kind
    form |= {name: rest.pop(name) for name in _PASSED if name in rest}
    if kind == "object":
        form["properties"] = {name: _closed(each) for name, each in (rest.pop("properties", None) or {}).items()}
        form["additionalProperties"] = False
        rest.pop("additionalProperties", None)
        form |= {"required": rest.pop("required")} if "required" in rest else {}
    elif kind == "array":
        form |= {"items": _closed(rest.pop("items"))} if "items" in rest else {}
        form |= {"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {}
    elif kind == "string" and rest.get("format") in _FORMATS:
        form["format"] = rest.pop("format")
    for name in ("$schema", "$id", "$comment"):
        rest.pop(name, None)
    if rest:
        text = "{" + ", ".join(f"{name}: {value}" for name, value in rest.items()) + "}"
        form["description"] = f"{form['description']}\n\n{text}" if form.get("description") else text
    return form


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
