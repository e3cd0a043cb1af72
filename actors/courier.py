"""A courier brings what happened at a branch to one channel, and keeps it until it is on that channel's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from actors.ports import Peer

MESSAGE_EVENTS_MAX = 256
MESSAGE_BYTES_MAX = 90_000
UNDER_WAY_MAX = 2
"""Messages on their way at once: one travels while the other is written to disk."""
ANSWER_S = 20.0
"""A message that has no answer by then is sent again: a call to an actor that was killed may never end. K knows what
came twice."""
GATHERED = 64
"""So many go at once. With fewer, where many are under way, a message waits a moment to grow: it costs as much CPU, on
both sides together, as forty replies in it."""
PATIENCE_S = 600.0
"""How long a reply is kept for a channel that is gone: it was paid for, and the channel may be started again."""

_encoder = msgspec.msgpack.Encoder()


class Courier:
    """Whatever is ready goes at once; what becomes ready meanwhile goes together."""

    def __init__(
        self, sender: str, incarnation: str, channel: Peer, more: Callable[[], bool] = lambda: True,
        gather_s: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """``more`` says whether anything may become ready soon, ``gather_s`` how long it is worth waiting for that."""
        self._sender = sender
        self._incarnation = incarnation
        self._channel = channel
        self._more = more
        self._gather_s = gather_s
        self._ready: list[tuple[tuple[int, int], bytes]] = []
        self._kept: set[tuple[int, int]] = set()
        self._under_way = 0
        self._gathering = False
        """One is about to take along whatever is ready."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, event: Any) -> None:
        """Something happened."""
        key = (event.goal, event.attempt)
        self._kept.add(key)
        self._ready.append((key, _encoder.encode(event)))
        if not self._gathering and self._under_way < UNDER_WAY_MAX:
            self._gathering = True
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._carry())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def keys(self) -> tuple[tuple[int, int], ...]:
        """(goal, attempt) of all that waits here."""
        return tuple(self._kept)

    async def close(self) -> None:
        """Give up what is not delivered."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self) -> None:
        try:
            if self._more():
                await asyncio.sleep(0)  # what becomes ready in this same round of the loop travels along
                if len(self._ready) < GATHERED and (gather_s := self._gather_s()) > 0:
                    await asyncio.sleep(gather_s)
            self._gathering = False
            while self._ready:
                keys, blob = self._packed()
                await self._deliver(blob)
                self._kept.difference_update(keys)
        finally:
            self._gathering = False
            self._under_way -= 1

    def _packed(self) -> tuple[list[tuple[int, int]], bytes]:
        size = 0
        count = 0
        for _, blob in self._ready[:MESSAGE_EVENTS_MAX]:
            size += len(blob)
            if count and size > MESSAGE_BYTES_MAX:
                break
            count += 1
        some, self._ready = self._ready[:count], self._ready[count:]
        return [key for key, _ in some], _encoder.encode([msgspec.Raw(blob) for _, blob in some])

    async def _deliver(self, blob: bytes) -> None:
        waited_s = 0.0
        pause_s = 0.1
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._channel.ask("deliver", self._sender, self._incarnation, blob)
                return
            except Exception:  # silent, away, gone, fenced, a full disk: whoever owns the job next shall have it
                if waited_s >= PATIENCE_S:
                    return
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                pause_s = min(2.0, pause_s * 2)
