"""Fast paths of tables: an answer read by a typed decoder, a row rendered from its bytes, a result put together from
bytes. Each gives what the general path gives, or leaves the value to it."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.programs import table
from cortex.programs.table import Table
from cortex.state.changes import Emit
from cortex.state.state import Goal, State
from cortex.values.reply import Malformed, Reply, Usage
from cortex.values.schema import AnswerShape
from cortex.values.template import Template, values_as_written
from tests.support.state_machine_harness import terms

NAMES = ["a", "b", 'a"b', "é", "field_0"]
SCALARS = ("string", "integer", "number", "boolean", "null")
NUMBERS = st.integers(-3, 9) | st.sampled_from([0.5, 2.0, -1.5, 1 << 53, (1 << 53) + 1, 1 << 63, 1e300, 1 << 70])
SIZES = st.integers(0, 3) | st.just(2.0)
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
    "minLength": SIZES, "maxLength": SIZES, "minItems": SIZES, "maxItems": SIZES, "description": st.just("d"),
    "enum": st.lists(st.sampled_from(["a", "é", 1, 1.0, True, None, -3, 1 << 70]), min_size=1, max_size=3),
    "const": st.sampled_from(["a", 2, None, False]), "pattern": st.just("a"), "format": st.just("date"),
}  # fmt: skip
FIELDS = st.tuples(
    st.sampled_from(SCALARS) | st.lists(st.sampled_from((*SCALARS, "array")), min_size=1, max_size=3, unique=True)
    | st.just("array"),
    st.fixed_dictionaries({}, optional=KEYWORDS), st.sets(st.sampled_from(sorted(KEYWORDS)), max_size=3),
    st.sampled_from(SCALARS),
).map(lambda it: {"type": it[0], **{name: it[1][name] for name in it[1] if name in it[2]}, "items": {"type": it[3]}})  # fmt: skip
LITERALS = st.sampled_from(
    ['"a"', '"é"', '"abc"', '"\\u00e9\\n"', '"2026-01-01"', '""', "0", "1", "2", "-3", "9", "-0", "0.5", "1.0", "2.0",
     "1e2", "-0.0", "-1.5", "9007199254740993", "9223372036854775807", "9223372036854775808", "1e300", "1e999", "true",
     "false", "null", "[]", "[1]", '["a",null]', "[1.0,2]", "{}"]
)  # fmt: skip
FRAMES = st.sampled_from(["%s", " \n%s\t", "```json\n%s\n```", "\u00a0%s", "%s x", "\ufeff%s"])


@st.composite
def schemas(draw: Any) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    schema: dict[str, Any] = {"type": "object", "properties": {name: draw(FIELDS) for name in names}}
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(st.sampled_from(names), unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.booleans())
    return schema


@st.composite
def answers(draw: Any, names: list[str]) -> str:
    order = draw(st.permutations(names)) + draw(st.lists(st.sampled_from(NAMES), max_size=1))
    left_out = draw(st.sampled_from([None, *names, None]))
    pairs = [f"{json.dumps(name)}: {draw(LITERALS)}" for name in order if name != left_out]
    return str(draw(FRAMES)).replace("%s", "{" + ", ".join(pairs) + "}")


def outcome(shape: AnswerShape, text: str, *, fast: bool) -> Any:
    """The fields as bytes, so that 1 and 1.0 differ and the order counts; or the reason."""
    found = shape._fast_decode
    shape._fast_decode = found if fast else None
    try:
        return json.dumps(shape.read(text))
    except Malformed as error:
        return str(error)
    finally:
        shape._fast_decode = found


@settings(max_examples=120)
@given(st.data())
def test_a_typed_decoder_reads_an_answer_as_the_checks_do(data: Any) -> None:
    schema = data.draw(schemas())
    shape = AnswerShape(schema, formats=False)
    for _ in range(6):
        text = data.draw(answers([*schema["properties"]]))
        assert outcome(shape, text, fast=True) == outcome(shape, text, fast=False), (schema, text)


USUAL = {
    "n": ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9.5}, "9", "10"),
    "x": ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "0.5", "0"),
    "s": ({"type": "string", "minLength": 1, "maxLength": 2}, '"éé"', '"abc"'),
    "e": ({"enum": ["even", "odd", None]}, '"odd"', '"old"'),
    "o": ({"type": ["integer", "null"]}, "null", '"1"'),
    "l": ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, '["a"]', "[1]"),
    "t": ({"type": "boolean", "description": "a boolean"}, "true", "1"),
}
"""Fields of usual schemas: each with a value that the decoder takes, and one that it leaves to the checks."""


@pytest.mark.parametrize("name", USUAL)
def test_the_decoder_takes_what_fits_a_usual_schema_and_leaves_the_rest(name: str) -> None:
    schema, fits, misfit = USUAL[name]
    shape = AnswerShape({"type": "object", "properties": {name: schema}, "required": [name]})
    answer = shape.fast_read(f'{{"{name}": {fits}}}')
    assert msgspec.json.encode(answer) == f'{{"{name}":{fits}}}'.encode()
    for other in (f'{{"{name}": {misfit}}}', "{}", f'{{"{name}": {fits}, "more": 1}}', "[]", "x"):
        assert shape.fast_read(other) is None


TEXTS = st.sampled_from(["", " ", "a", "é%s", 'say "x"', "two\nlines", "\\u00e9", "-0", "{{a}}", "\u2028"])
VALUES = TEXTS | TEXTS | st.sampled_from([0, 1, -1.5, None, True, [1, "é"], {"a": None}, msgspec.Raw(b"-0"), msgspec.Raw(b"1E5")])
ROWS = st.dictionaries(st.sampled_from(["id", "a", "b", 'a"b']), VALUES, max_size=4).map(msgspec.json.encode)
SOURCES = st.sampled_from(["{{a}}", "100% {{a}}: {{b}}", "{{a}}{{a}}", '{{a"b}}', r"\{{ {{b}} }}", "no column", "{{id}} %s"])


@given(SOURCES, ROWS)
def test_a_row_is_rendered_alike_from_its_bytes(source: str, row: bytes) -> None:
    template = Template(source)
    fast = template.fast_render(row)
    assert fast in (None, template.render(values_as_written(row)))


def test_a_row_of_texts_is_rendered_from_its_bytes() -> None:
    assert Template("100% {{b}}: {{a}}").fast_render(b'{"a":"x","id":1,"b":" "}') == "100%  : x"


def lines(program: Table, key: str, row: bytes, text: str, *, fast: bool) -> Any:
    """The changes that follow from a reply to a row, in words."""
    goal = Goal("row", [key, row, None, 0, 0])
    reply = Reply(msgspec.json.encode({"content": [{"type": "text", "text": text}]}), "end_turn", "m", Usage(1, 1))
    with mock.patch.object(table, "_fast_line", table._fast_line if fast else lambda program: None):
        changes = list(program.absorb(State(terms=terms()), goal, reply))
    return [change.value if type(change) is Emit else type(change) for change in changes], [
        change.ending for change in changes if type(change) is Emit
    ]


SHAPE = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}, "é": {"type": "string"}}, "required": ["n"]})


@given(
    st.sampled_from(["id", "id", "a", "n", "answer", 'a"b']), st.sampled_from(["", SHAPE]),
    st.sampled_from([{}, {}, {}, {"schema_as": "tool"}, {"with_input": True}, {"meta": True}, {"ordered": True}]),
    st.sampled_from(["", "fail"]), ROWS, TEXTS,
    TEXTS | st.sampled_from(['{"n":1}', '{"é":"\\n","n":1}', '{"n":1.0}', '{"n":"x"}', '```\n{"n":2}\n```']),
)  # fmt: skip
def test_a_result_from_bytes_is_the_same_result(id_, schema, options, on_cut, row, key, text) -> None:
    program = Table(prompt="{{a}}", id=id_, schema=schema, on_cut=on_cut, **options)
    assert lines(program, key, row, text, fast=True) == lines(program, key, row, text, fast=False)


@pytest.mark.parametrize("schema", ["", SHAPE])
@pytest.mark.parametrize(
    ("key", "row", "id_"),
    [
        ("x", b'{"id":"x","a":"b"}', b'"x"'), ("x", b'{"a":"b","id":"x"}', b'"x"'), ("x", b'{"id":" x","a":"b"}', b'" x"'),
        ("1", b'{"id":1.0,"a":"b"}', b"1.0"), ("0", b'{"id":-0,"a":"b"}', b"-0"), ("3", b'{"a":"id"}', b'"3"'),
        ('say "x"', rb'{"id":"say \"x\"","a":"b"}', rb'"say \"x\""'),
    ],
)  # fmt: skip
def test_a_result_from_bytes_has_the_id_as_it_is_written(schema: str, key: str, row: bytes, id_: bytes) -> None:
    text, rest = ('{"n":7}', b'"n":7,"\xc3\xa9":null,"answer":null') if schema else ("yes", b'"answer":"yes"')
    fast_line = table._fast_line(Table(prompt="{{a}}", id="id", schema=schema))
    assert fast_line is not None
    assert fast_line(key, row, text) == b'{"id":%b,%b,"error":null}' % (id_, rest)
