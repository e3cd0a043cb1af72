"""Values of a Parquet table: each comes back with its type, or is refused by name before anything is paid."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.files.paths import rows_of
from actors.files.sinks import table_sink
from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder
from tests.cli.table_files import ASK, SIM
from tests.support.arrow_columns import any_column, any_type, any_value, key

ROWS = 25


def _held(kind: Any) -> bool:
    """Whether Parquet holds this type."""
    try:
        pq.write_table(pa.schema([("x", kind)]).empty_table(), pa.BufferOutputStream())
    except pa.ArrowException:
        return False
    return True


def _random_table(seed: int) -> Any:
    rng = random.Random(seed)
    kinds = [kind for kind in (any_type(rng) for _ in range(10)) if _held(kind)]
    columns = {f"c {n}": any_column(kind, [any_value(kind, rng) for _ in range(ROWS)]) for n, kind in enumerate(kinds)}
    columns = {"ticket_id": pa.array(range(ROWS)), "text": pa.array(["It crashes"] * ROWS)} | columns
    fields = [pa.field(name, column.type, nullable=name != "ticket_id") for name, column in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields, {b"huggingface": b'{"info":{}}'}))


def _equal(found: Any, given: Any) -> None:
    places = found["ticket_id"].to_pylist()
    for field in given.schema:
        assert found.schema.field(field.name) == field
        values = found[field.name].to_pylist()
        assert key([values[places.index(row)] for row in range(ROWS)]) == key(given[field.name].to_pylist()), field
    assert found.schema.metadata[b"huggingface"] == b'{"info":{}}'


@pytest.mark.parametrize("seed", range(8))
def test_a_table_of_any_types_comes_back(cortex: Any, seed: int) -> None:
    pq.write_table(_random_table(seed), "t.parquet", row_group_size=10)
    given = pq.read_table("t.parquet")
    order = ["--ordered"] if seed % 2 else []
    done = cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", "--with-input", *order, *SIM, "--job", "t")
    assert done.code == 0, done.err
    _equal(pq.read_table("o.parquet"), given)
    assert cortex("results", "t", "-o", "again.parquet").code == 0
    _equal(pq.read_table("again.parquet"), given)


def test_a_null_in_a_column_that_allowed_none_is_written(tmp_path: Path) -> None:
    given = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    columns = table_sink.Columns([("id", "arrow")], arrow=_packed(given))
    rows = rows_of(tmp_path, str(tmp_path / "o.parquet"), "j")
    sink = table_sink.TableSink(str(tmp_path / "o.parquet"), rows, columns, job="j")
    sink.open(0, 0, False)
    sink.write([b'{"id":1}', b"{}"])
    sink.close()
    assert pq.read_table(tmp_path / "o.parquet")["id"].to_pylist() == [1, None]


def _packed(schema: Any) -> str:
    import base64

    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.list_(pa.timestamp("us"))], ids=str)
def test_a_time_beyond_the_year_9999_is_refused_by_name_before_anything_is_asked(cortex: Any, kind: Any) -> None:
    times = [0, 253_402_300_800 * 10**6]
    far = pa.array(times, pa.timestamp("us")) if pa.types.is_timestamp(kind) else pa.array([[each] for each in times], kind)
    pq.write_table(pa.table({"ticket_id": [1, 2], "text": ["a", "b"], "far": far}), "t.parquet")
    ask = ("batch", "t.parquet", *ASK, "--with-input", *SIM)
    cortex(*ask, "-o", "o.parquet").refused("t.parquet row 2, column 'far': a time is outside the years 1 to 9999")
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    assert cortex(*ask, "-o", "o.csv").code == 0
    assert "10000-01-01" in Path("o.csv").read_text()
    assert cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", *SIM).code == 0  # nobody asks about the column


def test_text_that_is_not_utf8_is_refused_by_name(cortex: Any) -> None:
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"ticket_id": [1, 2], "text": ["a", "b"], "x": broken}), "t.parquet")
    ask = ("batch", "t.parquet", *ASK, "-o", "o.csv", *SIM)
    cortex(*ask, "--with-input").refused("t.parquet row 2, column 'x': its text is not UTF-8")
    assert cortex(*ask).code == 0


def test_bytes_that_are_utf8_are_text_and_stay_bytes(cortex: Any) -> None:
    """Impala, Hive and older Spark do not mark strings as such."""
    texts = [b"It crashes", None, "Ça marche".encode()]
    image = pa.array([{"bytes": b"\xff\xd8", "path": "a.jpg"}] * 3)
    given = pa.table({"ticket_id": [b"a", b"b", b"c"], "text": texts, "image": image})
    pq.write_table(given, "t.parquet")
    done = cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", "--with-input", "--ordered", *SIM, "--job", "t")
    assert "row 2: there is nothing to ask: text is empty" in done.err
    found = pq.read_table("o.parquet")
    assert found.select(given.schema.names).equals(given)
    assert found["answer"][0].as_py() in ("bug", "praise")
    assert cortex("results", "t", "-o", "again.csv").code == 0
    assert "c,Ça marche" in Path("again.csv").read_text()
    assert "Ça marche" in cortex("inspect", "t", "c").out


@pytest.mark.parametrize("column", ["image", "raw"])
def test_bytes_that_are_no_text_are_not_asked(cortex: Any, column: str) -> None:
    image = pa.array([{"bytes": b"\xff\xd8", "path": "a.jpg"}])
    pq.write_table(pa.table({"ticket_id": [1], "text": ["a"], "image": image, "raw": [b"\xff"]}), "t.parquet")
    ask = ("batch", "t.parquet", "--prompt", f"{{{{text}}}} {{{{{column}}}}}", "--id", "ticket_id", "-o", "o.csv", *SIM)
    cortex(*ask).refused(f"t.parquet: the prompt names '{column}', which holds bytes that are not UTF-8 text")
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []


def test_floats_in_a_prompt_have_the_digits_of_their_type(cortex: Any) -> None:
    numbers = pa.array([0.1, float("nan")], pa.float32())
    pq.write_table(pa.table({"ticket_id": [1, 2], "text": ["a", "b"], "n": numbers}), "t.parquet")
    ask = ("batch", "t.parquet", "--id", "ticket_id", "--ordered", *SIM)
    done = cortex(*ask, "--prompt", "Price: {{n}}", "-o", "o.csv", "--job", "t")
    assert "Price: 0.1\n" in cortex("inspect", "t", "1").out + "\n"
    assert "row 2: there is nothing to ask: n is empty" in done.err


def test_a_table_that_was_not_written_is_not_named_as_the_results(
    cortex: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"ticket_id": [1], "text": ["a"]}), "t.parquet")
    with monkeypatch.context() as patch:
        patch.setattr(table_sink, "arrow_columns", lambda *_: pa.array(["x"], pa.int64()))
        done = cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", *SIM, "--job", "t")
    assert (done.code, "o.parquet was not written; the results so far: cortex results t" in done.err) == (3, True), done.err
    assert not Path("o.parquet").exists()
    assert cortex("resume", "t").code == 0
    assert pq.read_table("o.parquet").num_rows == 1


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_table_with_a_column_answer_has_its_answers_in_a_column_of_another_name(cortex: Any, form: str) -> None:
    """Nearly every set of questions and answers has such a column; here it is in the prompt and in the results."""
    given = pa.table({"id": [1, 2], "text": ["It crashes", "b"], "answer": [41, 42], "error": ["own", None]})
    pq.write_table(given, "t.parquet")
    ask = ("batch", "t.parquet", "--prompt", "Answer with one of: bug, praise. {{text}} {{answer}}", "--id", "id", *SIM)
    ask = (*ask, "--with-input", "-o", f"o.{form}", "--job", "t")
    cortex(*ask).refused("a column 'answer', as have the results: give --answer-as NAME, rename the column")
    cortex(*ask, "--answer-as", "said").refused("a column 'error', as have the results: give --columns-prefix TEXT")
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    done = cortex(*ask, "--columns-prefix", "llm_", "--answer-as", "said", "--ordered")
    assert done.code == 0, done.err
    assert cortex("results", "t", "-o", "again.parquet").code == 0
    found = pq.read_table("again.parquet")
    assert found.schema.names == ["id", "text", "answer", "error", "said", "llm_error"]
    assert found.select(given.schema.names).equals(given)
    assert set(found["said"].to_pylist()) <= {"bug", "praise"}
    assert Path(f"o.{form}").stat().st_size > 0


def test_an_id_that_is_called_answer(cortex: Any) -> None:
    Path("t.csv").write_text("answer,text\na1,It crashes\n")
    ask = ("batch", "t.csv", "--prompt", "Answer with one of: bug, praise. {{text}}", "--id", "answer", "-o", "o.csv", *SIM)
    cortex(*ask).refused("two columns of the results would be named 'answer': give --answer-as NAME, or rename")
    assert cortex(*ask, "--answer-as", "said").code == 0
    assert Path("o.csv").read_text() == "answer,said,error\na1,bug,\n"


def test_requests_have_a_column_of_another_name_too(cortex: Any) -> None:
    line = '{"custom_id":"a","params":{"max_tokens":9,"messages":[{"role":"user","content":"Answer with one of: bug, praise. x"}]}}'
    Path("in.jsonl").write_text(line + "\n")
    assert cortex("batch", "in.jsonl", "-o", "o.jsonl", "--answer-as", "said", *SIM).code == 0
    assert json.loads(Path("o.jsonl").read_text()) == {"custom_id": "a", "said": "bug", "error": None}


@pytest.mark.parametrize("group", [1, 2, 100])
def test_categories_of_pandas_keep_their_order_and_those_without_a_row(cortex: Any, group: int) -> None:
    mood = pd.Categorical(["fine", None, "bad", "fine"], ["bad", "fine", "great", "unused"], ordered=True)
    frame = pd.DataFrame({"ticket_id": [1, 2, 3, 4], "text": ["a", "b", "c", "d"], "mood": mood})
    pq.write_table(pa.Table.from_pandas(frame), "t.parquet", row_group_size=group)
    ask = ("batch", "t.parquet", *ASK, "-o", "o.parquet", "--with-input", "--ordered", *SIM, "--job", "t")
    assert cortex(*ask).code == 0
    back = pd.read_parquet("o.parquet")
    pd.testing.assert_series_equal(back["mood"], frame["mood"])
    assert (back["mood"] < "great").tolist() == [True, False, True, True]
    assert cortex("results", "t", "-o", "again.parquet").code == 0
    pd.testing.assert_series_equal(pd.read_parquet("again.parquet")["mood"], frame["mood"])


def test_entries_of_a_dictionary_of_many_texts_are_not_kept_with_the_job(cortex: Any) -> None:
    texts = [f"text {number}" * 100 for number in range(200)]
    table = pa.table({"ticket_id": range(200), "text": pa.array(texts).dictionary_encode()})
    pq.write_table(table, "t.parquet")
    done = cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", "--with-input", "--ordered", *SIM, "--job", "t")
    assert done.code == 0, done.err
    assert pq.read_table("o.parquet")["text"].to_pylist() == texts
    places = last_terms(StateFolder(os.environ["CORTEX_STATE"]), "t").places
    assert len(places["columns"]) < 5_000
