"""Journals in a PostgreSQL database, which channels on any machine reach. Needs the extra ``postgres``."""

from __future__ import annotations

from actors.journal.errors import StoreError

try:
    import psycopg as _psycopg  # noqa: F401 - every module here needs it: the package is the one place that says so
except ImportError as missing:
    _need = "a database needs the extra postgres: pip install 'cortex-bounded-calls[postgres]'"
    raise StoreError(f"{_need} ({missing})") from None
