"""Client of one Ray actor. Ray's exceptions are translated to ``PeerUnavailable``, ``PeerGone`` and ``ClusterLost``.

Ray's exceptions are an argument (``actors.runtime.ray_runtime``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any, Protocol

from actors.cluster.bootstrap import first_line
from actors.cluster.node_watchdog import NodeWatchdog
from actors.cluster.sockets.client import SocketConnections
from actors.cluster.sockets.serialization import OPEN, cause_of, post
from actors.messaging.answer_bounds import BOUNDED_BY_ASKER, in_time
from actors.ports.runtime import PeerGone, PeerUnavailable


class ActorFinder(Protocol):
    """Interface of the runtime that a peer uses."""

    watchdog: NodeWatchdog | None
    lines: SocketConnections

    def known(self, name: str) -> Any:
        """Return the handle of an actor, if it was looked up before; else None."""

    async def handle(self, name: str) -> Any:
        """Look up the handle of an actor. Raises ``PeerGone``."""

    def forget(self, name: str) -> None:
        """Drop the handle of a dead actor: the next actor of this name is a different one."""

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a call without waiting for its result."""


class RayPeer:
    """Messages to an actor: over its socket if the actor is on this node, else by Ray's calls."""

    __slots__ = ("_ray", "_runtime", "name")

    def __init__(self, name: str, runtime: ActorFinder, exceptions: Any) -> None:
        self.name = name
        self._runtime = runtime
        self._ray = exceptions

    async def ask(self, method: str, *args: Any) -> Any:
        """Call and wait, no longer than ``actors.messaging.answer_bounds`` says. Raises ``PeerUnavailable``,
        ``PeerGone``, ``ClusterLost``, or what the method raised.
        """
        if method in BOUNDED_BY_ASKER:
            answer = self._asked(method, args)
        else:
            answer = in_time(self.name, self._asked, method, args)
        lifeline = self._runtime.watchdog
        if lifeline is None:
            return await answer
        try:
            return await lifeline.hold(answer)
        except (PeerUnavailable, PeerGone):
            await lifeline.look()  # this process itself may be cut off: raises ``ClusterLost`` then
            raise

    async def _asked(self, method: str, args: tuple[Any, ...]) -> Any:
        line = self._runtime.lines.to(self.name) if method not in OPEN else None
        if line is not None:
            return await line.ask(method, args)
        try:
            handle = self._runtime.known(self.name) or await self._runtime.handle(self.name)
            return await post(handle, method, args)
        except self._ray.RayTaskError as error:
            raise cause_of(error.cause, self.name) from None
        except self._ray.ActorUnavailableError:
            raise PeerUnavailable(self.name) from None
        except (self._ray.RayActorError, self._ray.ActorUnschedulableError) as error:
            # the name may belong to a new actor: a channel whose node died, resumed elsewhere
            self._runtime.forget(self.name)
            raise PeerGone(self.name) from RuntimeError(first_line(error))
        except self._ray.RayError as error:  # the object store, a node that is leaving, an unavailable head
            self._runtime.forget(self.name)
            raise PeerUnavailable(f"{self.name}: {first_line(error)}") from None

    def tell(self, method: str, *args: Any) -> None:
        """Call without waiting. Errors are dropped."""
        self._runtime.background(self._call(method, args))

    async def _call(self, method: str, args: tuple[Any, ...]) -> None:
        with contextlib.suppress(Exception):
            await self.ask(method, *args)
