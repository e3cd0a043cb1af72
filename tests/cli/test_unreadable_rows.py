"""Records of the input from which no row can be read: counted wherever rows of the job are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cortex as public
from tests.cli.cli_runner import keys, request
from tests.cli.table_files import ASK, SIM, ragged

GOOD, BAD = 40, 20
COMMAND = ("batch", "t.csv", *ASK, *SIM, "-o", "o.jsonl", "--job", "j")
HEAD = "j: complete, 40 of 60 rows succeeded, 20 unreadable, "


def _headline(done: Any) -> str:
    found = [line for line in done.said() if line.startswith("j: ")]
    assert len(found) == 1
    return str(found[0])


def _counts(facts: dict[str, Any]) -> tuple[Any, ...]:
    return facts["outcome"], facts["rows"], facts["rows_succeeded"], facts["rows_failed"], facts["rows_unreadable"]


WHOLE = ("complete", 60, 40, 0, 20)


@pytest.mark.parametrize(
    "more",
    [(), ("--shards", "3"), ("--via", "batches"), ("--ordered", "--no-keep-text"), ("--cluster", "inline")],
    ids=" ".join,
)
def test_every_view_of_the_job_counts_them(cortex: Any, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, *more, "--json")
    assert done.code == 3, done.err
    assert _headline(done).startswith(HEAD)
    assert _counts(done.last) == WHOLE
    assert len(Path("o.jsonl").read_text().splitlines()) == GOOD
    assert "rows      40 of 60 succeeded, 20 unreadable\n" in cortex("status", "j").out
    assert _counts(cortex("status", "j", "--json").last) == WHOLE
    (line,) = cortex("jobs").out.splitlines()[1:]
    assert "  complete  40/60  " in line
    assert [_counts(each) for each in json.loads(cortex("jobs", "--json").out)["jobs"]] == [WHOLE]
    top = " ".join(cortex("top", "--once").out.split())
    assert "complete 40/60 66%" in top
    resumed = cortex("resume", "j")
    assert (resumed.code, _headline(resumed)[: len(HEAD)]) == (3, HEAD)
    again = cortex(*COMMAND, *more)
    assert (again.code, _headline(again)[: len(HEAD)]) == (3, HEAD)


def test_the_report_counts_them(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    cortex(*COMMAND)
    assert cortex("report", "j", "-o", "r.html").code == 0
    page = Path("r.html").read_text()
    assert "40 of 60 rows succeeded, none failed, 20 unreadable: these records" in page
    assert "of 60, 0 failed, 20 unreadable" in page
    assert cortex("forget", "j").code == 0
    assert _counts(cortex("status", "j", "--json").last) == WHOLE


def test_the_failed_results_name_their_number(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    cortex(*COMMAND)
    text = "0 failed results of j, which is complete; the input also has 20 unreadable records, without results"
    assert cortex("results", "j", "--failed").said() == [text]


def test_a_resumed_job_counts_them(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    first = cortex(*COMMAND, "--max-job-tokens", 400, "--json")
    assert first.code == 3 and first.last["outcome"] == "partial"
    assert (first.last["rows"], first.last["rows_unreadable"]) == (60, 20)
    assert " of 60 rows succeeded, 20 unreadable, " in _headline(first)
    done = cortex("resume", "j", "--max-job-tokens", 100_000, "--json")
    assert (done.code, _counts(done.last)) == (3, WHOLE)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ((), 3),
        (("--accept-partial",), 0),
        (("--accept-failed", "33%"), 3),
        (("--accept-failed", "34%"), 0),
    ],
)
def test_the_exit_code_is_that_of_a_partial_result(cortex: Any, more: tuple[str, ...], code: int) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    assert cortex(*COMMAND, *more).code == code


def test_a_failed_row_decides_the_exit_code(cortex: Any) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, "--sim", "refusal=1", "--json")
    assert (done.code, _counts(done.last)) == (1, ("complete", 60, 0, 40, 20))
    assert "0 of 60 rows succeeded, 40 failed (40 refused), 20 unreadable, " in _headline(done)


def test_requests_are_counted_alike(cortex: Any) -> None:
    lines = [request(f"r{i}") for i in range(4)]
    Path("in.jsonl").write_text("\n".join([lines[0], "{nonsense", *lines[1:], "[]"]) + "\n")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *SIM, "--job", "j", "--json")
    assert (done.code, _counts(done.last)) == (3, ("complete", 6, 4, 0, 2))
    assert sorted(keys(Path("out.jsonl"))) == ["r0", "r1", "r2", "r3"]


def test_python_has_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))
    ragged(Path("t.csv"), GOOD, BAD)
    answers = public.batch("t.csv", "Label: {{text}}", id="ticket_id", model="sim", progress=False)
    assert (answers.unreadable, answers.bad_count, len(answers.rows)) == (BAD, BAD, GOOD)
    assert "20 records of the input unreadable" in repr(answers)


@pytest.mark.parametrize("more", [(), ("--shards", "3"), ("--via", "batches")], ids=" ".join)
@pytest.mark.parametrize("bound", ["20", "30%"])
def test_where_they_reach_max_failed_nothing_is_asked(cortex: Any, bound: str, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    done = cortex(*COMMAND, "--max-failed", bound, *more, "--json")
    assert (done.code, done.last["outcome"], done.last["calls"], done.last["attempts"]) == (3, "partial", 0, 0)
    assert "max_failed: 20 of 60 records of the input are unreadable, " in done.err
    then = cortex("resume", "j", "--max-failed", "50%", "--json")
    assert (then.code, _counts(then.last)) == (3, WHOLE)


@pytest.mark.parametrize("more", [(), ("--shards", "3")], ids=" ".join)
def test_failed_rows_and_unreadable_ones_reach_max_failed_together(cortex: Any, more: tuple[str, ...]) -> None:
    ragged(Path("t.csv"), GOOD, BAD)
    refusing = ("--sim", "refusal=1", "--concurrency", "2")
    done = cortex(*COMMAND, *refusing, "--max-failed", "25", *more, "--json")
    assert (done.code, done.last["outcome"]) == (3, "partial") and 5 <= done.last["rows_failed"] < GOOD
    assert " and 20 of 60 records of the input are unreadable, 25 may; the last: " in done.err
