"""A job over batches of OpenAI, from its rows to its results; and whatever dies or has no room on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.providers.credentials.account import ProviderLocation, opened
from actors.routing.model_factory import ConnectionSpec
from actors.simulator.frontends.http_app import SimulatorServer
from actors.simulator.settings import SimulatorSettings
from tests.edge.support.batch_job import SIM, Crash, Job, limits, over_http, whole
from tests.edge.support.in_process_job import ListSink


@asynccontextmanager
async def over_chat(settings: SimulatorSettings = SIM) -> AsyncIterator[tuple[SimulatorServer, ConnectionSpec]]:
    async with over_http(settings) as (server, _):
        account = opened(ProviderLocation(provider="openai", base_url=server.url), {"OPENAI_API_KEY": "sk-test-0123456789"})
        yield server, ConnectionSpec(endpoint=account.endpoint, provider="openai", credential=account.credential)


async def test_every_row_comes_back_once(tmp_path: Path) -> None:
    async with over_chat() as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.batches == 1
    whole(job)
    assert job.facts["attempts"] == 40


async def test_only_what_expired_or_failed_is_sent_again(tmp_path: Path) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=10, batch_expired=0.2, faults={"overloaded": 0.2})
    async with over_chat(settings) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.worked == 40, "no row that had been answered was asked again"
    whole(job)
    assert job.facts["failures"].keys() == {"expired", "overloaded"}


async def test_a_full_queue_is_waited_for_and_a_batch_that_never_fits_is_halved(tmp_path: Path) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=20, batch_queue=12)
    async with over_chat(settings) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.batches >= 4
    whole(job)
    assert job.facts["failures"].keys() == {"throttled"}
    assert job.facts["attempts"] == 40, "what did not begin was not an attempt"


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_while_submitting_pays_for_nothing_twice(tmp_path: Path, monkeypatch: Any, after: bool) -> None:
    """The batch is found by what its metadata says, long before it ends."""
    quick, sink = limits(submit_timeout_s=1.0), ListSink()
    async with over_chat(SimulatorSettings(error=0.0, batch_ms=400)) as (server, connection):
        crash = Crash(monkeypatch, after=after)
        await Job(tmp_path, connection, limits=quick, sink=sink).until(lambda k: crash.reached)
        crash.lift()
        job = await Job(tmp_path, connection, limits=quick, sink=sink).to_end()
        assert server.provider.tally.batches == 1
        assert server.provider.tally.worked == 40
    whole(job)
