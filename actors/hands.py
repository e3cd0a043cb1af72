"""The coroutines of a branch that make its calls: a pool, since a task a call costs more than most of the rest."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from actors.under_way import Under

CALLED = 2
"""Hands that are called at first; each calls as many more when it begins, so that a hundred calls are out after seven
rounds of the loop. Where a model answers at once, the first has made all of them before another begins."""


class Hands:
    """Each takes call after call; there are as many as calls were ever under way at once. ``make`` sees a call through,
    in the task that it is given."""

    def __init__(self, make: Callable[[Under, asyncio.Task[None]], Awaitable[None]]) -> None:
        self._make = make
        self._queue: deque[Under] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        """Those that were called and have not begun to look yet."""
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def queued(self) -> int:
        """Calls that nobody has taken up yet."""
        return len(self._queue)

    def give(self, some: Iterable[Under]) -> None:
        """These calls are to be made, too."""
        self._queue.extend(some)
        if self._woken < CALLED:
            self._call_others()

    def _call_others(self) -> None:
        for _ in range(min(CALLED, len(self._queue) - self._woken)):
            self._wake()

    def _wake(self) -> None:
        """Have one more look for a call."""
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
        task = asyncio.current_task()
        assert task is not None
        while True:
            self._woken -= 1
            begins = True
            while self._queue:
                under = self._queue.popleft()
                if begins:
                    begins = False
                    self._call_others()  # this one may be away for as long as its call takes
                await self._make(under, task)
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self) -> None:
        """Stop what they do."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
