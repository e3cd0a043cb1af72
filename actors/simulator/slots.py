"""Slots of a server that queues, with counts of requests worked on and of requests that wait."""

import asyncio
from typing import Literal


class Slots(asyncio.Semaphore):
    """Slots, taken first come first served."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.working = 0
        """Requests in a slot."""
        self.waiting = 0
        """Requests that wait for one."""

    async def acquire(self) -> Literal[True]:
        """Wait for a slot and take it."""
        self.waiting += 1
        try:
            await super().acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        return True

    def release(self) -> None:
        """Give a slot back."""
        self.working -= 1
        super().release()
