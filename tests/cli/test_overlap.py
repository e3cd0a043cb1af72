"""Two attempts of one job that overlap, as a scheduler that tries again makes them: one writes, nothing is paid twice."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import each_once, ended, environment, requests, started, until
from tests.support.patience import PATIENCE_S

COUNT = 20
MANY = 200
"""Rows that take the slow run more than a minute and a half: whoever comes meanwhile finds it at work."""
SLOW = ("--sim", "latency_ms=1000", "--sim", "latency_spread=0", "--concurrency", 2)
FAST = ("--sim", "latency_ms=0", "--sim", "latency_spread=0")
OURS = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--accept-partial", "--json")
CAPPED = (*OURS, "--price", "input=1,output=1", "--max-job-tokens", 400)


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _some_results() -> bool:
    return Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Another run has the job, and lets go of it as soon as somebody waits for that."""
    waited = threading.Event()

    def sleep(seconds: float) -> None:
        waited.set()
        time.sleep(0.01)

    monkeypatch.setattr("actors.cli.run.wait_for_job.time", SimpleNamespace(sleep=sleep))

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        has = threading.Event()
        waited.clear()

        def run() -> None:
            with _folder().hold("mine"):
                has.set()
                waited.wait(PATIENCE_S)

        thread = threading.Thread(target=run)
        thread.start()
        assert has.wait(PATIENCE_S)
        try:
            yield
        finally:
            waited.set()
            thread.join()

    return held


@pytest.mark.parametrize(
    "again", [OURS, ("resume", "mine", "--json"), ("attach", "mine", "--json")], ids=lambda words: words[0]
)
def test_the_second_waits_and_takes_what_came_of_the_first(cortex, other, again):
    requests(Path("in.jsonl"), COUNT)
    first = cortex(*OURS, *FAST)
    with other():
        second = cortex(*again, "--wait")
    lines = second.said()
    assert lines[0].startswith("job mine is in use by process ") and lines[0].endswith(": waiting for its end")
    assert lines[1] == "the other run of job mine has ended it: nothing is asked again"
    assert (first.code, second.code) == (0, 0)
    assert second.last["paid_calls"] == first.last["paid_calls"] == COUNT
    each_once(Path("out.jsonl"), COUNT)


@pytest.mark.parametrize("again", [OURS, ("attach", "mine", "--json")], ids=lambda words: words[0])
def test_the_second_writes_the_results_where_those_of_the_first_are_not(cortex, other, again):
    """The first ran on another machine, and wrote to its disk."""
    requests(Path("in.jsonl"), COUNT)
    cortex(*OURS, *FAST)
    Path("out.jsonl").unlink()
    with other():
        second = cortex(*again, "--wait")
    assert second.code == 0
    each_once(Path("out.jsonl"), COUNT)


def test_the_second_copies_what_came_of_the_first(cortex, other):
    requests(Path("in.jsonl"), COUNT)
    cortex(*OURS, *FAST)
    with other():
        second = cortex("attach", "mine", "-o", "copy.jsonl", "--wait", "--json")
    assert second.code == 0
    each_once(Path("copy.jsonl"), COUNT)


def test_the_second_goes_on_where_the_first_was_killed(cortex, monkeypatch):
    requests(Path("in.jsonl"), MANY)
    with started(*OURS, *SLOW) as first:
        until(_some_results)

        def killed(seconds: float) -> None:
            """Kill the first as soon as the second waits for it."""
            first.kill()
            time.sleep(0.01)

        monkeypatch.setattr("actors.cli.run.wait_for_job.time", SimpleNamespace(sleep=killed))
        second = cortex(*OURS, *FAST, "--wait")
        assert ended(first).code == -signal.SIGKILL
    assert "the other run of job mine was interrupted: continuing" in second.said()
    assert (second.code, second.last["rows_succeeded"]) == (0, MANY)
    each_once(Path("out.jsonl"), MANY)


NO_LOCKS = """
import errno, fcntl, sys

def flock(*_):
    raise OSError(errno.EOPNOTSUPP, "no locks here")

fcntl.flock = fcntl.lockf = flock
from actors.cli import main

sys.exit(main())
"""
"""``cortex`` where the disk knows no locks, so that nobody learns of the other."""


def test_where_nobody_learns_of_the_other_the_epoch_keeps_them_apart(cortex, monkeypatch):
    """The second takes the job's epoch; the first can write no more, says so, and what it had in flight alone is paid again."""
    requests(Path("in.jsonl"), MANY)
    command = [sys.executable, "-c", NO_LOCKS, *map(str, (*OURS, *SLOW))]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(command, **piped) as process:
        until(_some_results)
        unlocked = SimpleNamespace(flock=_refused, lockf=_refused, LOCK_EX=2, LOCK_NB=4, LOCK_SH=1)
        for user in ("actors.journal.sqlite.job_lock.fcntl", "actors.files.sinks.jsonl_sink.fcntl"):
            monkeypatch.setattr(user, unlocked)
        second = cortex(*OURS, *FAST, "--wait")
        first = ended(process)
    assert first.code == 3
    assert "mine: another run has taken the job over" in first.said()
    assert (second.code, second.last["rows_succeeded"]) == (0, MANY)
    assert second.last["paid_again"] <= 2, "no more than were in flight"
    each_once(Path("out.jsonl"), MANY)


def _refused(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "no locks here")


def test_a_retry_of_a_job_that_ended_at_its_cap_spends_nothing(cortex, other):
    """It ends partial and well, so KubeRay does not try again; and where somebody does, the cap has been spent."""
    requests(Path("in.jsonl"), COUNT)
    first = cortex(*CAPPED, *FAST)
    assert (first.code, first.last["outcome"]) == (0, "partial")
    spent = last_state(_folder(), "mine").ledger
    with other():
        second = cortex(*CAPPED, *FAST, "--wait")
    third = cortex(*CAPPED, *FAST, "--wait")
    for each in (second, third):
        assert (each.code, each.last["outcome"]) == (0, "partial"), each.said()
        assert each.last["paid_calls"] == first.last["paid_calls"] < COUNT
    assert last_state(_folder(), "mine").ledger.committed_nusd == spent.committed_nusd


def test_without_it_the_second_is_refused_at_once(cortex, other):
    requests(Path("in.jsonl"), COUNT)
    cortex(*OURS, *FAST)
    with other():
        cortex(*OURS).refused("job mine is in use by process")
        cortex("resume", "mine").refused("job mine is in use by process")
    assert json.loads(cortex("status", "mine", "--json").out)["outcome"] == "complete"
