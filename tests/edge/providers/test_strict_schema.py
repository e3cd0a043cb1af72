"""Schemas in the form that OpenAI takes: what accepts the same values, with a type at each node, and what it can enforce."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.providers.chat_completions.request import chat_body
from actors.providers.client.strict_schema import FORMATS, is_strict, openai_schema
from actors.providers.responses.request import responses_body
from cortex.programs.parts.answer_forms import answer_form
from cortex.values.json_schema import formats
from cortex.values.json_schema.keywords import check_of

AB = {"type": "string", "enum": ["a", "b"]}
NULL = {"type": "null"}


def closed(**fields: Any) -> dict[str, Any]:
    """An object that OpenAI can enforce if it can its fields."""
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        # openclaw/clawpatch#60: "schema must have a 'type' key"
        ({"enum": ["a", "b"]}, AB),
        ({"const": "x"}, {"type": "string", "const": "x"}),
        ({"const": None}, {"type": "null", "const": None}),
        ({"enum": [1, 2], "description": "d"}, {"type": "integer", "enum": [1, 2], "description": "d"}),
        ({"enum": [True, False]}, {"type": "boolean", "enum": [True, False]}),
        ({"enum": [1, 2.5]}, {"type": "number", "enum": [1, 2.5]}),
        ({"enum": [None]}, {"type": "null", "enum": [None]}),
        # can1357/oh-my-pi#1835: "enum value javascript does not validate against {'type': 'null'}"
        ({"enum": ["a", None, "b"]}, {"anyOf": [AB, NULL]}),
        ({"enum": ["a", 1, 2.5, True], "title": "t"},
         {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "number", "enum": [1, 2.5]},
                    {"type": "boolean", "enum": [True]}], "title": "t"}),
        # a type that is there stays, and so does what has none
        (AB, AB), ({}, {}), ({"enum": []}, {"enum": []}), ({"description": "any"}, {"description": "any"}),
        ({"type": ["string", "null"], "enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"$ref": "#/$defs/e"}, {"$ref": "#/$defs/e"}),
        ({"anyOf": [{"enum": ["a", "b"]}, NULL]}, {"anyOf": [AB, NULL]}),
        # both types of a nullable choice in the form of tables are the whole of it
        ({"anyOf": [{"enum": ["a", "b", None]}] * 2, "description": "d"}, {"anyOf": [AB, NULL], "description": "d"}),
        ({"anyOf": [AB, AB]}, AB),
        ({"anyOf": [AB, AB], "enum": ["a"]}, {"anyOf": [AB], "enum": ["a"]}),
        # can1357/oh-my-pi#206, cyanheads/git-mcp-server#47: "'uri' is not a valid format"
        ({"type": "string", "format": "uri"}, {"type": "string", "description": "{format: uri}"}),
        ({"type": "string", "format": "uri", "description": "d"}, {"type": "string", "description": "d\n\n{format: uri}"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        # openai/openai-agents-python#4390: "'default' is not permitted"
        ({"type": "integer", "default": 1}, {"type": "integer", "description": "{default: 1}"}),
        # digitalocean-labs/mcp-digitalocean#265, campfirein/byterover-cli#42: "array schema missing items"
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["string", "array"]}, {"type": ["string", "array"], "items": {}}),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, {"type": "array", "items": AB}),
        # at each depth, and where a field is called as a keyword is
        (closed(format={"enum": ["a", "b"]}, enum=AB), closed(format=AB, enum=AB)),
        ({"$defs": {"e": {"enum": ["a", "b"]}}}, {"$defs": {"e": AB}}),
        ({"type": "object", "additionalProperties": {"enum": ["a", "b"]}}, {"type": "object", "additionalProperties": AB}),
        (True, True), ("no schema", "no schema"), ({"properties": [], "anyOf": {}}, {"properties": [], "anyOf": {}}),
    ],
)  # fmt: skip
def test_the_form_of_a_schema(schema: Any, form: Any) -> None:
    before = json.dumps(schema)
    assert openai_schema(schema) == form
    assert json.dumps(schema) == before, "the request that was given stays as it is"
    assert openai_schema(form) == form, "a schema that has the form keeps it"


def test_the_formats_are_openais_and_checked_here() -> None:
    assert formats.FORMATS.keys() - FORMATS == {"uri"}
    assert formats.FORMATS.keys() >= FORMATS


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (closed(a={"type": "string"}), True), (closed(a=AB), True), (closed(a={"anyOf": [AB, NULL]}), True),
        (closed(a={"type": "array", "items": AB}), True), (closed(a={"$ref": "#/$defs/e"}) | {"$defs": {"e": AB}}, True),
        # nodes without a type: can1357/oh-my-pi#211, openclaw/clawpatch#60
        ({}, False), (closed(a={}), False), (closed(a={"enum": ["a"]}), False), (closed(a={"const": "a"}), False),
        (closed(a={"type": "array", "items": {}}), False), (closed(a={"type": "array"}), False),
        (closed(a={"type": ["array", "null"]}), False), (closed(a={"description": "any"}), False),
        (closed(a={"$ref": "#/$defs/e"}) | {"$defs": {"e": {}}}, False), (True, False), (closed(a=True), False),
        # camel-ai/camel#3001: "$ref cannot have keywords {'description'}"
        (closed(a={"$ref": "#/$defs/e", "description": "d"}) | {"$defs": {"e": AB}}, False),
        # objects that are not closed, or may lack a field
        (closed(a={"type": ["object", "null"]}), False), ({"type": "object"}, False),
        (closed(a=AB) | {"required": []}, False), (closed(a=AB) | {"additionalProperties": True}, False),
        ({"type": "array", "items": closed(a=AB) | {"additionalProperties": True}}, False), (closed(), True),
        *((closed(a={"type": "string", word: {}}), False) for word in ("allOf", "oneOf", "not", "if", "dependentSchemas")),
    ],
)  # fmt: skip
def test_a_schema_is_strict_if_openai_would_take_it_so(schema: Any, strict: bool) -> None:
    assert is_strict(schema) == strict


CHOICES: dict[str, Any] = {
    "one": {"type": "string", "enum": ["a", "b"]}, "bare": {"enum": ["a", "b"]}, "only": {"const": "x"},
    "maybe": {"type": ["string", "null"], "enum": ["a", None]}, "mixed": {"enum": ["a", 1, None]},
    "each": {"type": "array", "items": {"enum": [1, 2]}}, "page": {"type": "string", "format": "uri"},
    "in": {"type": "object", "properties": {"x": {"enum": ["y"]}}, "required": ["x"]},
}  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_of_a_table_is_asked_for_strictly_by_both_apis(choice: str) -> None:
    """The schema of a table as its user writes it; the answer's type is enforced, not merely wished for."""
    schema = json.dumps({"type": "object", "properties": {choice: CHOICES[choice]}, "required": [choice]})
    asked = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "?"}]}
    body = json.dumps(asked | answer_form(schema, "format")).encode()
    chat = json.loads(chat_body(body))["response_format"]["json_schema"]
    response = json.loads(responses_body(body))["text"]["format"]
    assert chat["strict"] and response["strict"] and chat["schema"] == response["schema"]
    assert is_strict(chat["schema"]) and "uri" not in {each.get("format") for each in _nodes(chat["schema"])}
    tool = json.dumps(asked | answer_form(schema, "tool")).encode()
    assert json.loads(chat_body(tool))["tools"][0]["function"]["parameters"] == chat["schema"]
    assert json.loads(responses_body(tool))["tools"][0]["parameters"] == chat["schema"]


def _nodes(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [node for each in schema for node in _nodes(each)]
    return [schema, *(node for each in schema.values() for node in _nodes(each))] if isinstance(schema, dict) else []


_VALUES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.5, 1.5, "a", "b"])
_LISTED = st.lists(_VALUES, min_size=1, max_size=4).map(lambda found: {"enum": found}) | _VALUES.map(lambda v: {"const": v})
_SCHEMAS = st.recursive(
    _LISTED | st.sampled_from([{}, {"type": "string"}, {"type": "array"}, {"type": ["integer", "null"], "default": 1}]),
    lambda below: st.one_of(
        st.lists(below, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
        below.map(lambda each: {"type": "array", "items": each}),
        below.map(lambda each: {"type": "object", "properties": {"p": each}, "required": ["p"]}),
    ),
    max_leaves=4,
)
_INSTANCES = st.recursive(
    _VALUES, lambda below: st.lists(below, max_size=2) | st.fixed_dictionaries({"p": below}), max_leaves=3
)


@given(_SCHEMAS, _INSTANCES)
def test_the_form_accepts_the_same_values(schema: dict[str, Any], value: Any) -> None:
    assert (check_of(openai_schema(schema))(value) is None) == (check_of(schema)(value) is None)
