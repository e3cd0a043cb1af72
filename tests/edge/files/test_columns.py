"""Columns of a table of results: every type of an input comes back as itself, or as text, and never as an error."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from actors.files.arrow_values import arrow_column, to_json_values
from actors.files.columns import Columns, arrow_columns, arrow_schema, columns_of, decoded
from cortex.programs.parts.embedding import packed
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
    "times": pa.array([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], None]), "blobs": pa.array([[b"x"], None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), "decimals": pa.array([[Decimal("1.2")], None]),
    "time_ns": pa.array([1234567, None], pa.time64("ns")), "inf": pa.array([float("inf"), float("-inf"), None]),
    "words": pa.array([["a"], None], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "uuid": pa.array([b"0123456789abcdef", None], pa.uuid()), "json": pa.array(['{"a":1}', None], pa.json_()),
}  # fmt: skip
AS_TEXT = {"interval": (pa.array([pa.MonthDayNano([1, 2, 3]), None]), "[1,2,3]")}


def again(column: Any) -> Any:
    """A column through a job and back: as JSON, under the schema that is kept with the job."""
    given = pa.schema([pa.field("id", column.type, nullable=pa.types.is_null(column.type))])
    program = Table(prompt="{{id}}", id="id")
    kept = decoded(columns_of(program, [("id", "arrow")], given).encoded())
    values = msgspec.json.decode(msgspec.json.encode(to_json_values(column)))
    return arrow_columns(kept, arrow_schema(kept), {name: values for name, _ in kept.names})[0]


@pytest.mark.parametrize("name", THEMSELVES)
def test_what_comes_back_as_itself(name: str) -> None:
    assert again(THEMSELVES[name]).equals(THEMSELVES[name])


@pytest.mark.parametrize("name", AS_TEXT)
def test_what_comes_back_as_text(name: str) -> None:
    column, text = AS_TEXT[name]
    assert again(column).to_pylist() == [text, None]


def test_nan_comes_back() -> None:
    assert [str(each) for each in again(pa.array([float("nan"), 1.0, None])).to_pylist()] == ["nan", "1.0", "None"]


def test_the_metadata_of_the_input_stays_but_for_a_range_of_rows_in_another_order() -> None:
    pandas = msgspec.json.encode({"index_columns": [{"kind": "range", "start": 5, "stop": 7, "step": 1}], "columns": []})
    given = pa.schema([pa.field("id", pa.int64(), nullable=False)], {b"huggingface": b"{}", b"pandas": pandas})

    def kept(**options: Any) -> Any:
        return arrow_schema(columns_of(Table(prompt="{{id}}", id="id", **options), [("id", "arrow")], given))

    assert kept().metadata is None
    assert kept(with_input=True, ordered=True).metadata == given.metadata
    as_they_finish = kept(with_input=True).metadata
    assert as_they_finish[b"huggingface"] == b"{}"
    assert msgspec.json.decode(as_they_finish[b"pandas"]) == {"index_columns": [], "columns": []}
    assert kept().field("id") == given.field("id")


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


def test_vectors_are_lists_of_fixed_size_and_rows_without_one_are_null() -> None:
    columns = Columns([("row", "integer"), ("embedding", "vector")])
    schema = arrow_schema(columns, vector_size=2)
    one, two = packed([1.0, 0.5]), packed([-0.25, 3.0])
    made = arrow_columns(columns, schema, {"row": [1, 2, 3], "embedding": [one, None, two]})
    assert schema.field("embedding").type == pa.list_(pa.float32(), 2)
    assert made[1].to_pylist() == [[1.0, 0.5], None, [-0.25, 3.0]]
    with pytest.raises(ValueError, match="a vector has 1 numbers, and the first has 2"):
        arrow_columns(columns, schema, {"row": [1], "embedding": [packed([1.0])]})
    empty = arrow_schema(columns)
    assert arrow_columns(columns, empty, {"row": [1], "embedding": [None]})[1].to_pylist() == [None]
