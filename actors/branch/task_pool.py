"""Pool of the coroutines that make a branch's calls: a task for each call would cost more than most of the other work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from actors.branch.in_flight import InFlightCall


class TaskPool:
    """Pool with as many tasks as calls were ever under way at once. ``make`` takes calls out of a queue and makes them,
    one after the other, until none is left, in the given task.

    One task is woken at first. As long as calls wait, each round of the loop wakes twice as many tasks, so that a
    hundred calls are under way after seven rounds; if a model answers at once, the first task has made all calls before
    that.
    """

    def __init__(self, make: Callable[[deque[InFlightCall], asyncio.Task[None]], Awaitable[None]]) -> None:
        self._make = make
        self._queue: deque[InFlightCall] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        """Tasks that were woken and have not begun yet."""
        self._looking = False
        self._more = 1
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def queued(self) -> int:
        """Number of calls that no task has taken yet."""
        return len(self._queue)

    def give(self, some: Iterable[InFlightCall]) -> None:
        """Queue these calls."""
        self._queue.extend(some)
        if self._queue and not self._woken:
            self._wake()
        if not self._looking and len(self._queue) > self._woken:
            self._looking, self._more = True, 1
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Wake more tasks if calls still wait: the running ones are busy for the duration of their calls."""
        left = len(self._queue) - self._woken
        if not self._queue:
            self._looking = False
            return
        self._more *= 2
        for _ in range(min(self._more, left)):
            self._wake()
        asyncio.get_running_loop().call_soon(self._look)

    def _wake(self) -> None:
        """Wake one more task, or start it."""
        self._woken += 1
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        hand = asyncio.get_running_loop().create_task(self._work())
        self.tasks.add(hand)
        hand.add_done_callback(self.tasks.discard)

    async def _work(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        while True:
            self._woken -= 1
            if self._queue:
                await self._make(self._queue, task)
            waiter = loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
