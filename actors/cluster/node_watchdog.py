"""A driver hangs on one node of a Ray. When that dies, Ray tells it nothing more, not even this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from actors.ports.runtime import ClusterLost

LOOK_S = 3.0
"""How long an answer may take before we look, and look again, whether our own node lives; and how long a look may."""
SILENT_S = 45.0
"""How long the head, which knows, may be silent. Ray ends this process after 60 s of it
(``gcs_rpc_server_reconnect_timeout_s``)."""
_ANOTHER = "WrongClusterID"
"""What a head says that knows nothing of those who were there before it."""


class NodeWatchdog:
    """``nodes`` tells which nodes live, and ``node`` is ours. It serves every event loop of the process."""

    def __init__(
        self, node: str, nodes: Callable[[], Awaitable[tuple[str, ...]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._clock = clock
        self._silent_from_s: float | None = None
        self._looked_s = 0.0
        """When the last look ended that found no answer."""

    async def hold(self, question: Awaitable[Any]) -> Any:
        """The answer, or what it raises. Raises ``ClusterLost`` where none can come any more."""
        answer = asyncio.ensure_future(question)
        try:
            while not (await asyncio.wait({answer}, timeout=LOOK_S))[0]:
                await self.look()
            return answer.result()
        finally:
            answer.cancel()

    async def look(self) -> None:
        """Raises ``ClusterLost`` where our node is dead, or the head has been silent for too long."""
        began_s = self._clock()
        try:
            async with asyncio.timeout(LOOK_S):
                nodes = await self._nodes()
        except Exception as error:  # whatever Ray says while its head is away
            if _ANOTHER in str(error):
                raise ClusterLost("the head of the Ray that this run was attached to has begun anew") from None
            answered = began_s > self._looked_s + 2 * LOOK_S  # nobody had reason to look meanwhile
            if self._silent_from_s is None or answered:
                self._silent_from_s = began_s
            self._looked_s = self._clock()
            if self._looked_s - self._silent_from_s >= SILENT_S:
                raise ClusterLost("the head of the Ray that this run is attached to does not answer") from None
            return
        self._silent_from_s = None
        if self._node not in nodes:
            raise ClusterLost("the node of the Ray that this run was attached to has died")
