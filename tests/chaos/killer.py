"""The kills: who, when, and how many permits were out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Any

import msgspec

from actors.ports.runtime import PeerGone, PeerUnavailable
from tests.chaos.ray_cluster import Ground, Size, largest, look

KINDS = ("branch", "branch", "worker", "channel", "cortex", "node")
"""In each round everyone's turn comes, in an order drawn by chance."""
ASK_S = 3.0
LOOK_S = 0.5
HASTE = 0.3
"""Share of the kills that come whether or not the job got on since the last one: two deaths together are another case
than one after the other. The other kills wait until it did, so that a slow machine is tried as hard as a fast one."""
PATIENCE = 8.0
"""For so many times the mean between two kills, and no longer."""


class Havoc:
    """Kills somebody every few seconds, while it runs; ``seed`` decides who and when."""

    def __init__(self, ground: Ground, runtime: Any, job: str, every_s: float, seed: int, say: Any) -> None:
        self.kills: Counter[str] = Counter()
        self.permits_out = 0
        """Summed over the kills."""
        self.permits = 0
        """The most that the job was ever told to have."""
        self.results = 0
        """As last told; and at the last kill."""
        self._results_then = 0
        self._ground = ground
        self._runtime = runtime
        self._job = job
        self._every_s = every_s
        self._chance = random.Random(seed)
        self._round: list[str] = []
        self._say = say
        self._began_s = time.monotonic()

    async def facts(self) -> dict[str, Any] | None:
        """What the job's channel tells; None while there is none."""
        try:
            async with asyncio.timeout(ASK_S):
                blob = await self._runtime.peer(f"channel:{self._job}").ask("status")
        except (PeerUnavailable, PeerGone, TimeoutError):
            return None
        facts = dict(msgspec.json.decode(blob))
        self.permits, self.results = max(self.permits, facts["permits"]), facts["results"]
        return facts

    async def one(self) -> None:
        """Kill one of those that can be found, of a kind drawn by chance.

        What was out is what the channel tells just before; while it is away, the most that it ever had.
        """
        if not self._round:
            self._round = self._chance.sample(KINDS, len(KINDS))
        kind = self._round.pop(0)
        facts = await self.facts()
        out = facts["permits"] if facts else self.permits
        if kind == "node":
            if not self._ground.whole:
                return self._round.append(kind)
            victim = self._chance.choice(self._ground.others)
            self._ground.kill(victim)
            name = f"node {victim}"
        else:
            found = await self._victim(kind)
            if found is None:
                return self._round.append(kind)
            name, pid = found
            os.kill(pid, signal.SIGKILL)
        self.kills[kind] += 1
        self._results_then = self.results
        self.permits_out += out
        done = facts["results"] if facts else "?"
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  killed {name}, {out} permits out, {done} results")

    async def _victim(self, kind: str) -> tuple[str, int] | None:
        names = list(await self._runtime.names(kind))
        self._chance.shuffle(names)
        for name in names:
            pid = await self.pid(name)
            if pid:
                return name, pid
        return None

    async def pid(self, name: str) -> int:
        """The process of an actor; 0 while it has none."""
        try:
            async with asyncio.timeout(ASK_S):
                _, pid = await self._runtime.peer(name).ask("hello")
        except (PeerUnavailable, PeerGone, TimeoutError):
            return 0
        return int(pid)

    async def until(self, over: asyncio.Event, results: int, kills: int) -> None:
        """Kill and kill, until it is over or so many results are there: the last few may be calls that hang."""
        while not over.is_set() and self.results < results and self.kills.total() < kills:
            try:
                async with asyncio.timeout(self._every_s * self._chance.uniform(0.5, 1.5)):
                    await over.wait()
            except TimeoutError:
                if self._chance.random() >= HASTE:
                    await self._got_on(over)
                if not over.is_set():
                    await self.one()

    async def _got_on(self, over: asyncio.Event) -> None:
        """Wait for a result that was not there at the last kill."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE * self._every_s):
                while not over.is_set():
                    await self.facts()
                    if self.results > self._results_then:
                        return
                    await asyncio.sleep(LOOK_S)

    async def census(self) -> dict[str, Size]:
        """The largest process of each role."""
        found: dict[str, Size] = {}
        for role in ("cortex", "channel", "branch", "worker"):
            for name in await self._runtime.names(role):
                seen = look(await self.pid(name))
                found[role] = largest([seen, found.get(role, seen)])
        return found
