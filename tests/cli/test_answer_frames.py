"""Tables of answers: index, types and values of the table that was given; nullable types of the results."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest

import cortex as public
from tests.edge.files.test_row_values import Color

PROMPT = "Label: {{t}}"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))


def _asked(rows: Any, **options: Any) -> Any:
    return public.batch(rows, PROMPT, model=lambda text: text, **{"with_input": True} | options)


def _pandas() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": [9007199254740993, 2, 3], "t": ["a", "b", "c"], "Int": pd.array([1, None, 9007199254740993], "Int64"),
            "small": np.array([1, 2, 3], "i1"), "UInt": pd.array([2**64 - 1, None, 0], "UInt64"), "f4": np.array([0.1, np.nan, np.inf], "f4"),
            "Float": pd.array([0.5, None, 1], "Float32"), "bool": [True, False, True], "Bool": pd.array([True, None, False], "boolean"),
            "cat": pd.Categorical(["mid", None, "low"], ["low", "mid", "high"], ordered=True),
            "whole": pd.Categorical([3, 1, None], [3, 1, 2]), "when": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
            "tz": pd.to_datetime(["2024-01-01", None, "2024-01-03"]).tz_localize("Europe/Berlin"),
            "td": pd.to_timedelta([1, None, 3], unit="s"), "period": pd.period_range("2024-01", periods=3, freq="M"),
            "string": pd.array(["x", None, "y"], "string"), "arrow": pd.array(["x", None, "y"], "string[pyarrow]"),
            "int64a": pd.array([1, None, 3], "int64[pyarrow]"), "interval": pd.interval_range(0, 3),
            "sparse": pd.arrays.SparseArray([0, 0, 1]), "list": [[1, 2], [], None], "dict": [{"a": 1}, None, {"b": {2}}],
            "dec": [Decimal("1.10"), None, Decimal("2")], "uuid": [uuid.UUID(int=1), None, uuid.UUID(int=2)],
            "enum": [Color.RED, None, Color.PAIR], "mixed": [1, "x", dt.date(2024, 1, 1)], 7: [1, 2, 3],
        },
        index=pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)], names=["group", "n"]),
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"id": "id"}, {"id": "id", "ordered": False}, {"id": "id", "output": "o.csv"}], ids=str)
def test_index_columns_and_types_of_pandas_are_those_of_the_input(options: dict[str, Any]) -> None:
    frame = _pandas()
    back = _asked(frame, **options).to_pandas()
    own = ["row"] if not options else []
    pd.testing.assert_frame_equal(back[[*frame.columns]].loc[frame.index], frame)
    assert [*back.columns][: len(own)] == own
    assert back["answer"].loc[frame.index].tolist() == ["Label: a", "Label: b", "Label: c"]


def test_rows_that_are_left_out_leave_the_others_at_their_index() -> None:
    frame = pd.DataFrame({"id": ["a", None, "a", "d"], "t": ["1", "2", "3", "4"]}, index=[10, 20, 30, 40])
    answers = _asked(frame, id="id", with_input=False)
    assert answers.bad_count == 2
    assert answers.to_pandas()["answer"].to_dict() == {10: "Label: 1", 40: "Label: 4"}
    assert frame.join(answers.to_pandas()[["answer"]])["answer"].notna().tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "ids",
    [
        ["x", "ä b", "http://x/?q=1"], [uuid.UUID(int=n) for n in range(3)], [1.0, 2.0, 3.0], pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
        ["a", 2, uuid.UUID(int=3)], [b"a", b"b", b"c"], pd.array([1, 2, 3], "UInt8"), pd.Categorical(["z", "y", "x"]), [2**60, 2**60 + 1, 7],
    ],
    ids=lambda ids: type(ids[0]).__name__,
)  # fmt: skip
def test_ids_of_any_type_find_their_index(ids: Any) -> None:
    frame = pd.DataFrame({"id": ids, "t": ["a", "b", "c"]}, index=["k", "l", "m"])
    back = _asked(frame, id="id", ordered=False).to_pandas()
    assert back["answer"].to_dict() == {"k": "Label: a", "l": "Label: b", "m": "Label: c"}
    pd.testing.assert_series_equal(back["id"].loc[frame.index], frame["id"])


@pytest.mark.parametrize("column", ["id", "t"])
def test_a_frame_that_is_changed_later_does_not_change_the_answers(column: str) -> None:
    frame = pd.DataFrame({"id": [1, 2], "t": ["a", "b"]})
    answers = _asked(frame, id="id")
    frame.loc[0, column] = {"id": 5, "t": "changed"}[column]
    frame[column] = frame[column][::-1].to_numpy()
    assert answers.to_pandas()[["id", "t"]].to_numpy().tolist() == [[1, "a"], [2, "b"]]


class Label(msgspec.Struct):
    count: int
    sure: bool
    share: float


@pytest.mark.parametrize("rows", [[{"t": "a"}, {"t": "b"}], pd.DataFrame({"t": ["a", "b"]})], ids=lambda rows: type(rows).__name__)
def test_whole_numbers_and_booleans_with_nulls_stay_what_they_are(rows: Any) -> None:
    def model(prompt: str) -> str:
        return '{"count":9007199254740993,"sure":true,"share":0.5}' if prompt.startswith("Label: a") else "none"

    answers = public.batch(rows, PROMPT, schema=Label, meta=True, model=model)
    back = answers.to_pandas()
    assert back.dtypes[["count", "sure", "share", "attempts"]].astype(str).tolist() == ["Int64", "boolean", "float64", "int64"]
    assert back["count"].tolist() == [9007199254740993, pd.NA]
    assert back["sure"].tolist() == [True, pd.NA]
    assert answers.to_polars()["count"].to_list() == [9007199254740993, None]
    assert answers.to_polars().schema["sure"] == pl.Boolean
    whole = public.batch(["a"], "Label: {{text}}", schema=Label, model=model).to_pandas()
    assert whole.dtypes[["count", "sure"]].astype(str).tolist() == ["int64", "bool"]


def test_whole_numbers_of_rows_with_nulls_stay_what_they_are() -> None:
    rows = [{"id": 1, "t": "a", "n": 2**53 + 1, "b": True}, {"id": 2, "t": "b", "n": None, "b": None}]
    back = _asked(rows, id="id").to_pandas()
    assert back.dtypes[["n", "b"]].astype(str).tolist() == ["Int64", "boolean"]
    assert back["n"][0] == 2**53 + 1


def _polars() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": [1, 2, 3], "t": ["a", "b", "c"], "u1": pl.Series([1, None, 255], dtype=pl.UInt8),
            "i16": pl.Series([2**100, None, -1], dtype=pl.Int128), "f4": pl.Series([0.1, None, float("nan")], dtype=pl.Float32),
            "cat": pl.Series(["y", None, "x"], dtype=pl.Categorical), "enum": pl.Series(["y", None, "x"], dtype=pl.Enum(["x", "y", "z"])),
            "dec": pl.Series([Decimal("1.10"), None, Decimal("2.00")]), "when": pl.Series([dt.datetime(2024, 1, 1), None, None], dtype=pl.Datetime("ms")),  # noqa: DTZ001
            "td": pl.Series([dt.timedelta(1), None, None], dtype=pl.Duration("us")), "time": [dt.time(1), None, dt.time(2)],
            "list": [[1], None, []], "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int8, 2)),
            "struct": [{"a": 1}, None, {"a": 2}], "bin": [b"\xff", None, b"a"], "null": [None, None, None],
        }
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"id": "id"}, {"id": "id", "ordered": False}], ids=str)
def test_types_and_values_of_polars_are_those_of_the_input(options: dict[str, Any]) -> None:
    frame = _polars().with_columns(pl.Series("obj", [1j, None, {"a"}], dtype=pl.Object))
    back = _asked(frame, **options).to_polars().sort("t")
    assert back["obj"].to_list() == [1j, None, {"a"}]
    polars.testing.assert_frame_equal(back.select(frame.columns).drop("obj"), frame.drop("obj"))


def test_a_lazy_frame_keeps_its_types() -> None:
    frame = _polars().drop("i16", "enum")
    polars.testing.assert_frame_equal(_asked(frame.lazy(), id="id").to_polars().select(frame.columns), frame)


@pytest.mark.parametrize("lazy", [False, True])
def test_schema_and_values_of_arrow_are_those_of_the_input(lazy: bool) -> None:
    fields = [
        pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.large_string(), metadata={"unit": "text"}),
        pa.field("view", pa.string_view()), pa.field("dict", pa.dictionary(pa.int8(), pa.string(), ordered=True)),
        pa.field("dec", pa.decimal256(40, 2)), pa.field("map", pa.map_(pa.string(), pa.float64())), pa.field("uuid", pa.uuid()),
        pa.field("ns", pa.list_(pa.timestamp("ns", "Europe/Berlin"))), pa.field("f2", pa.float16()), pa.field("bin", pa.binary(2)),
    ]  # fmt: skip
    rows = [
        [1, 2, 3], ["a", "b", "c"], ["x", None, "z"], ["low", None, "high"], [Decimal("1.10"), None, Decimal(2)],
        [[("k", float("nan"))], None, []], [uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes], [[1, None], None, []],
        np.array([0.1, np.inf, np.nan], "f2"), [b"\xff\xfe", None, b"ab"],
    ]  # fmt: skip
    table = pa.Table.from_arrays([pa.array(v, f.type) for v, f in zip(rows, fields, strict=True)], schema=pa.schema(fields))
    given = table.to_reader() if lazy else table
    back = _asked(given, id="id").to_arrow()
    assert back.select(table.column_names).schema.equals(table.schema, check_metadata=not lazy)
    for name in table.column_names:
        assert repr(back[name].to_pylist()) == repr(table[name].to_pylist()), name


def test_polars_and_arrow_become_pandas_with_nullable_types() -> None:
    for frame in (pl.DataFrame({"t": ["a", "b"], "n": [1, None]}), pa.table({"t": ["a", "b"], "n": [1, None]})):
        back = _asked(frame).to_pandas()
        assert (str(back["n"].dtype), back["n"].tolist()) == ("Int64", [1, pd.NA])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
@pytest.mark.parametrize("id", ["", "id"])
def test_columns_of_the_table_that_are_named_as_those_of_the_results_are_not_taken(make: Any, id: str) -> None:  # noqa: A002
    given = {"id": [1, 2], "t": ["a", "b"], "answer": ["gold", "gold"], "error": ["x", "y"], "row": [7, 8], "model": ["m", "m"]}
    answers = _asked(make(given), id=id, with_input=False, meta=True)
    for back in (answers.to_pandas(), answers.to_polars().to_pandas(), answers.to_arrow().to_pandas()):
        assert back["answer"].tolist() == ["Label: a", "Label: b"]
        assert back["error"].isna().all()
        assert back[id or "row"].tolist() == [1, 2]
    if id:
        back = _asked(make(given), id=id, answer_as="label", columns_prefix="my_").to_pandas()
        assert (back["answer"].tolist(), back["error"].tolist()) == (["gold", "gold"], ["x", "y"])
        assert back["label"].tolist() == ["Label: a", "Label: b"]
