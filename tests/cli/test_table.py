"""``cortex batch TABLE --prompt …``: my table in, my table out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.cli.cli_runner import ended, environment, request, started
from tests.cli.table_files import ASK, SIM, ids, table
from tests.support.arrow_columns import same
from tests.support.patience import PATIENCE_S

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["bug", "praise"]}, "score": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["label", "score"],
}


def read(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_csv_in_and_csv_out_with_the_input_and_more(cortex: Any) -> None:
    given = read(str(table(Path("t.csv"), 5)))
    done = cortex("batch", "t.csv", *ASK, "-o", "o.csv", "--with-input", "--meta", "--ordered", *SIM, "--json")
    assert (done.code, done.last["rows"], done.last["rows_succeeded"]) == (0, 5, 5)
    rows = read("o.csv")
    assert [{name: row[name] for name in given[0]} for row in rows] == given
    assert {row["answer"] for row in rows} <= {"bug", "praise"}
    assert list(rows[0])[3:] == [
        "answer", "error", "kind", "stop_reason", "model", "attempts", "latency_s", "input_tokens", "output_tokens",
        "cost_usd", "reused",
    ]  # fmt: skip
    assert {(row["kind"], row["attempts"], row["reused"], row["model"]) for row in rows} == {
        ("succeeded", "1", "false", "sim")
    }
    again = cortex("batch", "t.csv", *ASK, "-o", "o.jsonl", "--meta", *SIM, "--json")
    assert (again.last["reused_calls"], {(row["reused"], row["attempts"]) for row in lines("o.jsonl")}) == (
        5,
        {(True, 0)},
    )


def test_ids_are_urls_uuids_and_whole_numbers_of_a_column_with_a_gap(cortex: Any) -> None:
    url = "https://example.com/" + "path/" * 30
    Path("urls.csv").write_text(f"id,text\n{url},a\n{url}2,b\n")
    parts = [uuid.UUID(int=number) for number in range(2)]
    columns = {"id": pyarrow.array([each.bytes for each in parts], pyarrow.uuid()), "text": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), "uuids.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"id": [1.0, 2.0], "text": ["a", "b"]}), "gap.parquet")
    expected = {"urls.csv": {url, url + "2"}, "uuids.parquet": set(map(str, parts)), "gap.parquet": {"1.0", "2.0"}}
    for name, known in expected.items():
        assert cortex("batch", name, "-o", f"{name}.csv", "--prompt", "Which? {{text}}", "--id", "id", *SIM).code == 0
        with Path(f"{name}.csv").open(newline="") as file:
            found = {row["id"] for row in csv.DictReader(file)}
        assert found == known


def test_rows_are_numbered_where_no_column_is_the_id(cortex: Any) -> None:
    table(Path("t.csv"), 3)
    assert cortex("batch", "t.csv", *ASK[:2], "-o", "o.jsonl", "--ordered", *SIM).code == 0
    assert [row["row"] for row in lines("o.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "t.jsonl.gz", "-"])
def test_json_lines_of_objects(cortex: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    content = b'{"ticket_id": 1, "text": "It crashes"}\n\n{"text": "fine", "ticket_id": 2, "more": [1]}\n'
    if name == "-":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    else:
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert cortex("batch", name, *ASK, "-o", "o.jsonl", "--ordered", "--with-input", *SIM).code == 0
    assert [(row["ticket_id"], row["text"], row.get("more")) for row in lines("o.jsonl")] == [
        (1, "It crashes", None), (2, "fine", [1]),
    ]  # fmt: skip


def test_template_and_system_prompt_are_read_from_files(cortex: Any) -> None:
    table(Path("t.csv"), 2)
    Path("ask.txt").write_text("Label: {{text}} \\{{x}}")
    Path("system.md").write_text("You are terse.")
    assert cortex("batch", "t.csv", "--prompt", "@ask.txt", "--system", "@system.md", "--job", "j", "-o", "o.csv", *SIM).code == 0
    shown = cortex("inspect", "j", "row:1").out
    assert "{{x}}" in shown and "You are terse." in shown


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_standard_input_is_known_by_its_first_bytes(cortex: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO(b"ticket_id,text\n1,It crashes\n2,fine\n")
    if form == "parquet":
        content = io.BytesIO()
        pq.write_table(pa.table({"ticket_id": [1, 2], "text": ["It crashes", "fine"]}), content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.getvalue())))
    assert cortex("batch", "-", *ASK, "-o", "o.csv", "--ordered", *SIM).code == 0
    with Path("o.csv").open(newline="") as file:
        assert [row["ticket_id"] for row in csv.DictReader(file)] == ["1", "2"]


def test_a_table_of_too_many_columns_is_asked_without_repeating_them(cortex: Any) -> None:
    names = [f"c{n}" for n in range(5_000)]
    Path("t.csv").write_text(f"ticket_id,text,{','.join(names)}\n1,It crashes{',' * len(names)}\n")
    cortex("batch", "t.csv", *ASK, "-o", "o.csv", "--with-input", *SIM).refused("5,002 columns, more than 5,000: leave --with-input out")
    assert cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM).code == 0


@pytest.mark.parametrize(
    ("content", "name"),
    [("ticket_id;text\n1;a, b\n", "t.csv"), ("ticket_id\ttext\n1\ta, b\n", "t.tsv"), ("\ufeffticket_id,text\r\n1,\"a, b\"\r\n", "t.csv")],
)  # fmt: skip
def test_forms_of_csv(cortex: Any, content: str, name: str) -> None:
    Path(name).write_text(content, newline="")
    assert cortex("batch", name, *ASK, "-o", "o.tsv", "--with-input", *SIM).code == 0
    assert Path("o.tsv").read_text().splitlines()[1].startswith("1\ta, b\t")


def test_parquet_keeps_the_types_of_the_input(cortex: Any) -> None:
    import datetime as dt
    from decimal import Decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    given = pa.table(
        {
            "ticket_id": pa.array([7, 8, 9], pa.int32()), "text": ["It crashes", None, "love"],
            "at": pa.array([1_767_322_245_000_678, None, 1_577_836_800_000_000], pa.timestamp("us", "UTC")),
            "day": pa.array([dt.date(2026, 1, 2)] * 3), "price": pa.array([Decimal("1.20"), None, Decimal("0.05")]),
            "raw": pa.array([b"\0\xff", None, b""]), "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "many": pa.array([["x"], [], None]), "share": pa.array([0.5, float("nan"), None]),
        }
    )  # fmt: skip
    pq.write_table(given, "t.parquet", row_group_size=2)
    done = cortex("batch", "t.parquet", *ASK, "-o", "o.parquet", "--with-input", "--ordered", *SIM)
    assert done.code == 2, done.err
    assert "t.parquet row 2: there is nothing to ask: text is empty" in done.err
    found = pq.read_table("o.parquet")
    assert found.schema.names == [*given.schema.names, "answer", "error"]
    for name in given.schema.names:
        assert found.schema.field(name).type == given.schema.field(name).type
        assert same(found[name], given[name])
    assert found["error"].to_pylist() == [None, "rejected: there is nothing to ask: text is empty", None]


def test_typed_answers_become_columns(cortex: Any) -> None:
    import pyarrow.parquet as pq

    table(Path("t.csv"), 6)
    Path("s.json").write_text(json.dumps(SCHEMA))
    for how in ("format", "tool", "prompt"):
        command = ("batch", "t.csv", *ASK, "-o", f"{how}.parquet", "--schema", "s.json", "--schema-as", how, *SIM)
        assert cortex(*command).code == 0
        found = pq.read_table(f"{how}.parquet")
        assert [str(kind) for kind in found.schema.types] == ["string", "string", "int64", "string", "string"]
        assert all(row["label"] in ("bug", "praise") and 0 <= row["score"] <= 9 for row in found.to_pylist())


def test_an_answer_that_never_fits_is_a_failed_row_with_its_text(cortex: Any) -> None:
    table(Path("t.csv"), 2)
    Path("s.json").write_text(json.dumps(SCHEMA))
    command = ("batch", "t.csv", *ASK, "--schema", "s.json", "--max-output-tokens", 2, "--meta", *SIM, "--json")
    done = cortex(*command, "-o", "o.jsonl")
    assert (done.code, done.last["calls"], done.last["failures"]) == (1, 2, {})
    assert "2 failed (2 cut)" in done.err
    for row in lines("o.jsonl"):
        assert row["label"] is row["score"] is None
        assert row["error"].startswith("cut: the reply was cut at 2 output tokens (max_tokens)")
        assert row["answer"].startswith("{")
        assert (row["kind"], row["attempts"], row["output_tokens"]) == ("cut", 1, 2)


def test_a_python_type_as_schema(cortex: Any) -> None:
    table(Path("t.csv"), 2)
    Path("shapes.py").write_text(
        "import msgspec, pydantic\nfrom typing import Literal\n"
        "class One(msgspec.Struct):\n    label: Literal['bug', 'praise']\n"
        "class Two(pydantic.BaseModel):\n    label: Literal['bug', 'praise']\n    note: str | None = None\n"
    )
    assert cortex("batch", "t.csv", *ASK, "-o", "1.jsonl", "--schema", "shapes.py:One", *SIM).code == 0
    assert cortex("batch", "t.csv", *ASK, "-o", "2.jsonl", "--schema", "shapes:Two", *SIM).code == 0
    assert {row["label"] for row in (*lines("1.jsonl"), *lines("2.jsonl"))} <= {"bug", "praise"}


def test_requests_in_and_a_table_out(cortex: Any) -> None:
    Path("in.jsonl").write_text(request("a") + "\n" + request("b", max_tokens="many") + "\n")
    done = cortex("batch", "in.jsonl", "-o", "o.csv", *SIM)
    assert done.code == 2
    rows = {row["custom_id"]: row for row in read("o.csv")}
    assert rows["a"]["answer"] in ("bug", "praise")
    assert rows["b"]["error"].startswith("rejected: max_tokens is")
    Path("s.json").write_text(json.dumps(SCHEMA))
    assert cortex("batch", "in.jsonl", "-o", "o.jsonl", "--schema", "s.json", *SIM).code == 2
    assert {row["custom_id"]: row["label"] for row in lines("o.jsonl")}["a"] in ("bug", "praise")


def test_results_of_a_job_in_another_form(cortex: Any) -> None:
    table(Path("t.csv"), 4)
    Path("in.jsonl").write_text(request("a") + "\n")
    cortex("batch", "t.csv", *ASK, "-o", "o.jsonl", "--job", "mine", *SIM)
    cortex("batch", "in.jsonl", "-o", "b.jsonl", "--job", "plain", *SIM)
    for name in ("o.csv", "o.parquet"):
        assert cortex("results", "mine", "-o", name).code == 0
    assert sorted(row["ticket_id"] for row in read("o.csv")) == ["t0", "t1", "t2", "t3"]
    assert cortex("results", "plain", "-o", "p.csv").code == 0
    assert [row["custom_id"] for row in read("p.csv")] == ["a"]
    assert ids(cortex("results", "mine").out) == ["t0", "t1", "t2", "t3"]
    assert not list(Path(".").rglob("*rows*"))


def test_the_same_command_again_and_a_table_that_was_cut_or_taken_away(cortex: Any) -> None:
    table(Path("t.csv"), 5)
    for name in ("o.csv", "o.parquet"):
        command = ("batch", "t.csv", *ASK, "-o", name, *SIM, "--json")
        assert cortex(*command).code == 0
        before = Path(name).read_bytes()
        again = cortex(*command)
        assert (again.code, again.last["paid_calls"]) == (0, 5 if name == "o.csv" else 0)
        assert "nothing is asked again" in again.err
        assert "is incomplete" not in again.err
        for harm in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])):
            harm(Path(name))
            mended = cortex(*command)
            assert "is incomplete" in mended.err
            assert Path(name).read_bytes() == before


def test_a_stranger_file_is_not_written_over(cortex: Any) -> None:
    table(Path("t.csv"), 3)
    Path("o.csv").write_text("mine")
    cortex("batch", "t.csv", *ASK, "-o", "o.csv", *SIM).refused("o.csv exists", "--overwrite")
    assert Path("o.csv").read_text() == "mine"
    cortex("batch", "t.csv", *ASK, "-o", "t.csv", "--overwrite", *SIM).refused("t.csv is the input itself")
    assert cortex("batch", "t.csv", *ASK, "-o", "o.csv", "--overwrite", *SIM).code == 0


def test_a_cap_leaves_the_table_so_far_and_resume_completes_it(cortex: Any) -> None:
    table(Path("t.csv"), 30)
    command = ("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--price", "input=1,output=1", "--max-output-tokens", 8)
    done = cortex(*command, "--max-cost", "0.0005", "--json")
    assert done.code == 3
    part = read("o.csv")
    assert 0 < len(part) < 30
    rest = cortex("resume", done.last["job"], "--max-cost", "1", "--json")
    assert (rest.code, rest.last["paid_calls"]) == (0, 30)
    assert sorted(row["ticket_id"] for row in read("o.csv")) == sorted(f"t{i}" for i in range(30))
    assert not list(Path(".").glob(".o.csv*"))


def test_a_changed_input_is_noticed(cortex: Any) -> None:
    table(Path("t.csv"), 30)
    command = ("batch", "t.csv", *ASK, "-o", "o.csv", *SIM, "--sim", "credit_calls=5", "--json")
    job = cortex(*command).last["job"]
    table(Path("t.csv"), 31)
    cortex(*command).refused("t.csv is not what job")
    cortex("resume", job).refused("t.csv has changed since job")


@pytest.mark.parametrize(
    ("form", "ordered", "seed"), [("o.csv", True, 1), pytest.param("o.parquet", False, 2, marks=pytest.mark.long)]
)
def test_killed_at_any_moment_no_row_is_lost_and_none_stands_twice(
    tmp_path: Path, form: str, ordered: bool, seed: int
) -> None:
    count = 6_000  # more than are open at once, so that reading goes on in the middle
    table(tmp_path / "t.csv", count)
    chance = random.Random(seed)
    command = ("batch", "t.csv", *ASK[:2], "-o", form, "--with-input", *SIM, "--sim", "latency_ms=75", "--job", "j")
    command += ("--ordered", *ASK[2:]) if ordered else ()  # else its rows are known by their numbers
    kills = 0
    while True:
        with started(*command, cwd=tmp_path, env=environment(CORTEX_STATE=str(tmp_path / "state"))) as child:
            if kills < 5:
                time.sleep(chance.uniform(0.6, 2.0))
                if child.poll() is None:
                    child.kill()
                    kills += 1
                    continue
            done = ended(child, 2 * PATIENCE_S)
            break
    assert done.code == 0, done.err
    assert kills >= 2
    if form.endswith(".csv"):
        rows = read(str(tmp_path / form))
    else:
        import pyarrow.parquet as pq

        rows = pq.read_table(tmp_path / form).to_pylist()
    found = [row["ticket_id"] for row in rows]
    expected = [f"t{i}" for i in range(count)]
    assert (found if ordered else sorted(found)) == (expected if ordered else sorted(expected))
    assert all(row["text"] == f'It crashes {row["ticket_id"][1:]} times,\nsays "Ann"' for row in rows)
    if not ordered:
        assert all(row["row"] == int(row["ticket_id"][1:]) + 1 for row in rows)
    left = [path.name for path in tmp_path.iterdir() if path.name not in ("t.csv", "state", form)]
    assert left == [], (seed, left)


def test_a_column_that_tells_no_rows_apart_is_refused_before_anything_is_asked(cortex: Any) -> None:
    table(Path("in.csv"), 30)
    done = cortex("batch", "in.csv", "-o", "o.csv", "--prompt", "Which? {{text}}", "--id", "team", *SIM)
    done.refused("in.csv: 27 lines have the team of one before: it must tell rows apart")


def test_results_of_a_complete_job_are_not_written_over_by_another_model(cortex: Any) -> None:
    table(Path("in.csv"), 3)
    given = ("batch", "in.csv", "-o", "o.csv", *ASK, "--job", "j", "--model")
    assert cortex(*given, "sim").code == 0
    before = Path("o.csv").read_bytes()
    text = "job j is complete, and now asks another model: its results in o.csv would be overwritten"
    cortex(*given, "claude-haiku-4-5").refused(text)
    assert Path("o.csv").read_bytes() == before
    assert cortex(*given, "sim").code == 0, "the same command shows it again"


@pytest.mark.parametrize("more", [("--system", "Be brief."), ("--with-input",), ("--prompt", "Now? {{text}}")], ids=str)
def test_results_of_a_complete_job_are_not_written_over_by_other_questions(cortex: Any, more: tuple[str, ...]) -> None:
    table(Path("in.csv"), 3)
    given = ("batch", "in.csv", "-o", "o.csv", *ASK, *SIM, "--job", "j")
    assert cortex(*given).code == 0
    before = Path("o.csv").read_bytes()
    text = "job j is complete, and now asks something else: its results in o.csv would be overwritten"
    cortex(*given, *more).refused(text)
    assert Path("o.csv").read_bytes() == before
    assert cortex(*given).code == 0, "the same command shows it again"
    assert cortex(*given, *more, "--overwrite").code == 0
    assert Path("o.csv").read_text().count("\nt") == 3


def test_a_table_is_made_where_the_users_link_points_and_nothing_is_paid_for_one_that_cannot_be(cortex: Any) -> None:
    table(Path("in.csv"), 3)
    Path("there").mkdir()
    Path("link.csv").symlink_to(Path("there", "o.csv"))
    given = ("batch", "in.csv", "-o", "link.csv", *ASK, *SIM, "--job", "j")
    cortex(*given).refused("link.csv exists", "--overwrite")
    assert cortex(*given, "--overwrite").code == 0
    assert Path("link.csv").is_symlink() and Path("there", "o.csv").read_text().count("\nt") == 3
    assert [path.name for path in Path("there").iterdir()] == ["o.csv"]
    Path("there", "o.csv").unlink()
    assert cortex("resume", "j").code == 0, "made again"
    assert Path("link.csv").is_symlink() and Path("there", "o.csv").read_text().count("\nt") == 3


def test_a_table_that_another_job_has_made_meanwhile_is_not_written_over(cortex: Any) -> None:
    table(Path("in.csv"), 30)
    first = ("batch", "in.csv", "-o", "o.csv", *ASK, *SIM, "--job", "a", "--max-job-tokens", "600")
    assert cortex(*first).code == 3
    Path("o.csv").unlink()
    second = ("batch", "in.csv", "-o", "o.csv", *ASK, *SIM, "--job", "b")
    cortex(*second).refused("o.csv is the output of another job, which has not ended")
    assert cortex(*second, "--overwrite").code == 0
    made = Path("o.csv").read_bytes()
    cortex("resume", "a", "--max-job-tokens", "none").refused("o.csv is not as this job left it: move it away")
    assert Path("o.csv").read_bytes() == made
    Path("o.csv").rename("b.csv")
    assert cortex("resume", "a", "--max-job-tokens", "none").code == 0
    assert len(Path("o.csv").read_text().splitlines()) == len(Path("b.csv").read_text().splitlines())


def test_an_ending_that_is_a_letter_off_is_no_file_of_lines(cortex: Any) -> None:
    table(Path("in.csv"), 3)
    done = cortex("batch", "in.csv", "-o", "o.cvs", *ASK, *SIM)
    done.refused("o.cvs: did you mean .csv? Results are written as .csv, .tsv, .parquet or .jsonl")
    assert cortex("batch", "in.csv", "-o", "results", *ASK, *SIM).code == 0, "a name without an ending is one of lines"


def test_a_rehearsal_with_a_cap_says_what_to_rehearse(cortex: Any) -> None:
    table(Path("in.csv"), 3)
    given = ("batch", "in.csv", "-o", "o.csv", *ASK, *SIM, "--max-cost", "5")
    cortex(*given).refused("no price known for 'sim'", "or --price-as with the model that it rehearses")
    assert cortex(*given, "--price-as", "claude-haiku-4-5").code == 0


CUT = ("--max-output-tokens", 2, "--prompt", "Tell of {{text}}", "--id", "ticket_id", *SIM)


def test_a_cut_answer_fails_its_row_and_is_asked_again_alone(cortex: Any) -> None:
    table(Path("t.csv"), 3)
    done = cortex("batch", "t.csv", *CUT, "-o", "o.jsonl", "--job", "j")
    assert done.code == 1 and "0 of 3 rows succeeded, 3 failed (3 cut), 3 calls" in done.err
    halves = lines("o.jsonl")
    assert all(row["answer"] and row["error"].startswith("cut: the reply was cut at 2 output tokens") for row in halves)
    assert cortex("retry", "j", "--kind", "malformed").refused("no row failed of kind malformed")
    again = cortex("retry", "j", "--kind", "cut,empty", "--max-output-tokens", 500)
    assert again.code == 0 and "3 of 3 rows succeeded, 6 calls" in again.err
    assert all(len(new["answer"]) > len(old["answer"]) for new, old in zip(lines("o.jsonl"), halves, strict=True))


def test_a_model_that_thinks_by_default_gives_no_empty_answers(cortex: Any) -> None:
    """The README's command with a bound that thinking alone uses up; then the repair that the last line names."""
    table(Path("tickets.csv"), 20)
    words = ("batch", "tickets.csv", "--prompt", "Label: {{text}}", "--id", "ticket_id", "-o", "labels.csv")
    done = cortex(*words, "--max-output-tokens", 8, *SIM, "--sim", "thinking_tokens=64", "--job", "j")
    assert done.code == 1
    said = done.said()
    assert "j: complete, 0 of 20 rows succeeded, 20 failed (20 cut), 20 calls" in said[1]
    assert said[2].endswith(": the reply was cut at 8 output tokens (max_tokens), before any text")
    assert said[-1] == (
        "to ask the failed rows again: cortex retry j --max-output-tokens N (20 cut: give a larger N than before)"
    )
    rows = list(csv.DictReader(Path("labels.csv").read_text().splitlines()))
    assert all(not row["answer"] and row["error"].startswith("cut: ") for row in rows)
    again = cortex("retry", "j", "--kind", "cut", "--max-output-tokens", 4096)
    assert again.code == 0 and "20 of 20 rows succeeded, 40 calls" in again.err
    rows = list(csv.DictReader(Path("labels.csv").read_text().splitlines()))
    assert len(rows) == 20 and all(row["answer"] and not row["error"] for row in rows)
    assert cortex("retry", "j").refused("no row failed")


