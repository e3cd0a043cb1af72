"""What ``top`` shows of a cluster whose channels do not all answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.journal.journal import StateFolder
from actors.ports.runtime import PeerUnavailable
from actors.top import cluster_source
from actors.top.cluster_source import ClusterSource
from actors.top.sources import FolderSource, JobSnapshot, TopSnapshot
from actors.top.view import jobs_table


class Cluster:
    """A cluster with two channels that do not answer: ``lost``, whose host is gone, and ``slow``."""

    name = ""

    async def awaits(self, name: str) -> str:
        return "10.0.0.2" if name == "channel:lost" else ""

    async def names(self, prefix: str) -> tuple[str, ...]:
        return "channel:lost", "channel:slow"

    def peer(self, name: str) -> Any:
        peer = Cluster()
        peer.name = name
        return peer

    async def ask(self, method: str) -> Any:
        if self.name == "cortex":
            return {"cortex": "c", "routes": {}, "breakers": {}}
        raise PeerUnavailable(self.name)

    def monotonic_s(self) -> float:
        return 0.0


async def test_a_job_whose_host_is_gone_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_source, "dated", lambda told, now_s: told)
    seen = await ClusterSource(Cluster(), "head:6379", FolderSource(StateFolder(tmp_path))).look()  # type: ignore[arg-type]
    (job,) = seen.jobs
    assert (job.job, job.facts["outcome"]) == ("lost", "waiting")
    (row,) = jobs_table(seen).rows
    assert any("for host 10.0.0.2, which is gone with the job's journal" in cell for cell in row.cells)


@pytest.mark.parametrize(
    ("published", "first"),
    [({"rate_per_s": 4.0, "left_s": 50.0}, (4.0, 50.0)), ({}, (None, None))],
)
async def test_one_look_at_a_cluster_has_the_rate_that_the_jobs_process_measured_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: dict[str, float], first: tuple[float | None, ...]
) -> None:
    """A rate of 0 beside routes that answer looks like a job that stands still."""
    clock, folder = Clock(), FolderSource(StateFolder(tmp_path))
    own = JobSnapshot(job="slow", facts=published, source="live", as_of_s=0.0)
    beside = TopSnapshot(at_s=0.0, state="", jobs=(own,) if published else (), clusters=())
    monkeypatch.setattr(folder, "look", lambda budget_s: beside)
    monkeypatch.setattr(cluster_source, "dated", lambda told, now_s: told)
    source = ClusterSource(Alive(clock), "head:6379", folder)  # type: ignore[arg-type]
    (job,) = (await source.look()).jobs
    assert (job.facts["rate_per_s"], job.facts["left_s"]) == first
    clock.at_s = 10.0
    (job,) = (await source.look()).jobs
    assert (job.facts["rate_per_s"], job.facts["left_s"]) == (10.0, 80.0), "two looks have a rate of their own"


class Clock:
    at_s = 0.0


class Alive(Cluster):
    """A cluster with one channel, which answers: a result for each tenth of a second."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.clock, self.name = clock, name

    async def names(self, prefix: str) -> tuple[str, ...]:
        return ("channel:slow",)

    def peer(self, name: str) -> Any:
        return Alive(self.clock, name)

    async def ask(self, method: str) -> Any:
        if self.name == "cortex":
            return {"cortex": "c", "routes": {}, "breakers": {}}
        return msgspec.json.encode({"results": 100 + int(10 * self.clock.at_s), "rows_expected": 1_000})

    def monotonic_s(self) -> float:
        return self.clock.at_s
