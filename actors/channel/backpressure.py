"""When a channel has room for more rows: who reads them waits for that, and asks for nothing meanwhile.

Each window is a commit of its own, so many small ones are to be avoided; but no place may be empty for want of a row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from cortex.state.events import Row
from cortex.state.state import State

ROOM_S = 10.0
"""How long a channel is asked to wait at most until it has room."""
OPEN_BYTES_MAX = 64_000_000
"""Of rows that are open in a channel at once."""
PAUSE_S = 0.04
"""A channel that has little left to ask takes a small window: it waits so long to grow."""


def thresholds(window_rows: int, narrower: int) -> tuple[int, int]:
    """From how many wanted rows on a window is worth its commit, half of the room that there is; and at least how many
    must be wanted. ``narrower``: by how many rows of long texts, images or documents the room is smaller."""
    return narrower + max(1, (window_rows - narrower) // 2), narrower + 1


def narrower_by(rows: Sequence[Row], window_rows: int) -> int:
    """By how many rows the window of a channel is narrowed where rows are as large as these: images, documents."""
    largest = max((len(row.body) for row in rows), default=0)
    return max(0, window_rows - max(1, OPEN_BYTES_MAX // largest)) if largest else 0


class Backpressure:
    """Of one channel: ``state`` gives K as it is now, ``over`` says whether nothing will happen there any more."""

    def __init__(self, state: Callable[[], State], over: Callable[[], bool]) -> None:
        self._state, self._over = state, over
        self._least = self._enough = 0
        """What is waited for; 0: nobody waits."""
        self._room = asyncio.Event()

    async def room(self, enough: int, least: int, wait_s: float) -> int:
        """How many more rows the job wants, as soon as these are ``enough``; or at least ``least``, and what it may
        still ask would soon be used up. In any case after so many seconds, and at the job's end."""
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
        """After each turn."""
        if self._enough:
            k = self._state()
            wanted = k.rows_wanted()
            if wanted >= self._enough or (wanted >= self._least and k.offered <= k.permits) or self._over():
                self.close()

    def close(self) -> None:
        """Nobody need wait any more."""
        self._enough = 0
        self._room.set()
