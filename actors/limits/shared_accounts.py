"""Shares of accounts that several clusters use: requested, renewed in time, and returned when unused.

The decisions are in ``policies.limits.tenancy``. A share reported as kept is a promise: the scheduler grants no more
until the answer has come. Without an answer a share expires, and no new calls begin on it.
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
"""Key among a job's places: address at which its cluster shares accounts."""
NOTE = "tenant"
ADDRESS = "limits"
"""``NOTE`` and ``ADDRESS`` are notes of a cluster: its id among the tenants, and the address of the accounts."""
LOOK_S = 1.0
"""Seconds between two renewals."""
SOON_S = 0.2
"""Seconds between two renewals while a share is being transferred between clusters."""
PAUSE_S = 0.05
"""Least pause between two rounds of requests, in seconds."""
CALL_S = 60.0
"""Longest call in seconds, where no job states one."""

_log = logging.getLogger("cortex.sharing")


class AccountStore(Protocol):
    """Store of shares. All methods raise ``StoreError``."""

    def prepare(self) -> None:
        """Check that the store can be used."""

    def ask(self, pool: str, asked: TenantRequest) -> TenantShare:
        """Request a share of a pool."""

    def leave(self, pool: str, tenant: str) -> None:
        """Return the share of a pool that is no longer used."""

    def caps(self) -> dict[str, PoolCaps]:
        """Return manual limits, by pool."""

    def cap(self, pool: str, caps: PoolCaps) -> None:
        """Store manual limits of a pool."""


def accounts_at(address: str) -> AccountStore:
    """Return the accounts at an address. Raises ``StoreError``."""
    store = store_of(address)
    accounts: AccountStore = store.load(store.accounts)(address)
    return accounts


class AccountSharing:
    """Shared accounts of one scheduler, whose decisions are made by ``step``."""

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
        """Pool -> last requested number of permits."""
        self._soon = False
        self.address = ""

    async def begin(self, address: str) -> None:
        """Start to share accounts. Raises ``StoreError``, also if another database is in use."""
        async with self._beginning:  # two jobs may begin at once
            if self.address == address:
                return
            if self.address:
                raise StoreError(f"this cluster already shares its limits at {self.address}: give that as --limits")
            accounts = accounts_at(address)
            await asyncio.to_thread(accounts.prepare)
            self.adopt(address, accounts)

    def adopt(self, address: str, accounts: AccountStore | None = None) -> None:
        """Start to share accounts in a scheduler that succeeds another one. Call once. Raises ``StoreError``."""
        assert self._task is None, "two renewal loops could apply an older answer after a newer one"
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
        """Wake the renewal if more of an account could be used. Called after each decision."""
        if self._accounts is not None and any(self._lacks(*each) for each in self._state.pools.items()):
            self._changed.set()

    def _lacks(self, name: str, pool: PoolState) -> bool:
        """Return True if a pool wants more permits than it has and than were requested."""
        share = pool.lent
        if share is None or pool.wanted <= self._announced.get(name, 0):
            return False
        return not share.part or (share.permits != ANY and share.permits < pool.wanted)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._soon = False
            for name, pool in list(self._state.pools.items()):
                try:
                    if pool.holders or pool.in_use:
                        await self._renew(name, pool)
                    elif name in self._lent:
                        await self._leave(name)
                except Exception:  # the shares of the other pools must be renewed, and this one's next time
                    _log.exception("the share of %s cannot be renewed", name)
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                # wait_for of Python 3.11 may swallow a cancellation
                async with asyncio.timeout(SOON_S if self._soon else LOOK_S):
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
        with contextlib.suppress(StoreError):  # otherwise the lease expires
            await asyncio.to_thread(self._accounts.leave, name, self._tenant)
            self._lent.pop(name, None)
            self._announced.pop(name, None)

    def _warn(self, text: str) -> None:
        if text != self._reason:
            self._reason = text
            _log.warning("shares of accounts: %s; what is held is used until it runs out", text)

    async def close(self) -> None:
        """Return all shares that are not in use."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._lent):
            pool = self._state.pools.get(name)
            if pool is None or not pool.in_use:
                await self._leave(name)


def _starves(share: TenantShare, asked: TenantRequest) -> bool:
    """Return True if the share allows no calls although some are wanted."""
    return asked.want > 0 and not (share.part and share.permits)
