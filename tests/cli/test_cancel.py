"""``cancel``: a job that runs in another process, one that nobody runs, and one that is over."""

from __future__ import annotations

import getpass
import json
import os
import signal
import urllib.request
from pathlib import Path

import msgspec
import pytest

from actors.cli.control import steer
from actors.common.errors import CommandError
from actors.common.process_owner import this_owner
from actors.driver import control_note
from actors.driver.control_note import waits
from actors.journal.journal import StateFolder
from cortex.state import events
from tests.cli.cli_runner import ended, environment, keys, kinds, requests, started, until
from tests.support.patience import PATIENCE_S


def _stopped(cortex) -> None:
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", "--concurrency", 4)
    assert cortex(*command, "--max-job-tokens", 400).code == 3


def _stop_events(job: str) -> list[events.Stopped]:
    source = StateFolder(os.environ["CORTEX_STATE"]).journal(job)
    try:
        batches = [batch for _, turn in source.turns() for batch in turn.batches]
        return [event for batch in batches for event in batch if isinstance(event, events.Stopped)]
    finally:
        source.close()


def test_a_job_that_nobody_runs(cortex):
    _stopped(cortex)
    answered = len(keys(Path("out.jsonl")))
    done = cortex("cancel", "mine", "--json")
    assert (done.code, done.last["outcome"], done.last["resume"]) == (0, "cancelled", None)
    assert _stop_events("mine")[-1] == events.Stopped(getpass.getuser(), "cancel")
    found = kinds(Path("out.jsonl"))
    assert len(found) == 20
    assert sorted(found.values()).count("canceled") == 20 - answered
    again = cortex("cancel", "mine")
    assert again.code == 0
    assert "already cancelled" in again.said()[0]
    resumed = cortex("resume", "mine")
    assert resumed.code == 1
    assert "job mine is already cancelled" in resumed.said()[0]
    assert cortex("status", "mine", "--json").last["calls"] == done.last["calls"]


def test_a_job_that_runs_in_another_process(cortex):
    requests(Path("in.jsonl"), 400)
    slow = ("--concurrency", 2, "--sim", "latency_ms=200", "--sim", "latency_spread=0")
    with started("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", *slow, "--json") as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        done = cortex("cancel", "mine")
        theirs = ended(child)
    assert done.code == 0
    assert f"cancelled by {getpass.getuser()}" in done.err
    assert (theirs.code, theirs.last["outcome"], theirs.last["resume"]) == (1, "cancelled", None)
    assert len(kinds(Path("out.jsonl"))) == 400
    assert "canceled" in kinds(Path("out.jsonl")).values()
    assert not waits(StateFolder(os.environ["CORTEX_STATE"]), "mine")


def test_a_job_that_is_complete(cortex):
    requests(Path("in.jsonl"), 3)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine").code == 0
    done = cortex("cancel", "mine")
    assert done.code == 0
    assert "job mine is already complete: nothing to cancel" in done.said()[0]


def test_a_run_that_does_not_answer(cortex, monkeypatch):
    requests(Path("in.jsonl"), 400)
    monkeypatch.setattr(steer, "OBEDIENCE_S", 0.3)
    slow = ("--concurrency", 2, "--sim", "latency_ms=200")
    with started("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", *slow) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        child.send_signal(signal.SIGSTOP)
        done = cortex("cancel", "mine")
        assert done.code == 1
        assert f"process {child.pid} on " in done.said()[0]
        assert not waits(StateFolder(os.environ["CORTEX_STATE"]), "mine")


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("cancel", "the cancel of .* and gives it"), ("drain", "the drain of .* and gives it"),
        ("set", "the new limits of .* and gives them"), ("answer", "the answers of .* and gives them"),
        ("servers", "the servers of .* and gives them"),
    ],
)  # fmt: skip
def test_a_run_that_keeps_the_order_for_a_channel_that_is_away_is_not_to_be_ended(tmp_path, monkeypatch, how, kept):
    folder, owner = StateFolder(tmp_path).prepare(), this_owner("inline")
    monkeypatch.setattr(steer, "OBEDIENCE_S", 0.0)
    monkeypatch.setattr(steer, "last_owner", lambda *_: owner)
    monkeypatch.setattr(folder, "is_held", lambda _: True)
    leave = control_note.leave

    def left_and_taken(*args) -> bool:
        return leave(*args) and control_note.take(*args)

    monkeypatch.setattr(control_note, "leave", left_and_taken)
    with pytest.raises(CommandError, match=f"keeps {kept} as soon as the channel is back") as told:
        steer.send_to_run(folder, "mine", how)
    assert "end that process" not in str(told.value)
    assert not waits(folder, "mine"), "another order may be given"


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_word_for_another_run_is_not_obeyed(cortex, content):
    requests(Path("in.jsonl"), 3)
    folder = StateFolder(os.environ["CORTEX_STATE"]).prepare()
    owner = {"host": "elsewhere", "pid": 1, "started": "1", "cluster": "inline"}
    data = msgspec.json.encode({"how": "cancel", "who": "me", "owner": owner})
    folder.put_note("control", "mine", content or data)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine").code == 0


@pytest.mark.parametrize("has_key", [True, False])
def test_message_batches_of_a_job_that_nobody_runs_are_cancelled_at_the_provider(cortex, monkeypatch, has_key):
    requests(Path("in.jsonl"), 20)
    key = "sk-ant-api03-averysecretkeyindeed0123456789"
    with started("simulate", "--port", 0, "-s", "batch_ms=600000") as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]

        def batches() -> list[dict]:
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
            asked = urllib.request.Request(f"{url}/v1/messages/batches", headers=headers)
            with urllib.request.urlopen(asked, timeout=PATIENCE_S) as got:
                return json.loads(got.read())["data"]

        facts = environment(ANTHROPIC_API_KEY=key, ANTHROPIC_BASE_URL=url)
        with started("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--via", "batches", env=facts) as child:
            until(lambda: bool(batches()) and bool(cortex("status", "mine", "--json").last["batches"]))
            child.send_signal(signal.SIGTERM)
            assert ended(child).code == 143
        (there,) = batches()
        assert there["cancel_initiated_at"] is None, "a drained job takes it up again"
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        if has_key:
            monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        else:
            monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        done = cortex("cancel", "mine")
        assert (done.code, bool(batches()[0]["cancel_initiated_at"])) == (0, has_key)
    if has_key:
        assert f"cancelled at the provider: {there['id']}" in done.said()
    else:
        assert (
            f"message batch {there['id']} still runs at the provider and is billed: cancel it there (x-api-key" in done.err
        )
    assert key not in done.err
