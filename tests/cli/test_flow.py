"""Flows from the command line: run, killed and resumed, answered, stepped through, and refused in one line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

import pytest

from actors.history.catalog import last_state, last_terms
from actors.journal.journal import StateFolder, StoreError
from tests.cli.cli_runner import LONG, started, until
from tests.support.patience import PATIENCE_S

FLOWS = '''
import os
import random
import time
from typing import Literal

import cortex

Side = Literal["left", "right"]


@cortex.tool(repeatable=True)
def length(text: str) -> int:
    while len(text) >= 400 and os.path.exists("hold"):
        time.sleep(0.02)
    return len(text)


@cortex.flow
async def walk(ctx, steps: int, words: list[str] = ["a"]) -> list:
    """So many steps, each after the one before."""
    went = []
    for step in range(steps):
        went.append(await ctx.ask(f"Step {step} after {went[-1:]}: where to?", returns=Side))
        if step % 50 == 0:
            went.append(await ctx.run(length, "x" * step))
    return went


@cortex.flow
async def approve(ctx):
    said = await ctx.ask("Say something")
    return [said, await ctx.wait("approved", bool)]


@cortex.flow
async def row(ctx, text: str):
    return [text, await ctx.ask(text, returns=Side)]


@cortex.flow
async def stops(ctx):
    said = await ctx.ask("Say something")
    breakpoint()
    return said


@cortex.flow
async def chance(ctx):
    return random.random()


@cortex.flow
async def moody(ctx):
    await ctx.ask(f"It is {os.environ.get('MOOD', 'fine')}")
    return await ctx.wait("more")
'''
SIM = ("--model", "sim", "--sim", "error=0")
STEPS = 500
HOLD = Path("hold")
"""While it is there, ``walk`` stands still at step 400: no kill before comes too late, however busy the machine is."""


@pytest.fixture(autouse=True)
def flows(cortex) -> None:
    """A file of flows in the working folder."""
    Path("flows.py").write_text(FLOWS)


@pytest.mark.long
def test_a_flow_killed_three_times_ends_with_the_same_answer_and_pays_for_nothing_twice(cortex):
    command = ("run", "flows.py:walk", "-p", f"steps={STEPS}", *SIM)
    straight = cortex(*command, "--job", "straight", "--state", "other", "--json").last
    HOLD.touch()
    _killed_after(100, *command, "--job", "mine")
    _killed_after(200, "resume", "mine")
    _killed_after(300, "resume", "mine")
    HOLD.unlink()
    done = cortex("resume", "mine", "--sim", "error=0", "--json").last
    assert (done["outcome"], done["answer"]) == ("complete", straight["answer"])
    assert straight["paid_calls"] <= done["paid_calls"] <= straight["paid_calls"] + 3  # one in flight at each kill


def _killed_after(calls: int, *command: str) -> None:
    with started(*command, "--sim", "error=0", "--sim", "latency_ms=5") as child:
        until(lambda: _calls() >= calls)
        child.kill()
        child.wait()
    assert _calls() < STEPS, "it was to be killed in the middle"


def _calls() -> int:
    try:
        return last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine").tally.calls
    except StoreError:
        return 0


def test_it_waits_for_a_person_at_rest_and_goes_on(cortex):
    done = cortex("run", "flows.py:approve", *SIM, "--job", "mine")
    assert done.code == 3
    assert "waits for an answer: approved; give it, then resume: cortex answer mine approved=VALUE\n" in done.err
    assert "it waits for: approved" in cortex("answer", "mine", "aproved=yes").err
    answer = cortex("answer", "mine", "approved=perhaps").err
    assert "does not take 'perhaps' for 'approved': it still waits for true or false" in answer
    assert cortex("answer", "mine", "approved=yes").code == 0
    status = cortex("status", "mine").out
    assert "the awaited answer was given: resume the job" in status
    assert "waits for an answer" not in status
    assert cortex("resume", "mine", "--json").last["answer"][1] is True
    assert "already complete" in cortex("answer", "mine", "approved=yes").err


def test_rows_are_runs_of_their_own(cortex):
    Path("in.jsonl").write_text("".join(json.dumps({"text": f"{n}: left or right?"}) + "\n" for n in range(5)))
    done = cortex("run", "flows.py:row", "in.jsonl", "-o", "out.jsonl", *SIM, "--json")
    assert done.code == 0, done.err
    parts = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted((line["row"], line["answer"][0]) for line in parts) == [
        (n + 1, f"{n}: left or right?") for n in range(5)
    ]


def test_a_row_that_a_flow_cannot_take_has_a_line_that_says_why(cortex):
    Path("in.jsonl").write_text('{"text": "left or right?"}\n{"txt": 1}\n[]\nnot JSON\n{"text": "right or left?"}\n')
    done = cortex("run", "flows.py:row", "in.jsonl", "-o", "out.jsonl", *SIM, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (1, 2, 3)
    lines = {line["row"]: line for line in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    assert sorted(lines) == [1, 2, 3, 4, 5]
    assert [lines[row]["failed"]["kind"] for row in (2, 3, 4)] == ["rejected"] * 3
    assert "row has no parameter 'txt'" in lines[2]["failed"]["message"]
    Path("in.jsonl").write_text('{"text": ["a"]}\n')
    cortex("run", "flows.py:row", "in.jsonl", "-o", "wrong.jsonl", *SIM)
    message = json.loads(Path("wrong.jsonl").read_text())["failed"]["message"]
    assert message == "row 1: text: Expected `str`, got `array`"


def test_a_text_that_a_flow_needs_is_given_as_it_stands_or_by_its_file(cortex):
    Path("one.py").write_text("import cortex\n\n@cortex.flow\nasync def one(ctx, text: str):\n    return text\n")
    Path("said.txt").write_text("What the file holds.")
    for given, meant in (("123", "123"), ("@said.txt", "What the file holds."), ("@@home", "@home")):
        done = cortex("run", "one.py", "-p", f"text={given}", *SIM, "--json")
        assert (done.code, done.last["answer"]) == (0, meant), done.err
    cortex("run", "one.py", "-p", "text=@nowhere.txt", *SIM).refused("cannot read nowhere.txt")
    cortex("run", "one.py", "-p", "text=a", "-p", "text=b", *SIM).refused("-p text is given twice")


def test_a_parameter_that_is_no_text_is_read_from_its_file_too(cortex):
    Path("words.json").write_text('["a", "b"]\n')
    done = cortex("run", "flows.py:walk", "-p", "steps=1", "-p", "words=@words.json", *SIM, "--job", "mine", "--json")
    assert done.code == 0, done.err
    assert last_terms(StateFolder(os.environ["CORTEX_STATE"]), "mine").params_json == b'{"steps":1,"words":["a","b"]}'
    cortex("run", "flows.py:walk", "-p", "steps=1", "-p", "words=@no.json", *SIM).refused("cannot read no.json")


def test_a_file_that_holds_no_row_at_all_is_refused_before_there_is_a_job(cortex):
    answer = cortex("run", "flows.py:row", "flows.py", "-o", "out.jsonl", *SIM).refused("flows.py holds no row")
    assert "a JSON object a line" in answer
    cortex("status").refused("no jobs")
    assert not Path("out.jsonl").exists()


def test_breakpoint_stops_there():
    with started("run", "flows.py:stops", *SIM, stdin=-1) as child:
        out, err = child.communicate("p 'it', said\nc\n", timeout=PATIENCE_S)
    assert "-> return said" in out
    assert "('it', '" in out
    assert child.returncode == 0, err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_on_a_terminal_the_live_bar_does_not_draw_over_the_debugger(monkeypatch):
    import pty

    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with started("run", "flows.py:stops", *SIM, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        seen, until_s = b"", time.monotonic() + 120
        while b"(Pdb) " not in seen and time.monotonic() < until_s and select.select([ours], [], [], 120.0)[0]:
            seen += os.read(ours, 4_096)
        assert b"-> return said" in seen and seen.endswith(b"(Pdb) "), seen[-2_000:]
        more, _, _ = select.select([ours], [], [], 1.0)
        assert not more, f"it drew over the prompt: {os.read(ours, 4_096)!r}"
        os.write(ours, b"c\n")
        with contextlib.suppress(OSError):  # the other end is gone
            while select.select([ours], [], [], 120.0)[0] and os.read(ours, 4_096):
                pass
        assert child.wait(120) == 0
    os.close(ours)


def test_help_tells_what_a_flow_takes(cortex):
    out = cortex("run", "flows.py:walk", "--help").out
    assert "So many steps, each after the one before." in out
    assert "-p steps=…   int, needed" in out
    assert '-p words=…   list[str], default ["a"]' in out


LOGS = """
import time
from pathlib import Path

