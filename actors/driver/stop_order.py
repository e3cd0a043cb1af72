"""Order to end a job, from a user or a driver that failed: given to the job's channel until the channel has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.journal.journal import StoreError
from actors.ports.runtime import Peer, PeerGone, PeerUnavailable

ANSWER_S = 20.0
"""Seconds after which a channel that has not answered counts as unavailable: a call to a killed actor may never end."""
AWAY_PATIENCE_S = 120.0
"""Seconds to wait for a channel that refuses each question at once: on a cluster it is restarted. A driver counts the
pauses between its questions, and no question: a commit may wait for its database
(``actors.journal.retrying.PATIENCE_S``). So a channel that hangs is asked as often before it is given up, each time for
as long as ``actors.messaging.answer_bounds`` says."""


class StopOrder:
    """Latest order to end one job. ``channel`` returns the job's channel as it is now.

    A channel that is being restarted refuses each call at once: Ray fails "tasks submitted while the actor is in
    RESTARTING state" (docs.ray.io, *Actor fault tolerance*). An order that it refused is given again.
    """

    def __init__(self, channel: Callable[[], Peer]) -> None:
        self._channel = channel
        self._wanted: tuple[str, str] | None = None
        self._taken: tuple[str, str] | None = None
        """Order that the channel's journal has, or that a job which has ended or is broken does not need."""
        self._asking: asyncio.Task[None] | None = None

    def want(self, how: str, who: str) -> None:
        """Take an order: ``drain`` or ``cancel``. A drain changes nothing where there is an order already."""
        if self._wanted is None or how != "drain":
            self._wanted = (how, who)

    @property
    def open(self) -> bool:
        """Return whether there is an order that the channel is not known to have."""
        return self._wanted != self._taken

    async def give(self, within_s: float) -> bool:
        """Ask the channel to end the job, if it is not known to know. Return whether it knows, after ``within_s``
        seconds at most. The request goes on in the background; the next ``give`` repeats one that has failed.
        """
        if self.open:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._ask())
            asked = self._asking
            await asyncio.wait({asked}, timeout=within_s)
            if asked.done():
                if self._asking is asked:
                    self._asking = None
                asked.result()
        return not self.open

    def close(self) -> None:
        """End a request that is under way."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        wanted = self._wanted
        assert wanted is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._channel().ask("stop", *wanted)
        except (PeerUnavailable, TimeoutError):
            return
        except (PeerGone, StoreError):
            pass
        self._taken = wanted
