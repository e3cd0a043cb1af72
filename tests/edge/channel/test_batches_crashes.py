"""Message batches, and whatever dies on the way: nothing is submitted again before it is known what became of it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.branch import batch_executor
from actors.channel.batches import submissions
from actors.ports.runtime import PeerUnavailable
from actors.providers.messages.batches import ProviderBatches
from actors.routing.model_factory import encode, make_model
from actors.simulator.settings import SimulatorSettings
from cortex.values.batch_record import SubmissionStatus
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.batch_job import Crash, Job, limits, over_http, whole
from tests.edge.support.in_process_job import ListSink
from tests.support.patience import PATIENCE_S
from tests.unit.cortex.loop.test_batch_submissions import out_there


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_between_the_intent_and_the_answer(tmp_path: Path, monkeypatch: Any, after: bool) -> None:
    """Nothing is submitted again before it is known what became of it: found, it is read; not found, asked anew."""
    quick = limits(submit_timeout_s=1.0)
    sink = ListSink()
    async with over_http() as (server, connection):
        crash = Crash(monkeypatch, after)
        await Job(tmp_path, connection, limits=quick, sink=sink).until(lambda k: crash.reached)
        crash.lift()
        assert server.provider.tally.batches == after
        job = await Job(tmp_path, connection, limits=quick, sink=sink).to_end()
        assert server.provider.tally.batches == 1
        assert server.provider.tally.worked == 40
    whole(job)


async def test_an_orphan_that_is_still_handing_it_over_is_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """The list shows nothing for a while: that proves nothing before the last moment at which it can be on its way."""
    patient = limits(submit_timeout_s=3_600.0)
    sink = ListSink()
    async with over_http() as (server, connection):
        crash = Crash(monkeypatch, after=False)
        await Job(tmp_path, connection, limits=patient, sink=sink).until(lambda k: crash.reached)
        crash.lift()
        running = asyncio.create_task(Job(tmp_path, connection, limits=patient, sink=sink).to_end())
        await asyncio.sleep(0.4)
        assert not running.done()
        orphan = make_model(encode(connection))
        await orphan.batches.submit(crash.rows, PATIENCE_S)  # type: ignore[attr-defined]
        await orphan.close()
        job = await running
        assert server.provider.tally.batches == 1
    whole(job)


async def test_a_batch_of_the_same_size_that_is_another_s_is_told_apart(tmp_path: Path, monkeypatch: Any) -> None:
    quick = limits(submit_timeout_s=1.0)
    sink = ListSink()
    async with over_http(SimulatorSettings(error=0.0, batch_ms=300)) as (server, connection):
        crash = Crash(monkeypatch, after=False)
        first = Job(tmp_path / "a", connection, limits=quick, sink=sink)
        await first.until(lambda k: crash.reached)
        crash.lift()
        await Job(tmp_path / "b", connection, limits=quick).to_end()  # the same rows, the same name, another folder
        assert server.provider.tally.batches == 1
        job = await Job(tmp_path / "a", connection, limits=quick, sink=sink).to_end()
        assert server.provider.tally.batches == 2
    whole(job)


async def test_a_connection_that_is_lost_while_submitting_is_looked_into(tmp_path: Path, monkeypatch: Any) -> None:
    """The branch lives, the answer does not come: once the batch was made, once it was not."""
    submit = ProviderBatches.submit
    lost = {"made": 1, "not made": 1}

    async def lossy(self: Any, rows: Any, timeout_s: float) -> Any:
        if lost["made"]:
            lost["made"] -= 1
            await submit(self, rows, timeout_s)
            return Failure(FailureKind.TRANSIENT, "the connection was lost")
        if lost["not made"]:
            lost["not made"] -= 1
            return Failure(FailureKind.TIMED_OUT, "no whole answer in time")
        return await submit(self, rows, timeout_s)

    monkeypatch.setattr(ProviderBatches, "submit", lossy)
    async with over_http() as (server, connection):
        job = await Job(tmp_path, connection, limits=limits(requests_max=20)).to_end()
        assert server.provider.tally.batches == 2
    whole(job)
    assert lost == {"made": 0, "not made": 0}


async def test_a_branch_that_dies_while_submitting_is_no_reason_to_submit_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    submitted = batch_executor._submitted
    deaths = [1]

    async def dies(order: Any, *more: Any) -> Any:
        reply = await submitted(order, *more)
        if deaths:
            deaths.clear()
            raise PeerUnavailable("branch:0")
        return reply

    monkeypatch.setattr(batch_executor, "_submitted", dies)
    async with over_http() as (server, connection):
        job = await Job(tmp_path, connection, limits=limits(submit_timeout_s=1.0)).to_end()
        assert server.provider.tally.batches == 1
    whole(job)


@pytest.mark.parametrize("stand", [SubmissionStatus.OUT, "half read"])
async def test_a_crash_while_the_provider_works_costs_nothing(tmp_path: Path, monkeypatch: Any, stand: str) -> None:
    sink = ListSink()
    monkeypatch.setattr(batch_executor, "MESSAGE_ROWS_MAX", 10)

    def reached(k: Any) -> bool:
        if stand == "half read":
            return bool(k.submissions) and 0 < k.ledger.paid_calls < 40
        return any(made.stand == stand for made in k.submissions.values())

    async with over_http(SimulatorSettings(error=0.0, batch_ms=100)) as (server, connection):
        await Job(tmp_path, connection, sink=sink).until(reached)
        job = await Job(tmp_path, connection, sink=sink).to_end()
        assert server.provider.tally.batches == 1
    whole(job)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_dies_when_no_row_is_worked_off_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    settings = SimulatorSettings(error=0.0, batch_ms=30, batch_expired=0.1, seed=seed)
    quick = limits(submit_timeout_s=1.0, requests_max=12)
    sink = ListSink()
    async with over_http(settings) as (server, connection):
        for _ in range(5):
            turns = chance.randrange(2, 25)
            left = [turns]

            def later(k: Any, left: list[int] = left) -> bool:
                left[0] -= bool(k.flights)
                return left[0] <= 0

            await Job(tmp_path, connection, limits=quick, sink=sink).until(later)
        job = await Job(tmp_path, connection, limits=quick, sink=sink).to_end()
        assert server.provider.tally.worked == 40
    whole(job)


async def test_results_that_come_short_are_read_again(tmp_path: Path, monkeypatch: Any) -> None:
    """A download cut at the end of a line looks whole: the batch's own count tells. No row is paid for again."""
    results = ProviderBatches.results
    cuts = [1, 1]

    async def short(self: Any, name: str) -> Any:
        left = 15 if cuts else 10_000
        del cuts[:1]
        async for each in results(self, name):
            if left <= 0:
                return
            left -= 1
            yield each

    monkeypatch.setattr(ProviderBatches, "results", short)
    async with over_http() as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.batches == 1
    whole(job)
    assert job.facts["failures"] == {}


def test_results_are_accepted_only_by_the_channel_that_reads_them() -> None:
    """A message by the job's name may reach an earlier incarnation: had that accepted, all rows would be paid again."""
    k = out_there().k
    tracker = submissions.SubmissionTracker("j", None, lambda: k, list, dict, float)  # type: ignore[arg-type]
    ids = tracker._ids(k.submissions[1])
    blob = msgspec.msgpack.encode([(name, None, Failure(FailureKind.REJECTED, "no")) for name in ids])
    with pytest.raises(PeerUnavailable):
        tracker.results(1, blob)
    tracker._reading[1] = ids
    assert len(tracker.results(1, blob)) == len(ids) == 3