def test_a_job_halted_by_rows_that_are_all_cut_names_a_way_on_that_is_not_cut_again(cortex: Any) -> None:
    """``cortex resume`` takes no --max-output-tokens, so that all other rows would be cut and paid for as well. The retry
    asks the rows that were never read, too."""
    table(Path("t.csv"), 5_000)
    words = ("batch", "t.csv", "--prompt", "Label: {{text}}", "--id", "ticket_id", "-o", "o.csv", "--job", "j", *SIM)
    done = cortex(*words, "--sim", "thinking_tokens=64", "--max-output-tokens", 8, "--json")
    assert done.code == 3 and "rows failed alike, cut: 'the reply was cut at 8 output tokens" in done.err
    longer = "cortex retry j --kind cut --max-output-tokens 16"
    assert done.said()[-1] == f"to go on: {longer}" and done.last["resume"] == longer
    assert cortex("status", "j", "--json").last["resume"] == longer and longer in cortex("status", "j").out
    failed = done.last["rows_failed"]
    assert 50 <= failed < 5_000
    again = cortex(*longer.split()[1:], "--json")
    assert again.code == 3 and again.last["resume"] == longer.replace("16", "32")
    assert failed <= again.last["rows_failed"] < 5_000, "the rows that were not asked again are counted and listed"
    assert len(Path("o.csv").read_text().splitlines()) == again.last["rows_failed"] + 1
    done = cortex("retry", "j", "--kind", "cut", "--max-output-tokens", 400)
    assert done.code == 0 and "5,000 of 5,000 rows succeeded" in done.err


