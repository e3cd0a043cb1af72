"""Reading reads: what is told of a job neither runs the author's program again nor needs it, once the job has ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from actors.programs import loader
from tests.cli.cli_runner import environment
from tests.support.journal_surgery import without_facts

UNGUARDED = """
import time

import cortex

def words(n):
    return f"Greet number {{n}}"

@cortex.flow
async def greet(ctx, n: int):
    said = await ctx.ask(words(n))
    return [said, await ctx.wait("more", int)] if n < 0 else said

n = time.time_ns()
print("TOP LEVEL", cortex.run(greet({which}), model="sim", job={job!r}).outcome)

async def later(ctx):
    ...

flow_below = cortex.flow(later)
"""


@pytest.fixture
def fresh() -> Callable[[], None]:
    """As in a process that has imported nothing yet."""

    def forget() -> None:
        for place in [place for place in loader._known if not loader.is_ready(place)]:
            loader.forget(place)

    return forget


def python(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the author's own, in a process of its own."""
    command = [sys.executable, *(arguments or ("-",))]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment(), check=False)


def _jobs() -> list[str]:
    return sorted(StateFolder(os.environ["CORTEX_STATE"]).jobs())


def test_a_script_that_begins_jobs_when_it_is_imported_begins_none_when_they_are_read(cortex):
    Path("script.py").write_text(UNGUARDED.format(which="n", job=""))
    assert "TOP LEVEL complete" in python("", "script.py").stdout
    found = _jobs()
    assert len(found) == 1
    job = found[0]
    for command in (("jobs",), ("status", job), ("results", job), ("inspect", job, "1"), ("report", job)):
        reported = cortex(*command)
        assert reported.code == 0, reported
        assert "TOP LEVEL" not in reported.out + reported.err
    assert _jobs() == found
    cortex("run", "script.py:flow_below", "--model", "sim").refused("begins a job before it has flow_below", "__main__")
    assert _jobs() == found


def test_such_a_script_goes_on_with_the_job_that_it_began(cortex):
    Path("script.py").write_text(UNGUARDED.format(which="-1", job="mine"))
    assert "TOP LEVEL partial" in python("", "script.py").stdout
    assert cortex("answer", "mine", "more=7").code == 0
    done = cortex("resume", "mine", "--json")
    assert (done.code, done.last["answer"][1], done.last["reused_calls"]) == (0, 7, 0)
    assert _jobs() == ["mine"]


def test_a_module_that_begins_a_job_is_refused_where_it_cannot_be_cut_off(cortex):
    Path("below.py").write_text(UNGUARDED.format(which="n", job=""))
    Path("above.py").write_text("import below\n\ngreet = below.greet\n")
    cortex("run", "above.py:greet", "--model", "sim").refused("above.py begins a job before it has greet")
    cortex("run", "below:greet", "--model", "sim").refused("'below:greet' begins a job when it is imported")
    assert _jobs() == []


FLOW = """
import cortex

@cortex.flow
async def tell(ctx, n: int = 3):
    return ["{ends}", *await ctx.map(lambda i: ctx.ask(f"{asks} {{i}}"), range(n))]

class Plain(cortex.Program):
    texts: list[str]

    def begin(self, k):
        for text in self.texts:
            yield cortex.Goal("label", text)

    def select(self, k):
        for goal in k.open("label"):
            yield cortex.Ask(goal, cortex.Prompt("label", (cortex.Part(cortex.Role.GOAL, "{asks} " + goal.value),)))

    def absorb(self, k, goal, reply):
        if goal.value == "bad":
            yield cortex.Fail(goal, "{ends}")
        else:
            yield cortex.Resolve(goal, "{ends} " + goal.value)

    def answer(self, k):
        return "{ends}"
"""


def _ran(cortex, *arguments):
    """Of one job each: what every command that reads tells of it."""
    done = cortex("run", *arguments, "--model", "sim", "--sim", "error=0", "--json")
    assert done.code in (0, 1, 3), done
    return done.last


def _told(cortex, job):
    status = cortex("status", job, "--json").last
    del status["last_turn_at_s"]
    results, failed = cortex("results", job), cortex("results", job, "--failed")
    assert (results.code, failed.code) == (0, 0), results
    return status, results.out, failed.out, results.err, cortex("inspect", job, "--count", 3).code


def _edited():
    """The program's file, as a user leaves it behind a day later."""
    yield "another return line", FLOW.format(ends="NEW", asks="Say")
    yield "another prompt", FLOW.format(ends="OLD", asks="Tell")
    yield "no program at all", "raise KeyError('what was here has moved')"
    yield "no file", None


