"""What ``top`` sees of a cluster that outlives its drivers, besides the state folder: who is there is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from actors.driver.live_status import dated
from actors.monitoring.throughput import ThroughputEstimator, of_job
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from actors.top.sources import ClusterSnapshot, FolderSource, JobSnapshot, TopSnapshot

PATIENCE_S = 3.0
"""How long who is asked may take. What is not heard is shown as it was before, with its age."""
CHANNELS_MAX = 200
"""So many channels are asked in one look."""


class ObservedRuntime(Runtime, Protocol):
    """What is asked of a cluster that is looked at."""

    async def awaits(self, name: str) -> str:
        """The address of the host that a channel waits for; empty where it waits for none."""


class ClusterSource:
    """A cluster, looked at again and again, with the jobs of a state folder that do not run there."""

    def __init__(
        self, runtime: ObservedRuntime, address: str, folder: FolderSource, clock: Callable[[], float] = time.time
    ) -> None:
        self._runtime = runtime
        self._address = address
        self._folder = folder
        self._clock = clock
        self._speeds: dict[str, ThroughputEstimator] = {}
        self._cortex: ClusterSnapshot | None = None
        self._jobs: dict[str, JobSnapshot] = {}

    async def look(self, budget_s: float = 0.25) -> TopSnapshot:
        """What there is now."""
        beside = asyncio.create_task(asyncio.to_thread(self._folder.look, budget_s))
        trouble = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reported = await self._runtime.peer("cortex").ask("status")
                names = (await self._runtime.names("channel:"))[:CHANNELS_MAX]
            now_s = self._clock()
            self._cortex = ClusterSnapshot(
                where=f"cluster {self._address}", as_of_s=now_s, status=dated(reported, now_s)
            )
            found = await asyncio.gather(*(self._channel(name) for name in names))
            jobs = {each.job: each for each in found if each is not None}
            kept = {name.partition(":")[2] for name in names}
            self._jobs = {job: each for job, each in self._jobs.items() if job in kept} | jobs
        except (PeerUnavailable, PeerGone, TimeoutError):
            trouble = f"the cortex of {self._address} does not answer now: what is shown is what was known before"
        seen = await beside
        here = tuple(self._jobs.values())
        others = tuple(each for each in seen.jobs if each.job not in self._jobs)
        clusters = (*([self._cortex] if self._cortex is not None else []), *seen.clusters)
        return TopSnapshot(
            at_s=self._clock(), state=seen.state, jobs=here + others, trouble=trouble, clusters=_once(clusters)
        )

    async def _channel(self, name: str) -> JobSnapshot | None:
        job = name.partition(":")[2]
        try:
            async with asyncio.timeout(PATIENCE_S):
                facts: dict[str, Any] = msgspec.json.decode(await self._runtime.peer(name).ask("status"))
        except (PeerUnavailable, PeerGone, TimeoutError):
            return await self._stranded(job, name)
        speed = of_job(self._speeds.setdefault(job, ThroughputEstimator()), facts, self._runtime.monotonic_s())
        return JobSnapshot(
            job=job, facts=facts | speed, source="cluster", as_of_s=self._clock(), owner=f"cluster {self._address}"
        )

    async def _stranded(self, job: str, name: str) -> JobSnapshot | None:
        """A job that waits for the disk of its journal, and for which host; None where that is not it."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                home = await self._runtime.awaits(name)
        except (PeerUnavailable, PeerGone, TimeoutError):
            return None
        if not home:
            return None
        why = f"for host {home}, which is gone with the job's journal on its disk; it goes on when that is back"
        where = f"cluster {self._address}"
        facts = {"outcome": "waiting", "why": why}
        return JobSnapshot(job=job, facts=facts, source="cluster", as_of_s=self._clock(), owner=where)


def _once(clusters: tuple[ClusterSnapshot, ...]) -> tuple[ClusterSnapshot, ...]:
    """The same cortex may be known from a driver's file too: what was asked for is newer."""
    found: dict[str, ClusterSnapshot] = {}
    for each in clusters:
        found.setdefault(str(each.status.get("cortex", "")), each)
    return tuple(found.values())
