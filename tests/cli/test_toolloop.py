"""A controlled tool loop at the command line: killed in the middle, and waiting for a person."""

from __future__ import annotations

import json
import os

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder, StoreError
from tests.cli.cli_runner import started, until

SIM = ("--model", "sim", "--sim", "error=0")
APPROVED = ("run", "toolloop", *SIM, "-p", "count=2", "-p", 'rules={"approve": ["record"]}', "--job", "mine")


def calls() -> int:
    try:
        return last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine").tally.calls
    except StoreError:
        return 0


@pytest.mark.long
def test_killed_in_the_middle_it_ends_with_the_same_answer_and_pays_for_nothing_twice(cortex):
    command = ("run", "toolloop", *SIM, "-p", "count=60", "-p", "at_most=10")
    slow = (*SIM[2:], "--sim", "latency_ms=150", "--sim", "latency_spread=0")  # 20 s for all: no kill comes too late
    straight = cortex(*command, "--job", "straight", "--state", "other", "--json").last
    for at, words in ((10, (*command, "--job", "mine")), (30, ("resume", "mine"))):
        with started(*words, *slow) as child:
            until(lambda at=at: calls() >= at)
            child.kill()
            child.wait()
        assert calls() < straight["paid_calls"], "it was to be killed in the middle"
    done = cortex("resume", "mine", *SIM[2:], "--sim", "latency_ms=0", "--json").last
    assert (done["outcome"], done["answer"]) == ("complete", straight["answer"])
    assert straight["answer"]["right"]
    assert straight["paid_calls"] <= done["paid_calls"] <= straight["paid_calls"] + 2  # one in flight at each kill


def test_an_approval_waits_and_approve_lets_it_go_on(cortex):
    done = cortex(*APPROVED)
    assert done.code == 3
    assert "waits for an answer: approve:record-1" in done.err
    assert cortex("approve", "mine").out.startswith('record-1  record {"item":"note-0-1"')
    assert json.loads(cortex("approve", "mine", "--json").out)["approvals"].keys() == {"record-1"}
    cortex("approve", "mine", "record-7").refused(
        "does not wait for 'approve:record-7'; it waits for: approve:record-1"
    )
    cortex("approve", "mine", "--deny").refused("--deny needs the names of approvals")
    assert cortex("approve", "mine", "record-1").code == 0
    assert cortex("resume", "mine").code == 3
    assert cortex("approve", "mine", "record-2").code == 0
    done = cortex("resume", "mine", "--json").last
    assert (done["outcome"], done["answer"]["right"], done["answer"]["degraded"]) == ("complete", True, [])
    cortex("approve", "mine", "record-2").refused("already complete")
    assert "waits for no approval" in cortex("approve", "mine").err


def test_what_is_denied_is_told_to_the_model_and_marks_the_run(cortex):
    cortex(*APPROVED, "-p", 'bounds={"retries_max": 0}')
    for number in range(1, 4):
        assert cortex("approve", "mine", f"record-{number}", "--deny").code == 0
        cortex("resume", "mine")
    state = last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine")
    kept = next(goal.kept for goal in state.goals.values() if goal.kept)[0]["value"]["control"]
    assert kept["degraded"][0] == 'record-1 was denied: record {"item":"note-0-1","label":"bug"}'
    assert "denied by whoever must approve it" in json.dumps(kept and state_talks(state))


def state_talks(state):
    """The conversations that K holds."""
    return next(goal.kept for goal in state.goals.values() if goal.kept)[0]["value"]["talks"]
