"""Columns of a table of results: every type of an input comes back as itself, or as text, and never as an error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from actors.files.columns import arrow_column, arrow_schema, columns_of, decoded
from actors.files.table_reader import to_json_values
from cortex.programs.table import Table

THEMSELVES = {
    "i8": pa.array([1, None], pa.int8()), "u64": pa.array([2**64 - 1, None], pa.uint64()),
    "f16": pa.array([1.5, None]).cast(pa.float16()), "f32": pa.array([0.1, None], pa.float32()),
    "bool": pa.array([True, None]), "str": pa.array(["a", None]), "large": pa.array(["a", None], pa.large_string()),
    "view": pa.array(["a", None], pa.string_view()), "bytes": pa.array([b"\xff", None]),
    "lbytes": pa.array([b"\xff", None], pa.large_binary()), "fixed": pa.array([b"ab", None], pa.binary(2)),
    "bview": pa.array([b"ab", None], pa.binary_view()), "day": pa.array([dt.date(2020, 1, 1), None]),
    "day64": pa.array([dt.date(2020, 1, 1), None], pa.date64()), "time": pa.array([dt.time(1, 2, 3), None], pa.time32("s")),
    "time64": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")), "s": pa.array([1, None], pa.timestamp("s")),
    "ns": pa.array([1234567891234567891, None], pa.timestamp("ns")),
    "zone": pa.array([1, None], pa.timestamp("us", "Europe/Berlin")), "span": pa.array([5, None], pa.duration("ms")),
    "decimal": pa.array([Decimal("1.20"), None]), "d256": pa.array([Decimal("1.20"), None], pa.decimal256(40, 2)),
    "dict": pa.array(["a", None]).dictionary_encode(), "null": pa.array([None, None]), "list": pa.array([[1, 2], None]),
    "struct": pa.array([{"a": 1, "b": "x"}, None]), "pair": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "deep": pa.array([[{"a": [1.5]}], None]),
}  # fmt: skip
AS_TEXT = {
    "times": (pa.array([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], None]), '["2020-01-01T00:00:00Z"]'),
    "blobs": (pa.array([[b"x"], None]), '["eA=="]'),
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), '[["a",1]]'),
    "decimals": (pa.array([[Decimal("1.2")], None]), '["1.2"]'),
    "time_ns": (pa.array([1234567, None], pa.time64("ns")), "00:00:00.001234567"),
    "interval": (pa.array([pa.MonthDayNano([1, 2, 3]), None]), "[1,2,3]"),
    "words": (pa.array([["a"], None], pa.list_(pa.dictionary(pa.int32(), pa.string()))), '["a"]'),
}


def again(column: Any) -> Any:
    """A column through a job and back: as JSON, under the schema that is kept with the job."""
    given = pa.schema([pa.field("id", column.type, nullable=pa.types.is_null(column.type))])
    program = Table(prompt="{{id}}", id="id")
    kept = decoded(columns_of(program, [("id", "arrow")], given).encoded())
    values = msgspec.json.decode(msgspec.json.encode(to_json_values(column)))
    return arrow_column(values, arrow_schema(kept).field("id").type)


@pytest.mark.parametrize("name", THEMSELVES)
def test_what_comes_back_as_itself(name: str) -> None:
    assert again(THEMSELVES[name]).equals(THEMSELVES[name])


@pytest.mark.parametrize("name", AS_TEXT)
def test_what_comes_back_as_text(name: str) -> None:
    column, text = AS_TEXT[name]
    assert again(column).to_pylist() == [text, None]


def test_what_is_no_number_is_nothing() -> None:
    assert again(pa.array([float("nan"), float("inf"), 1.0])).to_pylist() == [None, None, 1.0]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, pa.int64()), ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()), ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, pa.bool_()),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, pa.string()), ({"enum": ["a", None]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()), ({"type": "array", "items": {"type": "number"}}, pa.list_(pa.float64())),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, pa.struct([("a", pa.string())])),
        ({"type": "object", "additionalProperties": {"type": "string"}}, pa.string()), ({}, pa.string()),
        ({"$ref": "#/$defs/X"}, pa.int64()), ({"type": "array"}, pa.string()), ({"const": "a"}, pa.string()),
        ({"type": "array", "items": {"type": ["string", "integer"]}}, pa.string()), ({"enum": [1, "a"]}, pa.string()),
        ({"type": "object", "properties": {"a": {}}}, pa.string()), ({"items": {"type": "string"}}, pa.string()),
    ],
)  # fmt: skip
def test_types_of_typed_answers(schema: dict[str, Any], kind: Any) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"X": {"type": "integer"}}}
    program = Table(prompt="{{id}}", id="id", schema=msgspec.json.encode(whole).decode())
    assert arrow_schema(columns_of(program, [("id", "text")])).field("x").type == kind


@pytest.mark.parametrize(
    ("kind", "values", "column"),
    [
        (pa.string(), ["a", None, 1, [2], {"b": None}, True], ["a", None, "1", "[2]", '{"b":null}', "true"]),
        (pa.string(), ["a", None], ["a", None]),
        (pa.float64(), [1, None, 2.5, 2**53 + 1, True], [1.0, None, 2.5, 2.0**53, 1.0]),
        (pa.float64(), [2**70, 0.5], [2.0**70, 0.5]),
    ],
)
def test_values_that_do_not_all_fit_as_they_are(kind: Any, values: list[Any], column: list[Any]) -> None:
    assert arrow_column(values, kind).to_pylist() == column
    assert arrow_column(values, kind).type == kind
