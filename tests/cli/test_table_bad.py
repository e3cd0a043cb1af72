"""Tables that cannot be used: one clear line that says where and what to do, nothing asked, nothing left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.journal.journal import StateFolder
from tests.cli.cli_runner import request
from tests.cli.table_files import ASK, BAD, SIM, table


def _nothing_began() -> None:
    assert StateFolder(os.environ["CORTEX_STATE"]).jobs() == []
    assert not list(Path().glob("o.*")) + list(Path().glob(".o*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "{{texxt}}"], ["t.csv has no column 'texxt', which the prompt names: did you mean text?"]),
        (["--prompt", "{{zzz}}"], ["has no column 'zzz'", "its columns are ticket_id, text, team"]),
        (["--prompt", "{{text}}", "--id", "id_of"], ["has no column 'id_of', which --id names"]),
        (["--prompt", "Label: {text}"], ["--prompt names no column", "{{column}}"]),
        (["--prompt", " "], ["--prompt: it is empty"]),
        (["--prompt", "{{text"], ["--prompt: the {{ on its line 1 is never closed"]),
        (["--prompt", "@none.md"], ["--prompt @none.md: cannot read none.md: No such file"]),
        (["--prompt", "{{text}}", "--system", "@none.md"], ["--system @none.md: cannot read"]),
        ([], ["t.csv is a table: give --prompt"]),
        (["--prompt", "{{text}}", "--schema", "none.json"], ["--schema none.json: cannot be read: No such file"]),
        (["--prompt", "{{text}}", "--schema", "broken.json"], ["--schema broken.json: is not JSON"]),
        (["--prompt", "{{text}}", "--schema", "wrong.json"], ["--schema wrong.json: $.a: type 'strng': did you mean"]),
        (["--prompt", "{{text}}", "--schema", "same.json"], ["two columns of the results would be named 'answer'"]),
        (["--prompt", "{{text}}", "--schema", "nope:Type"], ["--schema nope:Type: cannot be imported"]),
        (["--prompt", "{{text}}", "--schema", "json:Nope"], ["json has no Nope"]),
        (["--prompt", "{{text}}", "--schema", "json:JSONDecoder"], ["JSONDecoder has no JSON schema"]),
        (["--prompt", "{{text}}", "--schema-as", "tool"], ["give --schema too"]),
        (["--prompt", "{{text}}", "--schema", "good.json", "--schema-as", "yaml"], ["--schema-as 'yaml'"]),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(cortex: Any, options: list[str], words: list[str]) -> None:
    table(Path("t.csv"), 2)
    for name, schema in {
        "wrong": {"type": "object", "properties": {"a": {"type": "strng"}}},
        "same": {"type": "object", "properties": {"answer": {}}},
        "good": {"type": "object", "properties": {"a": {"type": "string"}}},
    }.items():
        Path(f"{name}.json").write_text(json.dumps(schema))
    Path("broken.json").write_text("{")
    cortex("batch", "t.csv", "-o", "o.csv", *options, *SIM).refused(*words)
    _nothing_began()


def test_no_model(cortex: Any) -> None:
    table(Path("t.csv"), 2)
    cortex("batch", "t.csv", *ASK, "-o", "o.csv").refused("--model NAME")


def test_options_of_tables_for_requests(cortex: Any) -> None:
    Path("in.jsonl").write_text(request("a"))
    for options in (["--id", "x"], ["--system", "x"], ["--with-input"]):
        cortex("batch", "in.jsonl", "-o", "o.jsonl", *options, *SIM).refused(options[0], "--prompt")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", ["t.csv is empty", "header"]),
        ("t.csv", b"ticket_id,text\n", ["t.csv is empty"]),
        ("t.csv", b"ticket_id,text,text\n1,a,b\n", ["its header names 'text' twice"]),
        ("t.csv", b"ticket_id,text\n1,\n2, \n", ["holds no row that can be asked; line 2: there is nothing to ask: text is empty"]),
        ("t.csv", b"ticket_id,text\n1,\xff\n", ["line 2: byte 3 (0xff) is not UTF-8"]),
        ("t.jsonl", b'{"ticket_id": 1, "test": "a"}\n', ["has no column 'text'", "did you mean test?"]),
        ("t.jsonl", b'3\n', ["line 1: is no object"]),
        ("t.json", b'[{"ticket_id": 1}]\n', ["is a JSON array", "jq"]),
        ("t.json", b'[\n  {\n"ticket_id": 1}\n]\n', ["is a JSON array", "jq"]),
        ("t.csv", b"PK\x03\x04 and more", ["a zip archive or a spreadsheet"]),
        ("t.csv", b"PAR1 and more", ["a Parquet file: name it .parquet"]),
        ("t.jsonl", b'{"ticket_id": 1, "text": "a\n', ["line 1: invalid JSON"]),
        ("t.parquet", b"PAR1 and then nothing", ["t.parquet was cut, or is no Parquet file"]),
        ("t.parquet", b"", ["t.parquet"]),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_used(cortex: Any, name: str, content: bytes, words: list[str]) -> None:
    Path(name).write_bytes(content)
    cortex("batch", name, *ASK, "-o", "o.csv", *SIM).refused(*words)
    _nothing_began()


def test_parquet_that_was_cut_or_damaged_in_the_middle(cortex: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [f"It crashes {i}" for i in range(4_000)]
    pq.write_table(pa.table({"ticket_id": range(4_000), "text": rows}), "t.parquet", row_group_size=500)
    whole = Path("t.parquet").read_bytes()
    for harm in (whole[: len(whole) // 2], whole[:2_000] + b"\xff" * 3_000 + whole[5_000:]):
        Path("t.parquet").write_bytes(harm)
        line = cortex("batch", "t.parquet", *ASK, "-o", "o.csv", *SIM).refused("t.parquet", "fetch or make it again")
        assert len(line) < 300
    _nothing_began()


def test_columns_of_one_name_and_a_time_beyond_the_years_of_python_are_one_line(cortex: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    two = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["ticket_id", "text", "text"])
    pq.write_table(two, "t.parquet")
    cortex("batch", "t.parquet", *ASK, "-o", "o.csv", *SIM).refused("t.parquet has two columns named 'text': rename one")
    far = pa.array([[2**60]], pa.list_(pa.timestamp("us")))
    pq.write_table(pa.table({"ticket_id": [1], "text": ["a"], "far": far}), "t.parquet")
    line = cortex("batch", "t.parquet", *ASK, "--with-input", "-o", "o.csv", *SIM).refused("out of range")
    assert len(line) < 300
    _nothing_began()


def test_a_nested_time_of_nanoseconds_keeps_its_digits(cortex: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = pa.array([[1_700_000_000_123_456_789], []], pa.list_(pa.timestamp("ns")))
    pq.write_table(pa.table({"ticket_id": [1, 2], "text": ["a", "b"], "at": times}), "t.parquet")
    assert cortex("batch", "t.parquet", *ASK, "--with-input", "-o", "o.jsonl", *SIM).code == 0
    rows = {row["ticket_id"]: row["at"] for row in map(json.loads, Path("o.jsonl").read_text().splitlines())}
    assert rows == {1: ["2023-11-14T22:13:20.123456789"], 2: []}


@pytest.mark.parametrize("name", ["o.csv.zst", "o.jsonl.bz2", "o.csv.xz", "o.parquet.gz"])
def test_a_compression_that_is_not_written_is_refused(cortex: Any, name: str) -> None:
    Path("t.csv").write_text("ticket_id,text\n1,fine\n")
    cortex("batch", "t.csv", *ASK, "-o", name, *SIM).refused(name, "compressed by .gz alone")
    _nothing_began()


def test_the_first_ten_bad_rows_are_told_and_the_rest_is_done(cortex: Any) -> None:
    bad = ['2,"open', "3,a,b", "1,again", ",none", f"{'x' * 2_049},long", "9,"]
    good = '1,fine\n4,"two\nlines"\n'
    Path("t.csv").write_text("ticket_id,text\n" + good + "\n".join(bad[1:]) + "\n\n" + "8,\n" * 9 + bad[0] + "\n")
    done = cortex("batch", "t.csv", *ASK, "-o", "o.jsonl", *SIM, *BAD, "--json")
    assert done.code == 2
    lines = done.said()
    assert lines[0] == "t.csv: 3 of 5 rows are refused before sending; 12 of 17 records are unreadable and skipped"
    assert lines[1:7] == [
        "t.csv line 5: has 3 cells, the header has 2: a quote or a comma is out of place",
        "t.csv line 6: ticket_id '1' stands on line 2 already: give another",
        "t.csv line 7: has no ticket_id: give each row one, or leave --id out to have them numbered",
        "t.csv line 8: ticket_id has 2,049 characters: at most 2,048",
        "t.csv line 9: there is nothing to ask: text is empty",
        "t.csv line 11: there is nothing to ask: text is empty",
    ]
    assert lines[11].startswith("t.csv: and ")
    assert any(": complete, 2 of 17 rows succeeded, 3 failed (3 refused before sending), 12 unreadable, " in line for line in lines[12:])
    assert len(Path("o.jsonl").read_text().splitlines()) == 5
    rows = {row["ticket_id"]: row["error"] for row in map(json.loads, Path("o.jsonl").read_text().splitlines())}
    assert rows["1"] is rows["4"] is None
    assert rows["x" * 2_049].startswith("rejected: ticket_id has 2,049")


@pytest.mark.parametrize(
    ("given", "named"), [(("t.csv", "-o", "o.xlsx"), "o.xlsx"), (("t.XLSX", "-o", "o.csv"), "t.XLSX")]
)
def test_a_form_that_is_not_written_gets_no_json_lines(cortex: Any, given: tuple[str, ...], named: str) -> None:
    Path("t.csv").write_text("ticket_id,text\n1,fine\n")
    Path("t.XLSX").write_text('{"ticket_id": 1, "text": "fine"}\n')
    cortex("batch", *given, *ASK, *SIM).refused(f"{named}: ", ".csv, .tsv, .parquet or .jsonl")
    _nothing_began()


def test_a_column_in_the_system_prompt_is_told(cortex: Any) -> None:
    Path("t.csv").write_text("ticket_id,text\n1,fine\n")
    done = cortex("batch", "t.csv", *ASK, "--system", "For {{ team }}.", "-o", "o.csv", *SIM)
    assert done.code == 0 and "{{team}} in it is sent unchanged" in done.said()[0]
    done = cortex("batch", "t.csv", *ASK, "--system", "Write \\{{ team }} or {{", "-o", "p.csv", *SIM)
    assert done.code == 0 and "--system" not in done.err


def test_a_quote_that_is_never_closed(cortex: Any) -> None:
    Path("t.csv").write_text('ticket_id,text\n1,fine\n2,"open\n3,lost\n')
    done = cortex("batch", "t.csv", *ASK, "-o", "o.jsonl", *SIM, *BAD)
    assert done.code == 3
    assert "t.csv line 3: opens a quote that is never closed" in done.err


def test_a_column_of_mixed_types(cortex: Any) -> None:
    lines = ['{"ticket_id": 1, "text": "a", "n": 1}', '{"ticket_id": 2, "text": "b", "n": 1.5}',
             '{"ticket_id": 3, "text": "c", "n": "x"}']  # fmt: skip
    Path("t.jsonl").write_text("\n".join(lines[:2]) + "\n")
    command = ("batch", "t.jsonl", *ASK, "--with-input", *SIM)
    assert cortex(*command, "-o", "good.parquet").code == 0
    Path("t.jsonl").write_text("\n".join(lines) + "\n")
    cortex(*command, "-o", "o.parquet").refused(
        "column 'n' holds a whole number on line 1 and text on line 3", "write .jsonl or .csv"
    )
    assert cortex(*command, "-o", "p.csv").code == 0
    assert cortex("batch", "t.jsonl", *ASK, "-o", "q.parquet", *SIM).code == 0  # the column is not among the results


def test_a_line_that_is_no_row_makes_no_column_of_two_types(cortex: Any) -> None:
    lines = ['{"ticket_id": 1, "text": "a", "n": 1}', '{"ticket_id": true, "text": "b", "n": 2}', '{"n": "x", "text": "c"}']
    Path("t.jsonl").write_text("\n".join(lines) + "\n")
    done = cortex("batch", "t.jsonl", *ASK, "--with-input", "-o", "o.parquet", *SIM, *BAD, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["rows_unreadable"]) == (3, 1, 2), done.err


def test_a_column_that_results_have_too(cortex: Any) -> None:
    Path("t.csv").write_text("ticket_id,text,answer\n1,a,b\n")
    cortex("batch", "t.csv", *ASK, "-o", "o.csv", "--with-input", *SIM).refused("has a column 'answer'", "--with-input")
    assert cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM).code == 0


def test_numbers_that_no_column_holds(cortex: Any) -> None:
    import pyarrow.parquet as pq

    rows = [{"ticket_id": 10**30, "text": "a", "n": 1}, {"ticket_id": 2, "text": "b", "n": 2**64}]
    rows += [{"ticket_id": 3, "text": "c"}]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ("batch", "t.jsonl", *ASK, "--with-input", "--ordered", *SIM)
    assert cortex(*command, "-o", "o.parquet").code == 0
    found = pq.read_table("o.parquet").to_pylist()
    assert [(row["ticket_id"], row["n"]) for row in found] == [(str(10**30), "1"), ("2", str(2**64)), ("3", None)]


def test_a_column_named_like_the_numbers_of_rows(cortex: Any) -> None:
    Path("t.csv").write_text("row,text\nx,a\n")
    cortex("batch", "t.csv", "--prompt", "{{row}}", "-o", "o.csv", *SIM).refused("the column 'row'", "--id")
    assert cortex("batch", "t.csv", "--prompt", "{{row}}", "--id", "row", "-o", "o.csv", *SIM).code == 0


def test_without_pyarrow(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    table(Path("t.csv"), 2)
    Path("t.parquet").write_bytes(b"PAR1")
    assert cortex("batch", "t.csv", *ASK, "-o", "p.csv", "--with-input", *SIM).code == 0
    cortex("batch", "t.csv", *ASK, "-o", "o.parquet", *SIM).refused("o.parquet", "cortex-bounded-calls[parquet]")
    cortex("batch", "t.parquet", *ASK, "-o", "o.csv", *SIM).refused("t.parquet", "cortex-bounded-calls[parquet]")


def test_an_output_of_a_form_that_nobody_writes(cortex: Any) -> None:
    Path("t.csv").write_text("ticket_id,text\n1,a\n")
    cortex("batch", "t.csv", *ASK, *SIM, "-o", "o.xlsx").refused(
        "o.xlsx: results are written as .csv, .tsv, .parquet or .jsonl"
    )
    _nothing_began()


def test_run_writes_no_table(cortex: Any) -> None:
    cortex("run", "notes", "x", "-o", "o.parquet", *SIM).refused("-o o.parquet", ".jsonl")
    cortex("run", "table").refused("cortex batch TABLE")
