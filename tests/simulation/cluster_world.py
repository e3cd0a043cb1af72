"""Simulated cluster: nodes, names, starts and deaths of actors. The plan's seed determines everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Any

from actors.common.process_owner import Owner
from actors.messaging.answer_bounds import BOUNDED_BY_ASKER, in_time
from actors.ports.runtime import ClusterError, PeerGone, PeerUnavailable
from actors.ports.telemetry import NullObserver
from actors.programs import loader
from actors.runtime import ray_actor
from actors.runtime.host import LocalNotes
from cortex import __version__
from cortex.state.program import Program
from tests.simulation.batches import Account
from tests.simulation.crashing_disk import CACHED_MAX, Disk
from tests.simulation.invariants import Watch
from tests.simulation.loop import NOBODY, Life, VirtualLoop
from tests.simulation.provider import Provider
from tests.simulation.scenario import EPOCH_S, Plan
from tests.simulation.transport import Transport

MANY = 50
"""Branches above which all tasks are kept: to look through those of such a world at each death takes longer."""


class Node:
    """Machine: offset of its wall clock, and its delay."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.wall_offset_s = 0.0
        self.set_s = 0.0
        """Time at which its wall clock was last set."""
        self.boots = 0
        """Number of starts after losses of power."""
        self.lost_s = -1.0
        """Time of its last loss of power; -1: none."""
        self.up_s = 1_000.0 * int(name.removeprefix("n"))
        """Seconds since the node was started, at the start of the simulation."""
        self.lag_s = 0.0
        """Additional seconds of each message from or to the node."""
        self.up = True


