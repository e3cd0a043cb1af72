"""Back-pressure: the point at which a channel asks its driver for another window of rows.

Each window is a commit of its own, so large windows are preferred; but no permit may stay unused for lack of a row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from cortex.state.events import Row
from cortex.state.state import State

ROOM_S = 10.0
"""Seconds for which a driver asks a channel to wait for room, before it asks again."""
OPEN_BYTES_MAX = 64_000_000
"""Bytes of the rows that may be open in a channel at once."""
PAUSE_S = 0.04
"""Seconds for which a small window may grow, in a channel that has little left to ask."""


def thresholds(window_rows: int, narrower: int) -> tuple[int, int]:
    """Return how many wanted rows make a window worth its commit (half of the room), and the least number that does.

    ``narrower``: rows by which the room is smaller because rows are long texts, images or documents.
    """
    return narrower + max(1, (window_rows - narrower) // 2), narrower + 1


def narrower_by(rows: Sequence[Row], window_rows: int) -> int:
    """Return by how many rows a window is narrowed so that rows as large as these keep to ``OPEN_BYTES_MAX``."""
    largest = max((len(row.body) for row in rows), default=0)
    return max(0, window_rows - max(1, OPEN_BYTES_MAX // largest)) if largest else 0


class Backpressure:
    """Back-pressure of one channel.

    ``state`` returns the job's state as it is now, and ``over`` whether the channel takes no more turns.
    """

    def __init__(self, state: Callable[[], State], over: Callable[[], bool]) -> None:
        self._state, self._over = state, over
        self._least = self._enough = 0
        """Numbers of wanted rows that the driver waits for; 0 if it does not wait."""
        self._room = asyncio.Event()

    async def room(self, enough: int, least: int, wait_s: float) -> int:
        """Return how many more rows the job wants, once they are ``enough``.

        Returns earlier if at least ``least`` rows are wanted and all that may be asked now has its permit. Returns in
        any case after ``wait_s`` seconds, and at the end of the job.
        """
        if wait_s <= 0:
            return self._state().rows_wanted()
        self._enough, self._least = enough, least
        self._room.clear()
        self.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._room.wait()
        return self._state().rows_wanted()

    def look(self) -> None:
        """Wake the driver if its condition holds. Called after each turn."""
        if self._enough:
            k = self._state()
            wanted = k.rows_wanted()
            if wanted >= self._enough or (wanted >= self._least and k.offered <= k.permits) or self._over():
                self.close()

    def close(self) -> None:
        """Wake the driver."""
        self._enough = 0
        self._room.set()
