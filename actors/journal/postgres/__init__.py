"""Journals in a PostgreSQL database, which channels on any machine can reach. Needs the extra ``postgres``."""

from __future__ import annotations

from actors.journal.errors import StoreError

try:
    import psycopg as _psycopg  # noqa: F401 - all modules of this package need psycopg, so its absence is reported once
except ImportError as missing:
    _need = "a database needs the extra postgres: pip install 'cortex-bounded-calls[postgres]'"
    raise StoreError(f"{_need} ({missing})") from None
