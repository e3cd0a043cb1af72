"""``Job.status`` from Python: figures of the moment, not of the last look of whoever follows the job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import cortex
from actors.driver import driver
from cortex.flows import Flow
from tests.support.patience import PATIENCE_S

TEXTS = [f"text {n}" for n in range(8)]


@cortex.flow
async def asks(ctx: cortex.Context, texts: list[str]) -> int:
    """One after the other."""
    for text in texts:
        await ctx.ask(text)
    return len(texts)


class Gate:
    """A model that answers so often, and then waits."""

    def __init__(self) -> None:
        self.asked, self.answers, self.open = 0, 4, threading.Event()

    async def __call__(self, prompt: str) -> str:
        self.asked += 1
        while self.asked > self.answers and not self.open.is_set():  # noqa: ASYNC110 - opened from another thread
            await asyncio.sleep(0.005)
        return "x"


@pytest.fixture
def gate(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "LOOK_S", 3600.0)  # nobody else looks
    made = Gate()
    yield made
    made.open.set()


def _until(seen: Any) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_status_is_of_this_moment_while_it_runs_and_after(gate: Gate) -> None:
    program: Flow = asks(TEXTS)
    job = cortex.submit(program, model=gate)
    _until(lambda: gate.asked == 5)
    status = job.status()
    assert (status["outcome"], status["paid_calls"], status["in_flight"]) == ("running", 4, 1)
    gate.answers = 6
    _until(lambda: gate.asked == 7)
    assert job.status()["paid_calls"] == 6
    gate.open.set()
    assert job.result(PATIENCE_S).answer == 8
    assert (job.status()["outcome"], job.status()["paid_calls"]) == ("complete", 8)


def test_a_status_from_the_jobs_own_thread_is_the_last_one_known(gate: Gate) -> None:
    seen: list[Any] = []
    gate.open.set()
    program: Flow = asks(TEXTS)
    jobs: list[Any] = []
    ready = threading.Event()

    def look(facts: dict[str, Any]) -> None:
        ready.wait(PATIENCE_S)
        seen.append(jobs[0].status()["job"])

    jobs.append(cortex.submit(program, model=gate, progress=look))
    ready.set()
    assert jobs[0].result(PATIENCE_S).answer == 8 and seen == [jobs[0].name] * len(seen) and seen


def test_one_that_came_to_grief_does_not_run_any_more(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("actors.api.session.Session.run", fails)
    program: Flow = asks(TEXTS)
    job = cortex.submit(program, model=gate)
    with pytest.raises(RuntimeError, match="no"):
        job.result(PATIENCE_S)
    assert job.status()["outcome"] == "interrupted"
