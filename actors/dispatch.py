"""Which branch makes which call, and how a channel learns that a branch is gone.

A message is taken at most once, and by the very incarnation of the branch that it was meant for: so a message nobody
answered can be sent again, and a call is declared lost only where the process that had it is dead.

Volatile by design: everything here is rebuilt by asking the branches what they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.ports import Away, Gone, Peer, Runtime
from cortex import commands, events
from cortex.limits import Limits
from cortex.state import flight_key
from policies.failure import Failure, FailureKind

BEAT_S = 1.0
"""How often a branch that has work is asked for a sign of life."""
AWAY_S = BEAT_S / 4
"""How long to wait before a branch that did not answer is spoken to again."""
TOGETHER_MAX = 64
"""Calls given to one branch in a row: more in a message gain little."""
MEET_S = 5.0
"""How long a new channel waits for a branch that is away: what it holds need not be paid for again."""

_encoder = msgspec.msgpack.Encoder()


class _Link:
    """One branch as this channel sees it."""

    __slots__ = ("armed", "carrying", "incarnation", "name", "number", "out", "past", "peer", "queue", "up")

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer = peer
        self.incarnation = ""
        self.past: set[str] = set()
        """Incarnations known to be dead: word from them comes late."""
        self.armed = True
        self.up = True
        self.number = 0
        """Of the last message; the branch takes each number once."""
        self.queue: dict[int, commands.Call] = {}
        """Calls not yet sent."""
        self.out: dict[int, commands.Call] = {}
        """Calls that are there, or on their way."""
        self.carrying = False

    def burden(self) -> tuple[bool, int]:
        """What to compare when the next call is given away: those that can work first, then who has least to do."""
        return not (self.up and self.armed), len(self.queue) + len(self.out)


class Dispatch:
    """Gives calls to the branches of a job. ``lost`` is called with the events of calls that died with their branch."""

    def __init__(self, job: str, runtime: Runtime, limits: Limits, lost: Callable[[list[events.Event]], None]) -> None:
        self._job = job
        self._runtime = runtime
        self._limits = limits
        self._lost = lost
        self._links: dict[str, _Link] = {}
        self._where: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self.epoch = 0

    async def meet(self, names: tuple[str, ...], epoch: int) -> tuple[tuple[int, int], ...]:
        """Get to know the branches. What they hold of this job, from an earlier incarnation of its channel."""
        self.epoch = epoch
        self._links = {name: _Link(name, self._runtime.peer(name)) for name in names}
        held = await asyncio.gather(*(self._meet(link) for link in self._links.values()))
        if self._needs_watch():
            self._watch()
        return tuple(key for keys in held for key in keys)

    async def _meet(self, link: _Link) -> list[tuple[int, int]]:
        for _ in range(int(MEET_S / AWAY_S)):
            try:
                link.incarnation, link.armed, keys = await link.peer.ask("held", self._job, self.epoch)
            except (Away, Gone):
                link.up = False
                await asyncio.sleep(AWAY_S)
                continue
            link.up = True
            for goal, attempt in keys:
                key = flight_key(goal, attempt)
                link.out[key] = commands.Call(goal, "", attempt, b"", b"", 0, 0, 0.0)
                self._where[key] = link
            return list(keys)
        return []  # it is met at its first sign of life; what it held will come by itself

    def unarmed(self) -> list[str]:
        """Branches that hold no credential for this job: whoever has one may arm them."""
        return [link.name for link in self._links.values() if not link.armed]

    def send(self, calls: Iterable[commands.Call]) -> None:
        """Hand out calls, some together, to the branch that has the least to do."""
        links = list(self._links.values())
        # A message costs as much as forty calls in it, so neighbours travel together; half of a branch's fair share at
        # the most, so that none is left without.
        together = max(1, min(TOGETHER_MAX, self._limits.concurrency // (2 * len(links))))
        for place, call in enumerate(calls):
            if place % together == 0:
                link = min(links, key=_Link.burden)
            key = flight_key(call.goal, call.attempt)
            link.queue[key] = call
            self._where[key] = link
        for link in links:
            if link.queue and not link.carrying:
                link.carrying = True
                self._start(self._carry(link))
        self._watch()

    def abandon(self, keys: list[tuple[int, int]]) -> None:
        """Nobody waits for these calls: take back what is not sent, and tell the branches of the rest."""
        by_link: dict[str, list[tuple[int, int]]] = {}
        unsent: list[events.Event] = []
        for goal, attempt in keys:
            key = flight_key(goal, attempt)
            link = self._where.get(key)
            if link is None:
                continue
            call = link.queue.pop(key, None)
            if call is None:
                by_link.setdefault(link.name, []).append((goal, attempt))
                continue
            del self._where[key]
            failure = Failure(FailureKind.CANCELLED, "abandoned before it was sent", sent=False)
            unsent.append(events.Broke(goal, call.sample, attempt, failure))
        for name, some in by_link.items():
            self._links[name].peer.tell("abandon", self._job, self.epoch, tuple(some))
        if unsent:
            self._lost(unsent)

    def settled(self, goal: int, attempt: int) -> None:
        """This attempt has come back."""
        key = flight_key(goal, attempt)
        link = self._where.pop(key, None)
        if link is not None:
            link.out.pop(key, None)

    async def close(self, forget: bool) -> None:
        """Let go of the branches; ``forget``: they drop what they keep for this job."""
        for task in [*self._tasks, *([self._beating] if self._beating else [])]:
            task.cancel()
        if forget:
            for link in self._links.values():
                link.peer.tell("forget", self._job)

    # -- on the way ------------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, link: _Link) -> None:
        """Send what is queued for a branch, message after message."""
        try:
            while link.queue:
                blob, keys = self._packed(link)
                await self._hand_over(link, blob, keys)
        finally:
            link.carrying = False

    async def _hand_over(self, link: _Link, blob: bytes, keys: list[int]) -> None:
        """Have one message taken. Sent again while nobody answers: the branch knows it by its number."""
        link.number += 1
        meant_for, number, doubtful = link.incarnation, link.number, False
        while True:
            try:
                args = (self._job, self.epoch, meant_for, number, blob, tuple(self._links))
                said: str = await link.peer.ask("work", *args)
                break
            except Gone:
                await self._gone(link)
                return
            except Away:
                doubtful = True
                self._down(link)
                await asyncio.sleep(AWAY_S)
                if link.incarnation != meant_for:
                    return  # the next incarnation was heard of meanwhile, and all that was out declared lost
        link.up = True
        if said not in (meant_for, ""):  # another incarnation, which left the message alone
            if not doubtful:
                back = {key: link.out.pop(key) for key in keys if key in link.out}
                link.queue = back | link.queue
            self._renewed(link, said)

    def _packed(self, link: _Link) -> tuple[bytes, list[int]]:
        blobs: list[msgspec.Raw] = []
        keys: list[int] = []
        size = 0
        for key, call in link.queue.items():
            blob = _encoder.encode(call)
            if blobs and size + len(blob) > self._limits.message_bytes_max:
                break
            size += len(blob)
            blobs.append(msgspec.Raw(blob))
            keys.append(key)
            if len(keys) >= self._limits.message_calls_max:
                break
        for key in keys:
            link.out[key] = link.queue.pop(key)
        return _encoder.encode(blobs), keys

    # -- signs of life ---------------------------------------------------------------------------------------------

    def _needs_watch(self) -> bool:
        return bool(self._where) or not all(link.up and link.armed for link in self._links.values())

    def _watch(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        """While calls are out, ask each branch that has some; idle branches are left in peace."""
        while self._needs_watch():
            await asyncio.sleep(BEAT_S)
            links = [link for link in self._links.values() if link.out or not (link.up and link.armed)]
            await asyncio.gather(*(self._look_at(link) for link in links))

    async def _look_at(self, link: _Link) -> None:
        try:
            beat = await link.peer.ask("beat", self._job)
        except Gone:
            await self._gone(link)
            return
        except Away:
            self._down(link)  # not a proof of death: only a new incarnation, or its end, is one
            return
        link.up = True
        link.armed = beat["armed"]
        self._renewed(link, beat["incarnation"])

    def _renewed(self, link: _Link, incarnation: str) -> None:
        """This incarnation of the branch has spoken: what an earlier one held is gone with it."""
        if incarnation == link.incarnation or incarnation in link.past:
            return
        known = bool(link.incarnation)
        link.past.add(link.incarnation)
        link.incarnation = incarnation
        link.number = 0
        self._declare_lost(link, "its branch died and was started again", sent=known)

    def _down(self, link: _Link) -> None:
        """It does not answer: what is not sent yet goes to the others."""
        link.up = False
        if link.queue and any(other.up for other in self._links.values()):
            queued, link.queue = list(link.queue.values()), {}
            self.send(queued)

    async def _gone(self, link: _Link) -> None:
        """It is dead for good: have another one started in its place."""
        self._declare_lost(link, "its branch died")
        self._down(link)
        with contextlib.suppress(Away, Gone):
            await self._runtime.peer("cortex").ask("staff")
        await asyncio.sleep(AWAY_S)

    def _declare_lost(self, link: _Link, why: str, sent: bool = True) -> None:
        lost: list[events.Event] = []
        for key, call in link.out.items():
            lost.append(events.Broke(call.goal, call.sample, call.attempt, Failure(FailureKind.LOST, why, sent=sent)))
            self._where.pop(key, None)
        link.out.clear()
        if lost:
            self._lost(lost)
