"""A courier brings what happened at a branch to one channel, and keeps it until it is on that channel's disk.

Where calls are so quick that the channel would wait for little else, what becomes of them comes with the answer to the
message that brought them: a step of a chain is one question and its answer. The channel's next message says that it is
on disk; until then it is kept here like everything else.
"""

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
QUICK_S = 0.005
"""So long a message may wait for what becomes of its calls. Where they take longer it is answered at once: the channel
sends nothing else to this branch meanwhile."""
PATIENCE_S = 600.0
"""How long a reply is kept for a channel that is gone: it was paid for, and the channel may be started again."""

_encoder = msgspec.msgpack.Encoder()

Key = tuple[int, int]
"""Goal and attempt."""
Packet = list[tuple[Key, bytes]]


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
        self._ready: Packet = []
        self._kept: set[Key] = set()
        self.quick = False
        """Whether the last call was so quick that it can be waited for."""
        self._asker: asyncio.Future[bool] | None = None
        """Set while a message waits for what becomes of its calls, ``_wanted`` of them; True: it may have it."""
        self._wanted = 0
        self._brought: dict[tuple[int, int], tuple[Packet, asyncio.TimerHandle]] = {}
        """What went with an answer, by the epoch and number of the message, until it is known to be on disk."""
        self._under_way = 0
        self._gathering = False
        """One is about to take along whatever is ready."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, event: Any) -> None:
        """Something happened."""
        key = (event.goal, event.attempt)
        self._kept.add(key)
        self._ready.append((key, _encoder.encode(event)))
        if self._asker is None:
            self._set_out()
        else:
            self._wanted -= 1
            if not self._wanted:
                _settle(self._asker, True)

    async def answer(self, epoch: int, number: int, count: int) -> bytes:
        """What becomes of a message's ``count`` calls within ``QUICK_S``, to go with its answer; empty: nothing yet."""
        loop = asyncio.get_running_loop()
        self._wanted, self._asker = count, loop.create_future()
        timer = loop.call_later(QUICK_S, _settle, self._asker, True)
        packet: Packet = []
        try:
            if await self._asker:
                packet = self._taken_out()
        finally:
            timer.cancel()
            self._asker = None
            if self._ready:
                self._set_out()
        if not packet:
            return b""
        timer = loop.call_later(ANSWER_S, self.again)
        self._brought[epoch, number] = packet, timer
        return _packed(packet)

    def on_disk(self, epoch: int, number: int) -> None:
        """What went with the answers to messages of this epoch, up to this number, is on the channel's disk."""
        for place in [each for each in self._brought if each[0] == epoch and each[1] <= number]:
            packet, timer = self._brought.pop(place)
            timer.cancel()
            self._kept.difference_update(key for key, _ in packet)

    def again(self) -> None:
        """Nobody knows whether what went with answers was heard: it goes once more, by itself."""
        _settle(self._asker, False)
        brought, self._brought = self._brought, {}
        for packet, timer in brought.values():
            timer.cancel()
            self._ready += packet
        if self._ready:
            self._set_out()

    def keys(self) -> tuple[Key, ...]:
        """(goal, attempt) of all that waits here."""
        return tuple(self._kept)

    async def close(self) -> None:
        """Give up what is not delivered."""
        _settle(self._asker, False)
        for _, timer in self._brought.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set_out(self) -> None:
        if not self._gathering and self._under_way < UNDER_WAY_MAX:
            self._gathering = True
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._carry())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self) -> None:
        try:
            if self._more():
                await asyncio.sleep(0)  # what becomes ready in this same round of the loop travels along
                if len(self._ready) < GATHERED and (gather_s := self._gather_s()) > 0:
                    await asyncio.sleep(gather_s)
            self._gathering = False
            while self._ready:
                packet = self._taken_out()
                await self._deliver(_packed(packet))
                self._kept.difference_update(key for key, _ in packet)
        finally:
            self._gathering = False
            self._under_way -= 1

    def _taken_out(self) -> Packet:
        """As much of what is ready as goes together."""
        size = 0
        count = 0
        for _, blob in self._ready[:MESSAGE_EVENTS_MAX]:
            size += len(blob)
            if count and size > MESSAGE_BYTES_MAX:
                break
            count += 1
        some, self._ready = self._ready[:count], self._ready[count:]
        return some

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


def _packed(packet: Packet) -> bytes:
    return _encoder.encode([msgspec.Raw(blob) for _, blob in packet])


def _settle(asker: asyncio.Future[bool] | None, may: bool) -> None:
    if asker is not None and not asker.done():
        asker.set_result(may)
