"""Which branch makes which call, and how a channel learns that a branch is gone.

Volatile by design: everything here is rebuilt by asking the branches what they hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from actors.ports import Away, Gone, Runtime
from cortex import commands, events
from cortex.limits import Limits
from cortex.state import flight_key
from policies.failure import Failure, FailureKind

BEAT_S = 1.0
"""How often a branch that has work is asked for a sign of life."""

_encoder = msgspec.msgpack.Encoder()


class _Link:
    """One branch as this channel sees it."""

    __slots__ = ("armed", "carrying", "incarnation", "name", "out", "peer", "queue", "silent_s")

    def __init__(self, name: str, peer: Any) -> None:
        self.name = name
        self.peer = peer
        self.incarnation = ""
        self.armed = True
        self.silent_s = 0.0
        self.queue: deque[commands.Call] = deque()
        self.out: dict[int, commands.Call] = {}
        self.carrying = False


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
        held: list[tuple[int, int]] = []
        for name in names:
            link = self._links[name] = _Link(name, self._runtime.peer(name))
            try:
                beat = await link.peer.ask("beat", self._job)
                for goal, attempt in await link.peer.ask("held", self._job, epoch):
                    held.append((goal, attempt))
                    key = flight_key(goal, attempt)
                    link.out[key] = commands.Call(goal, "", attempt, b"", b"", 0, 0, 0.0)
                    self._where[key] = link
                link.incarnation, link.armed = beat["incarnation"], beat["armed"]
            except (Away, Gone):
                continue  # it is met at its first sign of life; what it held will come by itself
        if held:
            self._watch()
        return tuple(held)

    def unarmed(self) -> list[str]:
        """Branches that hold no credential for this job: whoever has one may arm them."""
        return [link.name for link in self._links.values() if not link.armed]

    def send(self, calls: list[commands.Call]) -> None:
        """Hand out calls, each to the branch that has the least to do."""
        links = list(self._links.values())
        for call in calls:
            link = min(links, key=lambda link: len(link.out))
            key = flight_key(call.goal, call.attempt)
            link.out[key] = call
            self._where[key] = link
            link.queue.append(call)
        for link in links:
            if link.queue and not link.carrying:
                link.carrying = True
                self._start(self._carry(link))
        if calls:
            self._watch()

    def abandon(self, keys: list[tuple[int, int]]) -> None:
        """Tell the branches which calls nobody waits for."""
        by_link: dict[str, list[tuple[int, int]]] = {}
        for goal, attempt in keys:
            link = self._where.get(flight_key(goal, attempt))
            if link is not None:
                by_link.setdefault(link.name, []).append((goal, attempt))
        for name, some in by_link.items():
            self._links[name].peer.tell("abandon", self._job, self.epoch, tuple(some))

    def settled(self, goal: int, attempt: int) -> None:
        """This attempt has come back."""
        link = self._where.pop(flight_key(goal, attempt), None)
        if link is not None:
            link.out.pop(flight_key(goal, attempt), None)

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
        """Send what is queued for a branch, message after message; a message it did not hear is sent again."""
        try:
            while link.queue:
                blob, keys = self._packed(link)
                while True:
                    try:
                        said = await link.peer.ask("work", self._job, self.epoch, blob, tuple(self._links))
                        self._heard(link, said, keys)
                        break
                    except Gone:
                        self._declare_lost(link, "its branch died")
                        return
                    except Away:
                        await asyncio.sleep(BEAT_S / 4)
                        if not any(key in link.out for key in keys):
                            break  # declared lost meanwhile: it will be asked again as a new attempt
        finally:
            link.carrying = False
            if link.queue:
                link.carrying = True
                self._start(self._carry(link))

    def _heard(self, link: _Link, incarnation: str, keys: list[int]) -> None:
        """The branch took a message. If it is not the one that took those before, they died with that one."""
        if link.incarnation and incarnation and link.incarnation != incarnation:
            new = {key: link.out.pop(key) for key in keys if key in link.out}
            self._declare_lost(link, "its branch died and was started again", queued=False)
            link.out.update(new)
            self._where.update((key, link) for key in new)
        link.incarnation = incarnation or link.incarnation

    def _packed(self, link: _Link) -> tuple[bytes, list[int]]:
        blobs: list[msgspec.Raw] = []
        keys: list[int] = []
        size = 0
        while link.queue and len(blobs) < self._limits.message_calls_max:
            blob = _encoder.encode(link.queue[0])
            if blobs and size + len(blob) > self._limits.message_bytes_max:
                break
            call = link.queue.popleft()
            size += len(blob)
            blobs.append(msgspec.Raw(blob))
            keys.append(flight_key(call.goal, call.attempt))
        return _encoder.encode(blobs), keys

    # -- signs of life ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        """While calls are out, ask each branch that has some; idle branches are left in peace."""
        while self._where or any(not link.armed for link in self._links.values()):
            await asyncio.sleep(BEAT_S)
            busy = [link for link in self._links.values() if link.out or not link.armed]
            await asyncio.gather(*(self._look_at(link) for link in busy))

    async def _look_at(self, link: _Link) -> None:
        try:
            beat = await link.peer.ask("beat", self._job)
        except Gone:
            self._declare_lost(link, "its branch died")
            return
        except Away:
            link.silent_s += BEAT_S  # not a proof of death: only a new incarnation, or its end, is one
            return
        link.silent_s = 0.0
        link.armed = beat["armed"]
        if link.incarnation and link.incarnation != beat["incarnation"]:
            self._declare_lost(link, "its branch died and was started again")
        link.incarnation = beat["incarnation"]

    def _declare_lost(self, link: _Link, why: str, queued: bool = True) -> None:
        """What this branch held is gone with it. What waits to be sent to it goes with the rest if ``queued``."""
        waiting = {flight_key(call.goal, call.attempt) for call in link.queue}
        lost: list[events.Event] = []
        for key, call in list(link.out.items()):
            if key in waiting and not queued:
                continue
            failure = Failure(FailureKind.LOST, why, sent=key not in waiting)
            lost.append(events.Broke(call.goal, call.sample, call.attempt, failure))
            del link.out[key]
            self._where.pop(key, None)
        if queued:
            link.queue.clear()
        if lost:
            self._lost(lost)
