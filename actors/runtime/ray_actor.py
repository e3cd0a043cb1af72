"""Host of one actor in its own process: the parts of an actor's life that the cluster does not manage.

A restarted actor resumes by itself, and requests wait meanwhile. An actor ends itself if it reaches no cortex for
``FORLORN_S``, or if its job has ended and no request comes any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from actors.branch.branch import Branch
from actors.channel.channel import Channel
from actors.cluster.bootstrap import end_gently
from actors.cluster.sockets.addresses import SocketAddresses
from actors.cluster.sockets.serialization import opened, sealed
from actors.cluster.sockets.server import SocketServer
from actors.common.background import watched
from actors.common.gc_tuning import settle
from actors.journal.journal import JobHeld, StateFolder, StoreError
from actors.messaging.answer_bounds import SERVED
from actors.observability.logs.formatting import begin_of_actor
from actors.observability.metrics.ray_export import RayGauges
from actors.observability.wiring import WATCHED, of_process
from actors.ports.runtime import ChannelNotStarted, PeerGone, PeerUnavailable, Runtime
from actors.ports.telemetry import Telemetry
from actors.scheduler.actor import Cortex
from actors.worker.worker import Worker
from cortex import __version__
from cortex.scheduler.step import LEASE_S
from cortex.state.events import NODE_ENDED

RAY_FACTORY = "actors.runtime.ray_runtime:make_host"
"""Function that makes the ``ActorHost`` of an actor in its own process, as ``module:function``."""
FORLORN_S = 8 * LEASE_S
"""Seconds for which an actor runs without an answer of a cortex, at least. Only lease times with an unanswered request
are counted, and each request may take another lease time. On a machine with far more processes than processors, a live
cortex may fail to answer for a minute."""
IDLE_S = 60.0
"""Seconds for which the channel of an ended job waits for a request for its results."""
COMING_BACK_S = 10.0
"""Seconds for which a request waits for an actor that is being restarted, before it fails as unavailable."""
HEADERS_S = 2.0
"""Seconds that a restarted actor waits for each actor that may know the headers for the telemetry collector."""
_RETRY_S = 0.5
_SHOWN_AGAIN_S = 2.0
_BUSINESS_OF_OTHERS = frozenset({"granted", "staffed", "condemn", "rejoin", "deliver", "hello"})
"""Messages that do not count as a request of a user: a channel receives them in any case."""

_log = logging.getLogger("cortex.seat")

ROLES: dict[str, type[Any]] = {"cortex": Cortex, "channel": Channel, "branch": Branch, "worker": Worker}
HOST_METHODS = ("hello", "metrics", "observe", "serving")
"""Remote methods that every actor has. ``ActorHost`` answers them itself."""
METHODS: dict[str, tuple[str, ...]] = {
    "cortex": (
        "admit", "budgets", "cap", "close", "drain", "ended", "forget", "join", "leave", "lend", "missed",
        "newest_epoch", "remove_budget", "report", "returned", "set_budget", "share", "staff", "status",
    ),
    "channel": (
        "answer", "check_budget", "close", "collected", "condemn", "deliver", "feed", "give_answers", "granted",
        "rejoin", "report", "results", "room", "seal", "set_limits", "set_servers", "shard", "staffed", "start",
        "status", "stop", "unblock", "written",
    ),
    "branch": (
        "abandon", "batches", "beat", "close", "drain", "forget", "hand_over", "held", "on_disk", "ping",
        "set_credential", "work",
    ),
    "worker": ("close", "drain", "hold", "ping", "run"),
}  # fmt: skip
"""Remote methods of each role's actor, by name: other processes can call only these, by Ray or by socket.

A public coroutine method that is not in the list is only for the actor's own process (``Cortex.begin``)."""


class ActorRuntime(Runtime, Protocol):
    """Runtime of an actor host, which needs more than the actor."""

    telemetry: Telemetry
    cluster: str
    """``local``: a private Ray, which ends with its command; else the address of a cluster."""

    def make_model(self, blob: bytes) -> Any:
        """Return the model that a connection spec describes."""

    async def end_self(self) -> None:
        """End this actor for good."""


def methods(role: str) -> tuple[str, ...]:
    """Return the names of all remote methods of a role."""
    return (*HOST_METHODS, *METHODS[role])


