"""Whole numbers of an answer: 3.0 and 1e2 are integers in JSON Schema, and become integers in Python."""

from __future__ import annotations

from typing import Any

from cortex.values.json_schema.checks import resolved
from cortex.values.json_schema.keywords import check_of


def with_integers(value: Any, schema: Any, whole: Any) -> Any:
    """Return a valid value with integers where the schema asks for integers. ``whole``: schema that holds the
    references.

    https://json-schema.org/draft/2020-12/json-schema-validation#section-6.1.1: "integer" matches any number with a zero
    fractional part.
    """
    if not isinstance(schema, dict) or not _holds_whole_float(value):
        return value
    schema = resolved(schema, whole, "$") | {name: each for name, each in schema.items() if name != "$ref"}
    if isinstance(value, float):
        kinds = schema.get("type", ())
        if value.is_integer() and "integer" in ([kinds] if isinstance(kinds, str) else kinds):
            return value if "number" in kinds else int(value)
    elif isinstance(value, list):
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        value = [
            with_integers(each, first[place] if place < len(first) else rest, whole) for place, each in enumerate(value)
        ]
    elif isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        value = {name: with_integers(each, known.get(name, rest), whole) for name, each in value.items()}
    for name in ("allOf", "anyOf", "oneOf"):
        for each in schema.get(name, ()):
            if _fits(value, each, whole):
                value = with_integers(value, each, whole)
    return value


def _fits(value: Any, schema: Any, whole: Any) -> bool:
    held = whole if isinstance(whole, dict) else {}
    within = {"$defs": held.get("$defs", {}), "definitions": held.get("definitions", {})} | schema
    return check_of(within, formats=False)(value) is None if isinstance(schema, dict) else bool(schema)


def _holds_whole_float(value: Any) -> bool:
    """Return whether a float without a fraction is among the values: only such a value may become an integer."""
    kind = type(value)
    if kind is dict or kind is list:
        for each in value.values() if kind is dict else value:
            kind = type(each)
            if (kind is float and each.is_integer()) or ((kind is dict or kind is list) and _holds_whole_float(each)):
                return True
        return False
    return kind is float and bool(value.is_integer())
