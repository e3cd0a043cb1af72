"""Rows in memory and types of answers that strangers reported as mistaken, each with the right result."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pydantic
import pytest

import cortex
from actors.api.tables import RowsError
from cortex.testing import ScriptedModel

PROMPT = "Q {{t}}"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))


def ask(rows: Any, prompt: str = PROMPT, **options: Any) -> Any:
    return cortex.batch(rows, prompt, id="id", model=lambda asked: asked, accept_bad="100%", **options)


def _frame(**columns: Any) -> pandas.DataFrame:
    return pandas.DataFrame(columns)


ROWS: dict[str, tuple[Any, list[str], int]] = {
    "a cut emoji in a dict": ([{"id": "1", "t": "fine"}, {"id": "2", "t": "half \ud83d"}], ["Q fine"], 1),
    "a cut emoji in a column that nobody asks about": (
        [{"id": "1", "t": "fine", "u": ""}, {"id": "2", "t": "fine too", "u": "half \ud83d"}], ["Q fine", "Q fine too"], 0,
    ),
    "a pandas Timestamp": (
        _frame(id=["1"], t=["x"], at=[pandas.Timestamp("2024-01-01")]).to_dict("records"), ["Q x"], 0,
    ),
    "a numpy integer": ([{"id": row["id"], "t": row["t"]} for _, row in _frame(id=[7], t=[8]).iterrows()], ["Q 8"], 0),
    "None among the rows": ([{"id": "1", "t": "fine"}, None], ["Q fine"], 1),
    "whole ids that pandas made floats": (_frame(id=[1, 2, None], t=["a", "b", "c"]), ["Q a", "Q b"], 1),
    "values of a dict": (
        [{"id": 1, "t": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}, {"id": 2, "t": Decimal("1.5")}, {"id": 3, "t": numpy.int64(4)},
         {"id": 4, "t": numpy.float32(0.1)}, {"id": 5, "t": uuid.UUID(int=1)}, {"id": 6, "t": Path("a/b")}],
        ["Q 2024-01-01T00:00:00Z", "Q 1.5", "Q 4", "Q 0.1", f"Q {uuid.UUID(int=1)}", "Q a/b"], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_06_one_odd_value_among_rows_in_memory(name: str) -> None:
    rows, asked, bad = ROWS[name]
    answers = ask(rows)
    assert ([row["answer"] for row in answers.rows if not row["error"]], answers.bad_count) == (asked, bad)


def test_06_an_odd_row_has_one_line_among_the_bad_ones() -> None:
    answers = ask([{"id": "1", "t": "fine"}, None, {"id": "3", "t": {"a": object()}}, {"id": "4", "t": "fine too"}])
    assert [row["answer"] for row in answers.rows if not row["error"]] == ["Q fine", "Q fine too"]
    assert answers.bad_count == len(answers.bad) == 2


@pytest.mark.parametrize(
    "frame",
    [
        _frame(id=[1, 2], t=["a", "b"], x=[object(), object()]), _frame(id=[1, 2], t=["a", "b"], x=[1, "z"]),
    ],
    ids=["objects", "two types"],
)  # fmt: skip
def test_a_column_that_nobody_asks_about_stops_no_job(frame: Any) -> None:
    assert [row["answer"] for row in ask(frame).rows] == ["Q a", "Q b"]


def test_two_columns_of_one_name_are_told_in_one_line() -> None:
    frame = pandas.DataFrame([[1, "a", 0, 0], [2, "b", 0, 0]], columns=["id", "t", "x", "x"])
    with pytest.raises(RowsError, match=r"^the table has two columns named 'x': rename one$"):
        ask(frame)


def test_pandas_cases_nullable_columns_come_back_exactly() -> None:
    frame = pandas.DataFrame({
        "id": [2**53 + 1, 2, 3], "t": ["a", "b", "c"], "f": [1.5, numpy.nan, numpy.inf],
        "I": pandas.array([1, None, 2**53 + 1], dtype="Int64"), "b": pandas.array([True, None, False], dtype="boolean"),
        "when": pandas.to_datetime(["2024-01-01", "2024-01-02", None]), "cat": pandas.Categorical(["x", "y", None]),
        "tz": pandas.to_datetime(["2024-01-01", "2024-01-02", None]).tz_localize("Europe/Berlin"),
        "td": pandas.to_timedelta([1, 2, None], unit="s"), "dec": [Decimal("1.10"), None, Decimal("2.00")],
        "period": pandas.period_range("2024-01", periods=3, freq="M"),
    })  # fmt: skip
    found = ask(frame, with_input=True).to_pandas()
    for name in frame.columns:
        assert str(found[name].dtype).split("[")[0] == str(frame[name].dtype).split("[")[0], name
        assert [each if each == each else None for each in found[name].astype(object).where(found[name].notna(), None)] == [
            each if each == each else None for each in frame[name].astype(object).where(frame[name].notna(), None)
        ], name


def _records() -> list[dict[str, Any]]:
    return [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]


@pytest.mark.parametrize(
    "rows",
    [
        polars.DataFrame(_records()), polars.LazyFrame(_records()), pyarrow.Table.from_pylist(_records()),
        pyarrow.Table.from_pylist(_records()).to_reader(), iter(_records()), {"id": [1, 2], "t": ["a", "b"]},
        pandas.DataFrame(_records(), index=[1, 1]), pandas.DataFrame({"id": [uuid.UUID(int=1), uuid.UUID(int=2)], "t": ["a", "b"]}),
    ],
    ids=["polars", "lazy", "arrow", "reader", "iterator", "columns", "index of one value", "UUID"],
)  # fmt: skip
def test_pandas_cases_tables_of_each_kind(rows: Any) -> None:
    assert [row["answer"] for row in ask(rows).rows] == ["Q a", "Q b"]


class Visit(pydantic.BaseModel):
    """Type of bugs/04: dates and identifiers."""

    day: dt.date
    ref: uuid.UUID


class Even(pydantic.BaseModel):
    """Type of v.py: a validator that wants even numbers, and a date."""

    n: int
    when: dt.date | None = None

    @pydantic.field_validator("n")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("n must be even")
        return value

    @pydantic.model_validator(mode="after")
    def not_8(self) -> Even:
        if self.n == 8:
            raise ValueError("not 8")
        return self


@pytest.mark.parametrize(
    ("schema", "wrong", "right"),
    [
        (Even, '{"n": 3}', '{"n": 4}'), (Even, '{"n": 8}', '{"n": 6, "when": "2024-01-01"}'),
        (Even, '{"n": 4, "when": "garbage"}', '{"n": 4, "when": null}'),
        (Visit, '{"day": "next Tuesday, probably", "ref": "none"}', '{"day": "2024-02-29", "ref": "00000000-0000-0000-0000-000000000001"}'),
    ],
    ids=["validator", "model validator", "format date", "date and UUID"],
)  # fmt: skip
def test_04_schema_types_refuse_in_a_batch_what_they_refuse_in_a_flow(schema: Any, wrong: str, right: str) -> None:
    @cortex.flow
    async def asked(ctx: Any) -> Any:
        return await ctx.ask("give", returns=schema)

    rows = [{"id": 1, "t": "a"}]
    for replies, good in (([wrong, right], True), ([wrong] * 5, False)):
        (row,) = ask_scripted(rows, schema, replies).rows
        flow = cortex.run(asked(), model=ScriptedModel(list(replies)))
        assert (row["error"] is None, flow.outcome == "complete") == (good, good), (row, flow.why)
        if good:
            expected = json.loads(right)
            assert {name: row[name] for name in expected} == expected
        else:
            assert row["error"].startswith("malformed: ")


def ask_scripted(rows: Any, schema: Any, replies: list[str]) -> Any:
    return cortex.batch(rows, PROMPT, id="id", schema=schema, model=ScriptedModel(list(replies)))