def process_class(role: str, factory: str = RAY_FACTORY) -> type:
    """Return the class that Ray runs for a role. Ray ships the class by value; the class finds our code before use.

    ``factory`` is the ``module:function`` that makes the ``ActorHost`` of an actor in its own process.
    """
    module, _, function = factory.partition(":")

    class Hosted:
        def __init__(self, paths: tuple[str, ...], role: str, name: str, args: tuple[Any, ...], cluster: str) -> None:
            import os.path
            import sys

            self.name = name  # set before any step that can fail: Ray uses it to report the failure
            sys.path[:] = dict.fromkeys([*(path for path in paths if os.path.isdir(path)), *sys.path])
            import importlib

            if role not in ("channel", "cortex"):  # the other actors reach no store, and a worker runs tools
                for store in importlib.import_module("actors.journal.stores").STORES:
                    for secret in store.secrets:
                        os.environ.pop(secret, None)
            self.seat = getattr(importlib.import_module(module), function)(role, name, args, cluster)

        def __repr__(self) -> str:
            return self.name

    for method in methods(role):
        setattr(Hosted, method, _forwarding(method))
    Hosted.__name__ = Hosted.__qualname__ = role.capitalize()
    return Hosted


def _forwarding(method: str) -> Any:
    async def forward(self: Any, letter: bytes = b"") -> Any:
        return await self.seat.handle(method, letter)

    forward.__name__ = forward.__qualname__ = method
    return forward


