"""Everyday work with tables: asked again, compared, removed, forgotten, kept without text, from a job file."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

import cortex as ours
from actors.history.annotated_turns import readings
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.report.aggregate import fold
from tests.cli.cli_runner import HANGING, requests, rows_that_hang, started, until
from tests.cli.table_files import ASK, table

SIM = ("--model", "sim", "--sim", "latency_ms=1")
FAILING = (*HANGING, "--goal-timeout", "0.5s")
MODEL = ("--model", "sim")
WELL = ("--sim", "hang=0", "--goal-timeout", "none")
COUNT = 24
SCHEMA = {
    "type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"], "additionalProperties": False,
}  # fmt: skip
MARK = b"crashes"


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _records(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def _holding(words: bytes) -> list[str]:
    """Files of the state folder, and beside the results, that hold these bytes."""
    places = [*_folder().path.rglob("*"), *Path().glob(".*")]
    return sorted(str(path) for path in places if path.is_file() and words in path.read_bytes())


@pytest.mark.parametrize("more", [(), ("--ordered", "--meta", "--with-input")])
def test_failed_rows_of_a_table_are_asked_again_into_the_same_table(cortex: Any, more: tuple[str, ...]) -> None:
    table(Path("t.csv"), COUNT)
    command = ("batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine")
    assert rows_that_hang(cortex, "a.csv", *command, *MODEL, *more).code == 1
    before = last_state(_folder(), "mine")
    failed = before.tally.failed
    assert 0 < failed < COUNT and sum(bool(row["error"]) for row in _records("a.csv")) == failed
    done = cortex("retry", "mine", *WELL, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (0, COUNT, 0), done
    again = done.last["attempts"] - before.ledger.attempts + done.last["reused_calls"]
    assert again == failed, "only what failed was asked, or was answered after its time was over"
    assert not any("rows failed" in line for line in done.said())
    rows = _records("a.csv")
    assert sorted(row["ticket_id"] for row in rows) == sorted(f"t{i}" for i in range(COUNT))
    assert all(row["answer"] and not row["error"] for row in rows)
    if more:
        assert [row["ticket_id"] for row in rows] == [f"t{i}" for i in range(COUNT)]
    assert not [*Path().glob(".a.csv*")]
    table_then = Path("a.csv").read_bytes()
    assert "is already complete" in cortex(*command, *MODEL, *FAILING, *more).said()[0]
    assert Path("a.csv").read_bytes() == table_then


def test_rows_asked_again_with_a_longer_reply_stay_what_they_were(cortex: Any) -> None:
    """A row of a table is no request: what is asked otherwise now is no column of it."""
    table(Path("t.csv"), COUNT)
    command = ("batch", "t.csv", *ASK, "-o", "a.jsonl", "--job", "mine", "--with-input", *MODEL)
    assert rows_that_hang(cortex, "a.jsonl", *command).code == 1
    done = cortex("retry", "mine", "--max-output-tokens", 50, *WELL)
    assert done.code == 0, done
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert {tuple(line) for line in lines} == {("ticket_id", "text", "team", "answer", "error")}


@pytest.mark.parametrize("more", [(), ("--ordered",)])
def test_killed_in_the_middle_the_retry_of_a_table_is_resumed_without_its_input(cortex: Any, more: Any) -> None:
    table(Path("t.csv"), COUNT)
    command = ("batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine", *MODEL, *more)
    assert rows_that_hang(cortex, "a.csv", *command).code == 1
    failed, before = last_state(_folder(), "mine").tally.failed, Path("a.csv").read_bytes()
    slow = (*WELL, "--sim", "latency_ms=1000", "--sim", "latency_spread=0", "--concurrency", "1")
    with started("retry", "mine", *slow) as child:
        until(lambda: (k := last_state(_folder(), "mine")).edition == 1 and k.tally.succeeded > COUNT - failed)
        child.kill()
        child.wait()
    assert Path("a.csv").read_bytes() == before, "the table stays whole until there is another"
    Path("t.csv").unlink()
    assert cortex("resume", "mine", "--sim", "latency_ms=1", "--concurrency", 10).code == 0
    rows = _records("a.csv")
    assert sorted(row["ticket_id"] for row in rows) == sorted(f"t{i}" for i in range(COUNT))
    assert all(row["answer"] and not row["error"] for row in rows)


def test_answers_that_did_not_fit_are_asked_for_anew(cortex: Any) -> None:
    """They are remembered, as all answers are; the same question again would have the same answer."""
    table(Path("t.csv"), 5)
    Path("s.json").write_text(json.dumps(SCHEMA))
    cut = ("--schema", "s.json", "--max-output-tokens", 2)
    assert cortex("batch", "t.csv", *ASK, *cut, "-o", "a.csv", "--job", "mine", *SIM).code == 1
    first = last_state(_folder(), "mine")
    assert first.tally.failed_for_good == {"cut": 5}
    again = cortex("retry", "mine", "--json")
    assert (again.code, again.last["reused_calls"]) == (1, 0)
    assert again.last["attempts"] == 2 * first.ledger.attempts, "each of them once more"
    done = cortex("retry", "mine", "--max-output-tokens", 100, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 5), done
    assert all(row["label"] for row in _records("a.csv"))


def test_a_table_that_somebody_edited_is_not_written_over_by_retry(cortex: Any) -> None:
    table(Path("t.csv"), COUNT)
    assert rows_that_hang(cortex, "a.csv", "batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine", *MODEL).code == 1
    edited = Path("a.csv").read_bytes().replace(b"answer", b"answer,mine", 1)
    Path("a.csv").write_bytes(edited)
    cortex("retry", "mine", *WELL).refused("a.csv is not as job mine left it")
    assert Path("a.csv").read_bytes() == edited


@pytest.mark.parametrize("output", ["a.csv", "a.parquet"])
def test_without_text_a_table_is_whole_and_stays_where_it_cannot_be_made_again(
    cortex: Any, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    table(Path("t.csv"), COUNT)
    command = ("batch", "t.csv", *ASK, "-o", output, "--job", "mine", "--no-keep-text")
    done = cortex(*command, *SIM, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, COUNT), done
    assert _holding(MARK) == []
    assert (_folder().path / "traces" / "mine.jsonl").exists()
    assert "is already complete" in cortex(*command, *SIM).said()[0]
    Path(output).write_bytes(Path(output).read_bytes()[:-20])
    cut = Path(output).read_bytes()
    answer = cortex("resume", "mine")
    assert answer.code == 2 and "and the job keeps no text: missing rows are lost" in answer.said()[-1]
    assert Path(output).read_bytes() == cut, "no empty table takes its place"
    assert not [*Path().glob(f".{output}*")]


def test_a_table_that_was_killed_goes_with_its_job(cortex: Any) -> None:
    """Also the rows that stand beside, and the traces."""
    table(Path("t.csv"), 300)  # for half a minute, so that the kill is not too late
    slow = ("--sim", "latency_ms=200", "--concurrency", 2)
    command = ("batch", "t.csv", *ASK, "-o", "a.csv", "--model", "sim", *slow)
    for job, output in (("one", "a.csv"), ("two", "memory://bucket/b.csv")):
        with started(*map(str, (*command, "-o", output, "--job", job))) as child:
            until(lambda job=job: _written(job) >= 4)  # type: ignore[misc]
            child.kill()
    held = _holding(b'"answer"')
    assert any(".a.csv.rows" in name for name in held) and any(".rows-" in name for name in held), held
    answer = cortex("rm", "two").refused(
        "job two is interrupted, and ", " paid results of memory://bucket/b.csv would be lost"
    )
    assert (
        "cortex resume two continues it, cortex results two -o FILE saves the results, --resumable removes the job all the same"
        in answer
    )
    assert cortex("results", "two", "-o", "saved.csv").code == 0
    saved = len(Path("saved.csv").read_text().splitlines()) - 1
    assert f"and {saved} paid results" in answer
    Path("saved.csv").unlink()
    assert cortex("forget", "one").code == 0 and cortex("rm", "two", "--resumable").code == 0
    assert _holding(b'"answer"') == _holding(MARK) == []
    assert not [path for path in _folder().path.rglob("*") if "two" in path.name]
    assert not [*_folder().path.glob("traces/*")]


def _written(job: str) -> int:
    try:
        return last_state(_folder(), job).written_rows
    except Exception:
        return 0


def test_traces_and_what_is_live_go_with_their_job(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    table(Path("t.csv"), COUNT)
    for job in ("one", "two", "other"):
        assert cortex("batch", "t.csv", *ASK, "-o", f"{job}.csv", "--job", job, *SIM).code == 0
        traces = _folder().path / "traces"
        assert MARK in (traces / f"{job}.jsonl").read_bytes()
        (traces / f"{job}.1.jsonl").write_bytes(MARK)
        (_folder().path / "live" / f".{job}.json.77").write_bytes(MARK)
    assert cortex("forget", "one").code == 0 and cortex("rm", "two").code == 0
    assert [name for name in _holding(MARK) if "other" not in name and "replies" not in name] == []
    assert any("other.jsonl" in name for name in _holding(MARK))
    assert "complete" in cortex("jobs").out


def test_two_jobs_over_one_table_are_compared_row_by_row(cortex: Any) -> None:
    table(Path("t.csv"), COUNT)
    for job in ("one", "two"):
        ran = cortex("batch", "t.csv", *ASK, "-o", f"{job}.csv", "--meta", "--fresh", "--job", job, *SIM)
        assert ran.code == 0
    same = cortex("diff", "one", "two")
    assert (same.code, same.out.splitlines()[-1]) == (0, "the same")
    other = ("--prompt", "Say it: {{text}}", "--id", "ticket_id")
    assert cortex("batch", "t.csv", *other, "-o", "three.csv", "--job", "three", *SIM).code == 0
    assert cortex("diff", "one", "three").code == 1


def test_a_job_file_of_a_table(cortex: Any) -> None:
    """Its paths are relative to it, those of texts and of the schema too."""
    Path("jobs").mkdir()
    table(Path("jobs/t.csv"), 4)
    Path("jobs/ask.txt").write_text("Label it.\n{{text}}")
    Path("jobs/s.json").write_text(json.dumps(SCHEMA))
    Path("jobs/job.toml").write_text(
        'input = "t.csv"\noutput = "a.csv"\nprompt = "@ask.txt"\nid = "ticket_id"\nschema = "s.json"\njob = "mine"\n'
        'model = "sim"\nmeta = true\n'
    )
    done = cortex("batch", "-f", "jobs/job.toml")
    assert done.code == 0, done
    assert [row["ticket_id"] for row in _records("jobs/a.csv")]
    shown = cortex("config", "mine").out
    assert "schema" in shown and "jobs/job.toml line 5" in shown and "ticket_id" in shown
    Path("jobs/job.toml").write_text('input = "t.csv"\noutput = "b.csv"\nprompt = "@none.txt"\nmodel = "sim"\n')
    cortex("batch", "-f", "jobs/job.toml").refused("--prompt @jobs/none.txt: cannot read jobs/none.txt")


def test_what_looks_at_a_table_without_text_says_so(cortex: Any) -> None:
    table(Path("t.csv"), 5)
    assert cortex("batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine", "--no-keep-text", *SIM).code == 0
    for command in (
        ("inspect", "mine"),
        ("inspect", "mine", "row:t1"),
        ("report", "mine", "-o", "r.html"),
        ("retry", "mine"),
    ):
        done = cortex(*command)
        assert done.code == 2 and "keeps no text" in done.said()[-1], done
    assert cortex("status", "mine").code == cortex("jobs").code == 0
    assert cortex("forget", "mine").code == 0
    for command in (
        ("inspect", "mine"),
        ("report", "mine", "-o", "r.html"),
        ("retry", "mine"),
        ("export", "mine", "-o", "x.csv"),
    ):
        cortex(*command).refused("job mine was forgotten")


@pytest.mark.parametrize("given", [("batch", "t.csv", *ASK, "-o", "a.csv"), ("batch", "t.jsonl", "-o", "a.jsonl")])
def test_what_looks_at_a_job_knows_what_was_asked_again(cortex: Any, given: tuple[str, ...]) -> None:
    table(Path("t.csv"), COUNT)
    requests(Path("t.jsonl"), COUNT)
    assert rows_that_hang(cortex, given[-1], *given, "--job", "mine", *MODEL).code == 1
    failed = last_state(_folder(), "mine").tally.failed
    found = json.loads(cortex("inspect", "mine", "--failed", "--json").out.splitlines()[0])
    row, goal = found["row"], found["goal"]
    assert cortex("retry", "mine", *WELL).code == 0
    assert "nothing" in (answer := cortex("inspect", "mine", "--failed")).err or not answer.out, answer
    story = cortex("inspect", "mine", f"row:{row}").out.splitlines()
    assert story[-1].endswith("is resolved, after 1 attempt"), story[-1]
    assert "is failed" in cortex("inspect", "mine", f"goal:{goal}").out.splitlines()[-1]
    assert f"{failed} failed rows are asked again by" in cortex("inspect", "mine").out
    assert cortex("report", "mine", "-o", "r.html").code == 0
    page = Path("r.html").read_text()
    assert f"{failed} failed rows are asked again by" in page and "none failed" in page
    found = fold(readings(_folder(), "mine"))
    assert (found.goals_failed, found.failed_goals) == (0, [])


def test_a_copy_of_a_table_leaves_nothing_behind(cortex: Any) -> None:
    table(Path("t.csv"), COUNT)
    assert cortex("batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine", *SIM).code == 0
    assert (
        cortex("results", "mine", "-o", "b.csv").code == cortex("results", "mine", "--tail", 3, "-o", "c.csv").code == 0
    )
    assert Path("b.csv").read_bytes() == Path("a.csv").read_bytes() and len(_records("c.csv")) == 3
    assert not [*Path().glob(".*")] and not [*_folder().path.glob("jobs/.*")]


def test_without_text_a_run_that_rests_goes_on_with_the_rows_it_has(cortex: Any) -> None:
    """The rows beside are all that there is of them, until the job is over."""
    table(Path("t.csv"), COUNT)
    command = ("batch", "t.csv", *ASK, "-o", "a.csv", "--job", "mine", "--no-keep-text", "--price", "input=1,output=1")
    first = cortex(*command, *SIM, "--concurrency", 1, "--max-cost", "0.0015")
    assert first.code == 3 and 0 < len(_records("a.csv")) < COUNT, first
    assert list(Path().glob(".a.csv.rows-*"))
    done = cortex("resume", "mine", "--max-cost", 5, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, COUNT), done
    assert len({row["ticket_id"] for row in _records("a.csv")}) == COUNT
    assert _holding(MARK) == [] and not list(Path().glob(".a.csv.rows-*"))


def test_a_table_from_python_is_shown_after_a_retry(cortex: Any) -> None:
    rows = [{"id": f"r{i}", "text": f"it crashes {i}"} for i in range(5)]

    def ask() -> Any:
        return ours.batch(
            rows, "Label {{text}}", id="id", schema=SCHEMA, model="sim", output="a.csv", job="mine", max_output_tokens=2,
            state=str(_folder().path),
        )  # fmt: skip

    assert all(row["error"] for row in ask().rows)
    assert cortex("retry", "mine", "--max-output-tokens", 100).code == 0
    whole = Path("a.csv").read_bytes()
    assert all(row["label"] for row in ask().rows)
    assert Path("a.csv").read_bytes() == whole
