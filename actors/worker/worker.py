"""Worker: runs the tools of programs. A worker never calls a model and holds no secrets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from actors.messaging.report_sender import ReportSender
from actors.ports.runtime import Runtime
from actors.worker.builtin_tools import BuiltinTools
from cortex.goals.apply_changes import to_plain
from cortex.scheduler.reports import ProgressReport, ToolSignals
from policies.failures.failure import Failure, FailureKind

LOOK_S = 0.25
"""Seconds between two looks of a draining worker at its running tools."""


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
    """Runner of tools, each in its own thread, so that a slow one does not delay others.

    A thread cannot be stopped. A worker with a thread beyond its timeout takes no new runs, finishes the others, and
    then reports how long that thread is overdue; another process takes its place.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.incarnation = runtime.incarnation(name)
        self._runtime = runtime
        self._running = 0
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

    async def run(
        self, program: str, params_json: bytes, tool: str, arguments: bytes, key: str, timeout_s: float,
        generation: int = 0,
    ) -> bytes:  # fmt: skip
        """Run one tool. Return (value, time of the value, failure or None) as msgpack; empty if the worker takes no
        more runs.

        A tool with a parameter ``idempotency_key`` gets the call's id, so that it can recognise a repeated run.
        """
        if self._draining or self._stuck:
            self._reporter.at_once()  # a restarted scheduler may not know that this worker takes no more runs
            return b""
        read_at_s = self._runtime.now_s()
        self._running += 1
        self._reporter.wake()
        try:
            value: Any = None
            failure: Failure | None
            found = self._found(program, params_json, tool, key)
            if isinstance(found, Failure):
                failure = found
            else:
                counted_as = (f"{program}/{tool}", generation)
                value, failure = await self._ran(found, tool, arguments, key, timeout_s, counted_as)
        finally:
            self._running -= 1
            self._done += 1
        return msgspec.msgpack.encode((value, read_at_s, failure))

    async def ping(self) -> tuple[str, str]:
        """Return the incarnation and the node of the worker."""
        return self.incarnation, self._runtime.node()

    async def drain(self) -> None:
        """Take no more runs. Returns when the present ones have ended."""
        self._draining = True
        self._reporter.at_once()
        while self.busy:  # noqa: ASYNC110 - runs have no common end to await
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Send no more reports; threads run until they end."""
        await self._reporter.close()
        self._offered.close()

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _found(self, program: str, params_json: bytes, tool: str, key: str) -> Callable[..., Any] | Failure:
        try:
            tools = self._runtime.load_program(program, params_json, key.partition("/")[0]).tools
        except Exception as error:  # an author's module may raise anything
            text = f"the program does not load: {type(error).__name__}: {error}"
            return Failure(FailureKind.FAULTY, text, sent=False)
        function: Callable[..., Any] | None = tools.get(tool)
        if getattr(function, "offered", False):
            function = self._offered.find(tool)
        return function or Failure(FailureKind.FAULTY, f"the program has no tool {tool!r}", sent=False)

    async def _ran(
        self, function: Callable[..., Any], tool: str, arguments: bytes, key: str, timeout_s: float,
        counted_as: tuple[str, int],
    ) -> tuple[Any, Failure | None]:  # fmt: skip
        began_s = self._runtime.monotonic_s()
        value: Any = None
        failure: Failure | None = None
        try:
            given = msgspec.msgpack.decode(arguments, type=dict[str, Any])
            if "idempotency_key" in inspect.signature(function).parameters:
                given["idempotency_key"] = key
            thread = asyncio.ensure_future(asyncio.to_thread(function, **given))
            await asyncio.wait({thread}, timeout=timeout_s)
            if thread.done():
                value = to_plain(thread.result())
            else:
                failure = Failure(FailureKind.TIMED_OUT, f"effect unknown: {tool} ran for more than {timeout_s:.0f} s")
                self._stuck[thread] = began_s + timeout_s
                thread.add_done_callback(self._unstuck)
        except Exception as error:  # an author's tool may raise anything
            failure = Failure(FailureKind.FAULTY, f"the tool {tool} raised {type(error).__name__}: {error}")
        count = self._counts.setdefault(counted_as, _RunCounter())
        count.end(failure, self._runtime.monotonic_s() - began_s, timeout_s)
        if failure is not None:
            self._reporter.at_once()
        return value, failure

    def _unstuck(self, thread: asyncio.Future[Any]) -> None:
        self._stuck.pop(thread, None)
        if not thread.cancelled():
            thread.exception()  # retrieves the exception, which no caller awaits any more

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self, number: int) -> ProgressReport:
        phase = "draining" if self._draining or self._stuck else "running" if self._running else "idle"
        overdue_s = 0.0
        if self._stuck and not self._running:  # no other run is lost if the worker is ended now
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
