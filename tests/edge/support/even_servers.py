"""Scripted servers that keep step: how a job shares its calls among them is not decided by who is given a processor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http

STILL_S = 20.0
"""Seconds for which a server waits for the others in all. They are over if the job does not ask the others."""


class EvenServers:
    """Scripts of servers none of which is further ahead of the others than ``ahead`` calls. A server whose thread stood
    still for a moment would else leave its part to the others."""

    def __init__(self, count: int, ahead: int) -> None:
        self.calls = [0] * count
        self._ahead = ahead
        self._left_s = STILL_S

    def script(self, place: int) -> Callable[[Asked], Coroutine[Any, Any, Answer]]:
        """Return the script of one of them."""

        async def answer(asked: Asked) -> Answer:
            if b'"messages"' in asked.body:
                self.calls[place] += 1
                await self._in_step(self.calls[place])
            return http(MESSAGE)

        return answer

    async def _in_step(self, call: int) -> None:
        while call > min(self.calls) + self._ahead and self._left_s > 0:
            began_s = time.monotonic()
            await asyncio.sleep(0.005)
            self._left_s -= time.monotonic() - began_s
