"""A job over PostgreSQL whose server is away for a while, and one whose process is killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.history.catalog import last_state
from actors.journal import retrying
from actors.journal.journal import StateFolder, StoreError
from actors.journal.postgres import connection
from cortex.values.limits import Limits
from tests.cli.cli_runner import Done, cortex, each_once, environment, requests, started, until
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import Server, serving

__all__ = ["cortex"]
SLOW = ("--sim", "latency_ms=1000", "--concurrency", "12")
FAST = ("--sim", "latency_ms=0", "--concurrency", "12")
COUNT = 600
"""Rows of a job that takes 50 s: it is not over before all have looked at it."""
QUICK_S, SLOW_S = 0.002, 1.0
"""Pauses of a model. Eight calls at once with the long one: the job is there for half a minute, however long the server
takes to stop."""


@pytest.fixture
def there(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CORTEX_STATE", database)
    return database


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that a test may stop."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    yield from serving()
    connection.close_idle()


def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "PAUSE_S", 0.05)
    monkeypatch.setattr(connection, "AGAIN_S", 0.05)


async def _run_to(running: asyncio.Task[Any], model: FunctionModel, count: int) -> None:
    """Wait for so many answers; those that follow come slowly."""
    while len(model.complete) < count:
        assert not running.done(), "the job is over"
        await asyncio.sleep(QUICK_S)
    model._pause_s = SLOW_S


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_a_server_that_is_started_again_is_waited_for(
    spare: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    _quick(monkeypatch)
    model = FunctionModel(pause_s=QUICK_S)
    limits = Limits(concurrency=8, window_rows=64, snapshot_events=50)
    run = Run(spare.address(), model, source=ListSource(rows(600)), limits=limits)  # type: ignore[arg-type]
    running = asyncio.create_task(run.to_end())
    await _run_to(running, model, 100)
    await asyncio.to_thread(spare.stop, how)
    async with asyncio.timeout(PATIENCE_S):
        while "waits: the database" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    asked = len(model.asked)
    await asyncio.sleep(0.3)
    assert len(model.asked) == asked < 600, "nothing is sent while no cause can be written down"
    model._pause_s = QUICK_S
    await asyncio.to_thread(spare.start)
    await running
    assert Counter(run.sink.keys()) == Counter(f"r{i}" for i in range(600))
    assert len(model.asked) == len(model.complete) == 600
    k = last_state(StateFolder(spare.address()), "j")
    assert (k.outcome, k.tally.calls) == ("complete", 600)


async def test_a_server_that_stays_away_ends_the_run_and_the_job_is_resumed(
    spare: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quick(monkeypatch)
    monkeypatch.setattr(retrying, "PATIENCE_S", 0.3)
    model = FunctionModel(pause_s=QUICK_S)
    limits = Limits(concurrency=8, window_rows=64)
    run = Run(spare.address(), model, source=ListSource(rows(300)), limits=limits)  # type: ignore[arg-type]
    running = asyncio.create_task(run.to_end())
    await _run_to(running, model, 50)
    await asyncio.to_thread(spare.stop, "immediate")
    with pytest.raises(StoreError, match="does not answer"):
        await running
    model._pause_s = QUICK_S
    await asyncio.to_thread(spare.start)
    done = Run(spare.address(), model, source=ListSource(rows(300)), sink=run.sink, limits=limits)  # type: ignore[arg-type]
    await done.to_end()
    assert Counter(done.sink.keys()) == Counter(f"r{i}" for i in range(300))
    assert len(model.complete) <= 300 + 8


def test_a_run_that_was_killed_goes_on_and_other_processes_look_on(
    cortex: Callable[..., Done], tmp_path: Path, there: str
) -> None:
    asked = requests(tmp_path / "in.jsonl", COUNT)
    command = ("batch", asked, "-o", "out.jsonl", "--model", "sim", "--job", "mine")
    with started(*command, *SLOW, cwd=tmp_path, env=environment()) as child:
        until(lambda: Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) > 4)
        assert cortex("batch", asked, "-o", "out.jsonl", "--model", "sim", "--job", "mine").refused("mine is in use by")
        facts = cortex("status", "mine", "--json").last
        assert facts["outcome"] == "running"
        child.send_signal(signal.SIGKILL)
        child.wait()
    until(lambda: cortex("status", "mine", "--json").last["outcome"] == "interrupted")
    done = cortex(*command, *FAST, "--json")
    assert (done.code, done.last["outcome"], done.last["rows_succeeded"]) == (0, "complete", COUNT)
    each_once(tmp_path / "out.jsonl", COUNT)
    assert done.last["calls"] == COUNT
    assert done.last["paid_again"] <= 13
    results = cortex("results", "mine").out.splitlines()
    assert sorted(results) == sorted((tmp_path / "out.jsonl").read_text().splitlines())
    assert cortex("jobs").out.split()[8] == "mine"
    assert cortex("inspect", "mine", "r7").code == 0
    assert cortex("report", "mine", "-o", "page.html").code == 0
    assert cortex("fork", "mine", "--at", "2", "--job", "copy").code == 0
    assert (
        cortex("batch", asked, "-o", "again.jsonl", "--model", "sim", "--job", "again", "--json").last["paid_calls"]
        == 0
    )
    assert cortex("rm", "copy", "again").code == 0
    assert cortex("forget", "mine").code == 0
    assert StateFolder(there).jobs() == ["mine"]
    assert not list(tmp_path.rglob("*.sqlite")), "nothing of it stands in a file"