import cortex

@cortex.tool
def held():
    for _ in range(1_000):
        if Path("seen").exists():
            return True
        time.sleep(0.05)
    return False

@cortex.flow
async def below(ctx):
    ctx.log("is asked")
    return await ctx.ask("Say something")

@cortex.flow
async def talks(ctx):
    ctx.log("begins with", 2)
    said = await ctx.run(below())
    await ctx.run(held)
    ctx.log("[bold]after that[/bold]")
    await ctx.wait("more")
    ctx.log("and goes on\\nas it did")
    return said
"""


def test_what_a_flow_logs_is_shown_once_and_as_it_happens(cortex):
    Path("logs.py").write_text(LOGS)
    with started("run", "logs.py:talks", *SIM, "--job", "mine") as child:
        err = child.stderr
        assert err is not None
        said = (line for line in err if not LONG.match(line))  # a busy machine may make it a long run
        assert next(said).startswith("cortex: job mine, model sim")
        assert next(said) == "cortex: mine: begins with 2\n"
        assert child.poll() is None, "it was to be shown while it runs"
        Path("seen").touch()
        rest = list(said)
        child.wait(PATIENCE_S)
        assert rest[:2] == ["cortex: mine: mine~2: is asked\n", "cortex: mine: [bold]after that[/bold]\n"]
        assert child.returncode == 3
    assert cortex("answer", "mine", "more=1").code == 0
    lines = cortex("resume", "mine").said()
    assert lines[1] == "mine: and goes on as it did"
    assert [line for line in lines if "begins with" in line or "after that" in line] == []


@pytest.mark.parametrize(("command", "words"), [
    (("flows.py:walk",), ("walk needs steps: give -p steps=...",)),
    (("flows.py:walk", "-p", "steps=many"), ("-p steps: expected `int`, got `str`",)),
    (("flows.py:chance",), ("flows.py:", "uses random.random: ask ctx.random()")),
    (("flows.py",), ("flows.py holds walk, approve, row, stops, chance, moody: name the program as flows.py:walk",)),
])  # fmt: skip
def test_what_is_wrong_is_one_line(cortex, command, words):
    done = cortex("run", *command, *SIM)
    assert done.code == 2
    for word in words:
        assert word in done.err
    assert len(done.said()) == 1


def test_a_flow_that_is_not_deterministic_is_named_and_goes_on_when_it_is_put_right(cortex, monkeypatch):
    assert cortex("run", "flows.py:moody", *SIM, "--job", "mine").code == 3
    monkeypatch.setenv("MOOD", "bad")
    done = cortex("resume", "mine")
    assert done.code == 2
    assert "it now asks flows.py:" in done.err
    assert "'It is bad' where its journal has flows.py:" in done.err
    monkeypatch.delenv("MOOD")
    assert cortex("answer", "mine", "more=1").code == 0
    assert cortex("resume", "mine").code == 0


BAD = {
    "foreign.py": "import cortex, asyncio\n@cortex.flow\nasync def f(ctx):\n    await asyncio.sleep(0.1)\n",
    "future.py": "import cortex\nclass Odd:\n    def __await__(self):\n        yield 7\n@cortex.flow\nasync def f(ctx):\n    await Odd()\n",
    "clock.py": "import cortex, time\n@cortex.flow\nasync def f(ctx):\n    return time.time()\n",
    "today.py": "import cortex\nfrom datetime import datetime\ndef when():\n    return datetime.now()\n@cortex.flow\nasync def f(ctx):\n    return str(when())\n",
    "syntax.py": "import cortex\n@cortex.flow\nasync def f(ctx)\n    pass\n",
    "missing.py": "import nothing_of_that_name\n",
    "raises.py": "raise ValueError('one line\\nand another')\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
    "none.py": "class Plain:\n    pass\ndef f(ctx): pass\n",
    "plain.py": "import cortex\n@cortex.flow\ndef f(ctx):\n    return 1\n",
    "bare.py": "import cortex\n@cortex.flow\nasync def f():\n    return 1\n",
    "stars.py": "import cortex\n@cortex.flow\nasync def f(ctx, *texts):\n    return 1\n",
}  # fmt: skip


@pytest.mark.parametrize(("where", "words"), [
    ("foreign.py", ("foreign.py:4 uses asyncio.sleep", "await ctx.sleep(seconds)")),
    ("clock.py", ("clock.py:4 uses time.time", "ask ctx.now()")),
    ("today.py", ("today.py:4 uses datetime.now", "ask ctx.now()")),
    ("syntax.py", ("syntax.py", "SyntaxError", "line 3")),
    ("missing.py", ("missing.py", "cannot be imported", "No module named 'nothing_of_that_name'")),
    ("raises.py", ("raises.py", "ValueError: one line and another")),
    ("leaves.py", ("leaves.py", "cannot be imported", "SystemExit: 3")),
    ("none.py", ("none.py holds no program",)),
    ("none.py:Plain", ("none.py:Plain is not a program",)),
    ("none.py:f", ("none.py:f is not a program",)),
    ("none.py:Gone", ("none.py has no Gone",)),
    ("nowhere.py", ("nowhere.py", "there is no file")),
    ("no.such:Thing", ("no.such:Thing", "No module named 'no'")),
    ("nothing", ("no program 'nothing': ready ones are",)),
    ("bare", ("no program 'bare': did you mean bare.py? ready ones are",)),
    ("plain.py", ("plain.py", "f is no async function")),
    ("bare.py", ("bare.py", "f takes no ctx")),
    ("stars.py", ("stars.py", "*texts cannot be given by name")),
])  # fmt: skip
def test_a_program_that_cannot_be_one_is_one_line(cortex, where, words):
    for name, text in BAD.items():
        Path(name).write_text(text)
    cortex("run", where, *SIM).refused(*words)


def test_a_flow_that_awaits_something_foreign_fails_with_its_file_and_line(cortex):
    Path("future.py").write_text(BAD["future.py"])
    done = cortex("run", "future.py", *SIM)
    assert done.code == 1
    assert "future.py:7 awaits a int, which only an event loop answers" in "\n".join(done.said())
