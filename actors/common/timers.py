"""Timers of one event loop: a timer that can be set again cheaply, and an event for one waiter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_S = 0.001
"""Shortest wait in seconds."""


class WakeEvent:
    """Event with one waiter; ``asyncio.Event`` serves many, and its wait takes twice as long.

    ``ring`` without a waiter has no effect: the waiter must check its condition just before it waits.
    """

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter, if any."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the next ``ring``."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None


class RearmableTimer:
    """Timer that calls ``ring`` at the time that was set last, or earlier: the callback must check the time.

    An asyncio timer is only created if the new time is earlier than that of the current one, since most times are put
    off before they come.
    """

    __slots__ = ("_at_s", "_ring", "_timer", "is_set")

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_set = False
        """True while a timer runs. With a constant wait it need not be set again then."""

    def set(self, wait_s: float) -> bool:
        """Set the timer to ``wait_s`` seconds from now, at least ``LEAST_S``. Return False if ``wait_s`` is less."""
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
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.is_set = None, False
