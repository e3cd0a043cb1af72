"""A worker tells what became of tool runs; an ill tool waits; one that does not stop costs a process, not a job."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from actors.channel.tool_places import ToolPlaces
from actors.channel.tool_runs import ToolRuns
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.ports.telemetry import JobObservers
from actors.worker.run_places import TOOL_RUNS_MAX
from actors.worker.worker import Worker
from cortex.scheduler.reports import ProgressReport, ReportAnswer
from cortex.state import commands, events
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.virtual_clock import in_virtual_time
from tests.support.patience import PATIENCE_S


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
        self.ahead_s = 0.0

    def incarnation(self, name: str) -> str:
        return f"{name}.1"

    def node(self) -> str:
        return "n"

    def now_s(self) -> float:
        return 1_000.0

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead_s

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        return self.program

    def peer(self, name: str) -> Any:
        return self.peers[name]


def missing() -> None:
    raise KeyError("inside")


async def _run(worker: Worker, tool: str, timeout_s: float = PATIENCE_S) -> tuple[Any, Failure | None]:
    blob = await worker.run("p", b"{}", tool, msgspec.msgpack.encode({}), "j/1/t", timeout_s, 7)
    assert blob
    value, _, failure = msgspec.msgpack.decode(blob, type=tuple[Any, float, Failure | None])
    return value, failure


async def _until(done: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
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
    runtime = Runtime(Program(stuck=go.wait, slow=slow.wait, quick=lambda: 3))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    try:
        other = asyncio.create_task(_run(worker, "slow"))
        _, failure = await _run(worker, "stuck", timeout_s=0.02)
        assert failure is not None
        assert (failure.kind, failure.message[:14]) == (FailureKind.TIMED_OUT, "effect unknown")
        assert await _run(worker, "quick") == (3, None), "one thread that hangs holds up nobody"
        await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].phase == "running")
        assert runtime.cortex.reports[-1].overdue_s == 0.0, "another run would be lost with it"
        slow.set()
        assert (await other)[1] is None
        assert await worker.hold("p", b"{}", "quick", "j/2/t") == "", "it takes no more"
        await _until(lambda: runtime.cortex.reports and runtime.cortex.reports[-1].phase == "draining")
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
    """Worker that gives these answers to runs in turn; an exception is raised. ``rooms``: answers to requests for
    room, before there is always some."""

    def __init__(self, *answers: Any, name: str = "worker:0", rooms: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.answers, self.rooms = list(answers), list(rooms)
        self.runs: list[int] = []
        self.held: list[str] = []

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "hold":
            self.held.append(args[3])
            return _given(self.rooms.pop(0) if self.rooms else "ticket")
        assert args[-1] == "ticket"
        self.runs.append(args[-2])
        return _given(self.answers.pop(0))


def _given(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class K:
    class terms:
        program, params_json = "p", b"{}"


def _errands(*workers: FakeWorker) -> tuple[ToolRuns, Runtime, list[events.Event]]:
    runtime = Runtime(Program())
    runtime.peers.update((worker.name, worker) for worker in workers)
    put: list[events.Event] = []

    async def put_durably(batch: list[events.Event]) -> None:
        put.extend(batch)

    runs = ToolRuns("j", "", runtime, put.extend, print, JobObservers([]), put_durably, runtime.now_s)  # type: ignore[arg-type]
    return runs, runtime, put


RUN = commands.StartToolRun(1, 1, "t", {}, "j/1/t", 5.0)
DONE = msgspec.msgpack.encode((3, 1.0, None))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.channel.tool_runs.AWAY_S", 0.001)
    monkeypatch.setattr("actors.channel.tool_places.FULL_S", 0.001)


async def test_a_run_waits_for_a_worker_for_its_breaker_and_for_one_that_has_room() -> None:
    worker = FakeWorker(b"", DONE, rooms=("",))
    errands, runtime, put = _errands(worker)
    runtime.cortex.answers = [(False, 0.005, 3), (True, 0.0, 4), (True, 0.0, 5), (True, 0.0, 6)]
    errands.begin(RUN, K)  # type: ignore[arg-type]
    assert errands.waiting() == 1
    await asyncio.sleep(0.01)
    assert (runtime.cortex.asked, put) == ([], [])
    errands.staffed(("worker:0",))
    await _until(lambda: bool(put))
    assert (len(worker.held), worker.runs) == (3, [5, 6])
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
    worker = FakeWorker(DONE, rooms=(PeerGone("worker:0"),))
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


NOT_LOADED = msgspec.msgpack.encode((None, 1.0, Failure(FailureKind.FAULTY, "does not load", sent=False)))
RAISED = msgspec.msgpack.encode((None, 1.0, Failure(FailureKind.FAULTY, "the tool t raised KeyError: 1")))


@pytest.mark.parametrize(
    ("worker", "given_back"),
    [
        (FakeWorker(DONE), 0),
        (FakeWorker(RAISED), 0),
        (FakeWorker(NOT_LOADED), 1),
        (FakeWorker(PeerGone("worker:0")), 0),
        (FakeWorker(DONE, rooms=("",)), 1),
        (FakeWorker(DONE, rooms=(PeerUnavailable("worker:0"), PeerGone("worker:0"))), 2),
        (FakeWorker(b"", DONE), 1),
    ],
)
async def test_an_admission_of_which_no_worker_will_report_is_given_back(worker: FakeWorker, given_back: int) -> None:
    """It may be the one probe of a half-open breaker: the tool would wait a minute for its answer."""
    errands, runtime, put = _errands(worker)
    errands.staffed(("worker:0",))
    errands.begin(RUN, K)  # type: ignore[arg-type]
    await _until(lambda: bool(put))
    assert [asked for asked in runtime.cortex.asked if asked[0] == "returned"] == [("returned", "p/t", 4)] * given_back


async def test_an_admission_for_a_run_that_was_given_up_meanwhile_is_given_back() -> None:
    errands, runtime, put = _errands(FakeWorker())
    go = asyncio.Event()
    asked = runtime.cortex.ask

    async def slowly(method: str, *args: Any) -> Any:
        await go.wait()
        return await asked(method, *args)

    runtime.cortex.ask = slowly  # type: ignore[method-assign]
    errands.staffed(("worker:0",))
    errands.begin(RUN, K)  # type: ignore[arg-type]
    await asyncio.sleep(0.005)
    errands.abandon(1, 1)
    await _until(lambda: errands.waiting() == 0)
    go.set()
    await _until(lambda: ("returned", "p/t", 4) in runtime.cortex.asked)
    assert put == []


# -- a worker holds only what it can begin -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [PeerGone, PeerUnavailable])
async def test_a_run_that_a_dead_worker_had_not_begun_goes_to_another(error: type[Exception]) -> None:
    dead = FakeWorker(rooms=(error("worker:0"),) * 9)
    live = FakeWorker(DONE, name="worker:1")
    errands, runtime, put = _errands(dead, live)
    errands.begin(msgspec.structs.replace(RUN, told=True), K)  # type: ignore[arg-type]
    errands.staffed(("worker:0",))
    await _until(lambda: ("missed", "worker:0") in runtime.cortex.asked)
    assert put == [], "nothing has begun, so that nothing is lost"
    errands.staffed(("worker:1",))
    await _until(lambda: len(put) == 2)
    assert put[0] == events.ToolRunBegun(1, 1, "worker:1")
    assert [(e.value, e.failure) for e in put if isinstance(e, events.Observed)] == [(3, None)]


async def test_the_beginning_of_a_run_that_must_not_be_repeated_is_on_disk_before_it_begins() -> None:
    worker = FakeWorker(DONE)
    errands, _, put = _errands(worker)
    on_disk = asyncio.Event()

    async def put_durably(batch: list[events.Event]) -> None:
        put.extend(batch)
        await on_disk.wait()

    errands._put_durably = put_durably
    errands.staffed(("worker:0",))
    errands.begin(msgspec.structs.replace(RUN, told=True), K)  # type: ignore[arg-type]
    await _until(lambda: bool(put))
    await asyncio.sleep(0.005)
    assert (put, worker.runs) == ([events.ToolRunBegun(1, 1, "worker:0")], [])
    on_disk.set()
    await _until(lambda: len(put) == 2)
    assert len(worker.runs) == 1


async def test_a_run_that_had_begun_at_a_dead_worker_is_lost() -> None:
    errands, _, put = _errands(FakeWorker(PeerGone("worker:0")))
    errands.staffed(("worker:0",))
    errands.begin(RUN, K)  # type: ignore[arg-type]
    await _until(lambda: bool(put))
    (seen,) = put
    assert isinstance(seen, events.Observed) and seen.failure is not None
    assert (seen.failure.kind, seen.failure.message[:14]) == (FailureKind.LOST, "effect unknown")


@pytest.mark.parametrize("wanted", [(200,), (150, 150), (240, 240, 240), (9,) * 32])
async def test_slow_runs_of_any_number_of_tools_hold_up_no_quick_one(wanted: tuple[int, ...]) -> None:
    go = threading.Event()
    runtime = Runtime(Program(quick=lambda: 3, **{f"slow{number}": go.wait for number in range(len(wanted))}))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    tools = [f"slow{number}" for number, runs in enumerate(wanted) for _ in range(runs)]
    slow = [asyncio.create_task(worker.run("p", b"{}", tool, b"\x80", "j/1/t", 60.0)) for tool in tools]
    try:
        await asyncio.sleep(0)
        assert await _run(worker, "quick") == (3, None)
        assert all(worker._runs[f"p/slow{number}"] for number in range(len(wanted)))
    finally:
        go.set()
        await asyncio.gather(*slow)
    await worker.close()


async def test_threads_are_bounded_in_all_and_for_each_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.worker.run_places.RUNS_MAX", 3)
    monkeypatch.setattr("actors.worker.worker.TOOL_RUNS_MAX", 2)
    monkeypatch.setattr("actors.worker.worker.TICKET_S", 600.0)
    go = threading.Event()
    runtime = Runtime(Program(slow=go.wait, other=go.wait))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    first = asyncio.create_task(_run(worker, "slow"))
    await asyncio.sleep(0)
    ticket = await worker.hold("p", b"{}", "slow", "j/2/t")
    assert ticket and not await worker.hold("p", b"{}", "slow", "j/3/t"), "room that is kept is room"
    other = asyncio.create_task(_run(worker, "other"))
    await asyncio.sleep(0)
    assert await worker.run("p", b"{}", "other", b"\x80", "j/4/t", 5.0) == b"", "all threads are in use"
    runtime.ahead_s = 600.0
    assert await worker.hold("p", b"{}", "slow", "j/5/t"), "nobody came for that room"
    go.set()
    await asyncio.gather(first, other)
    await worker.close()


def exits() -> None:
    raise SystemExit(3)


def stops() -> None:
    raise StopIteration


class Panics(BaseException):
    """As a library in Rust raises it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise TypeError


