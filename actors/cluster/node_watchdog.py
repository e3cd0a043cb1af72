"""Detection of a dead local node or head. A driver depends on one node of a Ray; when that node dies, Ray reports
nothing more to the driver, not even the death.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from actors.ports.runtime import ClusterLost

LOOK_S = 3.0
"""Seconds that an answer may take before the local node is checked, seconds between checks, and limit of a check."""
SILENT_S = 45.0
"""Seconds for which the head, which knows the live nodes, may be silent. Ray ends this process after 60 s of silence
(``gcs_rpc_server_reconnect_timeout_s``)."""
_ANOTHER = "WrongClusterID"
"""Part of the error of a head that was restarted without its earlier state."""


class NodeWatchdog:
    """Watchdog of the local node, for all event loops of the process.

    ``nodes`` returns the ids of the live nodes; ``node`` is the id of the local node.
    """

    def __init__(
        self, node: str, nodes: Callable[[], Awaitable[tuple[str, ...]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._clock = clock
        self._silent_from_s: float | None = None
        self._looked_s = 0.0
        """Time at which the last unanswered check ended."""
        self._begun_s = -LOOK_S
        """Time at which the last check beside questions began."""
        self._beside: asyncio.Task[None] | None = None
        self._answered = False
        """True once the head has answered a check: without that, its silence proves nothing."""
        self._lost = ""

    async def hold(self, question: Awaitable[Any]) -> Any:
        """Await a question: return its answer, or raise its error. Raises ``ClusterLost`` if no answer can come any
        more, or if the head has been silent for ``SILENT_S`` although actors on this node go on answering: over their
        sockets they need no head, until Ray ends this process.
        """
        self._look_beside()
        answer = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({answer}, timeout=LOOK_S))[0]:
                await self.look()
            if self._lost:
                raise ClusterLost(self._lost)
            return answer.result()
        finally:
            answer.cancel()

    def _look_beside(self) -> None:
        now_s = self._clock()
        if now_s < self._begun_s + LOOK_S or (self._beside is not None and not self._beside.done()):
            return
        self._begun_s = now_s
        self._beside = asyncio.get_running_loop().create_task(self._looked_beside())

    async def _looked_beside(self) -> None:
        try:
            if self._answered:
                await self.look()
                return
            async with asyncio.timeout(LOOK_S):
                await self._nodes()
            self._answered = True
        except ClusterLost as lost:
            self._lost = str(lost)
        except Exception:  # any error of Ray: nothing is known yet
            return

    async def look(self) -> None:
        """Check the local node and the head once.

        Raises ``ClusterLost`` if the node is dead, or the head has been silent for ``SILENT_S``.
        """
        began_s = self._clock()
        try:
            async with asyncio.timeout(LOOK_S):
                nodes = await self._nodes()
        except Exception as error:  # any error of Ray while its head is unavailable
            if _ANOTHER in str(error):
                raise ClusterLost("the head of the Ray of this run was restarted without its state") from None
            answered = began_s > self._looked_s + 2 * LOOK_S  # no check in between: the silence is counted from now
            if self._silent_from_s is None or answered:
                self._silent_from_s = began_s
            self._looked_s = self._clock()
            if self._looked_s - self._silent_from_s >= SILENT_S:
                raise ClusterLost("the head of the Ray that this run is attached to does not answer") from None
            return
        self._silent_from_s = None
        if self._node not in nodes:
            raise ClusterLost("the node of the Ray that this run was attached to has died")