def test_the_rows_of_shards_are_not_said_to_be_asked_again(cortex: Any) -> None:
    """``cortex retry`` cannot ask them, so the summary does not name it."""
    table(Path("t.csv"), 8)
    done = cortex("batch", "t.csv", *CUT, "-o", "o.jsonl", "--job", "j", "--shards", 2)
    assert done.code == 1 and "8 failed (8 cut)" in done.err and "cortex retry" not in done.err
    cortex("retry", "j").refused("job j has shards, whose failed rows cannot be asked again one by one")
    kept = cortex("batch", "t.csv", *CUT, "-o", "k.jsonl", "--job", "k", "--shards", 2, "--on-cut", "keep")
    assert kept.code == 0 and "8 of 8 rows succeeded, of which 8 cut" in kept.err


def test_a_kept_cut_answer_is_counted_in_summary_status_and_report(cortex: Any) -> None:
    table(Path("t.csv"), 3)
    done = cortex("batch", "t.csv", *CUT, "-o", "o.jsonl", "--job", "j", "--on-cut", "keep")
    assert done.code == 0 and "3 of 3 rows succeeded, of which 3 cut, 3 calls" in done.err
    assert all(row["answer"] and row["error"] is None for row in lines("o.jsonl"))
    assert "3 of 3 succeeded, of which 3 cut" in cortex("status", "j").out


def test_longer_asks_a_cut_row_again_by_itself(cortex: Any) -> None:
    table(Path("t.csv"), 1)
    command = ("batch", "t.csv", "--prompt", "Tell of {{text}}", "--id", "ticket_id", *SIM, "-o", "o.jsonl", "--meta")
    done = cortex(*command, "--max-output-tokens", 8, "--on-cut", "longer", "--json")
    (row,) = lines("o.jsonl")
    assert (done.code, row["stop_reason"], row["error"]) == (0, "end_turn", None) and row["attempts"] > 1


def test_on_cut_is_checked_and_is_for_tables(cortex: Any) -> None:
    table(Path("t.csv"), 1)
    cortex("batch", "t.csv", *ASK, *SIM, "-o", "o.jsonl", "--on-cut", "never").refused("--on-cut 'never'", "longer")
    Path("r.jsonl").write_text("{}\n")
    cortex("batch", "r.jsonl", *SIM, "-o", "x.jsonl", "--on-cut", "keep").refused("--on-cut is for tables")
