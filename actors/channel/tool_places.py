"""Places for tool runs on workers: a run waits in its channel until a worker can begin it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from actors.worker.run_places import has_place

FULL_S = 0.5
"""Seconds until a worker that had no room, or did not answer, is asked again: other jobs use it too."""


class ToolPlaces:
    """Places on the workers that one job's tool runs hold, and the runs that wait for one.

    Tools take turns, so that many runs of one tool do not delay another's. The worker with the fewest runs of this job
    is chosen. Workers are shared by jobs and decide themselves (``Worker.hold``); the bounds here spare them requests.
    """

    def __init__(self) -> None:
        self.workers: tuple[str, ...] = ()
        """Names of the workers that run tools, as last told."""
        self._held: Counter[tuple[str, str]] = Counter()
        """Runs by worker and tool."""
        self._by_worker: Counter[str] = Counter()
        self._by_tool: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[asyncio.Future[str], int]]] = {}
        """Waiting runs by tool, each with the runs of this tool that the job may have at once; 0: any number. The tool
        whose turn is next is the first."""
        self._resting: set[tuple[str, str]] = set()
        """Workers that had no room for a tool, and the tool."""
        self._turn = 0

    def staffed(self, workers: tuple[str, ...]) -> None:
        """Take the workers that run tools from now on."""
        self.workers = workers
        self._deal()

    async def take(self, tool: str, at_once: int) -> str:
        """Wait for a place of this tool; return the name of its worker. ``give_back`` must follow."""
        place: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tool, deque()).append((place, at_once))
        self._deal()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back(place.result(), tool)
            raise

    def give_back(self, worker: str, tool: str, full: bool = False) -> None:
        """Return a place. ``full``: the worker did not take the run, and gets none of this tool for a while, or until a
        run of this job ends there.
        """
        self._held[worker, tool] -= 1
        self._by_worker[worker] -= 1
        self._by_tool[tool] -= 1
        if not full:
            self._resting -= {each for each in self._resting if each[0] == worker}
        elif (worker, tool) not in self._resting:
            self._resting.add((worker, tool))
            asyncio.get_running_loop().call_later(FULL_S, self._rested, (worker, tool))
        self._deal()

    def _rested(self, place: tuple[str, str]) -> None:
        self._resting.discard(place)
        self._deal()

    def _deal(self) -> None:
        """Give the free places to the waiting runs, one for each tool in turn."""
        passed = 0
        while passed < len(self._waiting):
            tool = next(iter(self._waiting))
            line = self._waiting.pop(tool)
            while line and line[0][0].done():  # cancelled
                line.popleft()
            if not line:
                continue
            self._waiting[tool] = line  # it is the last one now
            place, at_once = line[0]
            worker = self._free(tool) if not at_once or self._by_tool[tool] < at_once else ""
            if not worker:
                passed += 1
                continue
            passed = 0
            line.popleft()
            self._held[worker, tool] += 1
            self._by_worker[worker] += 1
            self._by_tool[tool] += 1
            place.set_result(worker)

    def _free(self, tool: str) -> str:
        """Return the worker for the next run of a tool; empty if none has room. Of equals the next in turn."""
        self._turn += 1
        count = len(self.workers)
        best, least = "", 0
        for step in range(count):
            worker = self.workers[(self._turn + step) % count]
            runs = self._by_worker[worker]
            fewest = not best or runs < least
            if fewest and (worker, tool) not in self._resting and has_place(self._held[worker, tool], runs):
                best, least = worker, runs
        return best
