"""A courier brings what happened at a branch to one channel, and keeps it until it is on that channel's disk.

Where calls are quick, what becomes of them comes with the answer to the message that brought them: a step of a chain is
one question and its answer, and where there are many calls half of the messages need not be sent. Where they are not,
what is ready comes with it; where many are under way the answer waits a moment, until others are, for the same reason.
The channel's next message says that it is on disk; until then it is kept here like everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from typing import Any

import msgspec

from actors.branch.coalescing import GATHER_S, GATHERED, many
from actors.common.timers import LEAST_S, RearmableTimer
from actors.messaging.payload import Payload, of_events
from actors.ports.runtime import NEAR_BYTES_MAX, NEAR_MAX, Peer, is_near

MESSAGE_EVENTS_MAX = 256
MESSAGE_BYTES_MAX = 90_000
LIKELY = 0.95
"""How much of that a message would have if its events were as large as those before: one that has more is cut, and
encoded twice."""
UNDER_WAY_MAX = 2
"""Messages on their way at once: one travels while the other is written to disk."""
ANSWER_S = 20.0
"""A message that has no answer by then is sent again: a call to an actor that was killed may never end. K knows what
came twice."""
QUICK_S = 0.005
"""So long a message may wait for what becomes of its calls. Where they take longer it is answered at once: the channel
sends nothing else to this branch meanwhile."""
PATIENCE_S = 600.0
"""How long a reply is kept for a channel that is gone: it was paid for, and the channel may be started again."""

_encoder = msgspec.msgpack.Encoder()

_log = logging.getLogger("cortex.courier")

Key = tuple[int, int]
"""Goal and attempt."""
Packet = list[Any]
"""Events that go together."""
Tell = Callable[[bytes], None]
"""Hears what goes with an answer; empty: nothing does."""


class ReplyOutbox:
    """Whatever is ready goes at once; what becomes ready meanwhile goes together."""

    def __init__(
        self, sender: str, incarnation: str, channel: Peer, calls: Callable[[], int] = lambda: 1,
        gather_s: Callable[[float, bool], float] = lambda took_s, near: 0.0,
    ) -> None:  # fmt: skip
        """``calls`` says how many of its job are under way here: calls of others come to another channel. ``gather_s``
        is how long it is worth waiting for some of many, as ``worth_s`` has it."""
        self._sender = sender
        self._incarnation = incarnation
        self._channel = channel
        self._events_max, self._bytes_max = MESSAGE_EVENTS_MAX, MESSAGE_BYTES_MAX
        self._near = is_near(channel)
        if self._near:
            self._events_max, self._bytes_max = NEAR_MAX, NEAR_BYTES_MAX
        self._calls = calls
        self._gather_s = gather_s
        self._ready: Packet = []
        self._size = 1.0
        """Bytes of an event of the last message, about."""
        self.quick, self.took_s = False, 0.0
        """Whether the last call was so quick that it can be waited for; how long they take, about."""
        self._waiter: asyncio.Future[bool] | _Callback | None = None
        """Set while a message waits for what becomes of its calls, ``_wanted`` of them; True: it may have it."""
        self._wanted = 0
        self._asker_until_s = 0.0
        self._alarm = RearmableTimer(self._rung)
        self._brought: dict[tuple[int, int], tuple[Packet, float]] = {}
        """What went with an answer and when, by epoch and number of the message, until it is known to be on disk."""
        self._reminder = RearmableTimer(self._remind)
        self._under_way = 0
        self._travelling: dict[int, Packet] = {}
        self._messages = 0
        self._gathering = False
        """One is about to take along whatever is ready."""
        self._pause: asyncio.Future[bool] | None = None
        """Set while that one waits for others, until ``_enough`` are here, ``_paused_s`` at most."""
        self._enough, self._paused_s = 0, 0.0
        self._closed = False
        self._agains = 0
        """How often it was told that nobody knows what was heard."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, event: Any) -> None:
        """Something happened."""
        self._ready.append(event)
        if self._waiter is None:
            if not self._gathering:
                self._set_out()
            elif self._pause is not None and (
                len(self._ready) >= self._enough or 2 * self._gather_s(self.took_s, self._near) < self._paused_s
            ):  # there are enough; or a quick one is among them, and they wait as it suits slow ones
                _settle(self._pause, True)
        else:
            self._wanted -= 1
            if not self._wanted:
                _settle(self._waiter, True)

    async def answer(self, epoch: int, number: int, count: int) -> bytes:
        """What becomes of a message's ``count`` calls within ``QUICK_S``, to go with its answer; empty: nothing yet."""
        return await self._waited(epoch, number, count, QUICK_S)

    @property
    def asked(self) -> bool:
        """Whether a message waits for what becomes of its calls."""
        return self._waiter is not None

    @property
    def patient(self) -> bool:
        """Whether replies wait for each other for so long that no message's answer may wait with them: the channel
        sends nothing else to this branch until it is answered."""
        return self._moment_s() > GATHER_S

    def expect(self, epoch: int, number: int, count: int, tell: Tell) -> None:
        """``answer``, for one who does not wait and is told. Nobody else waits (``asked``)."""
        self._wanted, self._waiter = count, _Callback(self, epoch, number, tell)
        self._asker_until_s = asyncio.get_running_loop().time() + QUICK_S
        self._alarm.set(QUICK_S)

    def answered(self, asker: _Callback, may: bool) -> None:
        """What the one who is told was waiting for is there, as far as it will be; ``may``: it may have it."""
        blob: bytes
        packet, blob = self._taken_out() if may else ([], Payload())
        self._waiter = None
        if self._ready:
            self._set_out()
        if packet:
            blob = self._sent_along(asker.epoch, asker.number, packet, blob)
        else:
            self.quick, blob = False, b""  # none of it could be put into bytes, or it was not theirs
        try:
            asker.send(blob)
        except Exception:  # whoever made these calls makes others, too
            _log.exception("what came of message %d was not heard", asker.number)

    async def gathered(self, epoch: int, number: int) -> bytes:
        """What is ready, to go with the answer to a message: where many are under way, ``GATHERED`` or as many as fit,
        or what there is of them after the moment that this is worth. Empty: nothing is ready."""
        if self._waiter is not None:
            return b""
        wait_s, lacking = self._moment_s(), self._sought() - len(self._ready)
        if wait_s > 0 and lacking > 0:
            return await self._waited(epoch, number, lacking, wait_s)
        packet, blob = self._taken_out()
        return self._sent_along(epoch, number, packet, blob) if packet else b""

    async def _waited(self, epoch: int, number: int, count: int, within_s: float) -> bytes:
        """``count`` events more, or what there is of them when the time is over. Nothing else sets out meanwhile."""
        loop = asyncio.get_running_loop()
        _settle(self._waiter, False)  # one message at a time waits: another channel's, or another incarnation's
        asker: asyncio.Future[bool] = loop.create_future()
        self._wanted, self._waiter, self._asker_until_s = count, asker, loop.time() + within_s
        self._alarm.set(within_s)
        agains = self._agains
        packet: Packet = []
        blob = Payload()
        try:
            if await asker and agains == self._agains:  # else whoever asked is answered no more
                packet, blob = self._taken_out()
        finally:
            if self._waiter is asker:
                self._waiter = None
                if self._ready:
                    self._set_out()
        if not packet:
            self.quick = False
            return b""
        return self._sent_along(epoch, number, packet, blob)

    def _sent_along(self, epoch: int, number: int, packet: Packet, blob: bytes) -> bytes:
        self._brought[epoch, number] = packet, asyncio.get_running_loop().time()
        if not self._reminder.is_set:
            self._reminder.set(ANSWER_S)
        return blob

    def _rung(self) -> None:
        """A message has waited for as long as it may, or for less: then it waits on."""
        if self._waiter is not None and not self._waiter.done():
            left_s = self._asker_until_s - asyncio.get_running_loop().time()
            if left_s < LEAST_S:
                self._waiter.set_result(True)
            else:
                self._alarm.set(left_s)

    def _remind(self) -> None:
        """Whether something has waited for too long to be heard of on disk."""
        if self._brought:
            left_s = min(at_s for _, at_s in self._brought.values()) + ANSWER_S - asyncio.get_running_loop().time()
            if left_s < LEAST_S:
                self.again()
            else:
                self._reminder.set(left_s)

    def on_disk(self, epoch: int, number: int) -> None:
        """What went with the answers to messages of this epoch, up to this number, is on the channel's disk."""
        brought = self._brought
        if len(brought) == 1 and (epoch, number) in brought:  # as it is where one is asked after another
            brought.clear()
        else:
            for place in [each for each in brought if each[0] == epoch and each[1] <= number]:
                del brought[place]

    def again(self) -> None:
        """Nobody knows whether what went with answers was heard: it goes once more, by itself."""
        self._agains += 1
        _settle(self._waiter, False)
        brought, self._brought = self._brought, {}
        for packet, _ in brought.values():
            self._ready += packet
        if self._ready:
            self._set_out()

    def keys(self) -> tuple[Key, ...]:
        """(goal, attempt) of all that waits here."""
        brought = (packet for packet, _ in self._brought.values())
        return tuple({(e.goal, e.attempt): None for e in chain(self._ready, *self._travelling.values(), *brought)})

    @property
    def busy(self) -> bool:
        """Whether anything waits here."""
        return bool(self._ready or self._travelling or self._brought)

    async def close(self) -> None:
        """Give up what is not delivered."""
        self._closed = True
        _settle(self._waiter, False)
        self._alarm.close()
        self._reminder.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _set_out(self) -> None:
        if not self._gathering and self._under_way < UNDER_WAY_MAX and not self._closed:
            self._gathering = True
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._carry())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self) -> None:
        gathering = True
        try:
            while gathering:
                if self._calls():
                    await asyncio.sleep(0)  # what becomes ready in this same round of the loop travels along
                    if (moment_s := self._moment_s()) > 0:
                        await self._grown(moment_s)
                self._gathering = gathering = False
                if self._waiter is not None:
                    return
                packet, blob = self._taken_out()
                if packet:
                    number = self._messages = self._messages + 1
                    self._travelling[number] = packet
                    await self._deliver(blob)
                    del self._travelling[number]
                if self._ready and not self._gathering:  # else another is about to take it
                    self._gathering = gathering = True
        finally:
            if gathering:
                self._gathering = False
            self._under_way -= 1

    def _moment_s(self) -> float:
        """How long it is worth waiting for others."""
        took_s, near = self.took_s, self._near
        if self._calls() + len(self._ready) <= many(took_s, near):
            return 0.0
        wait_s = self._gather_s(took_s, near)
        if wait_s > GATHER_S:  # not where a quick one is ready already
            wait_s = self._gather_s(min([took_s, *[each.elapsed_s for each in self._ready]]), near)
        return wait_s

    def _sought(self) -> int:
        """How many are waited for: no more than go together, nor than there are."""
        return min(GATHERED, self._room(), self._calls() + len(self._ready))

    async def _grown(self, moment_s: float) -> None:
        """Wait until as many are ready as are sought; a moment at most."""
        self._enough, self._paused_s = self._sought(), moment_s
        if len(self._ready) < self._enough:
            loop = asyncio.get_running_loop()
            self._pause = loop.create_future()
            timer = loop.call_later(moment_s, _settle, self._pause, False)
            try:
                await self._pause
            finally:
                timer.cancel()
                self._pause = None

    def _room(self) -> int:
        """How many events go together, by the size of those before."""
        return max(1, min(self._events_max, int(LIKELY * self._bytes_max / self._size)))

    def _taken_out(self) -> tuple[Packet, Payload]:
        """As much of what is ready as goes together, and the message of it."""
        some = self._ready[: self._room()]
        if not some:
            return some, Payload()
        count = len(some)
        try:
            blob = _encoder.encode(some)
        except Exception:  # one of them cannot be put into bytes: it is found out which
            blob = b""
        if not blob or (len(blob) > self._bytes_max and count > 1):
            some, blob, count = _cut(some, self._bytes_max)
        del self._ready[:count]
        self._size = len(blob) / max(1, count)
        return some, of_events(blob, some) if self._near else Payload(blob)

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


