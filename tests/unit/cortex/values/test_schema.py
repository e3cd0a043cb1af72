"""A JSON schema as what answers must be: what fits, what is refused and in which words, what the provider is sent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cortex.values.reply import Malformed
from cortex.values.schema import AnswerShape, SchemaError


def shape(more: dict[str, Any] | None = None, **properties: Any) -> AnswerShape:
    return AnswerShape({"type": "object", "properties": properties, "required": list(properties), **(more or {})})


@pytest.mark.parametrize(
    ("schema", "good", "bad", "said"),
    [
        ({"type": "string"}, ["", "a"], [1, None], "Expected `str`, got `int` - at `$.x`"),
        ({"type": "integer"}, [0, -7, 10**18], ["1", 1.5, True, 2**63], "Expected `int`, got `str` - at `$.x`"),
        ({"type": "number"}, [0, 1.5], ["1", True], "Expected `float`, got `str`"),
        ({"type": "boolean"}, [True, False], [0, "true"], "Expected `bool`, got `int`"),
        ({"type": "null"}, [None], [0], "Expected `null`, got `int`"),
        ({"type": ["string", "null"]}, ["a", None], [1], "Expected `str | null`, got `int`"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["a"], "got `str`"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [[]], "got `array`"),
        ({"allOf": [{"type": "integer"}]}, [1], ["a"], "got `str`"),
        ({"enum": ["bug", "praise"]}, ["bug"], ["Bug", 1], "Invalid enum value 'Bug'"),
        ({"enum": ["bug", None, 3]}, ["bug", None, 3], ["x"], "Invalid enum value 'x'"),
        ({"enum": [True, False]}, [True], [1], "Invalid enum value 1"),
        ({"const": "v1"}, ["v1"], ["v2"], "Invalid enum value 'v2'"),
        ({"const": {"a": [1.0]}}, [{"a": [1]}], [{"a": [True]}], "Invalid enum value {'a': [True]}"),
        ({"type": "string", "enum": ["a", 1]}, ["a"], [1], "Expected `str`, got `int`"),
        ({"enum": [1.5, True]}, [1.5, True], [1], "Invalid enum value 1"),
        ({"minLength": 2}, ["ab", 1, None], ["a"], "length >= 2"),
        ({"$ref": "#/properties/x/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer"}}}, [3], [2, "a"], ">= 3"),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [1, 3, "a"], [4, 0], "Expected `int` <= 3 - at `$.x`"),
        ({"not": {"type": "string"}}, [1], ["a"], "does not fit the schema of `not`"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.5], [1], "exactly one of 2 schemas; it fits 2"),
        ({"anyOf": [{"type": "object", "properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k"]},
                    {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]},
         [{"k": "a", "v": 1}, {"k": "b"}], [{"k": "a", "v": "x"}, {}, 1], "at `$.x.v`"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
         [[1, "a"]], [["a", 1], [1], [1, "a", 2]], "at `$.x[0]`"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, [{"a": 1}, {"b": 1}], [{}], "length >= 1"),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["garbage", "2023-02-29"], "in the format date, like 2026-01-31"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, [1, 5], [0, 6], "Expected `int` >= 1"),
        ({"type": "number", "exclusiveMinimum": 0}, [0.1], [0], "Expected `float` > 0"),
        ({"type": "integer", "multipleOf": 5}, [10], [7], "multiple of 5"),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab"], ["a", "abcd"], "length >= 2"),
        ({"type": "string", "pattern": "^[A-Z]+$"}, ["AB"], ["ab"], "matching regex"),
        ({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [[1]], "at `$.x[0]`"),
        ({"items": {"type": "integer"}}, [[1]], [["a"]], "at `$.x[0]`"),
        ({"type": "array", "minItems": 1}, [[1, "a"]], [[]], "length >= 1"),
        ({"type": "object", "properties": {"y": {"type": "integer"}}}, [{}, {"y": 1}, {"z": 2}], [{"y": "a"}], "$.x.y"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "b"}], "at `$.x[...]`"),
        ({"type": "object", "properties": {"y": {}}, "additionalProperties": False}, [{"y": [1]}], [{"z": 1}], "`z`"),
        ({}, [1, "a", None, {}], [], ""),
        (True, [1, "a"], [], ""),
    ],
)  # fmt: skip
def test_what_fits_and_what_does_not(schema: Any, good: list[Any], bad: list[Any], said: str) -> None:
    of = shape(x=schema)
    for value in good:
        assert of.read(json.dumps({"x": value})) == {"x": value}
    for value in bad:
        with pytest.raises(Malformed):
            of.read(json.dumps({"x": value}))
    if bad:
        with pytest.raises(Malformed) as error:
            of.read(json.dumps({"x": bad[0]}))
        assert said in str(error.value)


def test_fields_come_in_the_order_of_the_schema_and_those_that_lack_are_null() -> None:
    of = AnswerShape({"type": "object", "properties": {"b c": {"type": "string"}, "a": {"type": "integer"}}})
    assert of.read('```json\n{"a": 1}\n```') == {"b c": None, "a": 1}
    assert list(of.read('{"a": 1, "b c": "x", "z": 0}')) == ["b c", "a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the answer is empty"), ("bug", "JSON is malformed"), ('{"x": 1', "truncated"), ("[1]", "Expected `object`"),
        ("{}", "missing required field `x`"), ('{"x": 1} and so on', "trailing"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_such_answer(text: str, said: str) -> None:
    with pytest.raises(Malformed) as error:
        shape(x={"type": "integer"}).read(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("schema", "said", "value"),
    [
        ({"type": "integer"}, "3.0", 3), ({"type": "integer"}, "1e2", 100), ({"type": "integer"}, "-0.0", 0),
        ({"type": ["integer", "null"]}, "3.0", 3), ({"type": "number"}, "3.0", 3.0), ({}, "3.0", 3.0),
        ({"type": ["integer", "number"]}, "3.0", 3.0), ({"type": "integer", "enum": [3]}, "3.0", 3),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "2e0", 2),
        ({"oneOf": [{"type": "string"}, {"allOf": [{"type": "integer"}]}]}, "2.0", 2),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2.0, 3e0]", [1, 2, 3]),
        ({"prefixItems": [{"type": "number"}], "items": {"type": "integer"}}, "[1.0, 2.0]", [1.0, 2]),
        ({"additionalProperties": {"type": "integer"}}, '{"a": 4.0}', {"a": 4}),
        ({"properties": {"b": {"$ref": "#/properties/x/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}, '{"b": 4.0}', {"b": 4}),
    ],
)  # fmt: skip
def test_a_number_with_a_zero_fraction_is_an_integer(schema: Any, said: str, value: Any) -> None:
    found = shape(x=schema).read(f'{{"x": {said}}}')
    assert repr(found) == repr({"x": value})


@pytest.mark.parametrize("said", ["1.5", "1e30", "true", '"3"'])
def test_other_numbers_are_no_integers(said: str) -> None:
    with pytest.raises(Malformed):
        shape(x={"type": "integer"}).read(f'{{"x": {said}}}')


FENCE = "Here it is:\n\n```json\n{%s}\n```\nAnything else?"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"x": 3}', 3), ('```json\n{"x": 3}\n```', 3), (FENCE % '"x": 3', 3), ('Sure: {"x": 3}', 3), ('{"x": 3} and so on', 3),
        ('Of {these} I take {"x": "}{"}.', "}{"), ('{"x": 3} that is\n```\n{ "x": 3.0 }\n```', 3),
    ],
)  # fmt: skip
def test_the_one_object_of_a_text_that_was_asked_for_in_words(text: str, found: Any) -> None:
    assert shape(x={"type": ["integer", "string"]}).read(text, in_words=True) == {"x": found}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"x": 3} or {"x": 4}', "several different"), ('{"y": {"x": 3}', "truncated"), ('See {"x": 3} and {"x": 4', "malformed|trailing"),
        ("no object", "malformed"), ("[3] {a}", "trailing|malformed"), ('{"a":' * 50_000, "nested too deeply"),
        ('say {"a":' + "[" * 100_000, "nested too deeply"), ("{" * 100_000, "nested too deeply"), ("", "empty"),
    ],
)  # fmt: skip
def test_a_text_that_holds_no_one_object(text: str, words: str) -> None:
    with pytest.raises(Malformed, match=f"(?i){words}"):
        shape(x={"type": "integer"}).read(text, in_words=True)


def test_references_are_followed() -> None:
    whole = {
        "$ref": "#/$defs/Answer",
        "$defs": {
            "Answer": {
                "type": "object",
                "properties": {"who": {"$ref": "#/$defs/Who"}, "also": {"$ref": "#/$defs/Who"}},
            },
            "Who": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    }
    of = AnswerShape(whole)
    assert of.read('{"who": {"name": "Ann"}, "also": {"name": "Bob"}}')["who"] == {"name": "Ann"}
    with pytest.raises(Malformed, match="who"):
        of.read('{"who": {}}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "not a JSON schema"),
        ({"type": "string"}, "become the columns"),
        ({"type": "object"}, "become the columns"),
        ({"type": "object", "properties": {"a": {"type": "strng"}}}, r"\$\.a: type 'strng': did you mean string"),
        ({"type": "object", "properties": {"a": 3}}, r"\$\.a must be a schema"),
        ({"type": "object", "properties": {"a": {}}, "requierd": ["a"]}, "keyword 'requierd': did you mean required"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "names 'b', which is no property"),
        ({"type": "object", "properties": {"a": {"$dynamicRef": "#a"}}}, "'\\$dynamicRef': answers cannot be checked by it"),
        ({"type": "object", "properties": {"a": {"format": "iri"}}}, r"\$\.a: format 'iri': .* did you mean uri"),
        ({"type": "object", "properties": {"a": {"format": "regex"}}}, "format 'regex': .*: use one of date-time, .*leave it out"),
        ({"type": "object", "properties": {"a": {"items": [{}]}}}, "a list of schemas is prefixItems"),
        ({"type": "object", "properties": {"a": {"enum": []}}}, "no answer could be valid"),
        ({"type": "object", "properties": {"a": {"anyOf": []}}}, "must be a list of schemas"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}}, "leads to nothing"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "leads out of the schema"),
        ({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"$ref": "#/properties/a"}}}}},
         "contains itself"),
        ({"type": "object", "properties": {f"c{i}": {} for i in range(501)}}, "at most 500"),
    ],
)  # fmt: skip
def test_what_is_no_schema_to_check_by(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words) as error:
        AnswerShape(schema)
    assert "\n" not in str(error.value)


class Person(msgspec.Struct):
    name: str
    age: int | None = None


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}, "required": ["a"], "title": "T"},
    {"type": "object", "properties": {"a": {"enum": ["x", "y"], "description": "one"}, "b": {"const": 1}}},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "description": "n"}}, "description": "d"},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}, "minItems": 3}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}, "minItems": 1}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {}, "additionalProperties": True}}},
    msgspec.json.schema(Person),
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_provider_is_sent_what_its_sdk_would_send(schema: dict[str, Any]) -> None:
    from anthropic import transform_schema

    assert AnswerShape(schema | {}).provider_form() == transform_schema(json.loads(json.dumps(schema)))


def test_a_type_of_several_kinds_becomes_a_choice_between_them() -> None:
    form = shape(x={"type": ["string", "null"], "description": "d"}).provider_form()
    assert form["properties"]["x"] == {
        "anyOf": [{"type": "string", "description": "d"}, {"type": "null", "description": "d"}]
    }
