"""Programs that a model wrote: saved with their calls, not run until approved, and then without asking for writing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from cortex.state.state import Status
from tests.cli.test_rlm import QUESTION, SIM, reviews

FILE = Path("programs/late.toml")
TESTS = Path("programs/late.tests.jsonl")


@pytest.fixture
def job(cortex) -> str:
    """A job of rlm that worked."""
    reviews(count=300)
    done = cortex("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "returns=number", *SIM, "--job", "mine", "--json")
    assert done.code == 0, done.err
    return "mine"


@pytest.fixture
def approved(cortex, job) -> str:
    """A saved program that was read."""
    assert cortex("program", "save", job, "--as", "late").code == 0
    assert cortex("program", "approve", "late").code == 0
    return "late"


def test_it_is_saved_readable_with_where_it_comes_from_its_cost_and_its_calls(cortex, job):
    done = cortex("program", "save", job, "--as", "late")
    assert done.code == 0 and "version 1" in done.err and "not approved yet" in done.err
    shown = cortex("program", "show", "late").out
    assert shown == FILE.read_text()
    for line in ('name = "late"', "version = 1", 'job = "mine"', 'model = "sim"', "writing_calls = 1", "calls = 3"):
        assert f"\n{line}\n" in shown
    assert re.search(r'\ndate = "20\d\d-\d\d-\d\d"\n', shown)
    assert "\nreplies = llm_map(" in shown
    case = json.loads(TESTS.read_text())
    assert case["answer"] == 25 and len(case["calls"]) == 2 and case["context"].startswith("Review 0")


def test_it_is_not_run_until_it_is_approved(cortex, job):
    cortex("program", "save", job, "--as", "late")
    reported = cortex("run", str(FILE), "--help").out
    assert reported.startswith("late: saved, version 1: ") and "-p calls=…   int, default" in reported
    cortex("run", str(FILE), "reviews.txt", *SIM).refused("not approved", "cortex program approve late")
    cortex("program", "run", "late", "reviews.txt", *SIM).refused("not approved")
    assert cortex("program", "test", "late").code == 0
    assert cortex("program", "approve", "late").code == 0
    assert cortex("program", "run", "late", "reviews.txt", *SIM).out.strip() == "25"


def test_run_again_on_new_input_it_makes_no_writing_call(cortex, approved):
    right = reviews("new.txt", 900)
    done = cortex("run", str(FILE), "new.txt", *SIM, "--job", "again", "--json")
    assert (done.last["answer"], done.last["calls"]) == (right, 5)
    k = last_state(StateFolder(_state()), "again")
    asked = [goal for goal in k.goals_of("ask") if goal.status == Status.RESOLVED]
    assert len(asked) == 5 and all(str(goal.answer).isdigit() for goal in asked)
    assert not any("```" in str(goal.answer) or "writing a program" in goal.value[1] for goal in k.goals_of("ask"))


def test_changed_after_approval_it_is_not_run(cortex, approved):
    FILE.write_text(FILE.read_text().replace("submit(sum(numbers))", "submit(sum(numbers) + 1)"))
    cortex("run", str(FILE), "reviews.txt", *SIM).refused("late version 1 was changed since", "approve late")
    cortex("program", "approve", "late").refused("not approved", "it answers 26 where 25 was recorded")
    assert cortex("program", "test", "late").code == 1


def test_a_version_that_is_not_there_is_said_in_one_line(cortex, approved):
    cortex("program", "run", "late@2", "reviews.txt", *SIM).refused("is version 1, not 2")
    assert cortex("program", "run", "late@1", "reviews.txt", *SIM).out.strip() == "25"
    FILE.write_text(FILE.read_text().replace("version = 1", "version = 2"))
    cortex("program", "run", "late@2", "reviews.txt", *SIM).refused("late version 2 was changed since")
    FILE.write_text(FILE.read_text().replace("form = 1", "form = 9"))
    cortex("program", "run", "late", "reviews.txt", *SIM).refused("has form 9", "reads form 1")


def test_a_new_version_must_pass_the_recorded_calls_of_the_old_one(cortex, approved):
    again = cortex("program", "save", "mine", "--as", "late")
    assert again.code == 0 and "is already this program" in again.err
    case = json.loads(TESTS.read_text())
    TESTS.write_text(json.dumps(case | {"answer": 24}) + "\n")
    FILE.write_text(FILE.read_text().replace("print(len(lines)", "print('the same', len(lines)"))
    cortex("program", "save", "mine", "--as", "late").refused("not saved: version 2 fails a recorded run of version 1")
    assert "version = 1" in FILE.read_text()
    TESTS.write_text(json.dumps(case) + "\n")
    saved = cortex("program", "save", "mine", "--as", "late")
    assert saved.code == 0 and "version 2" in saved.err and "2 recorded runs" in saved.err
    assert "[approved]" not in FILE.read_text()
    cortex("run", str(FILE), "reviews.txt", *SIM).refused("late version 2 is not approved")


def test_a_version_that_asks_something_else_fails_the_old_calls(cortex, approved):
    other = QUESTION.replace("K-3", "K-4")
    cortex("run", "rlm", "reviews.txt", "-p", other, "-p", "returns=number", *SIM, "--job", "other")
    cortex("program", "save", "other", "--as", "late").refused("not saved", "it makes calls that were not recorded")


def test_what_only_looked_around_is_left_out(cortex):
    reviews(count=300)
    preview = ("-p", "preview=0", "-p", "returns=number")
    done = cortex("run", "rlm", "reviews.txt", "-p", QUESTION, *preview, *SIM, "--job", "mine", "--json")
    assert done.last["calls"] == 4  # a look, the program, two parts
    assert cortex("program", "save", "mine", "--as", "late").code == 0
    assert "print(type(context)" not in FILE.read_text() and "writing_calls = 2" in FILE.read_text()


def test_what_cannot_be_saved_or_read_is_said_in_one_line(cortex, job):
    cortex("program", "save", "nobody", "--as", "late").refused("nobody")
    cortex("program", "save", job, "--as", "../late").refused("no name for a program")
    cortex("program", "show", "late").refused("late.toml does not exist")
    cortex("run", "programs/late.toml", "reviews.txt", *SIM).refused("late.toml does not exist")
    cortex("run", "crystal", "-p", "pieces=['submit(1)']", *SIM).refused("name the saved program")
    cortex("program", "save", job, "--as", "late")
    cortex("program", "run", "late", "reviews.txt", "-p", "pieces=['x']", *SIM).refused("is set by the saved program")
    TESTS.unlink()
    cortex("program", "approve", "late").refused("its recorded runs are missing")
    TESTS.write_text("{}\n")
    cortex("program", "test", "late").refused("late.tests.jsonl line 1")
    FILE.write_text("name = [")
    cortex("program", "show", "late").refused("cannot be read")
    FILE.write_text('form = 1\nname = "late"\n')
    cortex("program", "show", "late").refused("is not a valid saved program")
    FILE.write_text("")
    cortex("program", "show", "late").refused("has form None")
    cortex(
        "run", "rlm", "reviews.txt", "-p", "question=What?", "-p", "turns=1", *SIM, "--sim", "error=1", "--job", "bad"
    )
    refused = cortex("program", "save", "bad", "--as", "bad")
    assert refused.code == 2 and len(refused.said()) == 1


def _state() -> str:
    import os

    return os.environ["CORTEX_STATE"]
