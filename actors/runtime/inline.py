"""Runtime with all actors in one process and one event loop: for a laptop, a notebook, a test."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

from actors.branch.branch import Branch
from actors.channel.channel import Channel
from actors.common import boot_clock
from actors.common.process_owner import Owner, this_owner
from actors.journal.journal import Journal
from actors.ports.runtime import Peer, PeerGone
from actors.ports.telemetry import NullObserver, Telemetry
from actors.programs import loader
from actors.routing.model_factory import ModelMaker, make_model
from actors.runtime.host import LocalDisk, LocalNotes
from actors.scheduler.actor import Cortex
from actors.worker.worker import Worker
from cortex.state.program import Program

SLOW_S = 0.0005
"""Seconds that a commit may take in the event loop; a slower one runs in a thread if other channels could work
meanwhile."""


class InlineRuntime:
    """Runtime in which actors are objects and messages are method calls. All else is as on a cluster."""

    cluster = "inline"

    steady_s = staticmethod(boot_clock.steady_s)
    boot_id = staticmethod(boot_clock.boot_id)
    monotonic_s = staticmethod(time.monotonic)
    """Seconds since a fixed moment of this host. The clock itself, not a method around it: one call reads it ten
    times."""

    def __init__(
        self, models: ModelMaker = make_model, clock: Callable[[], float] = time.time, branches: int = 1,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        self.telemetry: Telemetry = telemetry if telemetry is not None else NullObserver()
        self._models = models
        self._clock = clock
        self._actors: dict[str, Any] = {}
        self._channels = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.notes = LocalNotes()
        self._actors["cortex"] = Cortex(self, branches=branches)

    def now_s(self) -> float:
        """Seconds since 1970."""
        return self._clock()

    def node(self) -> str:
        """Return the name of the only node, this process."""
        return self.cluster

    def incarnation(self, name: str) -> str:
        """Return an id that no actor of this name had before."""
        return f"{name}.{time.time_ns():x}"

    def store(self, folder: str) -> LocalDisk:
        """Return the state folder of this name on the host's disk."""
        return LocalDisk(folder)

    def peer(self, name: str) -> Peer:
        """Return the peer of an actor by name."""
        return _InlinePeer(name, self)

    def apart(self, journal: Journal) -> bool:
        """Return whether commits belong in a thread: there are several channels, and a slow commit would hold up all of
        them.
        """
        return self._channels > 1 and journal.took_s > SLOW_S

    async def is_dead(self, name: str, incarnation: str) -> bool:
        """Return whether this incarnation of the actor is gone."""
        return getattr(self._actors.get(name), "incarnation", "") != incarnation

    async def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of the actors that begin with the prefix."""
        return tuple(name for name in self._actors if name.startswith(prefix))

    async def nodes(self) -> tuple[str, ...]:
        """Return the only node, this process."""
        return (self.node(),)

    async def ended_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        """Return nothing: the only node is this process."""
        return ()

    async def lost_nodes(self, since_s: float) -> dict[str, tuple[str, float]]:
        """Return nothing: the only node is this process."""
        return {}

    def hosts(self) -> dict[str, str]:
        """Return nothing: the only node is this process."""
        return {}

    async def cores(self) -> int:
        """Return 0: a second branch would share the core of the first."""
        return 0

    async def make_room(self, branches: int, workers: int) -> None:
        """Do nothing: one host does not grow."""

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Peer:
        """Return the actor of this name, made if there is none."""
        if name not in self._actors:
            if role == "channel":
                job, folder = args
                self._actors[name] = Channel(job, folder, self)
                self._channels += 1
            elif role == "branch":
                self._actors[name] = Branch(name, self, self._models)
            else:
                self._actors[name] = Worker(name, self)
        return self.peer(name)

    async def end_actor(self, name: str) -> None:
        """End an actor."""
        actor = self._is_gone(name)
        if actor is not None:
            await actor.close()

    async def kill_actor(self, name: str) -> None:
        """Remove an actor at once; its tasks are closed in the background."""
        actor = self._is_gone(name)
        if actor is not None:
            self.background(actor.close())

    def _is_gone(self, name: str) -> Any:
        actor = self._actors.pop(name, None)
        self._channels -= isinstance(actor, Channel)
        return actor

    def owner(self) -> Owner:
        """Return this process as owner of a run."""
        return this_owner(self.cluster)

    def share_program(self, where: str, params_json: bytes, job: str = "") -> None:
        """Do nothing: no other process needs the program."""

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        """Return a program by its place."""
        return loader.load(where, params_json)

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Return the hash of a program."""
        return loader.fingerprint(where, params_json)

    async def close(self) -> None:
        """End all actors, channels first."""
        for task in list(self._tasks):
            task.cancel()
        for name in sorted(self._actors, key=lambda name: not name.startswith("channel:")):
            with contextlib.suppress(Exception):
                await self.end_actor(name)
        await asyncio.to_thread(self.telemetry.close)

    def find(self, name: str) -> Any:
        """Return the actor itself. Raises ``PeerGone``."""
        try:
            return self._actors[name]
        except KeyError:
            raise PeerGone(name) from None

    def background(self, work: Any) -> None:
        """Run a call without waiting for its result."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # errors of a `tell` are dropped


class _InlinePeer:
    """Peer whose messages are method calls."""

    __slots__ = ("_runtime", "name")
    near = True

    def __init__(self, name: str, runtime: InlineRuntime) -> None:
        self.name = name
        self._runtime = runtime

    async def ask(self, method: str, *args: Any) -> Any:
        """Call and wait. Raises ``PeerGone``, or what the method raises."""
        return await getattr(self._runtime.find(self.name), method)(*args)

    def now(self, method: str, *args: Any) -> Any:
        """Call a method that waits for nothing. Raises ``PeerGone``."""
        return getattr(self._runtime.find(self.name), method)(*args)

    def tell(self, method: str, *args: Any) -> None:
        """Call without waiting."""
        with contextlib.suppress(PeerGone):
            self._runtime.background(getattr(self._runtime.find(self.name), method)(*args))
