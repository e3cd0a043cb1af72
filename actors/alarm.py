"""One timer for moments that are put off again and again: most are, before they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_S = 0.001
"""Nobody is woken for less than this."""


class Alarm:
    """Calls ``ring`` at the moment that was set last, or before: whoever is woken looks again. A timer is made anew
    only where the moment is earlier than the one that it was made for."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, wait_s: float) -> bool:
        """Ring in so many seconds, ``LEAST_S`` at the least. False where it is less than that: the moment has come."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + max(LEAST_S, wait_s)
        if self._timer is None or at_s < self._at_s:
            self.close()
            self._at_s, self._timer = at_s, loop.call_at(at_s, self._rings)
        return wait_s >= LEAST_S

    def _rings(self) -> None:
        self._timer = None
        self._ring()

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