def leaks() -> None:
    raise asyncio.CancelledError("of its own loop")


def panics() -> None:
    raise Panics("index out of bounds")


def mute() -> None:
    raise Mute


async def test_a_tool_that_ends_its_process_or_leaks_a_cancellation_ends_its_run_alone() -> None:
    runtime = Runtime(Program(exits=exits, stops=stops, leaks=leaks, panics=panics, mute=mute))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    words = {
        "exits": "SystemExit: 3", "stops": "StopIteration", "leaks": "CancelledError: of its own loop",
        "panics": "Panics: index", "mute": "Mute",
    }  # fmt: skip
    for tool, named in words.items():
        _, failure = await _run(worker, tool)
        assert failure is not None
        assert failure.kind == FailureKind.FAULTY and named in failure.message
    await worker.close()


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError(), Panics(), ValueError("bad")])
async def test_a_program_that_does_not_load_ends_neither_its_worker_nor_who_asks(error: BaseException) -> None:
    runtime = Runtime(Program())

    def load(*_: Any) -> Any:
        raise error

    runtime.load_program = load  # type: ignore[method-assign]
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    assert await worker.hold("p", b"{}", "t", "j/1/t")
    _, failure = await _run(worker, "t")
    assert failure is not None
    assert (failure.kind, failure.sent) == (FailureKind.FAULTY, False)
    assert type(error).__name__ in failure.message
    await worker.close()


