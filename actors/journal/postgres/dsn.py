"""Addresses of databases, for ``--state`` and ``--limits``: validation, and the conninfo of a connection.

libpq takes everything that the address leaves out from its usual places: PGPASSWORD, PGPASSFILE or ~/.pgpass,
PGSERVICE, PGSSLMODE, PGSSLROOTCERT, PGSSLCERT and PGSSLKEY, … https://www.postgresql.org/docs/current/libpq-envars.html
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from actors.files.local.new_files import is_private
from actors.files.local.os_errors import told
from actors.journal.journal import StoreError

SECRETS = ("password", "sslpassword")
DEFAULTS = {
    "fallback_application_name": "cortex",
    "client_encoding": "UTF8",  # otherwise a database of the encoding SQL_ASCII returns bytes
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",  # ms
}
"""Connection parameters that apply unless the address or the environment sets them. A server whose host is gone is
given up after half a minute instead of the operating system's two hours."""
_VARIABLES = {"connect_timeout": "PGCONNECT_TIMEOUT"}


def conninfo_of(address: str, environ: Mapping[str, str]) -> str:
    """Return the conninfo of an address. Raises ``StoreError``, which never repeats a password in the address."""
    if _holds_secret(address):
        raise StoreError(
            "the address of the database holds a password, which the list of processes would show: give it in "
            "PGPASSWORD, or in ~/.pgpass or the file that PGPASSFILE names"
        )
    try:
        given = conninfo_to_dict(address)
        own = {name: value for name, value in DEFAULTS.items() if name not in given}
        own = {name: value for name, value in own.items() if _VARIABLES.get(name, "") not in environ}
        whole: Mapping[str, Any] = {**own, **given}
        return make_conninfo("", **whole)
    except ProgrammingError as error:
        raise StoreError(f"{address}: {str(error).strip()}") from None


def _holds_secret(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit(address.replace("[", "").replace("]", ""))
    user = parts.netloc.rpartition("@")[0]
    named = {name for name, value in parse_qsl(parts.query) if value}
    return bool(user.partition(":")[2]) or not named.isdisjoint(SECRETS)


def own_folder(address: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of this machine for files of the database's jobs: spooled input, spans, incomplete tables."""
    name = blake2b(address.encode(), digest_size=8).hexdigest()
    home = Path(environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    there = next((each for each in (home, *home.parents) if each.exists()), home)
    if os.access(there, os.W_OK | os.X_OK):
        return home / "cortex" / name
    return _temporary() / name


def _temporary() -> Path:
    """Return a folder of this user for temporary files, where the home cannot be written.

    Anybody may make a folder of that name first, and rename what is in it. Raises ``StoreError`` for one that is not
    this user's alone.
    """
    folder = Path(tempfile.gettempdir()) / f"cortex-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder):
            return folder
    except OSError as error:
        raise StoreError(f"cannot use {folder} for files of this machine: {told(error)}; set XDG_STATE_HOME") from None
    raise StoreError(f"{folder} belongs to another user, or others can write to it: remove it, or set XDG_STATE_HOME")
