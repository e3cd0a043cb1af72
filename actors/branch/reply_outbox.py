"""Outbox of a branch for one channel: events are kept until they are on the channel's disk.

- Quick calls: their outcomes are sent with the answer to the message that brought the calls. A step of a chain is then
  one question and one answer, and with many calls half of the messages are saved.
- Other calls: events that are ready are sent with the answer. If many calls are under way, the answer waits a moment
  until more events are ready, for the same reason.

The channel's next message confirms that the events are on disk; until then they are kept, like all others.
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
"""Events in one message at most."""
MESSAGE_BYTES_MAX = 90_000
"""Bytes of a message at most."""
LIKELY = 0.95
"""Share of ``MESSAGE_BYTES_MAX`` that a message is planned to fill, by the size of earlier events. A larger message is
cut and encoded twice."""
UNDER_WAY_MAX = 2
"""Messages under way at once: one is sent while the other is written to disk."""
ANSWER_S = 20.0
"""Seconds after which a message without an answer is sent again: a call to a killed actor may never end. K recognizes
duplicates."""
QUICK_S = 0.005
"""Seconds that the answer to a message may wait for the outcomes of its calls. If they take longer, the answer is sent
at once: the channel sends nothing else to this branch before it is answered."""
PATIENCE_S = 600.0
"""Seconds that a reply is kept for a channel that is gone: the reply was paid for, and the channel may be restarted."""

_encoder = msgspec.msgpack.Encoder()

_log = logging.getLogger("cortex.courier")

Key = tuple[int, int]
"""Goal and attempt."""
Packet = list[Any]
"""Events of one message."""
Send = Callable[[bytes], None]
"""Callback with the encoded events of an answer; empty: none."""


class ReplyOutbox:
    """Outbox of events for one channel. Ready events are sent at once; events that become ready meanwhile go
    together.
    """

    def __init__(
        self, sender: str, incarnation: str, channel: Peer, calls: Callable[[], int] = lambda: 1,
        gather_s: Callable[[float, bool], float] = lambda took_s, near: 0.0,
    ) -> None:  # fmt: skip
        """Make an outbox for ``channel``.

        ``calls`` returns the number of calls under way of the channel's job. ``gather_s`` returns the seconds that
        replies wait for each other (``worth_s``).
        """
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
        """Mean bytes of an event of the last message."""
        self.quick, self.took_s = False, 0.0
        """True if the last call was quick enough to wait for; and the mean duration of calls in seconds."""
        self._waiter: asyncio.Future[bool] | _Callback | None = None
        """Set while an answer waits for ``_wanted`` events; its result is True if the answer may take the events."""
        self._wanted = 0
        self._asker_until_s = 0.0
        self._alarm = RearmableTimer(self._rung)
        self._brought: dict[tuple[int, int], tuple[Packet, float]] = {}
        """Events sent with an answer, and the time, by (epoch, number) of the message, until confirmed on disk."""
        self._reminder = RearmableTimer(self._remind)
        self._under_way = 0
        self._travelling: dict[int, Packet] = {}
        self._messages = 0
        self._gathering = False
        """True while a sender is about to take the ready events."""
        self._pause: asyncio.Future[bool] | None = None
        """Set while that sender waits for more events, until ``_enough`` are ready, ``_paused_s`` at most."""
        self._enough, self._paused_s = 0, 0.0
        self._closed = False
        self._agains = 0
        """Number of calls of ``again``."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, event: Any) -> None:
        """Add an event."""
        self._ready.append(event)
        if self._waiter is None:
            if not self._gathering:
                self._set_out()
            elif self._pause is not None and (
                len(self._ready) >= self._enough or 2 * self._gather_s(self.took_s, self._near) < self._paused_s
            ):  # enough are ready; or a quick call's is among them, and the wait was set for slow calls
                _settle(self._pause, True)
        else:
            self._wanted -= 1
            if not self._wanted:
                _settle(self._waiter, True)

    async def answer(self, epoch: int, number: int, count: int) -> bytes:
        """Return the outcomes of a message's ``count`` calls within ``QUICK_S``, to be sent with its answer; empty:
        none yet.
        """
        return await self._waited(epoch, number, count, QUICK_S)

    @property
    def asked(self) -> bool:
        """True while an answer waits for outcomes of its calls."""
        return self._waiter is not None

    @property
    def patient(self) -> bool:
        """True if replies wait for each other too long for an answer to wait with them: the channel sends nothing else
        to this branch before it is answered.
        """
        return self._moment_s() > GATHER_S

    def expect(self, epoch: int, number: int, count: int, send: Send) -> None:
        """Do as ``answer``, but call ``send`` instead of waiting. No other answer may be waiting (``asked``)."""
        self._wanted, self._waiter = count, _Callback(self, epoch, number, send)
        self._asker_until_s = asyncio.get_running_loop().time() + QUICK_S
        self._alarm.set(QUICK_S)

    def answered(self, asker: _Callback, may: bool) -> None:
        """Call ``tell`` with the events so far; ``may``: False if there must be none."""
        blob: bytes
        packet, blob = self._taken_out() if may else ([], Payload())
        self._waiter = None
        if self._ready:
            self._set_out()
        if packet:
            blob = self._sent_along(asker.epoch, asker.number, packet, blob)
        else:
            self.quick, blob = False, b""  # no event could be encoded, or the answer may take none
        try:
            asker.send(blob)
        except Exception:  # the calls of other messages must go on
            _log.exception("outcomes of message %d were not delivered", asker.number)

    async def gathered(self, epoch: int, number: int) -> bytes:
        """Return ready events to be sent with the answer to a message; empty: none.

        If many calls are under way: ``GATHERED`` events or as many as fit, or those that are ready after the wait that
        is worthwhile.
        """
        if self._waiter is not None:
            return b""
        wait_s, lacking = self._moment_s(), self._sought() - len(self._ready)
        if wait_s > 0 and lacking > 0:
            return await self._waited(epoch, number, lacking, wait_s)
        packet, blob = self._taken_out()
        return self._sent_along(epoch, number, packet, blob) if packet else b""

    async def _waited(self, epoch: int, number: int, count: int, within_s: float) -> bytes:
        """Wait for ``count`` more events, at most ``within_s``, and return the ready ones. No message is sent
        meanwhile.
        """
        loop = asyncio.get_running_loop()
        _settle(self._waiter, False)  # one answer waits at a time: the earlier is of another channel or incarnation
        asker: asyncio.Future[bool] = loop.create_future()
        self._wanted, self._waiter, self._asker_until_s = count, asker, loop.time() + within_s
        self._alarm.set(within_s)
        agains = self._agains
        packet: Packet = []
        blob = Payload()
        try:
            if await asker and agains == self._agains:  # otherwise the answer is not wanted any more
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
        """End the wait of an answer whose time is over; otherwise set the timer again."""
        if self._waiter is not None and not self._waiter.done():
            left_s = self._asker_until_s - asyncio.get_running_loop().time()
            if left_s < LEAST_S:
                self._waiter.set_result(True)
            else:
                self._alarm.set(left_s)

    def _remind(self) -> None:
        """Send again if events of an answer were not confirmed on disk in time."""
        if self._brought:
            left_s = min(at_s for _, at_s in self._brought.values()) + ANSWER_S - asyncio.get_running_loop().time()
            if left_s < LEAST_S:
                self.again()
            else:
                self._reminder.set(left_s)

    def on_disk(self, epoch: int, number: int) -> None:
        """Drop events sent with the answers to messages of this epoch, up to this number: they are on the channel's
        disk.
        """
        brought = self._brought
        if len(brought) == 1 and (epoch, number) in brought:  # the usual case: one message after another
            brought.clear()
        else:
            for place in [each for each in brought if each[0] == epoch and each[1] <= number]:
                del brought[place]

    def again(self) -> None:
        """Send the events of unconfirmed answers again, as messages: the answers may have been lost."""
        self._agains += 1
        _settle(self._waiter, False)
        brought, self._brought = self._brought, {}
        for packet, _ in brought.values():
            self._ready += packet
        if self._ready:
            self._set_out()

    def keys(self) -> tuple[Key, ...]:
        """Return (goal, attempt) of all events in the outbox."""
        brought = (packet for packet, _ in self._brought.values())
        return tuple({(e.goal, e.attempt): None for e in chain(self._ready, *self._travelling.values(), *brought)})

    @property
    def busy(self) -> bool:
        """True while the outbox holds events."""
        return bool(self._ready or self._travelling or self._brought)

    async def close(self) -> None:
        """Drop undelivered events."""
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
                    await asyncio.sleep(0)  # events that become ready in this round of the loop are sent along
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
                if self._ready and not self._gathering:  # otherwise another sender is about to take them
                    self._gathering = gathering = True
        finally:
            if gathering:
                self._gathering = False
            self._under_way -= 1

    def _moment_s(self) -> float:
        """Return the seconds that it is worthwhile to wait for more events."""
        took_s, near = self.took_s, self._near
        if self._calls() + len(self._ready) <= many(took_s, near):
            return 0.0
        wait_s = self._gather_s(took_s, near)
        if wait_s > GATHER_S:  # no long wait if the reply of a quick call is ready
            wait_s = self._gather_s(min([took_s, *[each.elapsed_s for each in self._ready]]), near)
        return wait_s

    def _sought(self) -> int:
        """Return the number of events to wait for: at most as many as fit, and as there are calls."""
        return min(GATHERED, self._room(), self._calls() + len(self._ready))

    async def _grown(self, moment_s: float) -> None:
        """Wait until as many events as sought are ready, at most ``moment_s``."""
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
        """Return the number of events that fit into a message, by the size of earlier events."""
        return max(1, min(self._events_max, int(LIKELY * self._bytes_max / self._size)))

    def _taken_out(self) -> tuple[Packet, Payload]:
        """Remove the events of one message from the ready ones; return them and the message."""
        some = self._ready[: self._room()]
        if not some:
            return some, Payload()
        count = len(some)
        try:
            blob = _encoder.encode(some)
        except Exception:  # an event cannot be encoded: ``_cut`` finds out which
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
            # unreachable, gone, fenced, or a full disk: the next channel of the job shall have the events
            except Exception:
                if waited_s >= PATIENCE_S:
                    return
                await asyncio.sleep(pause_s)
                waited_s += pause_s
                pause_s = min(2.0, pause_s * 2)


