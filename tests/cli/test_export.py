"""``export`` writes a job's calls as a table; ``diff`` compares two jobs."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_runner import requests

PROGRAMS = """
from typing import Literal

import cortex

Side = Literal["left", "right"]


@cortex.flow
async def inner(ctx, n: int):
    return await ctx.ask(f"inner {n}")


@cortex.flow
async def walk(ctx, steps: int = 4, last: str = "last"):
    went = []
    for step in range(steps):
        went.append(await ctx.ask(f"Step {step}: where to?", returns=Side))
    went += await ctx.map(lambda n: ctx.ask("the same"), range(3))
    return [*went, await ctx.run(inner(n=1)), await ctx.ask(last)]


@cortex.flow
async def row(ctx, text: str):
    return await ctx.ask(text, returns=Side)
"""
SIM = ("--model", "sim", "--sim", "error=0", "--sim", "latency_ms=20", "--price", "input=3,output=15")


@pytest.fixture(autouse=True)
def programs(cortex) -> None:
    """A file of flows in the working folder."""
    Path("own.py").write_text(PROGRAMS)


def _walk(cortex, job: str, *more: object) -> dict:
    done = cortex("run", "own.py:walk", *SIM, "--job", job, "--json", *more)
    assert done.code == 0, done.err
    return done.last


def _lines(path: str = "calls.jsonl") -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_line_for_each_call_with_what_it_was_and_what_it_cost(cortex):
    facts = _walk(cortex, "mine", "--sim", "overloaded=0.3", "--sim", "seed=4")
    done = cortex("export", "mine", "-o", "calls.jsonl")
    assert (done.code, done.said()) == (0, ["9 calls of mine in calls.jsonl"])
    lines = _lines()
    own = [line for line in lines if line["job"] == "mine"]
    assert len(own) == facts["calls"] == 8
    assert [line["job"] for line in lines if line not in own] == ["mine~9"]
    assert sum(line["cost_usd"] for line in lines) == pytest.approx(facts["cost_usd"])
    assert sum(line["attempts"] for line in own) == facts["attempts"] > 6
    assert [line["status"] for line in lines].count("shared") == 2
    first = own[0]
    assert (first["goal"], first["sample"], first["kind"], first["model"]) == (2, "0", "ask", "sim")
    assert first["prompt"].startswith("Step 0: where to?")
    assert first["reply"] in ("left", "right")
    assert first["elapsed_s"] >= 0 and first["asked_at_s"] > 1e9
    assert cortex("export", "mine", "-o", "-").out.splitlines() == Path("calls.jsonl").read_text().splitlines()


def test_a_role_and_the_model_that_it_was_given(cortex):
    Path("own.py").write_text(PROGRAMS.replace("await ctx.ask(last)", "await ctx.ask(last, model='judge')"))
    facts = _walk(cortex, "mine", "--role", "judge=sim,seed=7,input=6,output=30")
    cortex("export", "mine", "-o", "calls.jsonl")
    lines = _lines()
    assert [line["prompt"] for line in lines if line["role"] == "judge"] == ["last"]
    assert sum(line["cost_usd"] for line in lines) == pytest.approx(facts["cost_usd"])
    done = cortex("replay", "mine", "--json")
    assert (done.code, json.loads(done.out)["reused_calls"]) == (0, 7)
    facts = json.loads(cortex("replay", "mine", "-p", "last=Another question", "--json").out)
    (call,) = facts["new_calls"]
    assert call["cost_usd"] > 0


def test_what_was_remembered_and_what_failed(cortex):
    _walk(cortex, "first")
    _walk(cortex, "mine")
    cortex("export", "mine", "-o", "calls.jsonl")
    assert {(line["cost_usd"], line["attempts"]) for line in _lines()} == {(0.0, 0)}
    assert {line["status"] for line in _lines()} <= {"remembered", "shared"}
    assert {line["reply"] for line in _lines()} & {"left", "right"}
    failing = ("--sim", "server_error=1", "--goal-timeout", "1s", "--fresh", "--job", "bad")
    assert cortex("run", "own.py:walk", *SIM, *failing).code == 1
    cortex("export", "bad", "-o", "bad.jsonl")
    (line,) = _lines("bad.jsonl")
    assert (line["status"], line["failure"], line["reply"]) == ("failed", "transient", None)
    assert line["attempts"] == cortex("status", "bad", "--json").last["attempts"]


def test_the_same_table_as_csv_and_as_parquet_and_without_text(cortex):
    parquet = pytest.importorskip("pyarrow.parquet")
    _walk(cortex, "mine")
    for name in ("calls.jsonl", "calls.csv", "calls.parquet"):
        assert cortex("export", "mine", "-o", name).code == 0
    rows = _lines()
    with open("calls.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert table == [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    assert parquet.read_table("calls.parquet").to_pylist() == rows
    assert cortex("export", "mine", "-o", "bare.parquet", "--no-text").code == 0
    assert set(rows[0]) - set(parquet.read_table("bare.parquet").column_names) == {"prompt", "reply"}


def test_a_program_that_has_changed_leaves_what_the_journal_says(cortex, monkeypatch):
    _walk(cortex, "mine")
    Path("own.py").write_text(PROGRAMS.replace("where to?", "which way?"))
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    done = cortex("export", "mine", "-o", "calls.jsonl")
    assert "the program of mine has changed since" in done.err
    lines = [line for line in _lines() if line["job"] == "mine"]
    assert len(lines) == 6
    assert {(line["prompt"], line["status"], line["kind"]) for line in lines} == {(None, "answered", None)}
    assert all(line["cost_usd"] > 0 and line["reply"] for line in lines)


def test_what_cannot_be_exported_is_one_line_and_writes_nothing(cortex, monkeypatch):
    cortex("export", "nobody", "-o", "calls.jsonl").refused("no job 'nobody'")
    _walk(cortex, "mine")
    cortex("export", "mine").refused("--output")
    cortex("export", "mine", "-o", "calls.xlsx").refused("calls.xlsx", ".parquet, .csv, .jsonl")
    cortex("export", "mine", "-o", "nowhere/calls.csv").refused("cannot write nowhere/calls.csv")
    Path("calls.csv").write_text("mine")
    cortex("export", "mine", "-o", "calls.csv").refused("calls.csv exists", "--overwrite")
    assert Path("calls.csv").read_text() == "mine"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    cortex("export", "mine", "-o", "calls.parquet").refused("pip install 'cortex-bounded-calls[parquet]'")
    assert not [path for path in Path().iterdir() if "calls" in path.name and path.name != "calls.csv"]


# -- diff ----------------------------------------------------------------------------------------------------------------


def test_two_jobs_that_did_the_same_are_the_same(cortex):
    _walk(cortex, "one")
    _walk(cortex, "two")
    done = cortex("diff", "one", "two")
    assert (done.code, done.out.splitlines()[-1]) == (0, "the same")
    reported = json.loads(cortex("diff", "one", "two", "--json").out)
    assert reported["same"] is True
    assert reported["paid_calls"] == [6, 0] and reported["reused_calls"][0] == 0  # money and memory are no difference


def test_an_answer_that_differs_and_the_calls_of_one_only(cortex):
    _walk(cortex, "one")
    _walk(cortex, "two", "-p", "last=Another question")
    done = cortex("diff", "one", "two")
    assert done.code == 1
    assert "calls only in one: 1\n  one/10/0 ask 'last'\n" in done.out
    assert "calls only in two: 1\n  two/10/0 ask 'Another question'\n" in done.out
    assert "answer: 1 place differs\n  [8]: " in done.out
    reported = json.loads(cortex("diff", "one", "two", "--json").out)
    assert [place["at"] for place in reported["answers_differ"]] == ["[8]"]
    assert [len(reported[name]) for name in ("calls_only_a", "calls_only_b")] == [1, 1]


def test_rows_that_differ_by_their_number(cortex):
    Path("in.jsonl").write_text("".join(json.dumps({"text": f"{n}: left or right?"}) + "\n" for n in range(12)))
    for job, seed in (("one", 1), ("two", 2)):
        more = ("--sim", "error=0.4", "--sim", f"seed={seed}")
        assert cortex("run", "own.py:row", "in.jsonl", "-o", f"{job}.jsonl", *SIM[:2], *more, "--job", job).code == 0
    results = [{line["row"]: line["answer"] for line in _lines(f"{job}.jsonl")} for job in ("one", "two")]
    differ = [row for row in range(1, 13) if results[0][row] != results[1][row]]
    assert differ
    done = cortex("diff", "one", "two")
    assert f"rows: {len(differ)} of 12 differ" in done.out
    assert "the jobs ask different models: calls are compared by prompt and sample" in done.err
    reported = json.loads(cortex("diff", "one", "two", "--json").out)
    assert [int(each["row"]) for each in reported["rows_differ"]] == differ
    assert json.loads(reported["rows_differ"][0]["a"]) == {"answer": results[0][differ[0]]}


def test_batches_are_compared_by_custom_id_and_not_by_the_providers_own_ids(cortex):
    requests(Path("in.jsonl"), 20)
    for job in ("one", "two"):
        command = ("batch", "in.jsonl", "-o", f"{job}.jsonl", *SIM, "--job", job)
        assert cortex(*command, "--fresh").code == 0
    done = cortex("diff", "one", "two")
    assert (done.code, done.out.splitlines()[-1]) == (0, "the same"), done.out
    command = ("batch", "in.jsonl", "-o", "three.jsonl", *SIM, "--job", "three", "--max-job-tokens", 400)
    assert cortex(*command, "--fresh").code == 3
    done = cortex("diff", "one", "three")
    assert done.code == 1
    assert "outcome" in done.out and "partial" in done.out
    cortex("diff", "one", "nobody").refused("no job 'nobody'")
