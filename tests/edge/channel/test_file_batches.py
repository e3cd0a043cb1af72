"""Jobs over batches of files, at each provider that has them, from rows to results; and whatever dies or has no room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.providers.batches.file_batches import FileBatches
from actors.providers.credentials.account import ProviderLocation, opened
from actors.routing.model_factory import ConnectionSpec
from actors.simulator.frontends.http_app import SimulatorServer
from actors.simulator.settings import SimulatorSettings
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_file_batches import BELOW, EACH, KEYS, files
from tests.edge.support.batch_job import SIM, Crash, Job, limits, over_http, whole
from tests.edge.support.in_process_job import ListSink

NEW = pytest.mark.parametrize("provider", ["mistral", "gemini"])
KEY = "sk-test-0123456789"


@asynccontextmanager
async def over(provider: str, settings: SimulatorSettings = SIM) -> AsyncIterator[tuple[SimulatorServer, ConnectionSpec]]:
    async with over_http(settings) as (server, _):
        where = ProviderLocation(provider=provider, base_url=server.url + BELOW.get(provider, ""))
        account = opened(where, {KEYS[provider]: KEY})
        yield server, ConnectionSpec(endpoint=account.endpoint, provider=provider, credential=account.credential)


@EACH
async def test_every_row_comes_back_once_and_no_file_stays(tmp_path: Path, provider: str) -> None:
    async with over(provider) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.batches == 1
        assert files(server) == []
    whole(job)
    assert job.facts["attempts"] == 40


@NEW
async def test_what_failed_or_expired_is_sent_again(tmp_path: Path, provider: str) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=10, batch_expired=0.2, faults={"overloaded": 0.2})
    async with over(provider, settings) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.worked == 40, "no row that had been answered was asked again"
    whole(job)
    late = {"expired"} if provider == "mistral" else {"expired", "transient"}  # Gemini expires whole batches alone
    assert {"overloaded"} < job.facts["failures"].keys() <= late | {"overloaded"}


@NEW
async def test_a_batch_that_expired_as_a_whole_is_asked_again(tmp_path: Path, provider: str) -> None:
    settings = SimulatorSettings(error=0.0, batch_ms=10, batch_expired=1.0)
    async with over(provider, settings) as (server, connection):
        job = Job(tmp_path, connection)
        running = asyncio.create_task(job.to_end())
        while server.provider.tally.batches < 2:  # noqa: ASYNC110 - the server is in a thread of its own
            await asyncio.sleep(0.001)
        server.provider.settings = msgspec.structs.replace(settings, batch_expired=0.0)
        await running
    whole(job)
    assert job.facts["failures"]["expired"] >= 40


@NEW
async def test_a_full_queue_is_waited_for_and_a_batch_that_never_fits_is_halved(tmp_path: Path, provider: str) -> None:
    async with over(provider, SimulatorSettings(error=0.0, batch_ms=20, batch_queue=12)) as (server, connection):
        job = await Job(tmp_path, connection).to_end()
        assert server.provider.tally.batches >= 4
        assert files(server) == []
    whole(job)
    assert job.facts["failures"].keys() == {"throttled"}
    assert job.facts["attempts"] == 40, "what did not begin was not an attempt"


async def test_a_file_that_takes_its_provider_long_is_uploaded_once_and_costs_no_retry(tmp_path: Path, monkeypatch: Any) -> None:
    """Of Azure, which works on a file before a batch can be made of it: longer than all tries of a submission take."""
    uploads, looks = [], iter([False] * 10 + [True])
    upload, ask = FileBatches._uploaded, FileBatches._asked

    async def uploaded(self: FileBatches, content: bytes, timeout_s: float) -> tuple[str, bool] | Failure:
        uploads.append(await upload(self, content, timeout_s))
        return uploads[-1][0], True

    async def until_ready(*_: Any) -> bool:
        return next(looks)

    async def asked(self: FileBatches, method: str, path: str, **more: Any) -> Any:
        is_look = method == "GET" and path.startswith("/files/") and path.count("/") == 2
        return b'{"status": "running"}' if is_look else await ask(self, method, path, **more)

    monkeypatch.setattr(FileBatches, "_uploaded", uploaded)
    monkeypatch.setattr(FileBatches, "_until_ready", until_ready)
    monkeypatch.setattr(FileBatches, "_asked", asked)
    few = msgspec.structs.replace(limits(), retry=msgspec.structs.replace(limits().retry, attempts_max=3))
    async with over("mistral") as (server, connection):
        job = await Job(tmp_path, connection, limits=few).to_end()
        assert files(server) == []
    whole(job)
    assert len(uploads) == 1 and job.facts["attempts"] == 40
    assert job.facts["failures"] == {"throttled": 10}


@NEW
@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_while_submitting_pays_for_nothing_twice(tmp_path: Path, monkeypatch: Any, provider: str, after: bool) -> None:
    """The batch is found by what it is called, long before it ends."""
    quick, sink = limits(submit_timeout_s=1.0), ListSink()
    async with over(provider, SimulatorSettings(error=0.0, batch_ms=400)) as (server, connection):
        crash = Crash(monkeypatch, after=after)
        await Job(tmp_path, connection, limits=quick, sink=sink).until(lambda k: crash.reached)
        crash.lift()
        job = await Job(tmp_path, connection, limits=quick, sink=sink).to_end()
        assert server.provider.tally.batches == 1
        assert server.provider.tally.worked == 40
    whole(job)


@NEW
async def test_a_crash_while_a_batch_is_out_leaves_it_to_the_next_run(tmp_path: Path, provider: str) -> None:
    sink = ListSink()
    async with over(provider, SimulatorSettings(error=0.0, batch_ms=150)) as (server, connection):
        await Job(tmp_path, connection, sink=sink).until(lambda k: any(made.name for made in k.submissions.values()))
        job = await Job(tmp_path, connection, sink=sink).to_end()
        assert server.provider.tally.batches == 1
        assert files(server) == []
    whole(job)


@NEW
async def test_a_cap_holds(tmp_path: Path, provider: str) -> None:
    capped = msgspec.structs.replace(limits(), max_cost_nusd=600_000)
    async with over(provider) as (_, connection):
        job = await Job(tmp_path, connection, limits=capped).to_end()
    assert job.facts["outcome"] == "partial" and 0 < job.facts["rows_succeeded"] < 40
    assert job.facts["cost_usd"] <= 0.0006


async def test_files_are_deleted_once_the_results_are_on_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """Before that a crash would lose them: the journal is looked at when the order comes."""
    seen: list[str] = []
    discard = FileBatches.discard

    async def watched(self: Any, name: str) -> Failure | None:
        seen.append(name if not job.k.submissions else "some results are missing")
        return await discard(self, name)

    monkeypatch.setattr(FileBatches, "discard", watched)
    async with over("openai") as (_, connection):
        job = Job(tmp_path, connection)
        await job.to_end()
    whole(job)
    assert seen == ["batch_000000"]


async def test_files_that_stay_are_a_line_of_the_log_and_no_error(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    async def refused(self: Any, name: str) -> Failure | None:
        return Failure(FailureKind.REJECTED, "no permission to delete", 403)

    monkeypatch.setattr(FileBatches, "discard", refused)
    with caplog.at_level(logging.WARNING, "cortex.batches"):
        async with over("openai") as (server, connection):
            job = await Job(tmp_path, connection).to_end()
            assert len(files(server)) == 2
    whole(job)
    assert [each.getMessage() for each in caplog.records if each.name == "cortex.batches"] == [
        "files of batch batch_000000 stay at the provider: no permission to delete"
    ]