def _cut(some: Packet, bytes_max: int) -> tuple[Packet, bytes, int]:
    """Those of the first that go together, the message of them, and how many that deals with. What cannot be put into
    bytes goes nowhere: its channel will ask for it, and hear that it is lost."""
    packet: Packet = []
    blobs: list[msgspec.Raw] = []
    size = dealt = 0
    for event in some:
        try:
            blob = _encoder.encode(event)
        except Exception:
            _log.exception("attempt %d of goal %d cannot be told", event.attempt, event.goal)
        else:
            size += len(blob)
            if blobs and size > bytes_max:
                break
            blobs.append(msgspec.Raw(blob))
            packet.append(event)
        dealt += 1
    return packet, _encoder.encode(blobs), dealt


class _Callback:
    """One who is told, in the place of the future of one who waits."""

    __slots__ = ("_done", "_outbox", "epoch", "number", "send")

    def __init__(self, courier: ReplyOutbox, epoch: int, number: int, tell: Tell) -> None:
        self._outbox, self._done = courier, False
        self.epoch, self.number, self.send = epoch, number, tell

    def done(self) -> bool:
        """Whether it was told."""
        return self._done

    def set_result(self, may: bool) -> None:
        """Tell it."""
        self._done = True
        self._outbox.answered(self, may)


def _settle(asker: asyncio.Future[bool] | _Callback | None, may: bool) -> None:
    if asker is not None and not asker.done():
        asker.set_result(may)
