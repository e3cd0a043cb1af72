"""The tables, and how those of an older release become this one's: by Alembic, in one transaction, one run at a time.

Each step is a file in ``versions``; the number of the last one that was taken stands in the table ``cortex_schema``.
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
_one_at_a_time = threading.Lock()  # Alembic keeps what it works on in its modules
_LOCK = 0x636F72746578  # "cortex": two that begin at once make the tables once


def version(link: DatabaseConnection) -> int:
    """The schema that is there; 0: none yet. Raises ``StoreError``, also for one of a newer release."""
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
    """Whether there are tables, as this release has them. Raises ``StoreError`` for those of another one."""
    found = version(link)
    if 0 < found < VERSION:
        raise StoreError(
            f"the database {link.address} is of an older release (schema {found}): begin or resume a job in it, that "
            "brings it up to this one's"
        )
    return found == VERSION


def bring_up(link: DatabaseConnection, conninfo: str) -> None:
    """Make the tables, or bring them to this release's. Raises ``StoreError``."""
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
