"""Small values in rows of the table of notes. An advisory lock serializes their writers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import psycopg

from actors.journal.journal import StoreError
from actors.journal.postgres.connection import DatabaseConnection, ran
from cortex.journal.seals import SET, BadSeal, opened_set, sealed_set, sealed_value

T = TypeVar("T")

_READ = "SELECT name, value FROM cortex_notes WHERE kind = %s ORDER BY name"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('cortex ' || current_schema() || ' ' || %s, 0))"
_PUT = (
    "INSERT INTO cortex_notes (kind, name, value) VALUES (%s, %s, %s) ON CONFLICT (kind, name) "
    "DO UPDATE SET value = excluded.value, changed_at = clock_timestamp()"
)
_DROP = "DELETE FROM cortex_notes WHERE kind = %s AND name = %s"


class DatabaseKeyValues:
    """``KeyValues`` in a database. ``linked`` opens a connection; ``ready`` returns whether the tables exist."""

    def __init__(self, kind: str, linked: Callable[[], DatabaseConnection], ready: Callable[[], bool]) -> None:
        self._kind, self._linked, self._ready = kind, linked, ready

    def read(self) -> dict[str, bytes]:
        """Return all values by name."""
        if not self._ready():
            return {}
        with contextlib.closing(self._linked()) as link:
            return self._opened(link.rows(_READ, (self._kind,)))

    def _opened(self, rows: Iterable[tuple[Any, ...]]) -> dict[str, bytes]:
        """Return the values of rows of the table. Raises ``StoreError`` if one was changed or lost."""
        try:
            return opened_set(((str(name), bytes(value)) for name, value in rows), listed=False)
        except BadSeal as error:
            what = f"the {self._kind} of the database are damaged at {error}"
            raise StoreError(
                f"{what}: restore the table cortex_notes from a backup, or delete its rows of kind {self._kind!r}"
            ) from None

    def change(self, how: Callable[[dict[str, bytes]], tuple[Mapping[str, bytes | None], T]]) -> T:
        """Apply ``how`` in one transaction."""
        return self.change_at(lambda there, at_s: how(there))

    def now_s(self) -> float:
        """Return the server's time, in seconds since 1970."""
        with contextlib.closing(self._linked()) as link:
            return float(link.rows(_NOW)[0][0])

    def change_at(self, how: Callable[[dict[str, bytes], float], tuple[Mapping[str, bytes | None], T]]) -> T:
        """Apply ``how`` in one transaction, with the server's time as well; times never decrease from one change to the
        next.
        """

        def run(connection: psycopg.Connection[Any]) -> T:
            ran(connection, _ALONE, (self._kind,))
            at_s = float(ran(connection, _NOW).fetchall()[0][0])
            there = self._opened(ran(connection, _READ, (self._kind,)).fetchall())
            changed, answer = how(dict(there), at_s)
            for name, value in changed.items():
                given = (self._kind, name)
                if value is None:
                    there.pop(name, None)
                    ran(connection, _DROP, given)
                else:
                    there[name] = value
                    ran(connection, _PUT, (*given, sealed_value(name, value)))
            if changed:
                ran(connection, _PUT, (self._kind, SET, sealed_set(there)))
            return answer

        with contextlib.closing(self._linked()) as link:
            return link.transaction(run)
