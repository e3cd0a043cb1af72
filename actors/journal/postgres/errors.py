"""Errors of a database as one line with a hint what to do."""

from __future__ import annotations

import os
import re

import psycopg

from actors.journal.journal import DatabaseUnreachable, DiskFull, StoreError

_HINTS = (
    ("no password supplied", "give a password in PGPASSWORD, ~/.pgpass or the file that PGPASSFILE names"),
    ("password authentication failed", "look at PGPASSWORD, ~/.pgpass and the user in the address or PGUSER"),
    ("certificate file", "look at PGSSLROOTCERT, PGSSLCERT and PGSSLKEY"),
    ("does not match host name", "give the name in the address that its certificate is for"),
    ("does not exist", "create it first, or look at the address, PGDATABASE and PGUSER"),
    ("too many clients", "end other connections, or raise max_connections there"),
    ("too many connections", "end other connections, or raise that limit"),
    ("connection slots", "end other connections, or raise max_connections there"),
    ("no encryption", "it wants TLS: set PGSSLMODE=require, or verify-full with PGSSLROOTCERT"),
    ("SSL off", "it wants TLS: set PGSSLMODE=require, or verify-full with PGSSLROOTCERT"),
    ("does not support SSL", "have it serve TLS; PGSSLMODE=disable only where the network is safe"),
    ("certificate verify failed", "PGSSLROOTCERT names the certificate of the authority that signed the server's"),
    ("pg_hba.conf", "allow this host and user in its pg_hba.conf"),
)
_PASSING = ("57P01", "57P02", "57P03", "25006", "40001", "40P01", "53300", "08000", "08003", "08006")
"""SQLSTATEs of a server that stops, starts, is a standby at the moment, or ended one of two conflicting transactions: a
repeated request may succeed (https://www.postgresql.org/docs/current/errcodes-appendix.html)."""
_AWAY = "start it, or correct the address: jobs that run wait for it, 15 minutes at most, and go on by themselves"
"""Advice for a database that takes no connection (``actors.journal.retrying.PATIENCE_S``)."""
_BUSY = ("too many", "connection slots")
_FULL = ("53100",)
_NO_RIGHT = ("42501", "3F000")


def error_line(error: psycopg.Error, address: str, known: bool) -> StoreError:
    """Return the error as one line. ``known``: the database has answered before, so the failure may be temporary."""
    text = _line(error)
    state = error.sqlstate or ""
    hint = next((do for words, do in _HINTS if words in text), "")
    busy = any(words in text for words in _BUSY)
    lost = not state and isinstance(error, psycopg.OperationalError) and (busy or not hint)
    if state in _FULL:
        return DiskFull(f"the disk of the database {address} is full ({text}): make room, then resume")
    if known and (lost or state in _PASSING):
        return DatabaseUnreachable(f"the database {address} does not answer: {text}")
    if lost and not hint:
        hint = _AWAY
    if state in _NO_RIGHT:
        hint = "grant that user the right to create tables in a schema of its search_path, or give another user"
    return StoreError(f"cannot use the database {address}: {text}" + (f"; {hint}" if hint else ""))


def _line(error: psycopg.Error) -> str:
    """Return the first line of the error without libpq's prefix, and without the password even if a server echoes
    it.
    """
    text = " ".join(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).split())
    text = re.sub(r"^(connection failed: )?(connection to server .*? failed: )?", "", text)
    text = re.sub(r"\b(FATAL|ERROR|PANIC): *", "", text)
    secret = os.environ.get("PGPASSWORD", "")
    return text.replace(secret, "***") if secret else text