class World:
    """Simulated cluster. ``run`` runs it to its end, and raises errors of the watch or of an actor."""

    def __init__(self, plan: Plan, tell: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.loop = VirtualLoop(many_lives=plan.branches > MANY)
        self.chance = plan.chance("world")
        self._tell = tell
        self.tells = tell is not None
        self.watch = Watch(self)
        lies = any(trouble.kind == "power_lost" for trouble in plan.troubles_at)
        self.disk = Disk(self.watch, lies, plan.index_flush_at)
        self._power = plan.chance("power")
        self.power_lost: Callable[[dict[str, int], Callable[[], float]], None] = lambda lost, draw: None
        """What else is done when a machine loses its power."""
        self.provider = Provider(self)
        self.account = Account(self, self.provider)
        self.transport = Transport(self)
        self.nodes = [Node(f"n{index}", self) for index in range(plan.nodes)]
        self.lives: dict[str, Life] = {}
        self.coming: dict[str, int] = {}
        """Actors that are being restarted, with the number of restarts."""
        self._made: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._spread = 0
        self.lived: dict[str, Life] = {}
        """Lives of all incarnations so far, by id."""
        self._replaced: list[Life] = []
        """Lives that were wrongly thought dead."""
        self._incarnations = 0
        self.deaths = 0
        self.notes = LocalNotes()
        self.telemetry = NullObserver()
        self.cut: set[str] = set()
        """Names of actors that are cut off from the cortex."""
        self.calm = False
        """True once faults have stopped."""
        self.loop.thread_s = self._thread_s

    # -- transcript
    # ------------------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Add a line to the transcript."""
        if self._tell is not None:
            self._tell(f"{self.loop.time():10.3f}  {text}")

    def _thread_s(self) -> float:
        return self.chance.choice(self.plan.thread_s)

    # -- lives ---------------------------------------------------------------------------------------------------------

    def spawn(self, role: str, name: str, args: tuple[Any, ...], node: Node, again: bool = False) -> Life:
        """Start an actor."""
        life = Life(name, node)
        life.at_death = lambda: self.kill(life)
        runtime = SimRuntime(self, life)
        self.lives[name] = life
        self._made[name] = (role, args)
        self.tell(f"{name} {'is back' if again else 'begins'} on {node.name}")
        life.seat = life.context.run(ray_actor.ActorHost, role, name, args, runtime, again)
        self.watch.began(life, role)
        return life

    def kill(self, life: Life, back_s: float | None = None, gone: bool = False) -> None:
        """kill -9: the life never continues. The actor is restarted after a while, unless it is ``gone``."""
        if life.dead:
            return
        life.dead = life.halted = True
        self.deaths += 1
        self.tell(f"{life.name} dies{' for good' if gone else ''}")
        if self.loop.tasks is None:
            self.loop.kept.append(asyncio.all_tasks(self.loop))  # type: ignore[arg-type]
        self.loop.kept.append(life.parked)
        self.watch.died(life)
        self.disk.named_again(life.name.removeprefix("channel:"))  # an operator brings it back before the next run
        self.transport.hang_up(life)
        if self.lives.get(life.name) is not life:
            return
        del self.lives[life.name]
        if gone:
            return
        wait_s = back_s if back_s is not None else self.chance.choice(self.plan.restart_s)
        self._come_back(life.name, wait_s)

    def _come_back(self, name: str, wait_s: float) -> None:
        self.coming[name] = self.coming.get(name, 0) + 1
        self.loop.call_later(wait_s, self._back, name, context=NOBODY)

    def _back(self, name: str) -> None:
        if not self.coming.get(name, 0) or name in self.lives:
            self.coming.pop(name, None)
            return
        role, args = self._made[name]
        node = self._place(role)
        if not node.up:  # nothing starts on a machine without power
            self.loop.call_later(0.5, self._back, name, context=NOBODY)
            return
        del self.coming[name]
        self.spawn(role, name, args, node, again=True)

    def lose_power(self, node: Node, depth: float, whole: str = "") -> None:
        """End all lives of a machine at once, and lose the end of each file on its disk; ``depth``: from 0, nothing is
        lost, to 1; ``whole``: a file that loses nothing. Other machines go on. Its clock of wall time goes on, and its seconds since its start begin anew.
        """
        self.tell(f"{node.name} loses its power")
        node.up, node.boots, node.lost_s, node.up_s = False, node.boots + 1, self.loop.time(), -self.loop.time()
        for life in [*self.lives.values(), *self._replaced]:
            if not life.dead and life.node is node:
                life.at_death()
        draw = self._power.random
        lost = self.disk.lose_power(lambda: int(draw() * CACHED_MAX ** depth) if depth > 0.2 else 0, whole)
        for name, count in lost.items():
            self.tell(f"the last {count} commits of {name} are lost")
            if name != "replies":
                self.watch.lost(name)
        self.power_lost(lost, draw)

    def replace(self, life: Life) -> None:
        """Start another actor of the same name while this life, wrongly thought dead, is only suspended."""
        life.zombie = life.frozen = life.halted = True
        self._replaced.append(life)
        self.tell(f"{life.name} is thought dead")
        self.watch.died(life)
        del self.lives[life.name]
        self.transport.hang_up(life)
        self._come_back(life.name, 0.05)

    def end(self, name: str) -> None:
        """End an actor for good."""
        self.coming.pop(name, None)
        life = self.lives.get(name)
        if life is not None:
            self.kill(life, gone=True)

    def freeze(self, life: Life, for_s: float) -> None:
        """Suspend a life, like SIGSTOP, and resume it later."""
        self.tell(f"{life.name} stands still for {for_s:.1f} s")
        life.frozen = life.halted = True
        self.loop.call_later(for_s, self._thaw, life, context=NOBODY)

    def _thaw(self, life: Life) -> None:
        if not life.dead:
            self.tell(f"{life.name} goes on")
            self.loop.thaw(life)

    def _place(self, role: str, avoid: tuple[str, ...] = ()) -> Node:
        """Choose a node: actors that need the disk are on the first, others are spread."""
        if role not in ("branch", "worker"):
            return self.nodes[0]
        up = [node for node in self.nodes if node.up] or self.nodes[:1]
        up = [node for node in up if node.name not in avoid] or up
        self._spread += 1
        return up[self._spread % len(up)]

    def incarnation(self, name: str) -> str:
        """Return a fresh id."""
        self._incarnations += 1
        return f"{name}.{self._incarnations:x}"

    async def start(self, role: str, name: str, args: tuple[Any, ...], avoid: tuple[str, ...]) -> None:
        """Start an actor of this name unless there is one; if possible not on the nodes to ``avoid``."""
        await asyncio.sleep(0.01 + 0.05 * self.chance.random())
        if name not in self.lives and name not in self.coming:
            self.spawn(role, name, args, self._place(role, avoid))

    # -- run
    # -------------------------------------------------------------------------------------------------------------

    def run(self, done: Callable[[], bool], until_s: float) -> None:
        """Run until ``done``, at most until ``until_s``."""
        broken = self.watch.broken
        self.loop.run(lambda: bool(broken) or done(), until_s)
        self.watch.look()

    def close(self) -> None:
        """Stop everything."""
        self.loop.over = True
        self.disk.close()


class SimRuntime:
    """Runtime of one life, as ``actors.runtime.ray_runtime.RayRuntime`` is on a cluster."""

    cluster = "simulated"

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self._loop = world.loop
        self.notes = world.notes
        self.telemetry = NullObserver()

    def now_s(self) -> float:
        return EPOCH_S + self._loop.time() + self._life.node.wall_offset_s

    def monotonic_s(self) -> float:
        return self._loop.time()

    def steady_s(self) -> float:
        return self._loop.time() + self._life.node.up_s

    def boot_id(self) -> str:
        node = self._life.node
        return f"{node.name}.{node.boots}" if node.boots else str(node.name)

    def node(self) -> str:
        return str(self._life.node.name)

    async def cores(self) -> int:
        return 0

    async def make_room(self, branches: int, workers: int) -> None: ...

    async def nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._world.nodes if node.up)

    async def ended_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        return ()

    async def lost_nodes(self, since_s: float) -> dict[str, tuple[str, float]]:
        return {}

    def hosts(self) -> dict[str, str]:
        return {}

    def incarnation(self, name: str) -> str:
        made = self._world.incarnation(name)
        self._world.lived[made] = self._life
        return made

    async def is_dead(self, name: str, incarnation: str) -> bool:
        await asyncio.sleep(0.002)
        life = self._world.lived.get(incarnation)
        return life is not None and (life.dead or life.zombie)

    def store(self, folder: str) -> Any:
        return self._world.disk.store(self._life)

    def apart(self, journal: Any) -> bool:
        """Return whether commits are awaited in a thread, which is so in some plans."""
        return bool(self._world.plan.apart)

    def peer(self, name: str) -> Any:
        return _Peer(name, self._world.transport, self._life)

    async def names(self, prefix: str) -> tuple[str, ...]:
        await asyncio.sleep(0.002)
        return tuple(sorted(name for name in {**self._world.lives, **self._world.coming} if name.startswith(prefix)))

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Any:
        await self._world.start(role, name, args, avoid)
        peer = self.peer(name)
        try:
            release, _ = await peer.ask("hello")
        except PeerGone as gone:
            raise ClusterError(f"{name} cannot start: {gone}") from None
        except PeerUnavailable:
            return peer
        assert release == __version__
        return peer

    async def end_actor(self, name: str) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.peer(name).ask("close"), 5.0)
        self._world.end(name)

    async def kill_actor(self, name: str) -> None:
        await asyncio.sleep(0.01)
        self._world.end(name)

    async def end_self(self) -> None:
        self._world.kill(self._life, gone=True)

    def owner(self) -> Owner:
        return Owner(host="sim", pid=1, started="1", cluster=self.cluster)

    def make_model(self, blob: bytes) -> Any:
        return self._world.provider.model(blob, self._life)

    def share_program(self, where: str, params_json: bytes, job: str = "") -> None:
        pass

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        return loader.load(where, params_json)

    def fingerprint(self, where: str, params_json: bytes) -> str:
        return "f"


class _Peer:
    """Another actor, over the simulated transport."""

    __slots__ = ("_life", "_transport", "name")

    def __init__(self, name: str, transport: Transport, life: Life) -> None:
        self.name, self._transport, self._life = name, transport, life

    async def ask(self, method: str, *args: Any) -> Any:
        if method in BOUNDED_BY_ASKER:
            return await self._ask(method, args)
        return await in_time(self.name, self._ask, method, args)

    def _ask(self, method: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        return self._transport.ask(self._life, self.name, method, args)

    def tell(self, method: str, *args: Any) -> None:
        self._transport.post(self._life, self.name, method, args, None)
