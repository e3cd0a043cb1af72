"""How a branch comes by the credential of a job: from whoever runs it, or from a peer branch that has it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from actors.branch.in_flight import Under
from actors.branch.model_registry import Keyring, family_of
from actors.ports.runtime import Away, Gone, Runtime


class Armed:
    """The part of a branch that keeps keys."""

    name: str
    _runtime: Runtime

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys
        self._unarmed: dict[str, list[Under]] = {}
        """Calls that wait for a key, by the job that its user started."""
        self._errands: set[asyncio.Task[None]] = set()
        self._preparing = 0

    async def arm(self, job: str, arming: bytes) -> None:
        """Take endpoint and credential for a job. Sent in a call, never in a constructor or an environment."""
        family = family_of(job)
        for model in self._keys.add(family, arming):
            prepare = getattr(model, "prepare", None)
            if prepare is not None:
                self._in_background(self._prepare(prepare))
        if waiting := self._unarmed.pop(family, []):
            self._enqueue(waiting)

    async def hand_over(self, job: str) -> bytes | None:
        """Give a peer branch, which was restarted, what it needs to work for this job."""
        return self._keys.arming(family_of(job))

    def _enqueue(self, some: list[Under]) -> None:
        raise NotImplementedError

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _prepare(self, prepare: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._preparing += 1
        try:
            await prepare()
        finally:
            self._preparing -= 1

    async def _ask_peers(self, job: str, peers: tuple[str, ...]) -> None:
        for peer in peers:
            if peer == self.name:
                continue
            with contextlib.suppress(Away, Gone):
                arming = await self._runtime.peer(peer).ask("hand_over", job)
                if arming is not None:
                    await self.arm(job, arming)
                    return
