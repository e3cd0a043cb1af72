"""Over generated schemas and values the check of an answer comes to the verdict of ``jsonschema``."""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.values.json_schema.formats import EXAMPLES
from cortex.values.json_schema.keywords import check_of

NAMES = ["a", "b", "ab"]
COMPARED = ("date", "ipv4", "ipv6", "uuid")
"""Formats that both check by the same rule, without further libraries."""
scalars = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from([0.0, 1.0, 1.5, -2.0, 1e2, 1e6])
    | st.sampled_from(["", "a", "ab", "abc", "é", "😀", *(EXAMPLES[name] for name in COMPARED)])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=4),
    max_leaves=8,
)
sizes = st.integers(0, 3)
numbers = st.integers(-3, 9) | st.sampled_from([0.5, 1.5, 2.0])
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
flat: dict[str, st.SearchStrategy[Any]] = {
    "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
    "enum": st.lists(values, min_size=1, max_size=4), "const": values, "minimum": numbers, "maximum": numbers,
    "exclusiveMinimum": numbers, "exclusiveMaximum": numbers, "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5, 2.0]),
    "minLength": sizes, "maxLength": sizes, "pattern": st.sampled_from(["^a", "b$", "[0-9]", ""]),
    "minItems": sizes, "maxItems": sizes, "uniqueItems": st.booleans(), "minProperties": sizes, "maxProperties": sizes,
    "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True), "format": st.sampled_from(COMPARED),
    "minContains": sizes, "maxContains": sizes, "title": st.just("t"), "default": scalars,
    "dependentRequired": st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=2), max_size=2),
}  # fmt: skip


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    deep = {
        "items": inner, "prefixItems": some, "contains": inner, "properties": named, "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2), "propertyNames": inner,
        "dependentSchemas": named, "allOf": some, "anyOf": some, "oneOf": some, "not": inner, "if": inner, "then": inner,
        "else": inner,
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional=flat | deep)


def _few(schema: Any, draw: Any) -> Any:
    """The schema with at most four keywords, so that values fit it often enough."""
    names = draw(st.lists(st.sampled_from(sorted(schema)), max_size=4, unique=True)) if schema else []
    kept = {name: schema[name] for name in names}
    properties = kept.get("properties")
    if properties and "required" in kept:  # a required name that is no property is refused
        kept["required"] = [name for name in kept["required"] if name in properties]
    return kept


@st.composite
def schemas(draw: Any, depth: int = 3) -> Any:
    if depth == 0:
        return draw(st.booleans() | st.builds(dict, type=kinds))
    return _few(draw(_deeper(schemas(depth=depth - 1))), draw) if draw(st.integers(0, 3)) else draw(schemas(depth=0))


@settings(max_examples=150)
@given(schemas(), st.lists(values, min_size=8, max_size=8))
def test_the_verdict_of_jsonschema(schema: Any, some: list[Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    theirs = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(COMPARED))
    ours = check_of(schema)
    for value in some:
        assert (ours(value) is None) == theirs.is_valid(value), value
