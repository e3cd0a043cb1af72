"""Supervision of branches and workers: the cortex's orders to start, ping, retire or kill them, and their outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from actors.ports.runtime import ClusterError, PeerGone, PeerUnavailable, Runtime
from cortex.scheduler import protocol

PING_S = 3.0
"""Seconds that a member may take to answer a ping."""
BIRTH_S = 60.0
"""Seconds that a started member may take for its first answer: its node may be busy starting others."""
AGAIN_S = 0.25
"""Seconds before a starting member is pinged again."""
DRAIN_S = 3_700.0
"""Seconds that a member may take to finish its work: a little more than the longest of all timeouts."""

_log = logging.getLogger("cortex.supervisor")


class Supervisor:
    """Executor of orders, in the background, each only once at a time. ``listener`` receives the resulting events."""

    def __init__(self, runtime: Runtime, listener: Callable[[protocol.Event], None]) -> None:
        self._runtime = runtime
        self._post = listener
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.known: dict[str, str] = {}
        """Incarnations of the members that have answered, by name."""
        self.found_jobs: set[str] = set()
        """Jobs whose calls were under way at members that an earlier scheduler had started."""

    def carry_out(
        self, order: protocol.StartMember | protocol.PingMember | protocol.KillMember | protocol.RetireMember
    ) -> None:
        """Begin to carry out an order."""
        if isinstance(order, protocol.StartMember):
            self._begin("start", order.name, lambda: self._start(order.role, order.name, order.avoid))
        elif isinstance(order, protocol.PingMember):
            self._begin("ping", order.subject, lambda: self._ping(order.subject))
        elif isinstance(order, protocol.KillMember):
            self._stop("retire", order.subject)  # the member did not end when it was asked to
            self._begin("kill", order.subject, lambda: self._kill(order.subject))
        else:
            self._begin("retire", order.name, lambda: self._retire(order.name))

    async def begun(self, role: str, name: str) -> None:
        """Start a member, unless it is there, and wait until it answers."""
        await asyncio.shield(self._begin("start", name, lambda: self._start(role, name, ())))

    async def adopt(self, names: tuple[str, ...]) -> None:
        """Find out which of these members, started by an earlier cortex, are alive."""
        await asyncio.gather(*map(self._find, names))

    def find(self, name: str) -> None:
        """Begin to find out whether a member that is not known is alive."""
        self._begin("find", name, lambda: self._find(name))

    async def close(self) -> None:
        """Cancel all tasks. The members stay as they are."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _begin(self, what: str, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin this work, or return the task that does it. The task whose result has led to the order is as good as
        ended."""
        running = self._tasks.get((what, name))
        if running is not None and running is not asyncio.current_task():
            return running
        task = self._tasks[what, name] = asyncio.get_running_loop().create_task(work())
        task.add_done_callback(lambda ended: self._forget(what, name, ended))
        return task

    def _forget(self, what: str, name: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get((what, name)) is ended:
            del self._tasks[what, name]
        if not ended.cancelled() and (error := ended.exception()) is not None:  # the scheduler orders it again in time
            _log.error("the order to %s %s met an error", what, name, exc_info=error)

    def _stop(self, what: str, name: str) -> None:
        running = self._tasks.get((what, name))
        if running is not None:
            running.cancel()

    async def _start(self, role: str, name: str, avoid: tuple[str, ...]) -> None:
        try:
            async with asyncio.timeout(BIRTH_S):
                await self._runtime.start_actor(role, name, avoid=avoid)
                incarnation, node, _ = await self._answer(name)
        except (PeerGone, ClusterError):
            self._died(name, gone=True)
        except Exception:  # unavailable, too slow, or an error of the cluster: to be tried again
            self._died(name, gone=False)
        else:
            self._here(name, incarnation, node)

    async def _answer(self, name: str) -> tuple[str, str, tuple[str, ...]]:
        while True:
            try:
                incarnation, node, *jobs = await self._runtime.peer(name).ask("ping")
                return str(incarnation), str(node), tuple(jobs[0]) if jobs else ()
            except PeerUnavailable:
                await asyncio.sleep(AGAIN_S)

    def _here(self, name: str, incarnation: str, node: str) -> None:
        self.known[name] = incarnation
        self._post(protocol.MemberStarted(self._runtime.monotonic_s(), name, node, incarnation))

    async def _ping(self, name: str) -> None:
        """Ping a member once. Silence does not prove its death; a new incarnation does, and so does the cluster's
        record.
        """
        try:
            async with asyncio.timeout(PING_S):
                incarnation, *_ = await self._runtime.peer(name).ask("ping")
        except PeerGone:
            self._died(name, gone=True)
        except Exception:  # unavailable, too slow, or an error of the cluster
            # Of a member that is being retired another process may have the name, which hangs: it is to be killed.
            if ("retire", name) not in self._tasks and await self._is_dead(name):
                self._died(name, gone=True)
            else:
                self._post(protocol.PingUnanswered(self._runtime.monotonic_s(), name))
        else:
            if self.known.get(name, incarnation) != incarnation:
                self._died(name, gone=True)
            else:
                self._post(protocol.PingAnswered(self._runtime.monotonic_s(), name))

    async def _is_dead(self, name: str) -> bool:
        """Return whether the cluster knows that the member has ended; False if the cluster cannot tell."""
        known = self.known.get(name)
        try:
            return known is not None and await self._runtime.is_dead(name, known)
        except Exception as error:  # any error of Ray while its head is unavailable
            _log.debug("the cluster does not say whether %s lives: %s", name, type(error).__name__)
            return False

    async def _find(self, name: str) -> None:
        """Wait for the first answer of a member that is alive, or is being restarted by the cluster."""
        try:
            async with asyncio.timeout(BIRTH_S):
                incarnation, node, jobs = await self._answer(name)
        except PeerGone:
            self._died(name, gone=True)
        except Exception:  # too slow, or an error of the cluster: to be tried again
            self._died(name, gone=False)
        else:
            self.found_jobs.update(jobs)
            self._here(name, incarnation, node)

    async def _kill(self, name: str) -> None:
        await self._runtime.kill_actor(name)
        self._died(name, gone=True)

    async def _retire(self, name: str) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._runtime.peer(name).ask("drain")
        except Exception as error:  # gone, too slow, or an error of the cluster: it is ended all the same
            _log.debug("%s has not drained: %s", name, type(error).__name__)
        await self._runtime.end_actor(name)
        self._died(name, gone=True)

    def _died(self, name: str, *, gone: bool) -> None:
        if gone:
            self.known.pop(name, None)
        self._post(protocol.MemberDied(self._runtime.monotonic_s(), name, "", gone))
