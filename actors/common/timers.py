"""What somebody waits for: one timer for moments that are put off again and again, most of them before they come; and a
bell for one who waits for whatever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_S = 0.001
"""Nobody is woken for less than this."""


class WakeEvent:
    """One coroutine waits, and whoever has something for it rings. ``asyncio.Event`` serves many, and takes twice as
    long to wait for. One that rings while nobody waits is not heard: whoever waits has looked just before."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake whoever waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Until it rings."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None


class RearmableTimer:
    """Calls ``ring`` at the moment that was set last, or before: whoever is woken looks again. A timer is made anew
    only where the moment is earlier than the one that it was made for."""

    __slots__ = ("_at_s", "_ring", "_timer", "is_set")

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_set = False
        """Whether it will ring. Who always sets the same wait need not set it again then."""

    def set(self, wait_s: float) -> bool:
        """Ring in so many seconds, ``LEAST_S`` at the least. False where it is less than that: the moment has come."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(LEAST_S, wait_s)
        if self._timer is None or at_s < self._at_s:
            self.close()
            self._at_s, self._timer, self.is_set = at_s, loop.call_at(at_s, self._rings), True
        return wait_s >= LEAST_S

    def _rings(self) -> None:
        self._timer, self.is_set = None, False
        self._ring()

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.is_set = None, False
