"""Registry of journal stores: one row for each kind of address that ``--state`` takes.

The rest of the code asks this table, so that a new store is a package below ``actors.journal`` and a row. Rows name
modules as text: a store, and the dependency that it needs, is imported where it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from actors.journal.errors import StoreError


class JournalStore(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a store."""

    schemes: tuple[str, ...]
    """Prefixes of its addresses, such as ``postgresql://``; none: paths of this machine."""
    folder: str
    """``module:Class`` of its ``actors.journal.state_folder.StateFolder``."""
    checks: str
    """Module with the checks of ``cortex doctor``: ``state(address)`` and ``room(address)`` yield findings."""
    accounts: str = ""
    """``module:Class`` of its ``actors.limits.shared_accounts.AccountStore``; empty if the store cannot serve
    ``--limits``."""
    distribution: str = ""
    """Distribution that must be installed wherever a channel runs; empty: none."""
    extra: str = ""
    """Extra of this project that installs it."""
    secrets: tuple[str, ...] = ()
    """Environment variables with its credentials. Only channels and the cortex keep them."""

    def load(self, place: str) -> Any:
        """Return the module, or for ``module:name`` the object, that a field names.

        Raises ``StoreError`` if the extra is not installed.
        """
        module, _, name = place.partition(":")
        try:
            found = import_module(module)
        except ImportError as missing:
            if not self.extra:
                raise
            extra = f"the extra {self.extra}: pip install 'cortex-bounded-calls[{self.extra}]'"
            raise StoreError(f"a database needs {extra} ({missing})") from None
        return getattr(found, name) if name else found


STORES = (
    JournalStore(
        schemes=("postgresql://", "postgres://"),  # https://www.postgresql.org/docs/current/libpq-connect.html
        folder="actors.journal.postgres.folder:DatabaseStateFolder",
        checks="actors.journal.postgres.checks",
        accounts="actors.journal.postgres.account_store:DatabaseAccounts",
        distribution="psycopg",
        extra="postgres",
        secrets=("PGPASSWORD",),
    ),
    JournalStore(
        schemes=(), folder="actors.journal.sqlite.folder:FileStateFolder", checks="actors.journal.sqlite.checks"
    ),
)
"""All stores. The last row serves every address that no other row claims."""


def store_of(address: str | Path) -> JournalStore:
    """Return the store that serves this address."""
    return next(store for store in STORES if not store.schemes or str(address).startswith(store.schemes))


def known(address: str) -> bool:
    """Return whether a store serves this address: every path, and every address whose scheme is in the table."""
    return "://" not in address or bool(store_of(address).schemes)


def examples(stores: tuple[JournalStore, ...]) -> str:
    """Return the forms of these stores' addresses, for messages: ``postgresql://…``."""
    return " or ".join(f"{store.schemes[0]}…" for store in stores if store.schemes)
