"""Retry of rows that timed out in a message batch, which the provider had worked off in part when it was cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec

from actors.common.process_owner import this_owner
from actors.jobs.opening import Opening, resuming_batch
from actors.simulator.settings import SimulatorSettings
from cortex.state.events import RowsReopened
from tests.edge.channel.test_batches import stopped
from tests.edge.support.batch_job import LIMITS, ROWS, Job, over_http
from tests.support.patience import PATIENCE_S
from tests.unit.cortex.loop.test_batch_submissions import timed_out


async def test_a_retry_pays_for_no_row_that_a_cancelled_batch_was_paid_for(tmp_path: Path) -> None:
    """The batch takes an hour, and half of it has passed when its rows time out: a row more is done in a minute and a
    half, so that some are left however slow this machine is."""
    patient, hasty = (msgspec.structs.replace(LIMITS, goal_timeout_s=timeout_s) for timeout_s in (3_600.0, 0.05))
    async with over_http(SimulatorSettings(error=0.0, batch_ms=3_600_000, latency_spread=0.0)) as (server, connection):
        await stopped(Job(tmp_path, connection, limits=patient), "drain")
        (batch,) = server._face.batches._batches._all.values()
        batch.created_s, batch.ends_s = batch.created_s - 1_800.0, batch.ends_s - 1_800.0
        async with asyncio.timeout(PATIENCE_S):
            while batch.done < 20:  # noqa: ASYNC110 - the provider runs in another thread
                await asyncio.sleep(0.005)
        job = await Job(tmp_path, connection, limits=hasty).to_end()
        assert (job.facts["outcome"], job.facts["rows_failed"]) == ("complete", 40)
        assert job.facts["cost_assumed_usd"] > 0 and 20 <= server.provider.tally.worked < 40
        server.provider.change({"batch_ms": 20})
        keys, kinds = tuple(job.sink.keys()), {"timed_out": 40}
        again = RowsReopened("ann", 1, keys, tuple(range(40)), kinds, 40, kind_of=(0,) * 40)
        job = await Job(tmp_path, connection, sink=job.sink, reopened=again).to_end()
        assert server.provider.tally.worked == 40
    assert Counter(job.sink.keys()) == ROWS and job.facts["rows_succeeded"] == job.facts["paid_calls"] == 40
    assert (job.facts["outcome"], job.facts["cost_assumed_usd"], job.facts["paid_again"]) == ("complete", 0, 0)


def test_a_retry_by_another_transport_leaves_cancelled_batches_unread() -> None:
    """Their answers were paid at the price of batches."""
    k, again = timed_out().k, RowsReopened("ann", 1, ("a", "b"), (0, 1), {"timed_out": 2}, 2, kind_of=(0, 0))
    for via, left in (("batches", False), ("messages", True)):
        terms = k.terms.with_routes((msgspec.structs.replace(k.terms.route, via=via),))
        opening = Opening(terms=terms, owner=this_owner("inline"), reopened=again)
        first = next(event for event in resuming_batch(k, opening, 2, ())[0] if isinstance(event, RowsReopened))
        assert (first.route is not None) == left
