"""A Ray over several hosts, a provider outside, and the command line on any of the hosts."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.cluster_processes import KEY, WATCHFUL, environment, names_in, write_rows
from tests.e2e import tools
from tests.e2e.hosts.host_namespaces import DISK, Host, Network, network

GCS = 6379
PORT = 8000
TOKEN = "0123456789abcdef" * 4
ROCKSDB = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": f"{DISK}/gcs"}
"""For a head that finds again, on its disk, what it knew."""
TOLD_S = 150
"""How long a test waits for what Ray is to find out, some seconds on an idle machine: nothing here says how fast it is."""
_PROVIDER = """
import json, sys
from actors.simulator.frontends.command import simulate
from actors.simulator.settings import SimulatorSettings
simulate(SimulatorSettings(**json.loads(sys.argv[1])), "0.0.0.0", int(sys.argv[2]))
"""
_FETCH = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], *(each.encode() for each in sys.argv[2:]), timeout=10) as answer:
    sys.stdout.write(answer.read().decode())
"""


class Member(Host):
    """A host with a Ray node on it, or one from which a user works."""

    ray: subprocess.Popen[str] | None = None
    node = ""
    """Ray's name for the node that it has now."""
    _words: tuple[str, ...] = ()
    environ_of_ray: Mapping[str, str] = {}

    def environ(self, **more: str) -> dict[str, str]:
        """What stands in the environment there: a home of its own, and no secret."""
        return environment(HOME=f"{DISK}/home", TMPDIR=f"{DISK}/tmp", NO_COLOR="1", **more)

    def give_token(self, token: str) -> None:
        """Put a token where Ray looks for it."""
        place = self.disk / "home" / ".ray" / "auth_token"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(token)

    def start_ray(self, *words: str, **environ: str) -> None:
        """Begin to start a Ray node; ``up`` waits for it."""
        self._words, self.environ_of_ray = words, environ
        self.start_ray_again()

    def start_ray_again(self) -> None:
        """As it was started before: what whoever keeps a host running does."""
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={self.address}",
            f"--temp-dir={DISK}/ray", "--object-store-memory=80000000", *self._words,
        ]  # fmt: skip
        (self.disk / "tmp").mkdir(exist_ok=True)
        self.node = secrets.token_hex(28)
        known = {"RAY_AUTH_MODE": "token", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": self.node}
        given = {**WATCHFUL, **known, **self.environ_of_ray}
        with self.log.open("w") as out:
            self.ray = self.start(*command, environ=self.environ(**given), stdout=out, stderr=out)

    def forget(self) -> None:
        """Start its Ray with nothing of what it knew, on disk or otherwise."""
        self.environ_of_ray = {}
        self.start_ray_again()

    def back(self) -> None:
        """Be there again after it was lost, with what is on its disk, and its Ray started as before."""
        self.come()
        self.start_ray_again()
        self.up()

    @property
    def log(self) -> Path:
        """What the start of its Ray said."""
        return self.disk / "ray.log"

    def up(self) -> None:
        """Wait until its Ray is there. On a busy machine Ray gives up at times: then it is started once more."""
        assert self.ray is not None
        began = "Ray runtime started"
        tools.until(lambda: began in self.log.read_text() or self.ray.poll() is not None, TOLD_S, f"the Ray of {self.name}")
        if began not in self.log.read_text():
            self.start_ray_again()
        tools.until(lambda: began in self.log.read_text(), TOLD_S, f"the Ray of {self.name}", self.ray, self.log)

    def logs(self, files: int = 6, lines: int = 12) -> str:
        """What its processes said last, those that spoke last: for a test that failed."""
        found = [path for path in self.disk.glob("ray/session_2*/logs/*") if path.is_file() and path.stat().st_size]
        latest = sorted(found, key=lambda path: path.stat().st_mtime)[-files:]
        return "\n".join(
            line for path in latest for line in (path.name, *path.read_text(errors="replace").splitlines()[-lines:])
        )


class Ground:
    """Hosts ``head``, ``a`` and ``b`` with a Ray node each, and ``provider``, which all of them reach."""

    def __init__(self, net: Network) -> None:
        self.head, self.a, self.b = (Member(net, name) for name in ("head", "a", "b"))
        self.provider = Member(net, "provider")
        self.net = net
        self.address = f"{self.head.address}:{GCS}"
        self.url = f"http://{self.provider.outward}:{PORT}"
        self._provider: subprocess.Popen[str] | None = None

    def rays(self, *head_words: str, **environ: str) -> None:
        """Start a Ray over the hosts; ``environ`` is the head's."""
        for member in (self.head, self.a, self.b):
            member.give_token(TOKEN)
        options = ("--include-dashboard=false", "--disable-usage-stats", "--num-cpus=1")
        self.head.start_ray("--head", f"--port={GCS}", *options, *head_words, **environ)
        self.head.up()
        for member in (self.a, self.b):
            member.start_ray(f"--address={self.address}", "--num-cpus=1")
        for member in (self.a, self.b):
            member.up()

    def answers(self, **settings: Any) -> None:
        """Have the provider begin to answer."""
        words = [sys.executable, "-c", _PROVIDER, json.dumps(settings), str(PORT)]
        self._provider = self.provider.start(*words, environ=self.provider.environ())
        assert self._provider.stdout is not None
        self._provider.stdout.readline()

    def fetch(self, path: str, *body: str) -> Any:
        """Ask the provider about itself."""
        asked = self.provider.start(sys.executable, "-c", _FETCH, self.url + path, *body, environ=os.environ)
        text, _ = asked.communicate(timeout=TOLD_S)
        return json.loads(text)

    def stats(self) -> dict[str, Any]:
        """What the provider was asked and answered."""
        return dict(self.fetch("/_sim/stats"))

    def cortex(self, host: Member, *words: str, **more: str) -> subprocess.Popen[str]:
        """``cortex`` with these words on a host, over the state folder on its disk."""
        authorised = {"RAY_AUTH_MODE": "token"} if host.ray is not None else {}
        env = host.environ(
            ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=self.url, CORTEX_STATE=f"{DISK}/state", CORTEX_CLUSTER=self.address,
            **authorised, **more,
        )  # fmt: skip
        return host.start(sys.executable, "-m", "actors.cli", *words, environ=env)

    def begun(
        self, job: str, rows: int, permits: int, host: Member | None = None, *more: str
    ) -> tuple[subprocess.Popen[str], list[str]]:
        """A job under way whose driver, files and, if ``more`` says nothing else, journal are on a host, ``a`` if none is
        said; and its rows."""
        at = host or self.a
        names = write_rows(at.disk / f"{job}.jsonl", rows, job)
        words = (f"{job}.jsonl", "-o", f"{job}-out.jsonl", "--job", job, "--concurrency", str(permits))
        driver = self.cortex(at, "batch", *words, *more)
        tools.until(lambda: len(done(at, job)) > rows // 8, TOLD_S, f"results of {job}", driver)
        return driver, names

    def spread(self, name: str) -> None:
        """Have the cluster's actors begun anew until branches are on two hosts at least: where to, Ray decides."""
        for number in range(20):  # of three hosts chosen at random six tries would have missed two in a run of 700
            job = f"{name}-{number}"
            write_rows(self.a.disk / f"{job}.jsonl", 20, job)
            ended(self.cortex(self.a, "batch", f"{job}.jsonl", "-o", f"{job}-out.jsonl", "--job", job))
            (cluster,) = self.top(self.a)["clusters"]
            if len({one["node"] for each, one in cluster["staff"].items() if each.startswith("branch:")}) > 1:
                return
            ended(self.cortex(self.a, "down", "--within", "10s"))
        raise AssertionError("Ray put all branches on one host, twenty times")

    def top(self, host: Member | None = None) -> dict[str, Any]:
        """What ``top`` shows on a host, ``b`` if none is said."""
        return dict(json.loads(ended(self.cortex(host or self.b, "top", "--once", "--json")).splitlines()[-1]))

    def seen(self, job: str) -> dict[str, Any]:
        """A job as ``top`` shows it on host ``b``."""
        return next((dict(each) for each in self.top()["jobs"] if each["job"] == job), {})

    def twice(self) -> int:
        """How many rows the provider has answered a second time, in all."""
        return int(self.stats()["second_complete_answers_by_user"])


def done(host: Member, job: str) -> list[str]:
    """The rows that a job has written so far."""
    path = host.disk / f"{job}-out.jsonl"
    return names_in(path) if path.exists() else []


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """Hosts and a provider; nothing of them is left after the block."""
    with network() as net:
        yield Ground(net)


def ended(started: subprocess.Popen[str], timeout_s: float = TOLD_S, code: int = 0) -> str:
    """Wait for a command; what it said."""
    try:
        text, _ = started.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        started.kill()
        text, _ = started.communicate()
        raise AssertionError(f"not ended within {timeout_s:.0f} s: {text[-3000:]}") from None
    assert started.returncode == code, text[-3000:]
    return text
