"""Whole job in one process: rows from a list, results into a list, a model that is a function."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.ports.telemetry import Telemetry
from actors.programs import loader
from actors.routing.model_factory import ConnectionSpec, lend
from actors.runtime.inline import InlineRuntime
from cortex.programs.batch import Batch
from cortex.programs.shards import Shards
from cortex.state.events import Row
from cortex.state.program import Program, params_of
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.estimates.price import Price
from policies.failures.failure import Failure
from policies.failures.route_choice import pool_name, route_name
from tests.support.patience import PATIENCE_S

Answering = Callable[[bytes], Reply | Failure | None]
PRICE = Price(input_usd_per_mtok=3, output_usd_per_mtok=15)  # type: ignore[arg-type]


USAGE = Usage(10, 2)
LIMITS = Limits()


def reply(text: str, usage: Usage = USAGE, stop_reason: str = "end_turn") -> Reply:
    """Return a message of the provider with this text."""
    body = msgspec.json.encode({"content": [{"type": "text", "text": text}], "stop_reason": stop_reason})
    return Reply(body, stop_reason, "m", usage)


class FunctionModel:
    """Model that answers by a function of the body; ``None`` hangs until cancelled. Counts requests.

    ``at_once``: the ones under way.
    """

    rate = None

    def __init__(
        self, answer: Answering = lambda body: reply("ok"), endpoint: str = "test", pause_s: float = 0.0
    ) -> None:
        self.endpoint = endpoint
        self.asked: list[bytes] = []
        self.complete: list[bytes] = []
        self.most_at_once = 0
        self.at_once = 0
        self._answer = answer
        self._pause_s = pause_s

    async def call(self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Any = None) -> Any:
        self.asked.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._pause()
            answer = self._answer(body)
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Reply):
                self.complete.append(body)
            return answer
        finally:
            self.at_once -= 1

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s)

    async def count_tokens(self, body: bytes) -> int | None:
        return None

    async def close(self) -> None:
        pass


class MeetingModel(FunctionModel):
    """Model whose first calls end only once ``together`` are under way at once. Else a machine that is slow to send
    has answered the first before it sends the last.
    """

    def __init__(self, together: int, pause_s: float = 0.0) -> None:
        super().__init__(pause_s=pause_s)
        self._together, self._met = together, asyncio.Event()

    async def _pause(self) -> None:
        if self.at_once >= self._together:
            self._met.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._met.wait()
        self._met.set()  # so many never come: the job ends all the same, and its test fails
        await super()._pause()


class ListSource:
    """Source of rows in a list; a position is an index."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.at = 0

    def seek(self, position: int) -> None:
        self.at = position

    def read(self, rows_max: int) -> Any:
        some = tuple(self.rows[self.at : self.at + rows_max])
        self.at += len(some)
        return _Window(some, self.at, self.at >= len(self.rows))

    def close(self) -> None:
        pass


class _Window(msgspec.Struct):
    rows: tuple[Row, ...]
    position: int
    ended: bool


class ListSink:
    """Sink into a list. ``lose`` drops the last results, like a file that was not synced to disk."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        del self.values[rows:]
        return len(self.values)

    def write(self, values: list[Any]) -> None:
        self.values += values

    def flush(self) -> tuple[int, int]:
        return len(self.values), 0

    def close(self) -> None:
        pass

    def lose(self, count: int) -> None:
        del self.values[len(self.values) - count :]

    def keys(self) -> list[str]:
        return [msgspec.json.decode(value)["custom_id"] for value in self.values]

    def results(self) -> dict[str, Any]:
        return {line["custom_id"]: line["result"] for line in map(msgspec.json.decode, self.values)}


def rows(count: int) -> list[Row]:
    return [Row(f"r{i}", body(f"row {i}"), 8) for i in range(count)]


def body(text: str) -> bytes:
    return msgspec.json.encode(
        {"max_tokens": 8, "messages": [{"role": "user", "content": text}], "model": "m"}, order="sorted"
    )


def armed(terms: JobTerms, model: FunctionModel) -> ConnectionSpec:
    """Return the connection for the route of these terms."""
    route = terms.route
    names = (route.endpoint, route.credential, route.model)
    return ConnectionSpec(
        endpoint=model.endpoint, given=lend(model), route_name=route_name(*names), pool_name=pool_name(*names)
    )


class Run:
    """Run of a job over one state folder. Make another ``Run`` for the next incarnation."""

    def __init__(
        self, folder: Path, model: FunctionModel, *, program: Program | None = None, source: ListSource | None = None,
        sink: ListSink | None = None, job: str = "j", limits: Limits = LIMITS, price: Price | None = None,
        fresh: bool = False, branches: int = 1, window: int = 200_000, telemetry: Telemetry | None = None,
        runtime: InlineRuntime | None = None, keeps_text: bool = True, labels: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        program = program or Batch()
        where, params = loader.place_of(type(program)), params_of(program)
        self.runtime = runtime or InlineRuntime(branches=branches, telemetry=telemetry)
        terms = JobTerms(
            job=job, program=where, params_json=params, fingerprint=loader.fingerprint(where, params), fresh=fresh,
            keeps_text=keeps_text, labels=labels or {},
            route=Route(endpoint=model.endpoint, model="m", price=price, context_window=window), limits=limits,
            streams=source is not None and not isinstance(program, Shards),
        )  # fmt: skip
        self.sink = sink if sink is not None else ListSink()
        self.driver = Driver(
            self.runtime, str(folder), Opening(terms=terms, owner=this_owner("inline"), who="test"),
            armed(terms, model), source=source, sink=self.sink, program=program,
        )  # fmt: skip
        self.facts: dict[str, Any] = {}
        self.answer: Any = None

    async def to_end(self) -> Run:
        try:
            self.facts = await self.driver.run()
            self.answer = await self.driver.answer()
            return self
        finally:
            await self.runtime.close()

    async def crash_after(self, done: Callable[[], bool]) -> None:
        """Kill everything as soon as ``done``: nothing is flushed, and no actor is notified."""
        task = asyncio.create_task(self.driver.run())
        while not done() and not task.done():  # noqa: ASYNC110 - must stop at the next moment
            await asyncio.sleep(0.001)
        everything = asyncio.all_tasks() - {asyncio.current_task()}
        for other in everything:
            other.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