def test_a_job_that_has_ended_is_told_as_it_ended_whatever_its_source_says_today(cortex, fresh):
    Path("ed.py").write_text(FLOW.format(ends="OLD", asks="Say"))
    Path("rows.jsonl").write_text('{"n": 1}\n{"n": "two"}\n{"n": 2}\n')
    last = _ran(cortex, "ed.py:tell", "--job", "ed")
    assert last["answer"][0] == "OLD"
    _ran(cortex, "ed.py:tell", "rows.jsonl", "-o", "out.jsonl", "--job", "rows")
    _ran(cortex, "ed.py:Plain", "-p", 'texts=["a", "bad", "c"]', "--job", "plain")
    before = {job: _told(cortex, job) for job in ("ed", "rows", "plain")}
    assert before["ed"][0]["answer"] == last["answer"] == json.loads(before["ed"][1])
    assert before["rows"][1] == Path("out.jsonl").read_text() and before["rows"][2].count("\n") == 1
    assert before["plain"][0]["answer"] == "OLD" and "OLD c" in before["plain"][1]
    for how, text in _edited():
        Path("ed.py").unlink() if text is None else Path("ed.py").write_text(text)
        fresh()
        for job, reported in before.items():
            assert _told(cortex, job) == reported, (job, how)
        jobs = json.loads(cortex("jobs", "--json").out)["jobs"]
        assert {each["job"]: each["outcome"] for each in jobs} == {
            job: each[0]["outcome"] for job, each in before.items()
        }
        assert cortex("jobs").err == ""
        again = cortex("resume", "ed", "--json")
        assert (again.code, again.last["answer"]) == (0, last["answer"]), how
    Path("out.jsonl").unlink()
    assert cortex("resume", "rows").code in (0, 1)
    assert Path("out.jsonl").read_text() == before["rows"][1]


def test_a_job_from_standard_input_is_read_by_any_other_process(cortex):
    text = FLOW.format(ends="OLD", asks="Say") + '\ncortex.run(tell(), job="nbk", model="sim", progress=False)\n'
    assert python(text).returncode == 0
    assert json.loads(cortex("results", "nbk").out)[0] == "OLD"
    assert cortex("status", "nbk", "--json").last["answer"][0] == "OLD"
    assert re.search(r"(?m)^nbk +complete +1/1 ", cortex("jobs").out)
    waits = WAITS.format(ends="OLD") + '\ncortex.run(asks(), job="more", model="sim", progress=False)\n'
    assert python(waits).returncode == 0
    assert cortex("status", "more", "--json").last["awaited"] == ["more"]
    cortex("resume", "more").refused("was given in a notebook or on standard input: go on with its job there")


WAITS = """
import cortex

@cortex.flow
async def asks(ctx):
    return [await ctx.ask("Say something"), await ctx.wait("more", int), "{ends}"]
"""


def test_one_that_goes_on_is_told_anew_when_it_ends_again(cortex, fresh):
    Path("ed.py").write_text(WAITS.format(ends="OLD"))
    assert _ran(cortex, "ed.py:asks", "--job", "ed")["outcome"] == "partial"
    assert cortex("status", "ed", "--json").last["awaited"] == ["more"]
    assert cortex("answer", "ed", "more=1").code == 0
    assert cortex("status", "ed", "--json").last["awaited"] == []
    assert cortex("resume", "ed").code == 0
    Path("ed.py").unlink()
    fresh()
    assert json.loads(cortex("results", "ed").out)[1:] == [1, "OLD"]


def test_what_only_the_program_can_tell_is_said_in_one_line_and_all_else_is_shown(cortex, fresh):
    """A job of the release before, which wrote nothing down when it ended; or one that was killed."""
    Path("ed.py").write_text(FLOW.format(ends="OLD", asks="Say"))
    before = _ran(cortex, "ed.py:tell", "--job", "ed")
    source = StateFolder(os.environ["CORTEX_STATE"]).journal("ed")
    without_facts(source, "ended")
    source._storage._db.execute("DELETE FROM snapshots")
    source.close()
    assert json.loads(cortex("results", "ed").out)[0] == "OLD", "the program is what it was"
    Path("ed.py").write_text(FLOW.format(ends="NEW", asks="Say"))
    fresh()
    status = cortex("status", "ed", "--json")
    assert (status.last["outcome"], status.last["calls"], status.last["answer"]) == ("complete", 3, None)
    assert (status.last["cost_usd"], status.last["rows_succeeded"]) == (before["cost_usd"], None)
    assert "the program of ed has changed since, or is gone" in status.said()[0] and len(status.said()) == 1
    assert re.search(r"(?m)^ed +complete +\?/", cortex("jobs").out)
    cortex("results", "ed").refused("the program of ed has changed since, or is gone")


def test_a_job_that_its_program_made_fail_says_how_it_is_put_right_and_that_is_so(cortex, fresh):
    text = FLOW.format(ends="OLD", asks="Say")
    command = ("run", "ed.py:tell", "--job", "ed", "--model", "sim", "--json")
    Path("ed.py").write_text(text.replace("    return [", "    await ctx.ask('First')\n    return [{}['oops'], "))
    assert cortex(*command).last["outcome"] == "failed"
    how = "Correct the program and repeat the command that began the job: answers are not paid again"
    assert how in cortex("resume", "ed").err
    cortex("retry", "ed").refused("job ed has failed as a whole", how)
    Path("ed.py").write_text(text.replace("    return [", "    await ctx.ask('First')\n    return ["))
    fresh()
    done = cortex(*command)
    assert (done.code, done.last["outcome"], done.last["reused_calls"]) == (0, "complete", 1)


def test_an_answer_that_there_is_not_is_an_error_that_says_why():
    broken = FLOW.format(ends="OLD", asks="Say").replace("    return [", "    {}['oops']\n    return [")
    done = python(broken + '\nprint("answer:", cortex.run(tell(), model="sim", progress=False).answer)\n')
    assert done.returncode == 1 and "answer:" not in done.stdout
    assert re.search(r"NoAnswer: job \S+ is failed and has no answer: faulty: .*KeyError: 'oops'", done.stderr)
    looked = python(broken + '\nfound = cortex.run(tell(), model="sim", progress=False)\nprint(found.outcome, found)\n')
    assert looked.returncode == 0 and looked.stdout.startswith("failed <")
