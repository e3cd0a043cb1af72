"""ralph from the command line: killed for real in the middle of a round, and its bad input in one line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder, StoreError
from actors.workspace.tree import STORE
from tests.cli.cli_runner import Done, started, until
from tests.support.workspace_fixture import CHECK, TASK, solved, workshop

ITEMS = 60
MORE = 'exec(open("../more.py").read())'
MURDER = """
import os, signal, time
for name in ("die1", "die2", "die3"):
    if os.path.exists("../" + name) and len(lines) >= 8 * int(name[3:]):
        os.unlink("../" + name)
        os.kill(int(open("../pid").read()), signal.SIGKILL)
        time.sleep(20)
        open("answers.txt", "a").write("an orphan wrote this\\n")
"""
SIM = ("--model", "sim", "--job", "mine", "--json")


def command(*more: str) -> tuple[str, ...]:
    return ("run", "ralph", "-p", "folder=work", "-p", "task=@task.md", "-p", f"check={CHECK}", *SIM, *more)


@pytest.fixture(autouse=True)
def task(cortex) -> None:
    """The task, in a file."""
    Path("task.md").write_text(TASK)


def answers(folder: str = "work") -> str:
    return Path(folder, "answers.txt").read_text()


def straight(cortex: Any) -> Any:
    """The answer of a run that nobody disturbs, over a folder of its own."""
    workshop(Path("other"), ITEMS, more=MORE)
    Path("more.py").write_text("")
    words = [word if word != "folder=work" else "folder=other" for word in command("--state", "elsewhere")]
    return cortex(*words).last


def calls() -> int:
    try:
        return last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine").tally.calls
    except StoreError:
        return 0


def test_a_folder_is_worked_on_until_its_check_passes(cortex):
    workshop(Path("work"), ITEMS)
    done = cortex(*command())
    assert (done.code, done.last["outcome"], done.last["answer"]["ended"]) == (0, "complete", "passed")
    assert "".join(sorted(answers().splitlines(keepends=True))) == solved(ITEMS)
    assert not Path("work", STORE).exists()
    assert "already complete" in cortex(*command()).err


def test_one_that_does_not_pass_says_so_in_its_exit_code(cortex):
    workshop(Path("work"), 3)
    done = cortex("run", "ralph", "-p", "folder=work", "-p", "task=x", "-p", "check=echo 2 missing; false", *SIM)
    assert (done.code, done.last["answer"]["ended"], done.last["answer"]["rounds"]) == (1, "stagnated", 6)


def test_killed_between_the_edits_and_their_commit_no_round_is_done_twice(cortex):
    """The check, which runs after the edits and before the commit, kills the run three times, and itself works on."""
    wanted = straight(cortex)
    Path("more.py").write_text(MURDER)
    workshop(Path("work"), ITEMS, more=MORE)
    for name in ("die1", "die2", "die3"):
        Path(name).write_text("")
        _killed(*(command() if name == "die1" else ("resume", "mine", "--json")))
    done = cortex("resume", "mine", "--json")
    assert (done.code, done.last["answer"]) == (0, wanted["answer"])
    assert answers() == answers("other")
    assert done.last["paid_calls"] == wanted["paid_calls"], "no call was in flight when it was killed"


def _killed(*words: str) -> None:
    """Begin, and wait for its end by another's hand."""
    with started(*words, stdout=None, stderr=None) as child:
        Path("pid").write_text(str(child.pid))
        until(lambda: child.poll() is not None)
        assert child.returncode == -signal.SIGKILL


def test_killed_at_any_moment_it_ends_with_the_same_folder_and_answer(cortex):
    wanted = straight(cortex)
    workshop(Path("work"), ITEMS, more=MORE)
    for count in (2, 4, 6):
        words = command("--sim", "latency_ms=60") if count == 2 else ("resume", "mine", "--sim", "latency_ms=60")
        with started(*words) as child:
            until(lambda count=count: calls() >= count)
            child.kill()
            child.wait()
    done = cortex("resume", "mine", "--sim", "latency_ms=0", "--json")
    assert (done.code, done.last["answer"], answers()) == (0, wanted["answer"], answers("other"))
    assert wanted["paid_calls"] <= done.last["paid_calls"] <= wanted["paid_calls"] + 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "folder=work", "-p", "task=@nowhere.md", "-p", "check=true"), "cannot read nowhere.md"),
        (("-p", "folder=work", "-p", "task=x"), "ralph needs check: give -p check=..."),
        (("-p", "folder=work", "-p", "task=x", "-p", "check=true", "-p", "rounds=many"), "rounds: expected `int`"),
        (("-p", "folder=work", "-p", "task=x", "-p", "check=true", "-p", "turns=3"), "no such parameter"),
    ],
)
def test_bad_input_is_one_line(cortex, words, said):
    workshop(Path("work"), 1)
    cortex("run", "ralph", *words, *SIM).refused(said)


def test_a_text_that_begins_with_an_at_sign_is_written_with_two(cortex):
    workshop(Path("work"), 1)
    done: Done = cortex("run", "ralph", "-p", "folder=work", "-p", "task=@@home", "-p", "check=true", *SIM)
    assert done.code == 0
    k = last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine")
    assert json.loads(k.terms.params_json)["task"] == "@home"
