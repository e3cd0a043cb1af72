"""Distribution of a job's connection (endpoints and credentials) to all branches, each change of it included."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime

ARM_S = 5.0
"""Seconds that a branch may take to accept a credential."""

PAUSE_S = 0.5
"""Seconds between two attempts to reach a branch that is waited for."""
SILENT_S = 20.0
"""Seconds after which a change goes on without a branch that does not answer: the others are not kept waiting."""


class CredentialSender:
    """Sender of one job's present connection. A branch that has not accepted it is sent it again at each look: with an
    earlier one it would go on with a key that is refused, or without a server that was added.
    """

    def __init__(self, job: str, runtime: Runtime, connection: bytes) -> None:
        self._job = job
        self._runtime = runtime
        self._connection = connection
        self._missed: set[str] = set()
        """Branches that have not accepted the present connection."""
        self._another_round = False
        """True if all branches are sent it again once none is missing: one that was restarted meanwhile may have got an
        earlier connection from one that was missing."""
        self._late = False
        self._sending: asyncio.Task[None] | None = None

    def change(self, connection: bytes) -> None:
        """Send this connection from now on."""
        self._connection = connection
        self._late = False

    async def send(self, names: Collection[str]) -> None:
        """Send the connection to these branches. Return after ``ARM_S`` seconds at most."""
        await asyncio.gather(*map(self._send, names))

    def look(self, unarmed: Collection[str]) -> None:
        """Send the connection, without waiting, to these branches, which have none, and to those that are missing."""
        if self._sending is not None:
            if not self._sending.done():
                return
            self._sending.result()
            self._sending = None
        if unarmed or self._missed or self._another_round:
            self._sending = asyncio.get_running_loop().create_task(self._send_again({*unarmed, *self._missed}))

    async def settle(self) -> None:
        """Wait until no branch is missing, or those that are have been silent for ``SILENT_S`` seconds."""
        until_s = asyncio.get_running_loop().time() + SILENT_S
        while self._missed and asyncio.get_running_loop().time() < until_s:
            self.look(())
            await asyncio.sleep(PAUSE_S)

    def came_late(self) -> bool:
        """Return whether a branch has accepted the present connection after others, since this was last asked: its
        calls may have failed for want of it."""
        late, self._late = self._late, False
        return late

    async def close(self) -> None:
        """Stop sending."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_again(self, names: set[str]) -> None:
        if self._another_round and not self._missed:
            with contextlib.suppress(PeerUnavailable, PeerGone):
                branches, _ = await self._runtime.peer("cortex").ask("staff", False)
                self._another_round = False
                names.update(branches)
                self._late = True
        await self.send(sorted(names))

    async def _send(self, name: str) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(ARM_S):
                await self._runtime.peer(name).ask("set_credential", self._job, connection)
        except PeerGone:  # the next process of this name has none, or has one from another branch
            self._missed.discard(name)
        except (PeerUnavailable, TimeoutError):
            self._missed.add(name)
            self._another_round = True
        else:
            if connection is self._connection and name in self._missed:
                self._missed.discard(name)
                self._late = True
