"""``retry``: failed rows are asked again in the same job, and stand once in the same results file."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import HANGING, each_once, keys, kinds, requests, rows_that_hang, started, until

COUNT = 24
FAILING = (*HANGING, "--goal-timeout", "0.5s")
WELL = ("--sim", "hang=0", "--goal-timeout", "none")


def _state():
    return last_state(StateFolder(os.environ["CORTEX_STATE"]), "mine")


def _failed(cortex, *more: object, output: object = "out.jsonl") -> int:
    """A job of which some rows failed; how many."""
    requests(Path("in.jsonl"), COUNT)
    command = ("batch", "in.jsonl", "-o", output, "--job", "mine", "--model", "sim", "--price", "input=1,output=1")
    done = rows_that_hang(cortex, output, *command, *more)
    assert done.code == 1, done
    assert done.said()[-1] == "to ask the failed rows again: cortex retry mine"
    failed = _state().tally.failed
    assert 0 < failed < COUNT
    return failed


@pytest.mark.parametrize("more", [(), ("--ordered",)])
@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.gz"])
def test_failed_rows_are_asked_again_and_merged_into_the_same_file(cortex, more, output):
    failed = _failed(cortex, *more, output=output)
    attempts = _state().ledger.attempts
    done = cortex("retry", "mine", *WELL, "--json")
    assert done.code == 0, done
    assert f"{failed} failed rows are asked again ({failed} timed_out)" in done.said()[0]
    assert (done.last["rows_succeeded"], done.last["rows_failed"]) == (COUNT, 0)
    again = done.last["attempts"] - attempts + done.last["reused_calls"]
    assert again == failed, "only what failed was asked, or was answered after its time was over"
    cortex("results", "mine", "-o", "copy.jsonl")
    each_once(Path("copy.jsonl"), COUNT)
    if output == "out.jsonl":
        assert Path("copy.jsonl").read_bytes() == Path(output).read_bytes()
    if more:
        assert list(keys(Path("copy.jsonl"))) == [f"r{place}" for place in range(COUNT)]
    assert "no row failed" in cortex("retry", "mine").refused()


def test_the_same_command_and_resume_go_on_with_nothing(cortex):
    _failed(cortex)
    assert cortex("retry", "mine", *WELL).code == 0
    before = Path("out.jsonl").read_bytes()
    for command in (("resume", "mine"), ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim")):
        assert cortex(*command).code == 0
        assert Path("out.jsonl").read_bytes() == before
    Path("out.jsonl").unlink()
    assert "written again from the journal" in "".join(cortex("resume", "mine").said())
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.parametrize("more", [(), ("--ordered",)])
def test_killed_in_the_middle_the_retry_is_resumed_without_its_input(cortex, more):
    failed = _failed(cortex, *more)
    slow = ("--sim", "hang=0", "--goal-timeout", "none", "--sim", "latency_ms=1000", "--sim", "latency_spread=0")
    with started("retry", "mine", *slow, "--concurrency", 1) as child:
        until(lambda: _state().edition == 1 and _state().tally.succeeded > COUNT - failed)
        child.kill()
        child.wait()
    assert not _state().outcome
    cortex("retry", "mine").refused("was interrupted", "cortex resume mine first")
    Path("in.jsonl").unlink()
    assert cortex("resume", "mine", "--sim", "latency_ms=1", "--concurrency", 10).code == 0
    each_once(Path("out.jsonl"), COUNT)
    assert set(kinds(Path("out.jsonl")).values()) == {"succeeded"}


def test_killed_in_the_middle_the_same_command_goes_on_with_another_model(cortex):
    """The rows that are asked again ask another model; the job's own command names the one before."""
    failed = _failed(cortex)
    ours = ("--sim", "hang=0", "--goal-timeout", "none", "--sim", "latency_ms=1000", "--sim", "latency_spread=0")
    with started("retry", "mine", *ours, "--concurrency", 1, "--max-output-tokens", 5) as child:
        until(lambda: _state().edition == 1 and _state().tally.succeeded > COUNT - failed)
        child.kill()
        child.wait()
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--price", "input=1,output=1")
    done = cortex(*command, *FAILING, "--sim", "hang=0", "--goal-timeout", "none", "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, COUNT)
    each_once(Path("out.jsonl"), COUNT)


@pytest.mark.parametrize("setting", ["seed=5", "error=0"])
def test_another_simulated_provider_for_what_failed(cortex, setting):
    """These settings make another endpoint: the retry, its resume and the job's own command stay the same job."""
    failed = _failed(cortex)
    done = cortex("retry", "mine", *WELL, "--sim", setting, "--max-job-tokens", 1)
    assert (done.code, _state().edition) == (3, 1), done
    assert cortex("resume", "mine", "--max-job-tokens", "none", "--json").last["rows_succeeded"] == COUNT
    each_once(Path("out.jsonl"), COUNT)
    assert _state().ledger.paid_calls == COUNT and failed


def test_an_interrupted_retry_elsewhere_goes_on_by_the_same_command(cortex):
    _failed(cortex)
    assert cortex("retry", "mine", *WELL, "--sim", "error=0", "--max-job-tokens", 1).code == 3
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--price", "input=1,output=1")
    done = cortex(*command, *FAILING, *WELL[2:], "--max-job-tokens", "none", "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["paid_calls"]) == (0, COUNT, COUNT), done
    each_once(Path("out.jsonl"), COUNT)


def test_open_rows_stay_where_they_were_asked(cortex):
    """Rows that a cap has left open hold requests to the first endpoint."""
    requests(Path("in.jsonl"), COUNT)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--price", "input=1,output=1")
    assert cortex(*command, *FAILING, "--concurrency", 4, "--max-job-tokens", 900).code == 3
    assert _state().live and _state().tally.failed
    words = f"still has {_state().live} open rows: cortex resume mine first"
    for other in (("--sim", "seed=5"), ("--model", "claude-haiku-4-5")):
        cortex("retry", "mine", *WELL, *other).refused(words)
    assert cortex("retry", "mine", *WELL, "--max-job-tokens", "none").code == 0
    each_once(Path("out.jsonl"), COUNT)


def test_the_cap_goes_on_counting_and_a_higher_one_goes_on(cortex):
    _failed(cortex)
    spent = _state().ledger.committed_nusd / 1e9
    done = cortex("retry", "mine", *WELL, "--max-cost", f"{spent + 1e-8:.9f}")
    assert done.code == 3
    assert "to go on: cortex resume mine --max-cost USD" in "".join(done.said())
    each_once(Path("out.jsonl"), COUNT)
    assert set(kinds(Path("out.jsonl")).values()) == {"succeeded", "timeout_error"}, "what was known stays"
    assert cortex("resume", "mine", "--max-cost", 5).code == 0
    each_once(Path("out.jsonl"), COUNT)


def test_kinds_and_bad_words(cortex):
    failed = _failed(cortex)
    assert "did you mean timed_out?" in cortex("retry", "mine", "--kind", "timedout").refused("--kind 'timedout'")
    cortex("retry", "mine", "--kind", "refused,lost").refused("no row failed of kind lost or refused")
    cortex("retry", "nope").refused("no job 'nope'")
    assert cortex("retry", "mine", "--kind", "timed-out,lost", *WELL).code == 0
    assert _state().ledger.paid_calls >= COUNT - failed
    each_once(Path("out.jsonl"), COUNT)


def test_other_parameters_for_what_failed(cortex):
    _failed(cortex)
    assert cortex("retry", "mine", *WELL, "--max-output-tokens", 3).code == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert Counter(line["custom_id"] for line in lines) == Counter(f"r{place}" for place in range(COUNT))
    assert all(line["result"]["type"] == "succeeded" for line in lines)


def test_to_standard_output_go_the_new_rows_alone(cortex):
    failed = _failed(cortex, output="-")
    done = cortex("retry", "mine", *WELL)
    assert done.code == 0
    assert len(done.out.splitlines()) == failed
    assert all(json.loads(line)["result"]["type"] == "succeeded" for line in done.out.splitlines())
    cortex("results", "mine", "-o", "all.jsonl")
    each_once(Path("all.jsonl"), COUNT)


def test_a_results_file_that_somebody_edited_is_left_alone(cortex):
    _failed(cortex)
    mine = Path("out.jsonl").read_text().replace("succeeded", "SUCCEEDED").splitlines(keepends=True)[:-2]
    Path("out.jsonl").write_text("".join(mine) + "x" * 10_000 + "\n")
    before = Path("out.jsonl").read_bytes()
    cortex("retry", "mine", *WELL).refused("out.jsonl is not as this job left it")
    assert (Path("out.jsonl").read_bytes(), _state().edition) == (before, 0)


def test_what_cannot_be_retried(cortex):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--price", "input=1,output=1")
    assert cortex(*command, "--max-job-tokens", 400, "--concurrency", 2).code == 3
    cortex("retry", "mine").refused("no row failed")
    assert cortex("cancel", "mine").code == 0
    cortex("retry", "mine").refused("is cancelled for good")
    Path("rows.txt").write_text("a\nb\n")
    Path("own.py").write_text(
        "import cortex\n\nclass Own(cortex.Program):\n    def select(self, k):\n        for goal in k.open('row'):\n"
        "            yield cortex.Ask(goal, cortex.Prompt('own', (cortex.Part(cortex.Role.GOAL, goal.value.decode()),)))\n"
        "    def absorb(self, k, goal, reply):\n        yield cortex.Resolve(goal, reply.text)\n"
    )
    assert cortex("run", "own.py:Own", "rows.txt", "-o", "own.jsonl", "--job", "own", "--model", "sim").code == 0
    cortex("retry", "own").refused("cannot be asked again one by one")
