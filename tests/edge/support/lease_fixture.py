"""Channels that hold a lease of a cortex, and a fake transport of their messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from actors.channel.leases.lease import Lease
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.ports.telemetry import NullObserver
from actors.runtime.host import LocalNotes
from actors.scheduler.actor import Cortex
from cortex.scheduler.reports import Claims, Grant
from cortex.scheduler.state import SchedulerSettings
from cortex.state import events
from cortex.state.state import InFlightAttempt, State
from cortex.values.limits import JobTerms, Limits, Route
from policies.limits.limit import LimitPolicy
from tests.edge.support.virtual_clock import virtually

ROUTE = "e|c|m"


class Channel:
    """Job that wants ``wish`` concurrent calls, and uses everything it is granted. Turns are taken at once."""

    def __init__(self, name: str, world: World, wish: int = 100) -> None:
        terms = JobTerms(
            job=name, program="p", params_json=b"{}", fingerprint="f",
            route=Route(endpoint="e", credential="c", model="m"), limits=Limits(concurrency=wish),
        )  # fmt: skip
        self.k = State(terms=terms)
        self.k.wishes = True
        self.k.open_by_kind = {"row": dict.fromkeys(range(wish))}
        self.name, self.world = name, world
        self.lease = Lease(name, world, lambda: self.k, self.put)  # type: ignore[arg-type]
        self.inbox: list[events.Event] = []
        self.told: list[events.PermitsGranted] = []
        self.holding: asyncio.Task[None] | None = None
        self.calls = 0

    def put(self, some: list[events.Event]) -> None:
        self.inbox += some
        if not self.world.slow:
            self.turn()

    def turn(self) -> None:
        """Take a turn as a real channel does: received events first, then expired leases."""
        taken, self.inbox = [*self.inbox, *self.lease.run_out()], []
        for event in taken:
            assert isinstance(event, events.PermitsGranted)
            self.told.append(event)
            self.k.shares[event.route].permits = event.permits
            self.k.shares[event.route].starts = event.starts
            self.k.shares[event.route].memo = event.memo
        for event in taken:
            self.lease.taken(event)  # type: ignore[arg-type]
        self.lease.look()

    def ask(self) -> None:
        """Begin all calls that may be begun."""
        self.turn()
        share = self.k.shares[0]
        while share.free(0.0) > 0:
            self.calls += 1
            share.in_flight += 1
            share.starts -= share.starts > 0
            self.k.flights[self.calls] = InFlightAttempt(1, 1, "0", b"", 0.0, None, 0)  # type: ignore[arg-type]

    def finish(self, count: int) -> None:
        """End this many calls."""
        for key in list(self.k.flights)[:count]:
            del self.k.flights[key]
            self.k.shares[0].in_flight -= 1
        self.turn()

    def begin(self) -> None:
        self.holding = asyncio.get_running_loop().create_task(self._hold())

    async def _hold(self) -> None:
        await self.lease.hold()
        await self.lease.leave()


class World:
    """Cortex and channels. With ``chance`` messages may be lost or late; the cortex may be away."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.chance = chance
        self.channels: dict[str, Channel] = {}
        self.claims: list[tuple[float, Claims]] = []
        self.cortex: Any = None
        self.slow = False
        self.born = self.room = 0
        self.living: tuple[str, ...] | None = ()
        """Nodes; None: the cluster does not tell."""
        self.ended: set[str] = set()
        """Nodes that were ended on purpose."""
        self.lost: dict[str, float] | None = {}
        """Unix times of nodes that were lost while no cortex lived; None: the cluster does not tell."""
        self.wanted_room: list[tuple[int, int]] = []
        self.notes = LocalNotes()
        self.telemetry = NullObserver()

    def start(self, again: bool = False, limit: int = 100) -> Cortex:
        settings = SchedulerSettings(branches_min=0, workers_max=0, limit=LimitPolicy(start=limit))
        self.cortex = Cortex(self, settings=settings)  # type: ignore[arg-type]
        return self.cortex  # type: ignore[no-any-return]

    def incarnation(self, name: str) -> str:
        self.born += 1
        return f"{name}.{self.born}"

    def now_s(self) -> float:
        return 1e9 + self.monotonic_s()

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def names(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in (f"channel:{job}" for job in self.channels) if name.startswith(prefix))

    async def nodes(self) -> tuple[str, ...]:
        if self.living is None:
            raise ConnectionError("the head is away")
        return self.living

    async def ended_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(self.ended & set(names)))

    async def lost_nodes(self, since_s: float) -> dict[str, tuple[str, float]]:
        if self.lost is None:
            raise ConnectionError("the head is busy")
        return {name: (f"pod-{name}", at_s) for name, at_s in self.lost.items() if at_s >= since_s}

    def hosts(self) -> dict[str, str]:
        return {node: f"pod-{node}" for node in self.living or ()}

    async def cores(self) -> int:
        return self.room

    async def make_room(self, branches: int, workers: int) -> None:
        self.wanted_room.append((branches, workers))

    def peer(self, name: str) -> Any:
        return Peer(name, self)

    def add(self, name: str, wish: int = 100) -> Channel:
        channel = self.channels[name] = Channel(name, self, wish)
        channel.begin()
        return channel

    async def end(self) -> None:
        for channel in self.channels.values():
            assert channel.holding is not None
            channel.holding.cancel()
        if self.cortex is not None:
            await self.cortex.close()


class Peer:
    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world

    async def ask(self, method: str, *args: Any) -> Any:
        if self.name == "cortex":
            if method == "join":
                claims = msgspec.msgpack.decode(args[0], type=Claims)
                self.world.claims.append((self.world.monotonic_s(), claims))
            if self.world.cortex is None:
                raise PeerUnavailable("cortex")
            answer = await getattr(self.world.cortex, method)(*args)
            if self.world.chance is not None:
                await asyncio.sleep(self.world.chance.random() * 0.3)
                if self.world.chance.random() < 0.2:
                    raise PeerUnavailable("cortex")
            return answer
        channel = self.world.channels.get(self.name.partition(":")[2])
        if channel is None:
            raise PeerGone(self.name)
        assert method == "rejoin"
        channel.lease.again()
        return True

    def tell(self, method: str, *args: Any) -> None:
        asyncio.get_running_loop().create_task(self._told(method, args))

    async def _told(self, method: str, args: tuple[Any, ...]) -> None:
        if method != "granted":
            return
        if self.world.chance is not None:
            if self.world.chance.random() < 0.3:
                return
            await asyncio.sleep(self.world.chance.random() * self.world.chance.choice((0.01, 1.0, 20.0)))
        self.world.channels[self.name.partition(":")[2]].lease.granted(args[0])


def act(play: Callable[[World], Any], chance: random.Random | None = None) -> None:
    async def whole() -> None:
        world = World(chance)
        await play(world)
        await world.end()

    virtually(whole())


def grant(serial: int, permits: int, cortex: str = "cortex.1", **more: Any) -> bytes:
    return msgspec.msgpack.encode((Grant("j", ROUTE, cortex, serial, permits, **more),))


class Answers:
    """Fake cortex with prepared answers."""

    def __init__(self, *blobs: bytes) -> None:
        self.blobs = list(blobs)

    async def join(self, blob: bytes) -> bytes:
        return self.blobs.pop(0) if len(self.blobs) > 1 else self.blobs[0]

    async def leave(self, job: str, epoch: int) -> None:
        pass

    async def close(self) -> None:
        pass
