"""A cortex's shares of accounts that other clusters use too: asked for, renewed in time, given back when not wanted.

What is decided is ``policies.limits.tenancy``. What is told as kept is true from before it is told: the cortex grants
no more until the answer is there. Where nobody answers, a share runs out, and nothing new is begun on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, Protocol

from actors.journal.journal import StoreError
from actors.journal.stores import store_of
from actors.ports.runtime import Runtime
from cortex.scheduler import leases, protocol
from cortex.scheduler.state import LEASE_S, PoolState, SchedulerState
from policies.limits import tenancy
from policies.limits.limit import PoolCaps
from policies.limits.tenancy import ANY, LentShare, TenantRequest, TenantShare, keep, take

PLACE = "limits"
"""Among a job's places: where its cluster shares accounts with others."""
NOTE = "tenant"
ADDRESS = "limits"
"""Notes of a cluster: by what name it is known to others, and where."""
LOOK_S = 1.0
SOON_S = 0.2
"""The same while something is on its way to another cluster, or here."""
PAUSE_S = 0.05
"""Between two requests at least."""
CALL_S = 60.0
"""How long a call may take where no job says."""

_log = logging.getLogger("cortex.sharing")


class AccountStore(Protocol):
    """Where shares are had. All raise ``StoreError``."""

    def prepare(self) -> None:
        """See that it can be used."""

    def ask(self, pool: str, asked: TenantRequest) -> TenantShare:
        """A share of a pool."""

    def leave(self, pool: str, tenant: str) -> None:
        """Nothing is in use any more."""

    def caps(self) -> dict[str, PoolCaps]:
        """What was set by hand for all that draw on a pool."""

    def cap(self, pool: str, caps: PoolCaps) -> None:
        """Have these bounds in force."""


def accounts_at(address: str) -> AccountStore:
    """Those that an address names. Raises ``StoreError``."""
    store = store_of(address)
    accounts: AccountStore = store.load(store.accounts)(address)
    return accounts


class AccountSharing:
    """Of one cortex. ``step`` has it decide."""

    def __init__(self, runtime: Runtime, state: SchedulerState, step: Callable[[protocol.Event], Any]) -> None:
        self._runtime = runtime
        self._state = state
        self._step = step
        self._accounts: AccountStore | None = None
        self._tenant = ""
        self._lent: dict[str, LentShare] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._reason = ""
        self._announced: dict[str, int] = {}
        """By pool: what was told last is wanted."""
        self._soon = False
        self.address = ""

    async def begin(self, address: str) -> None:
        """Share accounts from here on. Raises ``StoreError``, also where another database is in use for that."""
        async with self._beginning:  # two jobs may come at once
            if self.address == address:
                return
            if self.address:
                raise StoreError(f"this cluster shares its limits at {self.address} already, not at {address}")
            accounts = accounts_at(address)
            await asyncio.to_thread(accounts.prepare)
            self.adopt(address, accounts)

    def adopt(self, address: str, accounts: AccountStore | None = None) -> None:
        """The same, once, for a cortex that comes after one that did. Raises ``StoreError``."""
        assert self._task is None, "two that renew would take an older answer after a newer one"
        notes = self._runtime.notes
        there = notes.found(NOTE).get(NOTE, b"")
        self._tenant = there.decode() or os.urandom(8).hex()
        if not there:
            notes.put(NOTE, self._tenant.encode())
        notes.put(ADDRESS, address.encode())
        self._accounts, self.address = accounts or accounts_at(address), address
        self._step(protocol.AccountShared(self._runtime.monotonic_s()))
        self._task = asyncio.get_running_loop().create_task(self._run())

    def look(self) -> None:
        """After each decision: more of an account could be used."""
        if self._accounts is not None and any(self._lacks(*each) for each in self._state.pools.items()):
            self._changed.set()

    def _lacks(self, name: str, pool: PoolState) -> bool:
        """Whether more is wanted than it has, and than was told."""
        share = pool.lent
        if share is None or pool.wanted <= self._announced.get(name, 0):
            return False
        return not share.part or (share.permits != ANY and share.permits < pool.wanted)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._soon = False
            for name, pool in list(self._state.pools.items()):
                if pool.holders or pool.in_use:
                    await self._renew(name, pool)
                elif name in self._lent:
                    await self._leave(name)
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_S if self._soon else LOOK_S):  # in 3.11 wait_for may swallow a cancel
                    await self._changed.wait()

    async def _renew(self, name: str, pool: PoolState) -> None:
        assert self._accounts is not None
        state, lent, asked_s = self._state, self._lent.setdefault(name, LentShare()), self._runtime.monotonic_s()
        number = leases.acknowledged(state, pool)
        permits, part = keep(lent, asked_s, pool.in_use, pool.wanted, LEASE_S, number, state.serial)
        self._announced[name] = pool.wanted
        self._announce(name, lent)
        call_s = max((job.call_timeout_s for job in state.jobs.values()), default=CALL_S)
        asked = TenantRequest(
            tenant=self._tenant, want=pool.wanted, keeps=permits, keeps_part=part, linger_s=LEASE_S + call_s,
            sure=state.at_s >= max(state.silent_until_s, state.probes_from_s),
        )  # fmt: skip
        try:
            share = await asyncio.to_thread(self._accounts.ask, name, asked)
        except StoreError as error:
            self._warn(str(error))
            return
        self._reason = ""
        self._soon |= share.part < part or 0 <= share.permits < min(permits, asked.want) or _starves(share, asked)
        take(lent, share, asked_s, self._runtime.monotonic_s(), LEASE_S, state.serial)
        self._announce(name, lent)

    def _announce(self, name: str, lent: LentShare) -> None:
        pool = self._state.pools.get(name)
        if pool is None or pool.lent != lent.share or pool.lent_until_s != lent.until_s:
            self._step(protocol.AccountShared(self._runtime.monotonic_s(), name, lent.share, lent.until_s))

    async def _leave(self, name: str) -> None:
        assert self._accounts is not None
        lent = self._lent[name]
        lent.share, lent.until_s = tenancy.NOTHING, float("-inf")
        self._announce(name, lent)
        with contextlib.suppress(StoreError):  # else its lease runs out
            await asyncio.to_thread(self._accounts.leave, name, self._tenant)
            self._lent.pop(name, None)
            self._announced.pop(name, None)

    def _warn(self, text: str) -> None:
        if text != self._reason:
            self._reason = text
            _log.warning("shares of accounts: %s; what is held is used until it runs out", text)

    async def close(self) -> None:
        """Give everything back, as far as nothing of it is in use."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._lent):
            pool = self._state.pools.get(name)
            if pool is None or not pool.in_use:
                await self._leave(name)


def _starves(share: TenantShare, asked: TenantRequest) -> bool:
    """Whether nothing can be done with it, though something is wanted."""
    return asked.want > 0 and not (share.part and share.permits)
