"""``--limits postgresql://…``: limits of an account, shared by several clusters.

All decisions are taken by ``policies.limits.tenancy``, in serialized transactions, by the server's clock.
"""

from __future__ import annotations

import msgspec

from actors.journal.postgres.folder import DatabaseStateFolder
from policies.limits import tenancy
from policies.limits.limit import PoolCaps

_KIND = "account"
_decoder = msgspec.msgpack.Decoder(tenancy.SharedAccount)


class DatabaseAccounts:
    """Shared accounts in a database."""

    def __init__(self, address: str) -> None:
        """Raise ``StoreError`` for an invalid address."""
        self.folder = DatabaseStateFolder(address)
        self._register = self.folder.register(_KIND)

    def prepare(self) -> None:
        """Create the tables if they are missing. Raises ``StoreError``."""
        self.folder.prepare()

    def ask(self, pool: str, asked: tenancy.TenantRequest) -> tenancy.TenantShare:
        """Return a tenant's share of a pool, durable on return. Raises ``StoreError``."""

        def change(there: dict[str, bytes], at_s: float) -> tuple[dict[str, bytes | None], tenancy.TenantShare]:
            account = _account(there, pool)
            share = tenancy.ask(account, asked, at_s)
            return {pool: msgspec.msgpack.encode(account)}, share

        return self._register.change_at(change)

    def leave(self, pool: str, tenant: str) -> None:
        """Remove a tenant that uses nothing any more. Raises ``StoreError``."""

        def change(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], None]:
            account = _account(there, pool)
            tenancy.leave(account, tenant)
            return {pool: msgspec.msgpack.encode(account)}, None

        self._register.change(change)

    def caps(self) -> dict[str, PoolCaps]:
        """Return the caps that operators have set, by pool. Raises ``StoreError``."""
        return {name: _decoder.decode(blob).caps for name, blob in self._register.read().items()}

    def cap(self, pool: str, caps: PoolCaps) -> None:
        """Set caps for all tenants of a pool. Raises ``StoreError``."""

        def change(there: dict[str, bytes]) -> tuple[dict[str, bytes | None], None]:
            account = _account(there, pool)
            account.caps = caps
            return {pool: msgspec.msgpack.encode(account)}, None

        self._register.change(change)


def _account(there: dict[str, bytes], pool: str) -> tenancy.SharedAccount:
    return _decoder.decode(there[pool]) if pool in there else tenancy.SharedAccount()
