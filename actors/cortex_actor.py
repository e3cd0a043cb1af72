"""The cortex: admits jobs, leases them their share of what a provider allows, starts and ends branches and workers.

Its decisions are ``cortex.scheduler.step``; it never sees a prompt or a reply.
"""

from __future__ import annotations

import asyncio
from typing import Any

from actors.ports import Gone, Runtime
from actors.reporter import REPORT_S
from cortex import leases as scheduler

TICK_S = scheduler.LEASE_S / 3


class Cortex:
    """One per cluster namespace. ``branches`` and ``workers`` are how many of each serve the jobs."""

    def __init__(self, runtime: Runtime, branches: int = 1, workers: int = 1) -> None:
        self._runtime = runtime
        self._branches = tuple(f"branch:{slot}" for slot in range(branches))
        self._workers = tuple(f"worker:{slot}" for slot in range(workers))
        self._leases = scheduler.Leases()
        self._ticking: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._awaited: set[str] = set()
        """After a restart: jobs that may hold a share, and have not yet said so."""

    async def begin(self, again: bool) -> None:
        """Come to life. ``again``: an earlier incarnation may have granted what nobody here remembers."""
        if not again:
            return
        scheduler.step(self._leases, scheduler.Started(self._runtime.monotonic_s()))
        self._awaited = {name.partition(":")[2] for name in await self._runtime.names("channel:")}
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        """Ask every channel that lives to join again. Once all have, nothing unknown can be held by anybody."""
        await asyncio.gather(*map(self._call_back, tuple(self._awaited)))
        self._pass_on(self._heard())

    async def _call_back(self, job: str) -> None:
        try:
            if not await self._runtime.peer(f"channel:{job}").ask("rejoin"):
                self._awaited.discard(job)
        except Gone:
            self._awaited.discard(job)
        except Exception:  # away, or not able to start: what it holds is known when its lease has run out
            return

    def _heard(self) -> list[scheduler.Grant]:
        if self._awaited or not self._leases.silent_until_s:
            return []
        return scheduler.step(self._leases, scheduler.Heard(self._runtime.monotonic_s()))

    async def staff(self, workers: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the branches and workers, started where they do not live yet."""
        await asyncio.gather(*(self._runtime.start_actor("branch", name) for name in self._branches))
        if workers:
            await asyncio.gather(*(self._runtime.start_actor("worker", name) for name in self._workers))
        return self._branches, self._workers

    async def missed(self, name: str) -> None:
        """A channel finds nobody of that name: whoever should be there is started again."""
        if name in self._branches:
            await self._runtime.start_actor("branch", name)

    async def join(self, job: str, pool: str, wanted: int, held: int, weight: float = 1.0) -> int:
        """A channel's claim, or its renewal: the permits it may use for one lease time."""
        at_s = self._runtime.monotonic_s()
        grants = scheduler.step(self._leases, scheduler.Joined(at_s, job, pool, wanted, held, weight))
        self._awaited.discard(job)
        grants += self._heard()
        self._pass_on([grant for grant in grants if grant.job != job])
        self._tick_on()
        return [grant.permits for grant in grants if grant.job == job][-1]

    async def leave(self, job: str) -> None:
        """A job has ended."""
        self._pass_on(scheduler.step(self._leases, scheduler.Left(self._runtime.monotonic_s(), job)))

    async def report(self, blob: bytes) -> float:
        """Signs of progress of a branch or a worker. Seconds until its next report is wanted."""
        return REPORT_S

    async def status(self) -> dict[str, Any]:
        """Who holds what."""
        holders = self._leases.holders.values()
        return {"jobs": {holder.job: holder.granted for holder in holders}, "limits": dict(self._leases.limits)}

    async def close(self) -> None:
        """Stop."""
        for task in (self._ticking, self._hearing):
            if task is not None:
                task.cancel()

    def _pass_on(self, grants: list[scheduler.Grant]) -> None:
        for grant in grants:
            self._runtime.peer(f"channel:{grant.job}").tell("granted", grant.permits)

    def _tick_on(self) -> None:
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        """Let leases expire while there are any; with no job there is nothing to do, and nothing is done."""
        while self._leases.holders:
            await asyncio.sleep(TICK_S)
            self._pass_on(scheduler.step(self._leases, scheduler.Passed(self._runtime.monotonic_s())))
