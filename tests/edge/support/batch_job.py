"""Whole job over message batches in one process, against a simulated provider: in process, or over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.journal.journal import StateFolder
from actors.maintenance.retry_rows import RetriedRows
from actors.ports.runtime import ChannelNotStarted, PeerGone
from actors.programs import loader
from actors.providers.credentials.credential import Credential
from actors.routing.model_factory import ConnectionSpec
from actors.runtime.inline import InlineRuntime
from actors.simulator.frontends.account import encode
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from cortex.programs.batch import Batch
from cortex.state.events import Row, RowsReopened
from cortex.state.program import Program, params_of
from cortex.values.limits import JobTerms, Limits, Route
from policies.estimates.batching import BatchingPolicy
from policies.estimates.price import Price, batch_price, parse_price
from policies.failures.retry import RetryPolicy
from tests.edge.support.in_process_job import ListSink, ListSource
from tests.support.patience import PATIENCE_S

PRICE = batch_price(parse_price("input=3,output=15"))
# A submission that a slow machine takes too long for would be one more failure, or a search for a lost batch.
SOON = BatchingPolicy(
    gather_s=0.02, gather_max_s=0.5, settle_s=0.05, submit_timeout_s=PATIENCE_S, poll_s=0.01, poll_max_s=0.05
)
LIMITS = Limits(
    concurrency=500, batching=SOON, retry=RetryPolicy(base_s=0.001, throttled_base_s=0.001, cap_s=0.02, attempts_max=40),
)  # fmt: skip
SIM = SimulatorSettings(error=0.0, batch_ms=20)


def rows(count: int) -> list[Row]:
    return [Row(f"r{i}", body(i), 20) for i in range(count)]


def body(number: int) -> bytes:
    return msgspec.json.encode(
        {"model": "sim", "max_tokens": 20, "messages": [{"role": "user", "content": f"Say a{number}"}]}
    )


ROWS = Counter(f"r{i}" for i in range(40))


def limits(**batching: Any) -> Limits:
    return msgspec.structs.replace(LIMITS, batching=msgspec.structs.replace(SOON, **batching))


class Job:
    """Run of a job over one state folder; make another ``Job`` for the next run."""

    def __init__(
        self, folder: Path, arming: ConnectionSpec, count: int = 40, *, limits: Limits = LIMITS, sink: ListSink | None = None,
        price: Price | None = PRICE, program: Program | None = None, decided: tuple[tuple[int, str], ...] = (),
        via: str = "batches", fresh: bool = False, runtime: Callable[[], InlineRuntime] = InlineRuntime,
        given: list[Row] | None = None, reopened: RowsReopened | None = None,
    ) -> None:  # fmt: skip
        program = program or Batch()
        where, params = loader.place_of(type(program)), params_of(program)
        streams = isinstance(program, Batch) or given is not None
        self.runtime = runtime()
        self.sink = sink if sink is not None else ListSink()
        terms = JobTerms(
            job="j", program=where, params_json=params, fingerprint=loader.fingerprint(where, params), limits=limits,
            route=Route(endpoint=arming.endpoint, model="sim", price=price, via=via), streams=streams,
            fresh=fresh,
        )  # fmt: skip
        opening = Opening(terms=terms, owner=this_owner("inline"), who="test", decided=decided, reopened=reopened)
        source: Any = ListSource(rows(count) if given is None else given) if streams else None
        if reopened is not None:
            source = RetriedRows(StateFolder(str(folder)), "j")
        self.driver = Driver(
            self.runtime,
            str(folder),
            opening,
            arming,
            source=source,
            sink=self.sink,
        )
        self.facts: dict[str, Any] = {}

    @property
    def k(self) -> Any:
        return self.runtime.find("channel:j")._k

    async def to_end(self) -> Job:
        try:
            self.facts = await asyncio.wait_for(self.driver.run(), PATIENCE_S)
            return self
        finally:
            await self.runtime.close()

    async def until(self, done: Callable[[Any], bool]) -> None:
        """Run until K meets this condition."""
        task = asyncio.create_task(self.driver.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not task.done():
                    with contextlib.suppress(PeerGone, ChannelNotStarted):  # the channel has not begun yet
                        if done(self.k):
                            return
                    await asyncio.sleep(0.001)
        finally:
            everything = asyncio.all_tasks() - {asyncio.current_task()}
            for other in everything:
                other.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            for name in await self.runtime.names("branch"):
                # as the operating system closes a dead process's connections
                await self.runtime.find(name)._keys.close()


def in_process(settings: SimulatorSettings = SIM) -> ConnectionSpec:
    return ConnectionSpec(endpoint="sim:test", provider="sim", settings=encode(settings))


@asynccontextmanager
async def over_http(settings: SimulatorSettings = SIM) -> AsyncIterator[tuple[SimulatorServer, ConnectionSpec]]:
    """Provider in its own thread and event loop, so that it survives simulated crashes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def there(work: Any) -> Any:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    server = await there(serve(settings))
    try:
        yield (
            server,
            ConnectionSpec(
                endpoint=server.url, credential=Credential(api_key="sk-test-0123456789", base_url=server.url)
            ),
        )
    finally:
        await there(server.close())
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


def whole(job: Job, outcome: str = "complete") -> None:
    """Assert that the job has every row once, each paid once."""
    assert (job.facts["outcome"], job.facts["why"] if outcome == "complete" else "") == (outcome, "")
    assert Counter(job.sink.keys()) == ROWS
    assert job.facts["rows_succeeded"] == job.facts["paid_calls"] == 40
    assert (job.facts["paid_again"], job.facts["cost_assumed_usd"]) == (0, 0)


class Crash:
    """Patch that stops the branch at a submission: before the provider has the batch, or after. ``rows``: rows to
    submit.
    """

    def __init__(self, monkeypatch: Any, after: bool) -> None:
        self.reached = False
        self.rows: Any = ()
        self._monkeypatch = monkeypatch
        submitted = batch_executor._submitted

        async def stop(order: Any, *more: Any) -> Any:
            if after:
                await submitted(order, *more)
            self.reached, self.rows = True, order.rows
            await asyncio.Event().wait()

        monkeypatch.setattr(batch_executor, "_submitted", stop)

    def lift(self) -> None:
        self._monkeypatch.undo()
