"""``cortex.batch``: tables from Python and back, as in a notebook."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pandas
import polars
import pyarrow
import pytest

import cortex
from actors.api.client import submit
from actors.api.tables import RowsError
from actors.cli.app import RUNNING, TABLE
from actors.routing.routes import SetupError

PROMPT = "Answer with one of: bug, praise. {{text}}"
OPTIONS: dict[str, Any] = {"model": "sim", "progress": False}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))


ROWS = [{"id": 1, "text": "It crashes"}, {"id": 2, "text": "I love it"}, {"id": 3, "text": "It crashes again"}]


def texts() -> Iterator[dict[str, Any]]:
    yield from ROWS


class Ticket(msgspec.Struct):
    id: int
    text: str


@pytest.mark.parametrize(
    "rows",
    [
        ROWS, texts(), {"id": [1, 2, 3], "text": [row["text"] for row in ROWS]}, [Ticket(**row) for row in ROWS],
        pandas.DataFrame(ROWS), pandas.DataFrame(ROWS).iterrows(), pandas.DataFrame(ROWS).itertuples(), polars.DataFrame(ROWS), polars.DataFrame(ROWS).lazy(), pyarrow.Table.from_pylist(ROWS),
        pyarrow.Table.from_pylist(ROWS).to_reader(max_chunksize=1),
    ],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_whatever_holds_rows(rows: Any) -> None:
    answers = cortex.batch(rows, PROMPT, id="id", **OPTIONS)
    assert [row["id"] for row in answers.rows] == [1, 2, 3]
    assert {row["answer"] for row in answers} <= {"bug", "praise"}
    assert (answers.outcome, answers.bad, answers.calls) == ("complete", [], 3)
    assert not list(Path("state").rglob("*.input*"))


def test_texts_alone_are_numbered() -> None:
    answers = cortex.batch(["It crashes", "I love it"], PROMPT, model=lambda prompt: "bug" if "crash" in prompt else "praise")
    assert [(row["row"], row["answer"]) for row in answers.rows] == [(1, "bug"), (2, "praise")]


def test_the_answers_have_the_types_of_the_table() -> None:
    frame = pandas.DataFrame(
        {"id": [1, 2], "text": ["It crashes", None], "at": [dt.datetime(2026, 1, 2), None], "share": [0.5, None]}  # noqa: DTZ001
    )
    answers = cortex.batch(frame, PROMPT, id="id", with_input=True, meta=True, **OPTIONS)
    assert (answers.bad, answers.bad_count) == (["row 2: there is nothing to ask: text is empty"], 1)
    back = answers.to_pandas()
    assert list(back.columns[:6]) == ["id", "text", "at", "share", "answer", "error"]
    assert back["at"].dtype.kind == "M"
    assert back["at"][0] == pandas.Timestamp("2026-01-02")
    assert (back["share"][0], back["reused"].tolist()) == (0.5, [False, False])
    assert answers.to_polars()["id"].to_list() == [1, 2]
    assert answers.to_arrow().schema.field("cost_usd").type == pyarrow.float64()


def test_typed_answers() -> None:
    class Label(msgspec.Struct):
        label: Literal["bug", "praise"]

    for schema in (Label, {"type": "object", "properties": {"label": {"enum": ["bug", "praise"]}}, "required": ["label"]}):
        answers = cortex.batch(ROWS, PROMPT, id="id", schema=schema, **OPTIONS)
        assert {row["label"] for row in answers.rows} <= {"bug", "praise"}


def test_answers_beside_a_column_that_is_called_answer() -> None:
    frame = pandas.DataFrame({"id": [1], "text": ["It crashes"], "answer": ["own"]})
    answers = cortex.batch(frame, PROMPT, id="id", with_input=True, answer_as="said", columns_prefix="llm_", **OPTIONS)
    found = answers.to_pandas()
    assert found.columns.tolist() == ["id", "text", "answer", "said", "llm_error"]
    assert found.loc[0, ["answer", "said"]].tolist() == ["own", "bug"]
    with pytest.raises(SetupError, match="two columns of the results would be named 'error': give answer_as=, or"):
        cortex.batch(frame, PROMPT, id="id", answer_as="error", **OPTIONS)
    with pytest.raises(SetupError, match="named 'answer': give answer_as=, or rename the one of schema or id"):
        cortex.batch(frame, PROMPT, id="answer", **OPTIONS)


def test_a_model_that_will_not_fit_is_told_why_and_asked_once_more() -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return '{"label": "bug"}' if "was refused" in prompt else '{"label": 3}'

    schema = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    answers = cortex.batch(["a"], "{{text}}", schema=schema, meta=True, model=model)
    assert [(row["label"], row["attempts"]) for row in answers.rows] == [("bug", 2)]
    assert "An earlier answer to this was refused: Expected `str`, got `int` - at `$.label`" in asked[1]
    assert answers.failures == {"malformed": 1}


@pytest.mark.parametrize(("on_cut", "succeeded", "counted"), [
    ("fail", 0, {}), ("keep", 2, {"cut": 2}), ("longer", 2, {}),
])  # fmt: skip
def test_answers_that_are_cut_are_told_from_python_as_well(on_cut: str, succeeded: int, counted: dict[str, int]) -> None:
    texts = ["one two three four five", "six seven eight nine ten"]
    answers = cortex.batch(texts, "Tell of {{text}}", model="sim", max_output_tokens=2, on_cut=on_cut, progress=False)
    assert (answers.facts["rows_succeeded"], answers.facts["rows_by_ending"]) == (succeeded, counted)
    assert [bool(row["error"]) for row in answers.rows] == [on_cut == "fail"] * 2
    assert all(row["answer"] for row in answers.rows)
    with pytest.raises(SetupError, match="on_cut='never': give fail, keep, longer"):
        cortex.batch(texts, "{{text}}", model="sim", on_cut="never")


def test_the_same_call_again_pays_nothing_and_another_table_is_another_job() -> None:
    first = cortex.batch(ROWS, PROMPT, id="id", **OPTIONS)
    again = cortex.batch(ROWS, PROMPT, id="id", **OPTIONS)
    assert (again.job, again.facts["paid_calls"], again.rows) == (first.job, 3, first.rows)
    other = cortex.batch(ROWS[:2], PROMPT, id="id", **OPTIONS)
    assert other.job != first.job
    assert (other.facts["paid_calls"], other.facts["reused_calls"]) == (0, 2)
    with pytest.raises(RowsError, match="not what job mine began with"):
        for rows in (ROWS, ROWS[:2]):
            cortex.batch(rows, PROMPT, id="id", job="mine", **OPTIONS)


@pytest.mark.parametrize("name", ["o.csv", "o.parquet", "o.jsonl"])
def test_into_a_file(name: str) -> None:
    Path("t.csv").write_text("id,text\n1,It crashes\n2,I love it\n")
    answers = cortex.batch("t.csv", PROMPT, id="id", output=name, **OPTIONS)
    assert [row["id"] for row in answers.rows] == ["1", "2"]
    frame = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}.get(
        name.partition(".")[2], lambda path: pandas.read_json(path, lines=True)
    )(name)
    assert frame["answer"].tolist() == [row["answer"] for row in answers.rows]
    again = cortex.batch("t.csv", PROMPT, id="id", output=name, **OPTIONS)
    assert again.rows == answers.rows
    assert not list(Path(".").glob(".o*"))
    with pytest.raises(RowsError, match="exists: give overwrite=True"):
        cortex.batch("t.csv", PROMPT, output=name, **OPTIONS)


async def test_inside_a_running_loop() -> None:
    answers = await asyncio.to_thread(cortex.batch, ROWS, PROMPT, id="id", **OPTIONS)
    assert len(cortex.batch(ROWS, PROMPT, id="id", **OPTIONS)) == len(answers) == 3


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (3, {}, "give a table, a path or an iterable of dicts, not 3"),
        ([3], {}, "the table holds no row that can be asked; row 1: row is 3: a row is a dict"),
        ([{"text": object()}], {}, "row 1: text is of type object, which has no JSON form"),
        ([], {}, "the table is empty: give one row at least"),
        (iter(()), {}, "the table is empty: give one row at least"),
        (b"in.csv", {}, "give a table, a path or an iterable of dicts, not b'in.csv'"),
        ({"text": "It crashes"}, {}, "'text': 'It crashes': give a list of values for each column, or a list of rows"),
        ({"text": ["a"], "n": 1}, {}, "'n': 1: give a list of values for each column"),
        (pyarrow.array(["a"]), {}, "the rows cannot be read: TypeError: Expected an object implementing"),
        (polars.LazyFrame({"text": ["a"]}).select(polars.col("b")), {}, "the rows cannot be read: ColumnNotFoundError:"),
        (
            pandas.DataFrame({"n": [1]}, index=pandas.Index(["a"], name="text")), {},
            "the table has no column 'text', but an index of that name: give frame.reset_index()",
        ),
        ([{"body": "x"}], {}, "the table has no column 'text', which the prompt names: its only column is body"),
        ([{"text": " "}], {}, "the table holds no row that can be asked"),
        ({"text": ["a"], "n": [1, 2]}, {}, "different lengths"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), {}, "the table has two columns named 'text': rename"),
        ("none.csv", {}, "none.csv: no such file"),
        (ROWS, {"schema": {"type": "object"}}, "schema: the top level must be"),
        (ROWS, {"schema": int}, "schema: the top level must be"),
        (ROWS, {"output": "no/o.csv"}, "there is no folder "),
        (ROWS, {"id": "text", "with_input": True, "output": "o.parquet", "max_cost": -1}, "max-cost"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(rows: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        cortex.batch(rows, PROMPT, **OPTIONS, **options)
    assert words in str(error.value)
    assert not list(Path(".").rglob("*.input*"))


@pytest.mark.parametrize(("prompt", "words"), [("Label it", "names no column"), ("{{text", "never closed")])
def test_a_prompt_that_makes_no_sense(prompt: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        cortex.batch(ROWS, prompt, **OPTIONS)


def test_one_column_is_no_table() -> None:
    for column in (pandas.Series(["It crashes."]), polars.Series(["It crashes."])):
        with pytest.raises(RowsError, match="a single column is no table"):
            cortex.batch(column, PROMPT, **OPTIONS)


def test_an_iterator_needs_no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(cortex.batch(texts(), PROMPT, id="id", **OPTIONS)) == 3
    with pytest.raises(RowsError, match="cortex-bounded-calls\\[parquet\\]"):
        cortex.batch(pandas.DataFrame(ROWS), PROMPT, id="id", **OPTIONS)


def test_options_are_those_of_the_command_line_but_for_those_of_the_command_alone() -> None:
    of_command = {*RUNNING, *TABLE, "ordered", "no_keep_text", "shards", "accept_bad"}
    of_python = {*inspect.signature(submit).parameters, *inspect.signature(cortex.batch).parameters, "label", "role"}
    assert of_command - of_python == {
        "accept_failed", "accept_partial", "api", "as_json", "log_format", "log_level", "metrics_listen", "no_keep_text", "notify",
        "sim", "sub_model", "verbose", "wait",
    }  # fmt: skip


def test_settings_of_the_simulator_follow_its_name() -> None:
    answers = cortex.batch(["a", "b"], PROMPT, model="sim,refusal=1,seed=3", progress=False)
    assert answers.facts["route"].startswith("sim")
    assert [row["error"] for row in answers] == ["refused: the model declined"] * 2
    with pytest.raises(SetupError, match="nonsense"):
        cortex.batch(["a"], PROMPT, model="sim,nonsense=1")
