"""Tables of the database and their migration from older releases: by Alembic, in one serialized transaction.

Each step is a file in ``versions``; the table ``cortex_schema`` holds the number of the last step that was applied.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg

from actors.journal.journal import StoreError
from actors.journal.postgres.connection import DatabaseConnection
from actors.journal.postgres.errors import error_line

VERSION = 1
VERSIONS = Path(__file__).parent / "versions"
TABLE = "cortex_schema"
_one_at_a_time = threading.Lock()  # Alembic keeps its state in module globals
_LOCK = 0x636F72746578  # "cortex": of two concurrent runs only one creates the tables


def version(link: DatabaseConnection) -> int:
    """Return the schema version of the database; 0: none yet. Raises ``StoreError``, also for a newer release's
    version.
    """
    if not link.rows("SELECT to_regclass(%s)::text", (TABLE,))[0][0]:
        return 0
    rows = link.rows(f"SELECT version_num FROM {TABLE}")
    found = int(rows[0][0]) if rows else 0
    if found > VERSION:
        raise StoreError(
            f"the database {link.address} is of a newer release (schema {found}, this one knows {VERSION}): upgrade "
            "to use it"
        )
    return found


def is_there(link: DatabaseConnection) -> bool:
    """Return whether this release's tables exist. Raises ``StoreError`` for those of another release."""
    found = version(link)
    if 0 < found < VERSION:
        raise StoreError(
            f"the database {link.address} is of an older release (schema {found}): begin or resume a job in it, that "
            "brings it up to this one's"
        )
    return found == VERSION


def bring_up(link: DatabaseConnection, conninfo: str) -> None:
    """Create the tables, or migrate them to this release's version. Raises ``StoreError``."""
    if version(link) == VERSION:
        return
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import NullPool

    script = ScriptDirectory(str(VERSIONS.parent), version_locations=[str(VERSIONS)])
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), poolclass=NullPool)

    def steps_from(revision: Any, _context: Any) -> Any:
        return script._upgrade_revs("head", revision)

    try:
        with (
            _one_at_a_time,
            engine.begin() as connection,
            EnvironmentContext(Config(), script, fn=steps_from) as steps,
        ):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            steps.configure(connection=connection, version_table=TABLE)
            steps.run_migrations()
    except DBAPIError as error:
        wrong = error.orig
        raise (error_line(wrong, link.address, False) if isinstance(wrong, psycopg.Error) else error) from None
