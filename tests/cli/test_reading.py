"""Reading reads: what is told of a job neither runs the author's program again nor needs it, once the job has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from actors.store import Folder
from tests.cli.commands import environment

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


def python(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the author's own, in a process of its own."""
    command = [sys.executable, *(arguments or ("-",))]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=environment(), check=False)


def _jobs() -> list[str]:
    return sorted(Folder(os.environ["CORTEX_STATE"]).jobs())


def test_a_script_that_begins_jobs_when_it_is_imported_begins_none_when_they_are_read(cortex):
    Path("script.py").write_text(UNGUARDED.format(which="n", job=""))
    assert "TOP LEVEL complete" in python("", "script.py").stdout
    found = _jobs()
    assert len(found) == 1
    job = found[0]
    for command in (("jobs",), ("status", job), ("results", job), ("inspect", job, "1"), ("report", job)):
        told = cortex(*command)
        assert told.code == 0, told
        assert "TOP LEVEL" not in told.out + told.err
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
