"""Worker: runs the tools of programs. A worker never calls a model and holds no secrets."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from actors.common.errors import error_words
from actors.messaging.report_sender import ReportSender
from actors.ports.runtime import Runtime
from actors.worker.builtin_tools import BuiltinTools
from actors.worker.run_places import TOOL_RUNS_MAX, has_place
from actors.worker.run_threads import RunThreads
from cortex.goals.apply_changes import to_plain
from cortex.scheduler.reports import ProgressReport, ToolSignals
from policies.failures.failure import Failure, FailureKind

STUCK_MAX: Final = 32
"""Threads beyond their time limit with which a worker goes on; with more it takes no new runs and is replaced."""
TICKET_S: Final = 10.0
"""Seconds for which room is kept for a run that does not come: its channel has died, or its commit takes long. A run
that comes later asks for room again."""
LOOK_S = 0.25
"""Seconds between two looks of a draining worker at its running tools."""


_EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""Exceptions that would end the worker's event loop, were they raised in it."""


def _outcome(function: Callable[..., Any], given: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Call a function in its thread. Return its value, and what it raised: ``StopIteration`` in a future never ends it,
    and ``asyncio.CancelledError``, as a tool's own event loop may leave behind, would cancel whoever awaits it.

    A library may raise any ``BaseException``, as one in Rust does if it panics (github.com/PyO3/pyo3/issues/3918).
    """
    try:
        return function(**given), None
    except BaseException as error:
        return None, error


def _raised(tool: str, error: BaseException) -> Failure:
    return Failure(FailureKind.FAULTY, f"the tool {tool} raised {error_words(error)}")


class _RunCounter:
    """Counts of a tool's runs under one generation of its breaker, since the last report."""

    __slots__ = ("answered", "failed", "latency_s", "slow")

    def __init__(self) -> None:
        self.answered = self.slow = 0
        self.failed: dict[str, int] = {}
        self.latency_s = 0.0

    def end(self, failure: Failure | None, elapsed_s: float, timeout_s: float) -> None:
        """Count a run that has ended."""
        self.slow += elapsed_s > timeout_s / 2
        if failure is None:
            self.answered += 1
            self.latency_s += elapsed_s
        else:
            self.failed[failure.kind] = self.failed.get(failure.kind, 0) + 1


class Worker:
    """Runner of tools: many runs at once (``has_place``), each in its own thread from its beginning; none waits here.

    A channel asks for room first (``hold``) and then lets the run begin (``run``), so that it knows of a worker that
    died which runs never began. A run's time limit counts from its beginning.

    A thread cannot be stopped. One beyond its time limit keeps its place until it ends. A worker that runs nothing
    else, or has many such threads, takes no new runs, finishes the others, and then reports how long a thread is
    overdue; another process takes its place.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.incarnation = runtime.incarnation(name)
        self._runtime = runtime
        self._running = 0
        self._runs: Counter[str] = Counter()
        """Places in use by tool: runs, room kept for runs, and stuck threads."""
        self._tickets: dict[str, tuple[str, float]] = {}
        """Room kept for runs: the tool, and the time until which it is kept."""
        self._ticket = 0
        self._threads = RunThreads()
        self._stuck: dict[asyncio.Future[Any], float] = {}
        """Threads that run beyond their timeout -> end of their time."""
        self._counts: dict[tuple[str, int], _RunCounter] = {}
        self._done = 0
        self._draining = False
        self._offered = BuiltinTools()
        self._reporter = ReportSender(runtime, self._report, self._more)

    @property
    def busy(self) -> bool:
        """True while a tool runs."""
        return self._running > 0

    @property
    def _leaving(self) -> bool:
        """True if no new run may begin here."""
        if self._draining or len(self._stuck) > STUCK_MAX:
            return True
        return bool(self._stuck) and not self._running and not self._tickets

    async def hold(self, program: str, params_json: bytes, tool: str, key: str, attempt: int = 0) -> str:
        """Keep room for a run that follows. Return its ticket; empty if there is no room.

        The program is loaded here, so that a run begins when it is asked for.
        """
        self._expire()
        if self._leaving:
            self._reporter.at_once()  # a restarted scheduler may not know that this worker takes no more runs
            return ""
        if not self._has_room(f"{program}/{tool}", self._found(program, params_json, tool, key)):
            return ""
        self._ticket += 1
        ticket = f"{self.incarnation}/{self._ticket}/{key}/{attempt}"
        self._tickets[ticket] = (f"{program}/{tool}", self._runtime.monotonic_s() + TICKET_S)
        self._runs[f"{program}/{tool}"] += 1
        return ticket

    async def run(
        self, program: str, params_json: bytes, tool: str, arguments: bytes, key: str, timeout_s: float,
        generation: int = 0, ticket: str = "",
    ) -> bytes:  # fmt: skip
        """Run one tool. Return (value, time of the value, failure or None) as msgpack; empty if the worker takes no
        more runs.

        ``ticket``: the room that was kept for it. A tool with a parameter ``idempotency_key`` gets the call's id, so
        that it can recognise a repeated run.
        """
        named = f"{program}/{tool}"
        found = self._found(program, params_json, tool, key)
        if self._tickets.pop(ticket, None) is None:
            self._expire()
            if self._leaving or not self._has_room(named, found):
                self._reporter.at_once()
                return b""
            self._runs[named] += 1
        read_at_s = self._runtime.now_s()
        self._running += 1
        self._reporter.wake()
        try:
            value: Any = None
            failure: Failure | None
            if isinstance(found, Failure):
                self._runs[named] -= 1
                failure = found
            else:
                value, failure, begun = await self._ran(found, tool, arguments, key, timeout_s, (named, generation))
                if not begun:
                    return b""
        finally:
            self._running -= 1
            self._done += 1
        return msgspec.msgpack.encode((value, read_at_s, failure))

    def _has_room(self, named: str, found: Callable[..., Any] | Failure) -> bool:
        most = getattr(getattr(found, "__self__", None), "runs_max", TOOL_RUNS_MAX)  # a built-in tool has its own bound
        return has_place(self._runs[named], self._runs.total(), most)

    def _expire(self) -> None:
        """Give up the room of runs that did not come."""
        now_s = self._runtime.monotonic_s()
        for ticket in [ticket for ticket, (_, until_s) in self._tickets.items() if until_s <= now_s]:
            self._runs[self._tickets.pop(ticket)[0]] -= 1

    async def ping(self) -> tuple[str, str]:
        """Return the incarnation and the node of the worker."""
        return self.incarnation, self._runtime.node()

    async def drain(self) -> None:
        """Take no more runs. Returns when the present ones have ended."""
        self._draining = True
        self._reporter.at_once()
        while self.busy or self._tickets:  # runs have no common end to await
            await asyncio.sleep(LOOK_S)
            self._expire()

    async def close(self) -> None:
        """Send no more reports; threads run until they end."""
        await self._reporter.close()
        self._offered.close()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _found(self, program: str, params_json: bytes, tool: str, key: str) -> Callable[..., Any] | Failure:
        try:
            tools = self._runtime.load_program(program, params_json, key.partition("/")[0]).tools
        except KeyboardInterrupt:  # of a user who ends an inline job
            raise
        except BaseException as error:  # an author's module may raise anything
            return Failure(FailureKind.FAULTY, f"the program does not load: {error_words(error)}", sent=False)
        function: Callable[..., Any] | None = tools.get(tool)
        if getattr(function, "offered", False):
            function = self._offered.find(tool)
        return function or Failure(FailureKind.FAULTY, f"the program has no tool {tool!r}", sent=False)

    async def _ran(
        self, function: Callable[..., Any], tool: str, arguments: bytes, key: str, timeout_s: float,
        counted_as: tuple[str, int],
    ) -> tuple[Any, Failure | None, bool]:  # fmt: skip
        """Run a function in a thread. Return its value and its failure; False as the third if the system has no further
        thread while others run, so that nothing has begun.

        The thread keeps the run's place until it ends, also beyond its time limit, and if nobody awaits it any more.
        """
        began_s = self._runtime.monotonic_s()
        value: Any = None
        failure: Failure | None = None
        thread: asyncio.Future[Any] | None = None
        try:
            given = msgspec.msgpack.decode(arguments, type=dict[str, Any])
            if "idempotency_key" in inspect.signature(function).parameters:
                given["idempotency_key"] = key
            try:
                thread = asyncio.get_running_loop().run_in_executor(self._threads, partial(_outcome, function, given))
            except RuntimeError as error:  # "can't start new thread"
                self._runs[counted_as[0]] -= 1
                failure = Failure(FailureKind.FAULTY, f"the tool {tool} cannot begin: {error}", sent=False)
                return None, failure, self._running == 1
            thread.add_done_callback(partial(self._over, counted_as[0]))
            await asyncio.wait({thread}, timeout=timeout_s)
            if thread.done():
                value, raised = thread.result()
                if raised is None:
                    value = to_plain(value)
                else:
                    failure = _raised(tool, raised)
            else:
                failure = Failure(FailureKind.TIMED_OUT, f"effect unknown: {tool} ran for more than {timeout_s:.0f} s")
                self._stuck[thread] = began_s + timeout_s
        except (Exception, *_EXITS) as error:  # an author's tool may raise anything
            if thread is None:
                self._runs[counted_as[0]] -= 1
            failure = _raised(tool, error)
        count = self._counts.setdefault(counted_as, _RunCounter())
        count.end(failure, self._runtime.monotonic_s() - began_s, timeout_s)
        if failure is not None:
            self._reporter.at_once()
        return value, failure, True

    def _over(self, named: str, thread: asyncio.Future[Any]) -> None:
        self._runs[named] -= 1
        self._stuck.pop(thread, None)

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self, number: int) -> ProgressReport:
        self._expire()
        phase = "draining" if self._leaving else "running" if self._running else "idle"
        overdue_s = 0.0
        if self._stuck and not self._running and not self._tickets:  # no other run is lost if the worker ends now
            overdue_s = self._runtime.monotonic_s() - min(self._stuck.values())
        counts, self._counts = self._counts, {}
        tools = tuple(
            ToolSignals(tool, generation, count.answered, count.failed, count.slow, count.latency_s)
            for (tool, generation), count in counts.items()
        )
        return ProgressReport(
            self.name, self.incarnation, self._runtime.node(), number, phase, self._running, 0, overdue_s, 0,
            self._done, (), tools,
        )  # fmt: skip

    def _more(self) -> bool:
        return bool(self._running or self._stuck or self._counts)
