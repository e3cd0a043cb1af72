"""A worker tells what became of tool runs; an ill tool waits; one that does not stop costs a process, not a job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from actors.channel.tool_runs import ToolRuns
from actors.ports.telemetry import JobObservers
from actors.worker.worker import Worker
from cortex.scheduler.reports import ProgressReport, ReportAnswer
from cortex.state import commands, events
from policies.failures.failure import Failure, FailureKind


class Program:
    def __init__(self, **tools: Any) -> None:
        self.tools = tools


class Cortex:
    """Hears reports, and admits runs as it is told."""

    def __init__(self) -> None:
        self.reports: list[ProgressReport] = []
        self.answers: list[tuple[bool, float, int]] = []
        self.asked: list[tuple[Any, ...]] = []

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "report":
            self.reports.append(msgspec.msgpack.decode(args[0], type=ProgressReport))
            return msgspec.msgpack.encode(ReportAnswer(0.02))
        self.asked.append((method, *args))
        return self.answers.pop(0) if self.answers else (True, 0.0, 4)

    def tell(self, method: str, *args: Any) -> None:
        self.asked.append((method, *args))


class Runtime:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.cortex = Cortex()
        self.peers: dict[str, Any] = {"cortex": self.cortex}

    def incarnation(self, name: str) -> str:
        return f"{name}.1"

    def node(self) -> str:
        return "n"

    def now_s(self) -> float:
        return 1_000.0

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        return self.program

    def peer(self, name: str) -> Any:
        return self.peers[name]


def missing() -> None:
    raise KeyError("inside")


async def _run(worker: Worker, tool: str, timeout_s: float = 5.0) -> tuple[Any, Failure | None]:
    blob = await worker.run("p", b"{}", tool, msgspec.msgpack.encode({}), "j/1/t", timeout_s, 7)
    assert blob
    value, _, failure = msgspec.msgpack.decode(blob, type=tuple[Any, float, Failure | None])
    return value, failure


async def _until(done: Any) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - threads have no event of ours
            await asyncio.sleep(0.005)


async def test_what_a_tool_raises_is_the_tools_and_one_that_is_not_there_is_nobodys() -> None:
    runtime = Runtime(Program(missing=missing, good=lambda: 3))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    assert await _run(worker, "good") == (3, None)
    _, failure = await _run(worker, "missing")
    assert failure is not None
    assert (failure.kind, failure.message) == (FailureKind.FAULTY, "the tool missing raised KeyError: 'inside'")
    _, failure = await _run(worker, "other")
    assert failure is not None
    assert (failure.kind, failure.sent) == (FailureKind.FAULTY, False)
    await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].phase == "idle")
    counted = [tool for report in runtime.cortex.reports for tool in report.tools]
    assert sum(tool.answered for tool in counted) == 1
    assert sum(tool.failed.get("faulty", 0) for tool in counted) == 1
    assert {(tool.tool, tool.generation) for tool in counted} == {("p/good", 7), ("p/missing", 7)}
    await worker.close()


async def test_a_thread_that_ignores_its_timeout_takes_the_worker_out_once_the_others_are_done() -> None:
    go = threading.Event()
    slow = threading.Event()
    runtime = Runtime(Program(stuck=go.wait, slow=slow.wait))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    try:
        other = asyncio.create_task(_run(worker, "slow"))
        _, failure = await _run(worker, "stuck", timeout_s=0.02)
        assert failure is not None
        assert (failure.kind, failure.message[:14]) == (FailureKind.TIMED_OUT, "effect unknown")
        assert await worker.run("p", b"{}", "slow", b"\x80", "j/2/t", 5.0) == b"", "it takes no more"
        await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].phase == "draining")
        assert runtime.cortex.reports[-1].overdue_s == 0.0, "another run would be lost with it"
        slow.set()
        assert (await other)[1] is None
        await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].overdue_s > 0)
    finally:
        go.set()
        slow.set()
    await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].phase == "idle")
    await worker.close()


async def test_a_worker_that_drains_finishes_what_it_runs() -> None:
    slow = threading.Event()
    runtime = Runtime(Program(slow=slow.wait))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    running = asyncio.create_task(_run(worker, "slow"))
    await asyncio.sleep(0)
    draining = asyncio.create_task(worker.drain())
    await asyncio.sleep(0.02)
    assert not draining.done()
    assert await worker.run("p", b"{}", "slow", b"\x80", "j/2/t", 5.0) == b""
    slow.set()
    await draining
    assert (await running)[1] is None
    await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].in_flight == 0)
    reports = len(runtime.cortex.reports)
    assert await worker.run("p", b"{}", "slow", b"\x80", "j/3/t", 5.0) == b""
    await _until(lambda: len(runtime.cortex.reports) > reports)
    assert runtime.cortex.reports[-1].phase == "draining", "the cortex may be another by now, and not know"
    await worker.close()


class FakeWorker:
    def __init__(self, *answers: Any) -> None:
        self.name = "worker:0"
        self.answers = list(answers)
        self.runs: list[int] = []

    async def ask(self, method: str, *args: Any) -> Any:
        self.runs.append(args[-1])
        return self.answers.pop(0)


class K:
    class terms:
        program, params_json = "p", b"{}"


def _errands(worker: FakeWorker) -> tuple[ToolRuns, Runtime, list[events.Event]]:
    runtime = Runtime(Program())
    runtime.peers["worker:0"] = worker
    put: list[events.Event] = []
    return ToolRuns("j", "", runtime, put.extend, print, JobObservers([])), runtime, put  # type: ignore[arg-type]


RUN = commands.StartToolRun(1, 1, "t", {}, "j/1/t", 5.0)
DONE = msgspec.msgpack.encode((3, 1.0, None))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.channel.tool_runs.AWAY_S", 0.001)


async def test_a_run_waits_for_its_breaker_for_a_worker_and_for_one_that_takes_it() -> None:
    worker = FakeWorker(b"", DONE)
    errands, runtime, put = _errands(worker)
    runtime.cortex.answers = [(False, 0.005, 3), (True, 0.0, 4), (True, 0.0, 5)]
    errands.begin(RUN, K)  # type: ignore[arg-type]
    assert errands.waiting() == 1
    await _until(lambda: len(runtime.cortex.asked) == 2)
    await asyncio.sleep(0.01)
    assert (worker.runs, put) == ([], [])
    errands.staffed(("worker:0",))
    await _until(lambda: bool(put))
    assert worker.runs == [4, 5]
    assert [(e.value, e.failure) for e in put if isinstance(e, events.Observed)] == [(3, None)]
    assert runtime.cortex.asked[0] == ("admit", "j", "p/t")
    await _until(lambda: errands.waiting() == 0)


async def test_a_run_that_nobody_awaits_never_begins_and_a_child_job_is_told_to_end() -> None:
    worker = FakeWorker(DONE)
    errands, runtime, put = _errands(worker)
    errands.begin(RUN, K)  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    errands.abandon(1, 1)
    await _until(lambda: errands.waiting() == 0)
    errands.staffed(("worker:0",))
    await asyncio.sleep(0.005)
    assert (worker.runs, put) == ([], [])
    runtime.peers["channel:j~2"] = child = Cortex()
    errands._children[2, 1] = "j~2"
    errands.abandon(2, 1)
    assert child.asked == [("stop", "cancel", "job j")]


async def test_workers_that_come_and_go_in_one_moment_are_waited_for_again() -> None:
    worker = FakeWorker(DONE)
    errands, _, put = _errands(worker)
    errands.begin(RUN, K)  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    errands.staffed(("worker:0",))
    errands.staffed(())
    await asyncio.sleep(0.005)
    assert (worker.runs, put, errands.waiting()) == ([], [], 1)
    errands.staffed(("worker:0",))
    await _until(lambda: bool(put))
    assert len(worker.runs) == 1
