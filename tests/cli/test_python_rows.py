"""Rows from Python, frames and files with odd values: one bad row is one bad row, and numbers stay as they are."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cortex as public
from actors.api.tables import RowsError
from actors.journal.journal import StateFolder
from tests.edge.files.test_row_values import ARROW, NO_TEXT, NUMPY, PANDAS, POLARS, PYTHON, NoJsonForm

PROMPT = "Label: {{t}}"
OPTIONS: dict[str, Any] = {"model": "sim", "progress": False, "max_output_tokens": 5}
SIM = ("--model", "sim", "--sim", "error=0", "--max-output-tokens", "200")
CUT = "half \ud83d"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))


def _asked(rows: Any, prompt: str = PROMPT, **options: Any) -> tuple[dict[Any, str], public.Any]:
    """The prompt of each row that was asked, by its id; and the answers."""
    answers = public.batch(rows, prompt, model=lambda text: text or "-", **{"id": "id"} | options)
    return {row["id"]: row["answer"].removeprefix("Label: ") for row in answers if row["answer"] is not None}, answers


@pytest.mark.parametrize("with_input", [False, True])
def test_each_value_of_the_table_is_one_row_or_one_bad_row(with_input: bool) -> None:
    values = [*PYTHON, *NUMPY, *PANDAS, *POLARS, *ARROW]
    random.Random(1).shuffle(values)
    rows = [{"id": number, "t": "fine", "v": value} for number, (value, _) in enumerate(values)]
    _, answers = _asked(rows, "{{t}} {{v}}", with_input=with_input)
    bad = {number for number, (value, wanted) in enumerate(values) if wanted is NoJsonForm or value is NO_TEXT}
    failed = {row["id"] for row in answers if row["error"]}
    assert (len(answers), failed, answers.bad_count) == (len(values), bad, len(bad))
    assert all("rejected: v " in row["error"] for row in answers if row["error"])
    assert all(each.startswith("row ") for each in answers.bad)


def test_a_column_that_nobody_asks_about_makes_no_row_bad() -> None:
    rows = [{"id": number, "t": "fine", "v": value} for number, value in enumerate([object(), CUT, 1j])]
    found, answers = _asked(rows)
    assert (found, answers.bad) == (dict.fromkeys(range(3), "fine"), [])
    _, answers = _asked([*rows, {"id": 3, "t": "fine", "v": 1}], with_input=True)
    assert answers.bad_count == 3


BAD_ROWS = [
    (None, "is None: a row is a dict with a value for each column, or a text"), (3, "is 3: a row"), ([1], "is [1]: a row"),
    (object(), "is <object object>: a row"), ({"id": None, "t": "x"}, "has no id"), ({"t": "x"}, "has no id"),
    ({"id": CUT, "t": "x"}, "id holds half of a character"), ({"id": object(), "t": "x"}, "id is of type object"),
    ({"id": 1.5, "t": "x"}, "id is 1.5: an id is text or a whole number"), ({"id": float("nan"), "t": "x"}, "has no id"),
    ({"id": float("inf"), "t": "x"}, "id is Infinity: an id is text"), ({"id": b"\xff", "t": "x"}, "id holds bytes that are not"),
    ({"id": "b", "t": "x", None: ["more"]}, "has the key None: the names of columns and fields are text"),
    ({"id": "b", "t": "x", CUT: 1}, "holds half of a character"), ({"id": "b", "t": "x", 1: 2, "1": 3}, "has the column '1' twice"),
    ({"id": "b", "t": CUT}, "t holds half of a character"), ({"id": "b", "t": b"\xff"}, "t holds bytes that are not UTF-8 text"),
    ({"id": "b", "t": {"x": object()}}, "t is of type object"), ({"id": "b", "t": [10**5000]}, "t is a whole number of more"),
    ({"id": "b", "t": None}, "there is nothing to ask: t is empty"), ({"id": "b", "t": pd.NaT}, "nothing to ask"),
    ({"id": "b", "t": np.float32("nan")}, "nothing to ask"), ({"id": "b"}, "nothing to ask: t is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "text"), BAD_ROWS, ids=lambda each: None if type(each) is str else type(each).__name__)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_row_of_a_generator_is_one_bad_row(row: Any, text: str, place: int) -> None:
    good: list[Any] = [{"id": "a", "t": "one"}, {"id": "c", "t": "two"}]
    found, answers = _asked(each for each in [*good[:place], row, *good[place:]])
    assert found == {"a": "one", "c": "two"}
    assert (answers.outcome, answers.bad_count) == ("complete", 1)
    assert answers.bad[0].startswith(f"row {place + 1}: ")
    assert text in answers.bad[0]
    if isinstance(row, dict) and row.get("id") == "b":
        assert [each["error"] for each in answers if each["id"] == "b"] == [f"rejected: {answers.bad[0].partition(': ')[2]}"]


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [([None, "a", 3, "b"], ["row is", "row is"]), ([{None: 1}, {"text": "a"}, object(), {"text": "b"}], ["has th", "row is"])],
)  # fmt: skip
def test_rows_without_an_id_all_have_their_line(cortex: Any, rows: list[Any], reasons: list[str]) -> None:
    answers = public.batch(iter(rows), "Label: {{text}}", job="j", max_job_tokens=30, **OPTIONS)
    assert answers.outcome == "partial"
    assert cortex("resume", "j", "--max-job-tokens", "none").code == 2
    assert cortex("results", "j", "-o", "o.jsonl").code == 0
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [(row["row"], row["error"] is None) for row in found] == [(1, False), (2, True), (3, False), (4, True)]
    assert [row["error"][:16] for row in found if row["error"]] == [f"rejected: {each}" for each in reasons]


def test_the_list_of_bad_records_has_the_repr_of_rows_from_python(cortex: Any) -> None:
    rows = [{"id": "a", "t": "x"}, None, {"id": object(), "t": CUT}, {"id": 1.5, "t": "x"}]
    assert public.batch(rows, PROMPT, id="id", output="o.jsonl", **OPTIONS).unreadable == 3
    found = [json.loads(line) for line in Path("o.jsonl.bad.jsonl").read_text().splitlines()]
    assert [each["row"] for each in found] == [2, 3, 4]
    assert [each["text"] for each in found] == ["None", "{'id': <object object>, 't': 'half \\ud83d'}", '{"id":1.5,"t":"x"}']
    frame = pd.DataFrame({"id": ["a", object()], "t": ["x", 1]})
    assert public.batch(frame, PROMPT, id="id", output="p.jsonl", **OPTIONS).unreadable == 1
    (found,) = [json.loads(line) for line in Path("p.jsonl.bad.jsonl").read_text().splitlines()]
    assert found["reason"].startswith("id is of type object")
    assert found["text"].startswith('{"id":"<is of type object')


def test_bytes_of_a_column_that_is_shown_are_text() -> None:
    found, answers = _asked([{"id": b"a", "t": "Ça".encode()}, {"id": "b", "t": bytearray(b"x")}])
    assert (found, answers.bad) == ({"a": "Ça", "b": "x"}, [])


def test_a_generator_that_raises_is_one_clear_error_and_nothing_is_asked() -> None:
    def rows() -> Iterator[Any]:
        yield {"id": 1, "t": "x"}
        yield {"id": 2, "t": "y"}
        raise OSError("the disk\nis gone")

    calls: list[str] = []
    with pytest.raises(RowsError, match=r"^the rows ended after row 2 with OSError: the disk is gone: nothing") as error:
        public.batch(rows(), PROMPT, id="id", model=lambda text: calls.append(text) or "-")
    assert isinstance(error.value.__cause__, OSError)
    assert (calls, StateFolder(os.environ["CORTEX_STATE"]).jobs(), list(Path("state").rglob("*input*"))) == ([], [], [])

    def batches() -> Iterator[Any]:
        yield pa.record_batch({"id": [1], "t": ["x"]})
        raise ValueError("bad shard")

    schema = pa.schema([("id", pa.int64()), ("t", pa.string())])
    with pytest.raises(RowsError, match=r"the rows ended after row 1 with .*bad shard"):
        public.batch(pa.RecordBatchReader.from_batches(schema, batches()), PROMPT, id="id", **OPTIONS)


def test_what_was_paid_is_kept_when_the_generator_raises_the_next_time() -> None:
    rows = [{"id": 1, "t": "x"}, {"id": 2, "t": "y"}]

    def failing() -> Iterator[Any]:
        yield rows[0]
        raise OSError("gone")

    first = public.batch(rows, PROMPT, id="id", job="mine", **OPTIONS)
    with pytest.raises(RowsError, match="after row 1"):
        public.batch(failing(), PROMPT, id="id", job="mine", **OPTIONS)
    again = public.batch(rows, PROMPT, id="id", job="mine", **OPTIONS)
    assert (again.rows, again.facts["paid_calls"]) == (first.rows, 2)


# ------------------------------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_column_of_odd_cells_is_asked_cell_by_cell(kind: str) -> None:
    cells = ["a", 1, np.float32(0.1), pd.Timestamp("2024-02-29"), {"x": 1}, None, CUT, object(), b"z", float("inf")]
    columns = {"id": list(range(len(cells))), "t": cells}
    frame = pd.DataFrame(columns) if kind == "pandas" else pl.DataFrame(
        [pl.Series("id", columns["id"]), pl.Series("t", cells, dtype=pl.Object)]
    )  # fmt: skip
    found, answers = _asked(frame, with_input=True)
    assert found == {
        0: "a", 1: "1", 2: "0.1", 3: "2024-02-29T00:00:00", 4: '{"x":1}', 8: "z", 9: "Infinity",
    }  # fmt: skip
    assert [each.partition(": ")[0] for each in answers.bad] == ["row 6", "row 7", "row 8"]
    back = answers.to_pandas() if kind == "pandas" else answers.to_polars()
    assert all(one is other for one, other in zip(back["t"].to_list(), cells, strict=True) if one is not None)


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)], ["2024-01-01", "2024-01-01T05:00:00"]),  # noqa: DTZ001
        ([{"a": 1}, {"b": 2}], ['{"a":1}', '{"b":2}']), ([[{"a": 1}, {"b": 2}], None], ['[{"a":1},{"b":2}]', None]),
        ([Decimal("1.5"), 1], ["1.5", "1"]), ([dt.timedelta(1), 1], ["P1D", "1"]), ([np.float32(0.1), 0.1], ["0.1", "0.1"]),
        ([pd.Timestamp("2024-01-01", tz="UTC"), pd.Timestamp("2024-01-01")], ["2024-01-01T00:00:00+00:00", "2024-01-01T00:00:00"]),
        ([pd.Timestamp("2024-01-01 00:00:00.000000001"), 1], ["2024-01-01T00:00:00.000000001", "1"]), ([1, 0.5], ["1", "0.5"]),
        ([{"a": 1, "b": {"c": [1]}}, {"a": 2, "b": {"c": []}}], ['{"a":1,"b":{"c":[1]}}', '{"a":2,"b":{"c":[]}}']),
        ([2**70, 1], [str(2**70), "1"]), ([True, 1], ["true", "1"]), ([np.nan, "x"], [None, "x"]), ([b"a", "b"], ["a", "b"]),
    ],
    ids=str,
)  # fmt: skip
def test_cells_of_objects_are_asked_as_they_are(cells: list[Any], shown: list[Any]) -> None:
    frame = pd.DataFrame({"id": [0, 1], "t": pd.Series(cells, dtype=object)})
    assert _asked(frame)[0] == {n: text for n, text in enumerate(shown) if text is not None}


def test_odd_columns_that_nobody_asks_about_are_ignored() -> None:
    frame = pd.DataFrame({"id": [1, 2], "t": ["a", "b"], "x": [object(), object()], "y": [1, "z"], "c": [1j, 2j]})
    found, answers = _asked(frame)
    assert (found, answers.bad) == ({1: "a", 2: "b"}, [])
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    table = pa.table({"id": [1, 2], "t": ["a", "b"], "u": union})
    assert _asked(table)[0] == {1: "a", 2: "b"}
    with pytest.raises(RowsError, match=r"column 'u' is of type sparse_union.*, which Parquet cannot hold"):
        _asked(table, with_input=True)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame([["a", "b"]], columns=["t", "t"]), pd.DataFrame([["a", "b"]], columns=[0, "0"]),
        pa.table([["a"], ["b"]], names=["t", "t"]),
    ],
    ids=lambda table: type(table).__module__,
)  # fmt: skip
def test_two_columns_of_one_name_are_refused_by_name(table: Any) -> None:
    with pytest.raises(RowsError, match=r"^the table has two columns named '[t0]': rename one$"):
        public.batch(table, PROMPT, **OPTIONS)


def test_odd_values_of_typed_columns_are_refused_by_name_before_anything_is_asked() -> None:
    far = pd.DataFrame({"id": [1, 2], "t": ["a", "b"], "far": np.array(["2024-01-01", "20000-01-01"], dtype="M8[s]")})
    with pytest.raises(RowsError, match="the table row 2, column 'far': a time is outside the years 1 to 9999"):
        _asked(far, with_input=True)
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    with pytest.raises(RowsError, match="the table row 2, column 'x': its text is not UTF-8"):
        _asked(pa.table({"id": [1, 2], "t": ["a", "b"], "x": broken}), with_input=True)
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    assert _asked(far)[0] == {1: "a", 2: "b"}


# ------------------------------------------------------------------------------------------------------------- numbers

NUMBERS = {
    "1": "9007199254740993", "2": "123456789012345678901234567890", "3": "0.10", "4": "1E400", "5": "12345678901234567.89",
    "6": "-0.0", "7": "1e2", "8": "0.1", "9": "18446744073709551616",
}  # fmt: skip


def _numbers(path: Path) -> None:
    lines = (f'{{"id":"{key}","n":{text},"l":[{text},{{"x":{text}}}]}}\n' for key, text in NUMBERS.items())
    path.write_text("".join(lines))


@pytest.mark.parametrize("more", [(), ("--cluster", "inline", "--shards", "2")])
def test_numbers_of_json_lines_are_kept_to_the_letter(cortex: Any, more: tuple[str, ...]) -> None:
    _numbers(Path("in.jsonl"))
    ask = ("batch", "in.jsonl", "--prompt", "Say. {{n}} {{l}}", "--id", "id", "--with-input", "--ordered", *SIM, *more)
    assert cortex(*ask, "-o", "o.jsonl", "--job", "j").code == 0
    for line, (key, text) in zip(Path("o.jsonl").read_text().splitlines(), NUMBERS.items(), strict=True):
        assert line.startswith(f'{{"id":"{key}","n":{text},"l":[{text},{{"x":{text}}}],')
        if not more:
            assert f"Say. {text} [{text},{{\"x\":{text}}}]" in cortex("inspect", "j", key).out
    for name in ("o.csv", "o.parquet"):
        assert cortex("results", "j", "-o", name).code == 0
    with open("o.csv", newline="") as file:
        assert {row["id"]: row["n"] for row in csv.DictReader(file)} == NUMBERS
    table = pq.read_table("o.parquet")
    assert dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True)) == NUMBERS
    assert table["l"].to_pylist()[3] == '[1E400,{"x":1E400}]'


def test_numbers_that_floats_hold_are_a_column_of_floats(cortex: Any) -> None:
    texts = ["0.10", "1e2", "7", "NaN", "Infinity", "0.10000000000000000555", "null"]
    Path("in.jsonl").write_text("".join(f'{{"id":{n},"t":"x","n":{text}}}\n' for n, text in enumerate(texts)))
    ask = ("batch", "in.jsonl", "--prompt", "{{t}} {{n}}", "--id", "id", "--with-input", "--ordered", *SIM)
    assert cortex(*ask, "-o", "o.parquet", "--job", "j").code == 0
    assert repr(pq.read_table("o.parquet")["n"].to_pylist()) == "[0.1, 100.0, 7.0, nan, inf, 0.1, None]"
    cortex("results", "j", "-o", "o.jsonl")
    found = [json.loads(line)["n"] for line in Path("o.jsonl").read_text().splitlines()]
    assert found == [0.1, 100.0, 7, "NaN", "Infinity", 0.1, None]


def test_a_whole_number_that_no_float_holds_makes_a_column_of_numbers_text(cortex: Any) -> None:
    Path("in.jsonl").write_text('{"id":1,"t":"x","n":9007199254740993}\n{"id":2,"t":"x","n":0.5}\n')
    ask = ("batch", "in.jsonl", "--prompt", "{{t}}", "--id", "id", "--with-input", "--ordered", *SIM)
    assert cortex(*ask, "-o", "o.parquet").code == 0
    assert pq.read_table("o.parquet")["n"].to_pylist() == ["9007199254740993", "0.5"]


def test_rows_of_numbers_in_python(cortex: Any) -> None:
    _numbers(Path("in.jsonl"))
    answers = public.batch("in.jsonl", "Label: {{n}}", id="id", with_input=True, model=lambda text: text)
    assert [row["answer"] for row in answers] == [f"Label: {text}" for text in NUMBERS.values()]
    assert [type(row["n"]).__name__ for row in answers] == ["int", "int", "float", "Decimal", "Decimal", "float", "float", "float", "int"]
    assert answers.to_arrow()["n"].to_pylist()[1:6:3] == ["123456789012345678901234567890", "12345678901234567.89"]


def test_flaws_of_json_lines_are_bad_rows_with_a_result(cortex: Any) -> None:
    lines = [
        r'{"id":1,"t":"fine","x":"half \ud83d"}', r'{"id":2,"t":"half \ud83d","x":1}', '{"id":3,"t":NaN,"x":1}',
        '{"id":4,"t":Infinity,"x":NaN}', '{"id":5,"t":1e400,"x":2}',
    ]  # fmt: skip
    Path("in.jsonl").write_text("\n".join(lines) + "\n")
    ask = ("batch", "in.jsonl", "--prompt", "{{t}}", "--id", "id", "--ordered", *SIM)
    done = cortex(*ask, "-o", "o.jsonl", "--job", "j")
    assert done.code == 2
    found = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [(row["id"], (row["error"] or "")[:27]) for row in found] == [
        (1, ""), (2, "rejected: t holds half of a"), (3, "rejected: there is nothing "), (4, ""), (5, ""),
    ]  # fmt: skip
    done = cortex(*ask, "-o", "p.jsonl", "--job", "k", "--with-input")
    assert "line 1: x holds half of a character" in done.err
    assert "half \ufffd" in Path("p.jsonl").read_text()
