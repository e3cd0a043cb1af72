"""Keywords of JSON Schema 2020-12: each one is checked as by ``jsonschema``, refused, or describes only."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from jsonschema_specifications import REGISTRY

from cortex.values.json_schema.checks import DESCRIBING, REFUSED, SchemaError
from cortex.values.json_schema.formats import EXAMPLES, FORMATS
from cortex.values.json_schema.keywords import CHECKED, check_of
from tests.support.repository_rules import ROOT

META = "https://json-schema.org/draft/2020-12/meta/"
VOCABULARIES = (
    "core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "format-assertion", "content",
)  # fmt: skip
AT_THE_TOP = "$id"
STRINGS = ["", "a", "ab", "abc", "A1"]
VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, 2, 3, -1, 1.5, 2.5, 10**6, *STRINGS, [], [1], [1, 1.0], [1, True], [True], ["a", 1],
    [1, "a"], [1, "a", None], [[1], [1.0]], [{"a": 1}, {"a": 1.0}], {}, {"a": 1}, {"a": "x"}, {"b": 2}, {"a": 1, "b": 2},
    {"a": None, "c": 3}, {"ab": 1}, {"a": {"b": [1]}},
]  # fmt: skip
SCHEMAS: dict[str, list[dict[str, Any]]] = {
    "type": [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "array", "object")]
    + [{"type": ["integer", "null"]}, {"type": ["number", "string"]}],
    "enum": [{"enum": [1, "a", None]}, {"enum": [True, [1], {"a": 1.0}]}, {"enum": [0, 1.5]}, {"type": "string", "enum": ["a", 1]}],
    "const": [{"const": 1}, {"const": True}, {"const": [1, True]}, {"const": {"a": 1}}, {"const": None}],
    "$ref": [{"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}, "minimum": 1}],
    "format": [{"format": name} for name in ("date", "ipv4", "ipv6", "uuid")],
    "allOf": [{"allOf": [{"minimum": 1}, {"maximum": 2}]}],
    "anyOf": [{"anyOf": [{"type": "string"}, {"minimum": 2}]}],
    "oneOf": [{"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]}],
    "not": [{"not": {"type": "string"}}, {"not": {}}],
    "if": [{"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}}, {"if": {"type": "string"}}],
    "then": [{"if": {"minimum": 1}, "then": {"multipleOf": 2}}, {"then": False}],
    "else": [{"if": {"type": "object"}, "else": {"type": "array"}}, {"else": False}],
    "minimum": [{"minimum": 1}, {"minimum": 1.5}], "maximum": [{"maximum": 1}, {"maximum": 1.5}],
    "exclusiveMinimum": [{"exclusiveMinimum": 1}], "exclusiveMaximum": [{"exclusiveMaximum": 1.5}],
    "multipleOf": [{"multipleOf": 1}, {"multipleOf": 1.5}, {"multipleOf": 0.5}],
    "minLength": [{"minLength": 2}, {"minLength": 2.0}], "maxLength": [{"maxLength": 1}],
    "pattern": [{"pattern": "^a"}, {"pattern": "[A-Z]"}],
    "prefixItems": [{"prefixItems": [{"type": "integer"}, {"type": "string"}]}],
    "items": [{"items": {"type": "integer"}}, {"items": False}, {"prefixItems": [{}], "items": {"type": "string"}}],
    "contains": [{"contains": {"type": "string"}}, {"contains": {"type": "integer"}, "minContains": 0}],
    "minContains": [{"contains": {"type": "integer"}, "minContains": 2}, {"minContains": 2}],
    "maxContains": [{"contains": {"type": "integer"}, "maxContains": 1}],
    "minItems": [{"minItems": 1}], "maxItems": [{"maxItems": 1}],
    "uniqueItems": [{"uniqueItems": True}, {"uniqueItems": False}],
    "properties": [{"properties": {"a": {"type": "integer"}, "b": False}}],
    "required": [{"required": ["a"]}, {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}],
    "additionalProperties": [
        {"additionalProperties": False}, {"properties": {"a": {}}, "additionalProperties": {"minimum": 3}},
        {"patternProperties": {"^a": {}}, "additionalProperties": False},
    ],
    "patternProperties": [{"patternProperties": {"^a": {"type": "integer"}}}],
    "propertyNames": [{"propertyNames": {"maxLength": 1}}, {"propertyNames": {"enum": ["a"]}}],
    "minProperties": [{"minProperties": 1}, {"properties": {"a": {}}, "minProperties": 2}],
    "maxProperties": [{"maxProperties": 1}],
    "dependentRequired": [{"dependentRequired": {"a": ["b"]}}],
    "dependentSchemas": [{"dependentSchemas": {"a": {"maxProperties": 1}}}],
}  # fmt: skip


def keywords() -> set[str]:
    names: set[str] = set()
    for vocabulary in VOCABULARIES:
        names |= set(REGISTRY.contents(META + vocabulary)["properties"])
    return names


def test_every_keyword_is_checked_refused_or_describes() -> None:
    groups = [CHECKED, DESCRIBING, REFUSED, frozenset({AT_THE_TOP})]
    assert keywords() - frozenset().union(*groups) == set()
    assert sum(map(len, groups)) == len(frozenset().union(*groups))
    assert set(SCHEMAS) == CHECKED


def test_the_specification_names_no_other_vocabulary() -> None:
    whole = REGISTRY.contents("https://json-schema.org/draft/2020-12/schema")
    assert {each["$ref"].removeprefix("meta/") for each in whole["allOf"]} <= set(VOCABULARIES)


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_a_checked_keyword_has_the_verdict_of_jsonschema(name: str) -> None:
    verdicts = set()
    for schema in SCHEMAS[name]:
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        check = check_of(schema)
        for value in [*VALUES, *EXAMPLES.values()]:
            valid = check(value) is None
            assert valid == validator.is_valid(value), (schema, value)
            verdicts.add(valid)
    assert verdicts == {True, False}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_keyword_that_is_not_checked_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="answers cannot be checked by it"):
        check_of({name: {}})


@pytest.mark.parametrize("name", sorted(DESCRIBING))
def test_a_describing_keyword_says_nothing_of_validity(name: str) -> None:
    schema = {name: {} if name in ("$defs", "definitions", "contentSchema") else "x"}
    assert all(check_of(schema)(value) is None for value in VALUES)


def test_an_identifier_is_taken_at_the_top_only() -> None:
    check_of({"$id": "https://example.org/a"})
    with pytest.raises(SchemaError, match="at the top only"):
        check_of({"items": {"$id": "https://example.org/a"}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": []}, {"type": "text"}, {"type": 3}, {"enum": 1}, {"enum": []}, {"$ref": 1}, {"$ref": "#/a"}, {"format": 3},
        {"format": "regex"}, {"allOf": []}, {"anyOf": {}}, {"oneOf": [3]}, {"not": 3}, {"if": 3}, {"then": 3}, {"else": 3},
        {"minimum": "1"}, {"maximum": True}, {"exclusiveMinimum": True}, {"multipleOf": 0}, {"minLength": -1},
        {"maxLength": 1.5}, {"pattern": "("}, {"pattern": 3}, {"prefixItems": []}, {"items": [{}]}, {"contains": 3},
        {"minContains": "1"}, {"maxContains": -1}, {"minItems": None}, {"uniqueItems": 1}, {"properties": []},
        {"required": "a"}, {"required": [1]}, {"additionalProperties": 3}, {"patternProperties": {"(": {}}},
        {"propertyNames": 1}, {"dependentRequired": {"a": "b"}}, {"dependentSchemas": {"a": 3}}, {"dependencies": {}},
        {"divisibleBy": 2}, 3,
    ],
)  # fmt: skip
def test_a_keyword_with_a_wrong_value_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError) as error:
        check_of(schema)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "unit", "fits"), [(0.3, 0.1, True), (0.35, 0.1, False), (1e300, 3, False), (12, 0.5, True)]
)
def test_multiples_are_those_of_the_decimals_as_written(value: float, unit: float, fits: bool) -> None:
    assert (check_of({"multipleOf": unit})(value) is None) == fits


def test_the_page_lists_what_is_refused_and_what_describes() -> None:
    page = (ROOT / "docs/typed-answers.md").read_text()
    listed = page.partition("## What is checked")[2].partition("\n## ")[0]
    describing = DESCRIBING - {"$schema", "$defs", "definitions", "discriminator"}
    assert [name for name in sorted(REFUSED | describing | set(FORMATS)) if f"`{name}`" not in listed] == []
