"""What ``top`` shows of a cluster whose channels do not all answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.journal.journal import StateFolder
from actors.ports.runtime import PeerUnavailable
from actors.top import cluster_source
from actors.top.cluster_source import ClusterSource
from actors.top.sources import FolderSource
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
