"""Row intake of a channel: windows of rows from the driver, and acknowledgements of its sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from actors.channel.backpressure import Backpressure
from actors.messaging.answer_bounds import ANSWER_S
from actors.messaging.inbox import fed_entry
from actors.ports.runtime import PeerUnavailable
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State


class PutDurably(Protocol):
    """Function that gives events to the channel's next turn and returns once that turn is on disk."""

    def __call__(self, blob: bytes, size: int, batch: tuple[events.Event, ...] | None = None, /) -> Awaitable[None]:
        """Put events: encoded, their number for the inbox, and decoded if they are at hand.

        Raises ``StoreError`` if the channel cannot write its journal any more.
        """


class RowIntake:
    """Row intake of one channel.

    ``put`` writes events durably, ``state`` returns the job's state as it is now, and ``over`` whether the channel
    takes no more turns.
    """

    def __init__(self, put: PutDurably, state: Callable[[], State], over: Callable[[], bool]) -> None:
        self._put = put
        self._state = state
        self._window: tuple[bytes, int, int, bool] | None = None
        """Latest window, until its turn is on disk."""
        self._putting: asyncio.Future[None] | None = None
        self.backpressure = Backpressure(state, over)

    async def feed(self, rows: bytes, start: int, position: int, ended: bool) -> int:
        """Take a window of source rows. Return, once the window is on disk, how many more rows are wanted now.

        A sender that has no answer in ``ANSWER_S`` sends the window again, while its turn may wait much longer for a
        database (``actors.journal.retrying.PATIENCE_S``). A copy waits for the turn of the first: windows of 64 MB
        would fill the memory. Raises ``PeerUnavailable`` after ``ANSWER_S``, when the sender has given up, so that no
        copy outlives its request; the window stays in the inbox.
        """
        window = (rows, start, position, ended)
        if self._putting is None or window != self._window:
            fed = fed_entry(*window)
            self._window = window
            self._putting = asyncio.ensure_future(self._put(fed.blob, fed.size, fed.batch))
            self._putting.add_done_callback(self._landed)
        putting = self._putting
        await asyncio.wait((putting,), timeout=ANSWER_S)
        if not putting.done():
            raise PeerUnavailable(f"the rows from {start:,} on are not on disk after {ANSWER_S:.0f} s: send them again")
        putting.result()
        return self._state().rows_wanted()

    def _landed(self, putting: asyncio.Future[None]) -> None:
        """Forget a window whose turn is on disk or has failed: a later copy is another message."""
        if putting is self._putting:
            self._window = self._putting = None
        if not putting.cancelled():
            putting.exception()  # else asyncio logs the error of a window whose sender has given up

    async def room(self, enough: int, least: int, wait_s: float) -> int:
        """Wait for room, and return how many more rows are wanted (see ``actors.channel.backpressure``)."""
        return await self.backpressure.room(enough, least, wait_s)

    async def written(
        self, rows: int, size_bytes: int, parts: tuple[int, ...], edition: int | None = None, checksum: int = -1
    ) -> None:  # fmt: skip
        """Record that the sink holds this many results on disk, with this CRC-32; ``parts`` counts them per shard.

        ``edition``: ``State.edition`` of the list that was written; None: not known. A late message about a list from
        which a retry has taken rows says nothing: the driver would keep the old results of these rows.
        """
        if edition is not None and edition != self._state().edition:
            return
        event = events.ResultsWritten(rows, size_bytes, tuple(parts), checksum)
        await self._put(codec.encode_batch([event]), 1, (event,))
