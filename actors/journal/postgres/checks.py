"""Checks of ``cortex doctor`` for a database: reachability, encryption, time of a commit."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from actors.common.findings import Finding, ok, warning, wrong
from actors.journal.postgres.connection import DatabaseConnection
from actors.journal.postgres.dsn import conninfo_of
from actors.journal.postgres.migrations import version

_SLOW_COMMIT_S = 0.05
_COMMITS = 5
_ABOUT = """
SELECT current_setting('server_version'), coalesce(current_schema(), ''), current_setting('fsync'),
       coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
       inet_server_addr() IS NULL OR host(inet_server_addr()) IN ('127.0.0.1', '::1'),
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false), pg_is_in_recovery()
"""


def state(address: str) -> Iterator[Finding]:
    """Check the database, without lasting changes to it. Raises ``StoreError``."""
    link = DatabaseConnection(conninfo_of(address, os.environ), address)
    release, schema, fsync, tls, near, may, standby = link.rows(_ABOUT)[0]
    there = version(link)
    commit_s = _commit_s(link)
    text = f"{address}: PostgreSQL {release}, {'TLS' if tls else 'no TLS'}"
    text += f", a commit takes {1_000 * commit_s:.1f} ms"
    if not there:
        text += "; the tables are made by the first run"
    if standby:
        yield wrong("state", f"{text}; it is a standby", "add ?target_session_attrs=read-write, and name all hosts")
    elif not there and not (schema and may):
        yield wrong("state", f"{text}; this user may make no tables", "grant it CREATE on a schema of its search_path")
    elif fsync == "off":
        yield warning("state", f"{text}; it does not wait for its disk (fsync=off)", "a crash there may lose replies")
    elif not tls and not near:
        yield warning("state", f"{text}; prompts and replies travel in clear", "PGSSLMODE=verify-full, PGSSLROOTCERT")
    elif commit_s > _SLOW_COMMIT_S:
        yield warning("state", text, "a nearer or faster database: each turn waits for it")
    else:
        yield ok("state", text)
    link.close()


def room(address: str) -> Iterator[Finding]:
    """Yield nothing: a server does not report the free space of its disk."""
    return iter(())


def _commit_s(link: DatabaseConnection) -> float:
    """Return the median seconds of some commits, which leave no rows."""
    took = []
    for _ in range(_COMMITS):
        begun_s = time.perf_counter()
        link.count("SELECT pg_logical_emit_message(true, 'cortex', 'doctor')")  # writes a log record, but no row
        took.append(time.perf_counter() - begun_s)
    return statistics.median(took)
