"""Credentials of a branch: taken from the driver of a job, or from a peer branch that has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from actors.branch.in_flight import InFlightCall
from actors.branch.model_registry import ModelRegistry, family_of
from actors.ports.model import Model
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime

HAND_OVER_S = 5.0
"""Seconds that a peer may take to answer before the next one is asked: a call to a killed actor may never end."""


class CredentialExchange:
    """Intake of credentials for one branch, and the calls that wait for one.

    ``keys`` keeps the models and credentials of each job family. ``enqueue`` begins calls whose credential has come.
    """

    def __init__(
        self, name: str, runtime: Runtime, keys: ModelRegistry, enqueue: Callable[[list[InFlightCall]], None]
    ) -> None:
        self._name = name
        self._runtime = runtime
        self._keys = keys
        self._enqueue = enqueue
        self._waiting: dict[str, list[InFlightCall]] = {}
        """Calls that wait for a credential, by job family (see ``family_of``)."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: dict[str, asyncio.Task[None]] = {}
        """Requests to peers under way, by job family."""
        self.preparing: dict[Model, asyncio.Task[None]] = {}
        """Preparations under way by model, for example of a local server that loads its weights. A call waits for its
        model's before it begins: seconds of imports are no duration of an answer."""

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a credential."""
        return sum(map(len, self._waiting.values()))

    async def set_credential(self, job: str, connection: bytes) -> None:
        """Take endpoint and credential for a job, and begin the calls that wait for them."""
        family = family_of(job)
        for model in self._keys.add(family, connection):
            prepare = getattr(model, "prepare", None)
            if prepare is not None:
                self.preparing[model] = self._in_background(self._prepare(model, prepare))
        if waiting := self._waiting.pop(family, []):
            self._enqueue(waiting)
        await self._keys.let_go()

    def hand_over(self, job: str) -> bytes | None:
        """Return what ``set_credential`` took for a job, for a peer branch; None if this branch has no credential for
        it.
        """
        return self._keys.connection(family_of(job))

    def request(self, job: str, peers: tuple[str, ...]) -> None:
        """Ask these branches for the credential of a job, in the background, one after the other; unless some are being
        asked already."""
        family = family_of(job)
        if (asked := self._asking.get(family)) is None or asked.done():
            self._asking[family] = self._in_background(self._ask_peers(job, peers))

    def hold(self, family: str, calls: list[InFlightCall]) -> None:
        """Keep calls until a credential for their job family has come."""
        self._waiting.setdefault(family, []).extend(calls)

    def remove(self, under: InFlightCall) -> bool:
        """Take a call out of those that wait. Return False if the call does not wait for a credential."""
        waiting = self._waiting.get(under.family, [])
        if under not in waiting:
            return False
        waiting.remove(under)
        return True

    def drop(self, family: str) -> list[InFlightCall]:
        """Return the calls of a job family that wait, and forget them: the job has ended, and what a peer answers now
        is its old credential."""
        if (asked := self._asking.pop(family, None)) is not None:
            asked.cancel()
        return self._waiting.pop(family, [])

    def close(self) -> None:
        """Cancel all that runs in the background."""
        for task in self._tasks:
            task.cancel()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _prepare(self, model: Model, prepare: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await prepare()
        finally:
            del self.preparing[model]

    async def _ask_peers(self, job: str, peers: tuple[str, ...]) -> None:
        for peer in peers:
            if peer == self._name:
                continue
            if family_of(job) in self._keys:  # the driver was first
                return
            with contextlib.suppress(PeerUnavailable, PeerGone, TimeoutError):
                async with asyncio.timeout(HAND_OVER_S):
                    connection = await self._runtime.peer(peer).ask("hand_over", job)
                # what the driver has sent meanwhile is newer than what a peer had when it was asked
                if connection is not None and family_of(job) not in self._keys:
                    await self.set_credential(job, connection)
                    return
