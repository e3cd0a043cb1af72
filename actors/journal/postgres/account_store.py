"""``--limits postgresql://…``: where several clusters that use one account agree on who may use how much of it.

All of it is decided by ``policies.limits.tenancy``, in one transaction, one of them at a time, by the server's clock.
"""

from __future__ import annotations

import msgspec

from actors.journal.postgres.folder import DatabaseStateFolder
from policies.limits import tenancy
from policies.limits.limit import PoolCaps

_KIND = "account"
_decoder = msgspec.msgpack.Decoder(tenancy.SharedAccount)


class DatabaseAccounts:
    """The accounts that stand in a database."""

    def __init__(self, address: str) -> None:
        """Raises ``StoreError`` for an address that cannot be one."""
        self.folder = DatabaseStateFolder(address)
        self._register = self.folder.register(_KIND)

    def prepare(self) -> None:
        """Make the tables where they are not there. Raises ``StoreError``."""
        self.folder.prepare()

    def ask(self, pool: str, asked: tenancy.TenantRequest) -> tenancy.TenantShare:
        """A share of a pool, durable when this returns. Raises ``StoreError``."""

        def change(there: dict[str, bytes], at_s: float) -> tuple[dict[str, bytes | None], tenancy.TenantShare]:
            account = _account(there, pool)
            share = tenancy.ask(account, asked, at_s)
            return {pool: msgspec.msgpack.encode(account)}, share

        return self._register.change_at(change)

    def leave(self, pool: str, tenant: str) -> None:
        """Nothing of this tenant is in use any more. Raises ``StoreError``."""

        def change(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], None]:
            account = _account(there, pool)
            tenancy.leave(account, tenant)
            return {pool: msgspec.msgpack.encode(account)}, None

        self._register.change(change)

    def caps(self) -> dict[str, PoolCaps]:
        """What was set by hand, by pool. Raises ``StoreError``."""
        return {name: _decoder.decode(blob).caps for name, blob in self._register.read().items()}

    def cap(self, pool: str, caps: PoolCaps) -> None:
        """Have these bounds in force for all that draw on a pool. Raises ``StoreError``."""

        def change(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], None]:
            account = _account(there, pool)
            account.caps = caps
            return {pool: msgspec.msgpack.encode(account)}, None

        self._register.change(change)


def _account(there: dict[str, bytes], pool: str) -> tenancy.SharedAccount:
    return _decoder.decode(there[pool]) if pool in there else tenancy.SharedAccount()
