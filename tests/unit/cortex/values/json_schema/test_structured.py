"""Schemas that structured outputs express without loss, and those that are asked for in words."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from cortex.values.json_schema.structured import structured_form


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Point(msgspec.Struct):
    x: int
    y: float | None = None


class Line(msgspec.Struct):
    points: list[Point]
    side: Side
    kind: Literal["a", "b"] = "a"


class Price(pydantic.BaseModel):
    amount: Decimal
    tags: list[str] = []


class Tree(msgspec.Struct):
    children: list[Tree]


class Map(msgspec.Struct):
    counts: dict[str, int]


class Anything(msgspec.Struct):
    value: Any


class Untyped(msgspec.Struct):
    values: list[Any]


class Empty(msgspec.Struct):
    pass


def _struct(count: int, optional: bool = False, kind: Any = int) -> Any:
    fields = [(f"f{n}", kind, *((None,) if optional else ())) for n in range(count)]
    return msgspec.json.schema(msgspec.defstruct("Many", fields))


def _schema(type_: Any) -> Any:
    return type_.model_json_schema() if hasattr(type_, "model_json_schema") else msgspec.json.schema(type_)


@pytest.mark.parametrize(
    ("schema", "expressed"),
    [
        *((_schema(each), True) for each in (Point, Line, Price)),
        *((_schema(each), False) for each in (Tree, Map, Anything, Untyped, Empty, list[int], int, dict[str, int])),
        (_struct(100), True), (_struct(101), False),
        (_struct(24, optional=True), True), (_struct(25, optional=True), False),
        (_struct(16, kind=int | None), True), (_struct(17, kind=int | None), False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}, False),
        ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, True),
        ({"type": "object", "properties": {"a": {"type": ["object", "null"]}}}, False),
        ({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}}, True),
        ({"type": "object", "properties": {"a": {"minimum": 1}}}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, False),
    ],
)  # fmt: skip
def test_a_schema_is_expressed_if_its_answers_are_the_same(schema: Any, expressed: bool) -> None:
    form = structured_form(schema)
    assert (form is not None) == expressed
    assert form is None or b'"additionalProperties":false' in msgspec.json.encode(form)
