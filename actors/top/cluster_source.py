"""Source of ``top`` for a cluster: its scheduler and channels are asked, beside the state folder."""

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
"""Longest wait in seconds for an actor's answer. Without one, the last known state is shown with its age."""
CHANNELS_MAX = 200
"""Most channels asked in one look."""


class ObservedRuntime(Runtime, Protocol):
    """Runtime of a cluster, as far as ``top`` needs it."""

    async def awaits(self, name: str) -> str:
        """Return the address of the host that a channel waits for; empty if it waits for none."""


class ClusterSource:
    """Repeated look at a cluster, and at the jobs of a state folder that do not run there."""

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
        """Return the present state of cluster and folder."""
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
            trouble = f"the scheduler of {self._address} does not answer: the last known state is shown"
        seen = await beside
        told = {each.job: each.facts for each in seen.jobs if each.source == "live"}
        here = tuple(_with_rate(each, told.get(each.job, {})) for each in self._jobs.values())
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
        estimator, at_s = self._speeds.setdefault(job, ThroughputEstimator()), self._runtime.monotonic_s()
        facts |= of_job(estimator, facts, at_s) | {"rate_known": estimator.sure(at_s)}
        where = f"cluster {self._address}"
        return JobSnapshot(job=job, facts=facts, source="cluster", as_of_s=self._clock(), owner=where)

    async def _stranded(self, job: str, name: str) -> JobSnapshot | None:
        """Return a job whose channel waits for the disk of a lost host; None for other jobs."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                home = await self._runtime.awaits(name)
        except (PeerUnavailable, PeerGone, TimeoutError):
            return None
        if not home:
            return None
        why = f"for host {home}, which is gone with the job's journal on its disk; the job continues when it is back"
        where = f"cluster {self._address}"
        facts = {"outcome": "waiting", "why": why}
        return JobSnapshot(job=job, facts=facts, source="cluster", as_of_s=self._clock(), owner=where)


_RATE = ("rate_per_s", "left_s")


def _with_rate(seen: JobSnapshot, told: dict[str, Any]) -> JobSnapshot:
    """Return a job with the rate that its own process has measured, until this source has seen it for long enough.

    One look has no rate. Where no process publishes one, the rate is not known (None), which is not 0.
    """
    if seen.facts.get("rate_known", True):
        return seen
    return msgspec.structs.replace(seen, facts=seen.facts | {name: told.get(name) for name in _RATE})


def _once(clusters: tuple[ClusterSnapshot, ...]) -> tuple[ClusterSnapshot, ...]:
    """Return clusters without duplicates. A scheduler's own answer wins over one published by a driver."""
    found: dict[str, ClusterSnapshot] = {}
    for each in clusters:
        found.setdefault(str(each.status.get("cortex", "")), each)
    return tuple(found.values())
