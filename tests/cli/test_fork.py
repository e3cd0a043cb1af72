"""``inspect`` lists a job's turns; ``fork`` makes another job of the first of them, and ``resume`` goes on from there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from tests.cli.cli_runner import each_once, requests

PROGRAMS = '''
import cortex


@cortex.tool
def noted(word: str) -> int:
    with open("runs.txt", "a") as runs:
        runs.write(word + "\\n")
    return len(word)


@cortex.flow
async def inner(ctx, n: int):
    return [await ctx.ask(f"inner {n}"), ctx.random()]


@cortex.flow
async def tale(ctx, steps: int = 6):
    """What it asks hangs on chance; it runs a tool that may not be repeated, and a child job."""
    told = []
    for step in range(steps):
        told.append(await ctx.ask(f"step {step} {ctx.random():.9f}"))
        if step == 2:
            told.append(await ctx.run(noted, f"at {step}"))
            told.append(await ctx.run(inner(n=step)))
    told.append(await ctx.ask("the end"))
    return told
'''
SIM = ("--model", "sim", "--sim", "error=0", "--price", "input=3,output=15")


@pytest.fixture(autouse=True)
def programs(cortex) -> None:
    """A file of flows in the working folder."""
    Path("own.py").write_text(PROGRAMS)


def _told(cortex) -> dict:
    done = cortex("run", "own.py:tale", *SIM, "--sim", "overloaded=0.2", "--job", "mine", "--json")
    assert done.code == 0, done.err
    return done.last


def _turns(cortex, job: str) -> list[dict]:
    return [json.loads(line) for line in cortex("inspect", job, "--json").out.splitlines()]


def test_inspect_numbers_the_turns_and_says_what_happened_in_each(cortex):
    _told(cortex)
    turns = _turns(cortex, "mine")
    assert [each["turn"] for each in turns] == list(range(1, len(turns) + 1))
    assert turns[0]["said"] == ["the job begins"]
    assert sum(each["events"].get("answered", 0) for each in turns) == 7
    done = cortex("inspect", "mine")
    assert "'step 3 0." in done.out and " its tool run ended: 4" in done.out and "own.py:" in done.out
    assert done.out.splitlines()[0].split()[0] == "1"
    (line,) = cortex("inspect", "mine", "--from", 2, "--count", 1).out.splitlines()
    assert line.split()[0] == "2"
    cortex("inspect", "nobody").refused("no job 'nobody'")


def test_a_fork_at_any_turn_comes_to_the_same_answer_and_pays_and_does_nothing_again(cortex):
    """Its questions hang on chance, some of its attempts failed, and its tool may not be repeated."""
    facts = _told(cortex)
    turns = _turns(cortex, "mine")
    runs = Path("runs.txt").read_text()
    under_way = [each["turn"] - 1 for each in turns if "observed" in each["events"]]
    for at in {2, 4, *under_way, len(turns) // 2, len(turns) - 1}:
        before = cortex("fork", "mine", "--at", at, "--json").last
        assert before["job"] == f"mine-{at}" and before["cost_usd"] <= facts["cost_usd"]
        assert before["cost_assumed_usd"] == 0
        after = cortex("resume", f"mine-{at}", "--json").last
        assert after["answer"] == facts["answer"]
        assert (after["paid_calls"], after["cost_usd"]) == (before["paid_calls"], before["cost_usd"])
        if at >= min(under_way):
            assert Path("runs.txt").read_text() == runs
        runs = Path("runs.txt").read_text()
    assert cortex("status", "mine", "--json").last["answer"] == facts["answer"]


def test_a_changed_flow_goes_on_from_where_it_did_the_same(cortex):
    facts = _told(cortex)
    before = next(each["turn"] - 1 for each in _turns(cortex, "mine") if "the end" in str(each["said"]))
    Path("new.py").write_text(PROGRAMS.replace('"the end"', '"a better end"'))
    runs = Path("runs.txt").read_text()
    assert cortex("fork", "mine", "--at", before, "--program", "new.py:tale", "--job", "better").code == 0
    after = cortex("resume", "better", "--json")
    assert "has changed" not in after.err
    assert (after.last["answer"][:-1], Path("runs.txt").read_text()) == (facts["answer"][:-1], runs)
    assert after.last["answer"] != facts["answer"]
    Path("other.py").write_text(PROGRAMS.replace("step {step}", "stage {step}"))
    answer = cortex("fork", "mine", "--at", before, "--program", "other.py:tale", "--job", "other").refused(
        "not only after turn"
    )
    assert "it now asks other.py:" in answer
    cortex("status", "other").refused("no job 'other'")


def test_a_program_that_cannot_be_checked_is_not_forked_when_it_has_changed(cortex, monkeypatch):
    label = (
        "import cortex\nclass Label(cortex.Program):\n"
        "    def begin(self, k):\n        for n in range(4): yield cortex.Goal('x', n)\n"
        "    def select(self, k):\n        for g in k.open(): yield cortex.Ask(g, cortex.Prompt('x',"
        " (cortex.Part(cortex.Role.GOAL, f'What is {g.value}?'),)))\n"
        "    def absorb(self, k, goal, reply): yield cortex.Resolve(goal, reply.text)\n"
    )
    Path("label.py").write_text(label)
    assert cortex("run", "label.py", *SIM, "--job", "label").code == 0
    assert cortex("fork", "label", "--at", 2).code == 0
    assert cortex("resume", "label-2", "--json").last["outcome"] == "complete"
    Path("label.py").write_text(label + "\n# another\n")
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    cortex("fork", "label", "--at", 2, "--job", "again").refused(
        "the program of label has changed since", "put it back"
    )


def test_a_fork_of_rows_writes_each_of_them_once_to_an_output_of_its_own(cortex):
    requests(Path("in.jsonl"), 300)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "rows").code == 0
    whole = Path("out.jsonl").read_bytes()
    at = _turns(cortex, "rows")[-3]["turn"]
    assert cortex("fork", "rows", "--at", at, "-o", "forked.jsonl", "--job", "forked").code == 0
    done = cortex("resume", "forked", "--json")
    assert (done.code, done.last["output"]) == (0, os.path.realpath("forked.jsonl"))
    each_once(Path("forked.jsonl"), 300)
    assert Path("out.jsonl").read_bytes() == whole


def test_what_cannot_be_forked_is_one_line_and_leaves_nothing(cortex):
    _told(cortex)
    cortex("fork", "nobody", "--at", 1).refused("no job 'nobody'")
    cortex("fork", "mine").refused("--at")
    cortex("fork", "mine", "--at", 0).refused("no turn 0")
    cortex("fork", "mine", "--at", 9_999).refused("mine has turns 1 to", "no turn 9,999")
    cortex("fork", "mine", "--at", 3, "--job", "mine").refused("a job mine already exists")
    cortex("fork", "mine", "--at", 3, "--job", "mine~3").refused("child jobs")
    cortex("fork", "mine", "--at", 3, "--job", "a/b").refused("job name")
    Path("there.jsonl").write_text("another's")
    cortex("fork", "mine", "--at", 3, "--job", "new", "-o", "there.jsonl").refused("there.jsonl exists")
    cortex("fork", "mine", "--at", 3, "--job", "new", "-o", "no/where.jsonl").refused("no/where.jsonl")
    jobs = StateFolder(os.environ["CORTEX_STATE"]).path / "jobs"
    assert {path.name for path in jobs.iterdir() if "mine" not in path.name} == set()
    assert not [path for path in jobs.iterdir() if ".part" in path.name]


def test_requests_in_message_batches_belong_to_the_job_that_submitted_them(cortex):
    requests(Path("in.jsonl"), 5)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--via", "batches", "--job", "b")
    assert cortex(*command).code == 0
    turns = _turns(cortex, "b")
    there = next(each["turn"] for each in turns if "submitted" in each["events"])
    cortex("fork", "b", "--at", there, "--job", "no").refused(
        "5 requests of b were with the provider in message batches"
    )


def test_the_fork_of_a_fork_and_its_chance(cortex):
    facts = _told(cortex)
    assert cortex("fork", "mine", "--at", 6, "--job", "one").code == 0
    assert cortex("resume", "one").code == 0
    assert cortex("fork", "one", "--at", 7, "--job", "two").code == 0
    assert cortex("resume", "two", "--json").last["answer"] == facts["answer"]