class ActorHost:
    """Host of one actor, in its process. ``again``: an earlier process of the same actor died."""

    def __init__(self, role: str, name: str, args: tuple[Any, ...], runtime: ActorRuntime, again: bool) -> None:
        self.role, self.name = role, name
        self._methods = frozenset(METHODS[role])
        self._args = args
        self._runtime = runtime
        runtime.telemetry = of_process(role, runtime.node(), standing=runtime.cluster not in ("inline", "local"))
        self._actor = self._made()
        self._starting = asyncio.Lock()
        self._ready = role != "channel" and not (role == "cortex" and again)
        self._failed: Exception | None = None
        self._headers = b""
        self._serving: list[str] = []
        """Long questions that are being answered, by method."""
        self._ending: asyncio.Task[None] | None = None
        self._asked_s = self._runtime.monotonic_s()
        self._listener: SocketServer | None = None
        self._tasks = [watched(self._watch_over(), name)]
        self._attending = contextlib.ExitStack()
        self._is_attending = False
        self._coming_back = asyncio.create_task(self._go_on()) if again else None
        settle()

    def _made(self) -> Any:
        if self.role == "cortex":
            return Cortex(self._runtime, *self._args)
        if self.role == "channel":
            job, folder = self._args
            return Channel(job, folder, self._runtime)
        if self.role == "branch":
            return Branch(self.name, self._runtime, self._runtime.make_model)
        return Worker(self.name, self._runtime)

    def show(self, gauge: Callable[..., Any]) -> None:
        """Export this actor's metrics in the cluster's own format; ``gauge`` makes one metric."""
        if self.role in WATCHED:
            self._tasks.append(watched(RayGauges(gauge, self._runtime.telemetry.readings).run(), self.name))

    def listen(self, sockets: SocketAddresses | None) -> None:
        """Open a socket for the other actors of this node, which then do not need Ray's calls."""
        if sockets is not None:
            self._listener = SocketServer(sockets, self.name, self.call)
            self._tasks.append(watched(self._listener.open(), self.name))

    # -- requests -----------------------------------------------------------------------------------------------------

    async def handle(self, method: str, letter: bytes) -> Any:
        """Call a method with serialized arguments; return the serialized answer."""
        if not letter:
            return await self.call(method, ())
        return sealed(await self.call(method, opened(letter)))

    async def call(self, method: str, args: tuple[Any, ...], counted: bool = False) -> Any:
        """Call a remote method of the actor.

        Raises what the method raises, ``PeerUnavailable`` if the actor has not begun, and ``AttributeError`` for a name
        that is not in ``METHODS`` of the role.
        """
        if method == "hello":
            return __version__, os.getpid()
        if method == "metrics":
            return self._runtime.telemetry.readings()
        if method == "observe":
            return self._observe(*args)
        if method == "serving":
            return tuple(self._serving)
        if method in SERVED and not counted:
            return await self._served(method, args)
        if method not in self._methods:
            raise AttributeError(f"{method} is no remote method of a {self.role}: add it to METHODS")
        if method not in _BUSINESS_OF_OTHERS:
            self._asked_s = self._runtime.monotonic_s()
        if method == "start":
            return await self._start(*args)
        if not self._ready:
            await self._readiness()
        if method == "close":
            return await self._close()
        answer = await getattr(self._actor, method)(*args)
        if method == "set_credential":
            settle()  # a client was imported
        return answer

    async def _served(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method, and tell meanwhile who asks that it is being answered (``actors.messaging.answer_bounds``)."""
        self._serving.append(method)
        try:
            return await self.call(method, args, counted=True)
        finally:
            self._serving.remove(method)

    async def _readiness(self) -> None:
        """Wait for an actor that is being restarted, or is starting."""
        if self._coming_back is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMING_BACK_S):
                    await asyncio.shield(self._coming_back)
        async with self._starting:
            if self._ready:
                return
        coming = self._coming_back is not None and not self._coming_back.done()
        raise self._failed or (PeerUnavailable if coming else ChannelNotStarted)(f"{self.name} has not begun")

    async def _start(self, *args: Any) -> None:
        """Start with or without an opening. A channel that is running is closed for the new run; it begins by itself if
        no argument tells how, as after its death: it has asked so itself, and nobody would ask again.

        Raises ``PeerUnavailable`` if another channel has begun since the request came. The request may be of a driver
        that has ended since, and this process one that was thought dead; else the driver asks again.
        """
        seen = self._actor.newest_epoch()
        async with self._starting:
            self._see_latest(seen)
            if self._ready:
                await self._runtime.peer("cortex").ask("staff", False)  # it keeps working until the new run can begin
                self._ready = False  # requests from now on are for the new run
                await self._actor.close()
                if not args:
                    self._coming_back = asyncio.create_task(self._go_on())
                    return
            await self._begin(*args, seen=seen)

    def _see_latest(self, seen: int | None) -> None:
        if seen is not None and self._actor.newest_epoch() != seen:
            raise PeerUnavailable(f"{self.name}: another run has begun since this one was asked for")

    async def _close(self) -> None:
        """Close the actor. The caller then ends the process, but may die first: then this actor counts as not started.
        """
        async with self._starting:
            if self._ready:  # else it was closed meanwhile
                self._ready = False  # or requests would wait for work that no task does any more
                await self._actor.close()
        await self._let_out()

    async def _begin(self, *args: Any, seen: int | None = None) -> None:
        await self._ask_headers(("cortex",))
        self._see_latest(seen)
        self._actor = self._made()
        try:
            await self._actor.start(*args)
        except BaseException:
            with contextlib.suppress(Exception):
                await self._actor.close()  # the next try makes a new one
            raise
        self._ready, self._failed = True, None
        self._show_life()
        if self._listener is not None:
            await self._listener.open()  # it may have been closed by a caller that died before it ended this process
        settle()

    def _show_life(self) -> None:
        """Show in the state folder that this channel lives, from now on until this process ends: others cannot see its
        driver any more when that has left."""
        if self.role == "channel" and not self._is_attending and self._runtime.cluster not in ("inline", "local"):
            job, folder = self._args
            if "~" not in job:
                self._is_attending = True
                self._tasks.append(watched(self._attend(StateFolder(folder), job), self.name))

    async def _attend(self, folder: StateFolder, job: str) -> None:
        while True:
            try:
                return await asyncio.to_thread(self._attending.enter_context, folder.attend(job))
            except (JobHeld, StoreError) as error:  # by an earlier channel, which is fenced; or no answer of a database
                _log.debug("the channel of %s is not shown yet: %s", job, type(error).__name__)
                await asyncio.sleep(_SHOWN_AGAIN_S)

    def _observe(self, headers: bytes = b"") -> bytes:
        """Store the headers for a telemetry collector, if given. Return the stored headers."""
        self._headers = headers or self._headers
        if headers:
            self._runtime.telemetry.take(headers)
        return self._headers

    async def _ask_headers(self, peers: tuple[str, ...]) -> None:
        """Get the headers for the telemetry collector from another actor of this run.

        They may hold a key, and are in no environment variable.
        """
        for peer in peers:
            if self._headers:
                return
            with contextlib.suppress(PeerUnavailable, PeerGone, TimeoutError):
                async with asyncio.timeout(HEADERS_S):  # an actor that is still being made answers once it is there
                    if found := await self._runtime.peer(peer).ask("observe"):
                        self._observe(found)

    # -- own tasks ----------------------------------------------------------------------------------------------------

    def end_requested(self) -> None:
        """Finish the calls in flight and end: the system asks this process to end, as it does when a node is removed.
        """
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end_gently())

    async def _end_gently(self) -> None:
        """Drain and end. A branch or worker hands back its work; a channel pauses its job, to be resumed where its disk
        is.
        """
        with contextlib.suppress(Exception):
            if self.role == "channel" and self._ready and not self._actor.over:
                await self._actor.stop("drain", NODE_ENDED)
                while not self._actor.over:  # noqa: ASYNC110 - calls take as long as they take
                    await asyncio.sleep(_RETRY_S)
            elif self.role in ("branch", "worker"):
                await self._actor.drain()
            await self._actor.close()
            await self._let_out()
        await self._runtime.end_self()

    async def _go_on(self) -> None:
        """Resume the state of the earlier process, as soon as the other actors answer."""
        while self.role in ("cortex", "channel") and not self._ready:
            try:
                async with self._starting:
                    if self.role == "cortex":
                        await self._ask_headers(await self._runtime.names("channel:"))
                        await self._actor.begin(True)
                        self._ready = True
                    elif not self._ready:  # else a driver has started it with an opening
                        await self._begin()
            except (PeerUnavailable, PeerGone):
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                if self.role == "channel":  # requests get the error; a driver may start it with an opening
                    self._failed = error
                    return
                _log.exception("the cortex cannot resume yet")  # no other process starts it, and every job needs it
                await asyncio.sleep(_RETRY_S)

    async def _watch_over(self) -> None:
        silent_s = 0.0
        while True:
            await asyncio.sleep(LEASE_S)
            if self.role == "channel" and self._actor.over and self._runtime.monotonic_s() - self._asked_s >= IDLE_S:
                break
            if self.role == "cortex" or await self._is_answered(lambda: self._runtime.peer("cortex").ask("hello")):
                silent_s = 0.0
                continue
            silent_s += LEASE_S
            if silent_s >= FORLORN_S and not self._actor.busy:
                _log.warning("no cortex has answered for at least %.0f s: this %s ends", silent_s, self.role)
                break
        with contextlib.suppress(Exception):
            await self._actor.close()
            await self._let_out()
        await self._runtime.end_self()

    async def _let_out(self) -> None:
        """Close the socket and flush telemetry, so that the outcome of the job still reaches the collector."""
        if self._listener is not None:
            self._listener.close()
        await asyncio.to_thread(self._runtime.telemetry.close)

    async def _is_answered(self, ask: Callable[[], Any]) -> bool:
        try:
            async with asyncio.timeout(LEASE_S):  # in 3.11 wait_for may swallow a cancellation
                await ask()
        except Exception:  # unavailable, gone, too slow, or an error of Ray: no answer
            return False
        return True


def taken(role: str, name: str, args: tuple[Any, ...], runtime: Any, again: bool, worker: Any, gauge: Any) -> ActorHost:
    """Return the host of this process's actor. ``worker``: Ray's worker in this process; ``gauge``: Ray's class of
    metric.
    """
    private = runtime.cluster == "local"
    if private:
        die_with_parent()
    begin_of_actor(name, runtime.node(), os.environ)
    if role == "channel" and not runtime.store(args[-1]).remote:
        runtime.settle(args[0])
    seat = ActorHost(role, name, args, runtime, again)
    seat.listen(runtime.lines.sockets)
    if not private:
        seat.show(gauge)
    if not private and role != "cortex":
        end_gently(worker, asyncio.get_running_loop(), seat.end_requested)
    return seat


def die_with_parent() -> None:
    """Make the system kill this process when its parent dies, on Linux: its job has no driver to write results any
    more.
    """
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: prctl(2)