def _cut(some: Packet, bytes_max: int) -> tuple[Packet, bytes, int]:
    """Return the first events that fit into a message, the message, and the number of events dealt with.

    An event that cannot be encoded is dropped: its channel will ask for the attempt, and learn that it is lost.
    """
    packet: Packet = []
    blobs: list[msgspec.Raw] = []
    size = dealt = 0
    for event in some:
        try:
            blob = _encoder.encode(event)
        except Exception:
            _log.exception("outcome of attempt %d of goal %d cannot be encoded", event.attempt, event.goal)
        else:
            size += len(blob)
            if blobs and size > bytes_max:
                break
            blobs.append(msgspec.Raw(blob))
            packet.append(event)
        dealt += 1
    return packet, _encoder.encode(blobs), dealt


class _Callback:
    """Stand-in for the future of an answer that is not awaited but called back."""

    __slots__ = ("_done", "_outbox", "epoch", "number", "send")

    def __init__(self, outbox: ReplyOutbox, epoch: int, number: int, send: Send) -> None:
        self._outbox, self._done = outbox, False
        self.epoch, self.number, self.send = epoch, number, send

    def done(self) -> bool:
        """Return True once the callback was called."""
        return self._done

    def set_result(self, may: bool) -> None:
        """Call the callback."""
        self._done = True
        self._outbox.answered(self, may)


def _settle(asker: asyncio.Future[bool] | _Callback | None, may: bool) -> None:
    if asker is not None and not asker.done():
        asker.set_result(may)