async def test_a_system_without_further_threads_refuses_runs_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    runtime = Runtime(Program(slow=go.wait))
    worker = Worker("worker:0", runtime)  # type: ignore[arg-type]
    first = asyncio.create_task(_run(worker, "slow"))
    await asyncio.sleep(0)

    def none(self: Any, call: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("actors.worker.run_threads.RunThreads.submit", none)
    assert await worker.run("p", b"{}", "slow", b"\x80", "j/2/t", 5.0) == b""
    go.set()
    await first
    _, failure = await _run(worker, "slow")
    assert failure is not None
    assert (failure.kind, failure.sent) == (FailureKind.FAULTY, False), "alone, waiting would not help"
    await worker.close()


@in_virtual_time
async def test_tools_take_turns_and_one_that_bounds_itself_has_no_more_runs() -> None:
    places = ToolPlaces()
    taken: list[str] = []

    async def run(tool: str, at_once: int = 0) -> None:
        await places.take(tool, at_once)
        taken.append(tool)

    runs = [asyncio.create_task(run("slow")) for _ in range(4 * TOOL_RUNS_MAX)]
    runs += [asyncio.create_task(run("quick")), *(asyncio.create_task(run("few", 2)) for _ in range(5))]
    await asyncio.sleep(0.01)
    assert taken == []
    places.staffed(("worker:0", "worker:1"))
    await asyncio.sleep(0.01)
    assert (taken[:3], taken.count("few")) == (["slow", "quick", "few"], 2)
    slow = taken.count("slow")
    assert 2 * (TOOL_RUNS_MAX - 4) <= slow <= 2 * TOOL_RUNS_MAX
    places.give_back("worker:0", "slow")
    places.give_back("worker:0", "few")
    await asyncio.sleep(0.01)
    assert (taken.count("few"), taken.count("slow")) == (3, slow + 1)
    runs[slow + 1].cancel()
    places.give_back("worker:1", "slow")
    await asyncio.sleep(0.01)
    assert taken.count("slow") == slow + 2, "a run that was given up leaves its turn to the next"
    for task in runs:
        task.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
