"""A channel's share of its pool: claimed, renewed, and given back as soon as it is smaller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from actors.ports import Away, Gone, Runtime
from cortex import scheduler
from cortex.permits import Share
from cortex.state import State

RENEW_S = scheduler.LEASE_S / 3


class Lease:
    """``state`` gives K as it is now, ``granted`` takes a new number of permits.

    ``claim``: permits of an earlier incarnation of this channel, whose lease has not run out.
    """

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], granted: Callable[[int], None], claim: int = 0
    ) -> None:
        self._job = job
        self._cortex = runtime.peer("cortex")
        self._state = state
        self._granted = granted
        self._told = 0
        self._coming = claim
        """Permits that K will have in its next turn."""
        self._left = False
        self._stir = asyncio.Event()

    def given(self, permits: int) -> None:
        """The cortex says so unasked. What it believes to be held here is what must be given back."""
        self._told = max(self._told, permits)
        self._coming = permits
        self._granted(permits)

    def look(self) -> None:
        """After each turn: a share that others wait for is given back at once, the job's end is told at once."""
        k = self._state()
        if k.outcome or self._held(k) < self._told:
            self._stir.set()

    def again(self) -> None:
        """The cortex was started again: tell it what is held."""
        self._stir.set()

    async def hold(self) -> None:
        """Until the job ends. A cortex that does not answer changes nothing: a lease outlives it."""
        while not (k := self._state()).outcome:
            self._stir.clear()
            pool = f"{k.terms.route.endpoint}|{k.terms.route.credential}"
            self._told = self._held(k)
            with contextlib.suppress(Away, Gone):
                if drawing(k):
                    wanted = k.terms.limits.concurrency
                    permits = await self._cortex.ask("join", self._job, pool, wanted, self._told)
                    if permits != leased(self._state()) or self._coming:
                        self.given(permits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):  # in 3.11 wait_for may swallow a cancellation
                    await self._stir.wait()
        await self.leave()

    async def leave(self) -> None:
        """Give the share back: nothing of this job will be sent any more."""
        if not self._left:
            self._left = True
            with contextlib.suppress(Away, Gone):
                await self._cortex.ask("leave", self._job)

    def _held(self, k: State) -> int:
        """What the job may use or still uses: permits that were taken back count until their calls have come home."""
        if leased(k) == self._coming:
            self._coming = 0
        return max(leased(k), sum(share.in_flight for share in drawing(k)), self._coming)


def drawing(k: State) -> list[Share]:
    """The shares of routes that draw on a pool: roads of message batches do not."""
    return [share for share, route in zip(k.shares, k.terms.routes, strict=True) if not route.batched]


def leased(k: State) -> int:
    """Permits that the cortex has leased to this job."""
    return sum(share.permits for share in drawing(k))
