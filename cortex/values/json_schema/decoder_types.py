"""Types of msgspec for schemas of flat answers: the decoder checks a value while it reads it, in a tenth of the time.

A type accepts fewer values than its schema, never others: ``1.0`` for an integer, or an integer of more than 64 bits,
is left to the checks of ``cortex.values.json_schema.keywords``. So a replay comes to the verdict of the first run
whatever a release of msgspec accepts. A schema with a keyword that is not handled here has no type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec

from cortex.values.json_schema.checks import DESCRIBING
from cortex.values.json_schema.keywords import WHOLE_MAX, WHOLE_MIN, check_of

_FLOAT_WHOLE_MAX: Final = 1 << 53
"""Largest number up to which a float holds every whole number (IEEE 754-2019, 3.3)."""
_OBJECT: Final = frozenset({"type", "properties", "required", "additionalProperties", "$id"})
_BOUNDS: Final = {
    "minimum": ("ge", math.ceil), "exclusiveMinimum": ("gt", lambda bound: math.floor(bound) + 1),
    "maximum": ("le", math.floor), "exclusiveMaximum": ("lt", lambda bound: math.ceil(bound) - 1),
}  # fmt: skip
"""Bounds of numbers: the name that msgspec has for a bound of a float, and the bound of a whole number, which is
allowed itself."""
_LENGTHS: Final = {
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}
_SCALARS: Final = frozenset({"type", *_BOUNDS, *_LENGTHS["string"], *_LENGTHS["array"], "items"})


class _Unhandled(Exception):
    """The schema has no type."""


def struct_of(schema: dict[str, Any]) -> type[msgspec.Struct] | None:
    """Return a type of objects that are valid by a schema, with its properties as fields in their order; None for a
    schema that is not flat, or has another keyword.

    A field that is not required is null where the object lacks it. ``schema``: a schema that ``check_of`` accepts.
    """
    if schema.get("type") != "object" or not schema.keys() - DESCRIBING <= _OBJECT:
        return None
    properties, required = schema["properties"], frozenset(schema.get("required", ()))
    names = {f"field_{place}": name for place, name in enumerate(properties)}
    try:
        fields: list[Any] = [
            (field, _type_of(properties[name]), *(() if name in required else (None,)))
            for field, name in names.items()
        ]
        # keyword-only fields keep their order, whichever of them have a default
        made = msgspec.defstruct("Answer", fields, rename=names, forbid_unknown_fields=True, kw_only=True, gc=False)
        msgspec.json.Decoder(made)
    except (_Unhandled, ValueError, TypeError, OverflowError):
        # also a name with a quote, and alternatives that msgspec cannot tell apart
        return None
    return made


def _type_of(schema: Any) -> Any:
    """Return the type of a value. Raises ``_Unhandled``."""
    if not isinstance(schema, dict):
        raise _Unhandled
    if "enum" in schema or "const" in schema:
        return _enumerated(schema)
    if not schema.keys() - DESCRIBING <= _SCALARS or "type" not in schema:
        raise _Unhandled
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    found = None
    for kind in dict.fromkeys(kinds):
        made = _TYPES.get(kind)
        if made is None:
            raise _Unhandled
        found = made(schema) if found is None else found | made(schema)
    return found


def _enumerated(schema: dict[str, Any]) -> Any:
    """Return the type of those values of ``enum`` and ``const`` that the whole schema accepts."""
    check = check_of(schema, formats=False)
    if not schema.keys() <= DESCRIBING | {"type", "enum", "const"}:
        raise _Unhandled
    given = schema.get("enum", [schema.get("const")])
    allowed = tuple(each for each in given if each is None or type(each) is str or _is_whole(each))
    allowed = tuple(each for each in allowed if check(each) is None)
    if not allowed:
        raise _Unhandled
    return Literal[allowed]


def _is_whole(value: Any) -> bool:
    return type(value) is int and WHOLE_MIN <= value <= WHOLE_MAX


def _whole(schema: dict[str, Any]) -> Any:
    low, high = WHOLE_MIN, WHOLE_MAX
    for name in _BOUNDS.keys() & schema.keys():
        side, nearest = _BOUNDS[name]
        bound = nearest(schema[name])
        low, high = (max(low, bound), high) if side in ("ge", "gt") else (low, min(high, bound))
    if low > high:
        raise _Unhandled
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


def _number(schema: dict[str, Any]) -> Any:
    """Return the type of a number: whole numbers stay whole, as in the value of an untyped decoder."""
    bounds: dict[str, Any] = {}
    for name in _BOUNDS.keys() & schema.keys():
        bound = schema[name]
        if type(bound) is int and abs(bound) > _FLOAT_WHOLE_MAX:
            raise _Unhandled
        bounds[_BOUNDS[name][0]] = bound
    if {"ge", "gt"} <= bounds.keys() or {"le", "lt"} <= bounds.keys():
        raise _Unhandled
    return _whole(schema) | (Annotated[float, msgspec.Meta(**bounds)] if bounds else float)


def _sized(kind: str, type_: Any, schema: dict[str, Any]) -> Any:
    lengths: dict[str, Any] = {to: int(schema[name]) for name, to in _LENGTHS[kind].items() if name in schema}
    return Annotated[type_, msgspec.Meta(**lengths)] if lengths else type_


_TYPES: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "string": lambda schema: _sized("string", str, schema),
    "integer": _whole,
    "number": _number,
    "boolean": lambda schema: bool,
    "null": lambda schema: type(None),
    "array": lambda schema: _sized("array", list[_type_of(schema.get("items"))], schema),  # type: ignore[misc]
}
"""Types of JSON Schema whose values have a type of msgspec."""
