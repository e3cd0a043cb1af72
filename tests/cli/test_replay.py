"""``replay``: a program tried over a job's recorded replies; no model is asked, no tool run, nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from tests.cli.cli_runner import requests

PROGRAMS = '''
from pathlib import Path
from typing import Literal

import cortex

Side = Literal["left", "right"]


@cortex.tool(repeatable=True)
def noted(word: str) -> int:
    with open("runs.txt", "a") as runs:
        runs.write(word + "\\n")
    return len(word)


@cortex.flow
async def inner(ctx, n: int):
    return [await ctx.ask(f"inner {n}"), await ctx.run(noted, f"inner {n}")]


@cortex.flow
async def outer(ctx, width: int = 2, last: str = "last"):
    """Races, tools, child jobs, chance, time, a person."""
    first = await ctx.join(*(ctx.ask(f"race {n}") for n in range(4)), quorum=2)
    await ctx.sleep(0.05)
    length = await ctx.run(noted, "outer")
    below = await ctx.map(lambda n: ctx.run(inner(n=n)), range(width))
    said = await ctx.wait("word", str)
    return [list(first), length, below, said, ctx.random(), ctx.now(), await ctx.ask(last)]


@cortex.flow
async def row(ctx, text: str):
    return [text, await ctx.ask(text, returns=Side)]
'''
SIM = ("--model", "sim", "--sim", "error=0", "--price", "input=3,output=15")


@pytest.fixture(autouse=True)
def programs(cortex) -> None:
    """A file of flows in the working folder."""
    Path("own.py").write_text(PROGRAMS)


def _begun(cortex) -> list:
    """A job that raced, ran tools and child jobs, waited for a person and ended: its answer."""
    assert cortex("run", "own.py:outer", *SIM, "--job", "mine").code == 3
    assert cortex("answer", "mine", "word=yes").code == 0
    return cortex("resume", "mine", "--json").last["answer"]


def _stands(job: str) -> tuple:
    """All that a journal holds, to the byte."""
    source = StateFolder(os.environ.get("CORTEX_STATE", ".cortex")).journal(job)
    try:
        rows = source._storage._db.execute("SELECT seq, blob FROM turns").fetchall()
        return rows, source._storage._db.execute("SELECT key, value FROM meta").fetchall()
    finally:
        source.close()


def test_ones_own_program_comes_to_the_same_answer_and_nothing_is_asked_run_or_written(cortex):
    answer = _begun(cortex)
    before, runs = _stands("mine"), Path("runs.txt").read_text()
    done = cortex("replay", "mine", "--json")
    reported = json.loads(done.out)
    assert (done.code, reported["outcome"], reported["answer"]) == (0, "complete", answer)
    assert (reported["reused_calls"] + reported["let_go"], reported["reused_tool_runs"], reported["new_calls"]) == (
        7,
        3,
        [],
    )
    assert (_stands("mine"), Path("runs.txt").read_text()) == (before, runs)


def test_a_changed_program_lists_the_calls_and_the_tool_runs_that_would_be_new_and_the_price(cortex):
    _begun(cortex)
    changed = PROGRAMS.replace('ctx.run(noted, "outer")', 'ctx.run(noted, "outer 2")')
    Path("changed.py").write_text(changed)
    done = cortex("replay", "mine", "--program", "changed.py", "--json")  # of the same name
    (run,) = json.loads(done.out)["new_tool_runs"]
    assert (done.code, run["tool"], run["arguments"]) == (3, "noted", '{"word":"outer 2"}')
    assert Path("runs.txt").read_text().count("outer 2") == 0
    done = cortex("replay", "mine", "-p", "width=4", "--json")
    reported = json.loads(done.out)
    assert [(each["job"].count("~"), each["prompt"]) for each in reported["new_calls"]] == [
        (1, "inner 2"),
        (1, "inner 3"),
    ]
    assert 0 < reported["cost_usd"] < reported["cost_max_usd"]
    answer = cortex("replay", "mine", "-p", "last=Something else entirely").out
    assert "new       1 call: about " in answer
    assert "'Something else entirely'" in answer
    assert "stops here: the program needs these results" in answer


def test_the_price_is_that_of_the_tokens_told(cortex):
    _begun(cortex)
    reported = json.loads(cortex("replay", "mine", "-p", "last=Something else entirely", "--json").out)
    (call,) = reported["new_calls"]
    assert call["cost_usd"] == pytest.approx((call["input_tokens"] * 3 + call["output_tokens"] * 15) / 1e6)
    assert call["cost_usd"] == reported["cost_usd"]
    paid = cortex("run", "own.py:outer", "-p", "last=Something else entirely", *SIM, "--job", "mine")
    assert paid.code == 3  # it begins anew, and waits for a person as before
    cortex("answer", "mine", "word=yes")
    before = cortex("status", "mine", "--json").last
    after = cortex("resume", "mine", "--json").last
    assert after["paid_calls"] - before["paid_calls"] == 1
    assert after["cost_usd"] - before["cost_usd"] <= call["cost_max_usd"]


def test_a_program_that_was_edited_in_place_is_said_to_be_another(cortex, monkeypatch):
    _begun(cortex)
    Path("own.py").write_text(PROGRAMS.replace("inner {n}", "deeper {n}"))
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    done = cortex("replay", "mine")
    assert "own.py:outer, which has changed since it ran" in done.out
    assert "'deeper 0'" in done.out and "'deeper 1'" in done.out


def test_rows_as_far_as_they_were_read(cortex):
    Path("in.jsonl").write_text("".join(json.dumps({"text": f"{n}: left or right?"}) + "\n" for n in range(5)))
    assert cortex("run", "own.py:row", "in.jsonl", "-o", "out.jsonl", *SIM, "--job", "rows").code == 0
    done = cortex("replay", "rows")
    assert done.code == 0
    assert "rows      5 succeeded, 0 failed" in done.out
    Path("harder.py").write_text(PROGRAMS.replace("ctx.ask(text,", "ctx.ask('Well? ' + text,"))
    reported = json.loads(cortex("replay", "rows", "--program", "harder.py:row", "--json").out)
    assert (len(reported["new_calls"]), reported["rows_succeeded"]) == (5, 0)


def test_a_batch_and_what_it_could_not_do(cortex):
    requests(Path("in.jsonl"), 20)
    assert (
        cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "b", "--max-job-tokens", 400).code
        == 3
    )
    done = cortex("replay", "b", "--json")
    reported = json.loads(done.out)
    assert done.code == 3
    assert 0 < reported["reused_calls"] < 20
    assert reported["reused_calls"] + len(reported["new_calls"]) == 20


def test_a_call_that_failed_for_good_fails_as_it_did(cortex):
    """The provider refused it; nobody was ever answered, and the program goes on as it went then."""
    requests(Path("in.jsonl"), 3)
    lines = [json.loads(line) for line in Path("in.jsonl").read_text().splitlines()]
    lines[1]["params"]["temperature"] = 7
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "b").code == 1
    done = cortex("replay", "b", "--json")
    reported = json.loads(done.out)
    assert (done.code, reported["outcome"]) == (0, "complete")
    assert (reported["reused_calls"], reported["failed_calls"], reported["new_calls"]) == (2, 1, [])
    assert (reported["rows_succeeded"], reported["rows_failed"]) == (2, 1)
    assert "1 failure (a run would ask again)" in cortex("replay", "b").out


def test_what_is_wrong_is_one_line(cortex):
    cortex("replay", "nobody").refused("no job 'nobody'")
    _begun(cortex)
    Path("broken.py").write_text("import nothing_of_that_name\n")
    cortex("replay", "mine", "--program", "broken.py").refused("broken.py", "nothing_of_that_name")
    cortex("replay", "mine", "--program", "own.py:noted").refused("is not a program")
    cortex("replay", "mine", "-p", "wide=3").refused("outer has no such parameter; it takes: width, last")
    cortex("replay", "mine", "-p", "width=many").refused("-p width", "expected `int`, got `str`")
