"""What the cluster tests start apart from themselves: a Ray, a provider, and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from actors.cluster.orphan_cleanup import below, end_processes
from tests.support.ports import free_port
from tests.support.repository_rules import ROOT

PROVIDER = """
import json, sys
from actors.simulator.frontends.command import simulate
from actors.simulator.settings import SimulatorSettings
simulate(SimulatorSettings(**json.loads(sys.argv[1])))
"""
WATCHFUL = {
    "RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3", "RAY_health_check_initial_delay_ms": "1000",
}  # fmt: skip
"""A Ray that takes a dead node for dead after some seconds, not after twenty."""
PATIENT = {
    "RAY_health_check_period_ms": "3000", "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5", "RAY_health_check_initial_delay_ms": "5000",
}  # fmt: skip
"""Ray's defaults, for tests in which no node dies: a machine that stands still for some seconds loses none."""
_OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Where a token lies about in the home folder, `ray start` makes a head ask for it, and gives it to no other node."""
_FORKS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""Ray's client server forks; a child that gRPC's handlers of forks have seen dies now and then (grpc/grpc#43055)."""
ATTACHED = """
import sys
import ray

joined, folder = ray.init, sys.argv.pop(1)
ray.init = lambda **options: joined(**options, _temp_dir=folder)
from actors.cli import main

sys.exit(main())
"""
"""``cortex`` as a user runs it on another machine than the head's: of the nodes here Ray would take the head."""
PATIENCE_S = 240.0
"""Time that a test waits for what has to come. It ends a test that hangs, and claims nothing: of Rays that start beside
each other on a busy machine of two cores some have taken more than a minute."""
KEY = "sk-ant-test-0123456789abcdefghij"


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of ours: this checkout, no Ray and no key but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    return {**kept, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **more}


class Head(NamedTuple):
    """A Ray that was started apart from every driver."""

    address: str
    pid: int
    folder: Path

    def logs(self, files: int = 6, lines: int = 12) -> str:
        """What its processes said last, those that spoke last: for a test that failed."""
        found = [path for path in self.folder.glob("session_2*/logs/worker-*") if path.stat().st_size]
        latest = sorted(found, key=lambda path: path.stat().st_mtime)[-files:]
        return "\n".join(line for path in latest for line in (path.name, *path.read_text(errors="replace").splitlines()[-lines:]))


class Node(NamedTuple):
    """One more node, and the process that all of it descends from."""

    pid: int
    folder: Path


@contextlib.contextmanager
def ray_head(*more: str, **environ: str) -> Iterator[Head]:
    """Start a Ray apart from every driver; it ends with the block.

    ``more``: what ``ray start`` is told besides; ``environ``: what stands in its environment, and that of its actors.
    """
    port = free_port()
    options = ("--include-dashboard=false", "--disable-usage-stats", "--num-cpus=2")
    with _ray("--head", f"--port={port}", *options, *more, **environ) as (pid, folder):
        yield Head(f"127.0.0.1:{port}", pid, folder)


@contextlib.contextmanager
def another_node(head: Head, *more: str, **environ: str) -> Iterator[Node]:
    """Let one more node, on this same machine, join a Ray; what it starts has these variables."""
    with _ray(f"--address={head.address}", "--num-cpus=1", *more, **environ) as (pid, folder):
        yield Node(pid, folder)


@contextlib.contextmanager
def _ray(*words: str, **environ: str) -> Iterator[tuple[int, Path]]:
    with tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as folder:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words,
            f"--temp-dir={folder}", "--object-store-memory=80000000", f"--dashboard-agent-listen-port={free_port()}",
        ]  # fmt: skip
        log = Path(folder) / "start.log"
        env = environment(**{**WATCHFUL, **_OPEN, **_FORKS, **environ})
        deadline_s = time.monotonic() + PATIENCE_S
        with contextlib.ExitStack() as starts:
            while True:
                start = starts.enter_context(contextlib.closing(_Start(command, env, log)))
                if start.is_up(deadline_s):
                    break
                start.close()
            yield start.pid, Path(folder)


class _Start:
    """Start of a Ray node. Ray gives up a node whose agents need more than 15 s to come up (``NodeManager``,
    `WaitForDashboardAgentPorts`, Ray 2.60), as they do at times on a busy machine: then it is started once more."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._head = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=log.parent)
        self.pid = self._head.pid
        self._seen: set[tuple[int, str]] = set()

    def is_up(self, deadline_s: float) -> bool:
        """Wait until the node is there; false if Ray gave it up. Fails where it ended for another reason."""
        while "Ray runtime started" not in self._log.read_text():
            assert time.monotonic() < deadline_s, self._log.read_text()
            if self._head.poll() is not None:
                assert "timed out during startup" in self._log.read_text(), self._log.read_text()
                return False
            self._seen.update(below(self.pid))  # once it has ended, nothing tells what it has left behind
            time.sleep(0.2)
        return True

    def close(self) -> None:
        """End all of its processes."""
        self._seen.update(below(self.pid))
        self._head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._head.wait(2)
        self._head.kill()
        self._head.wait()
        end_processes(tuple(self._seen), mark="", grace_s=0)


class Provider:
    """A simulated provider in a process of its own."""

    def __init__(self, **settings: Any) -> None:
        self._served = subprocess.Popen(
            [sys.executable, "-c", PROVIDER, json.dumps(settings)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert self._served.stdout is not None
        self.url = self._served.stdout.readline().strip().rpartition(" ")[2]

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/_sim/stats", timeout=PATIENCE_S) as answer:
            return dict(json.load(answer))

    def set(self, **settings: Any) -> None:
        body = json.dumps(settings).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/_sim/settings", body), timeout=PATIENCE_S).close()

    def kill(self) -> None:
        """End it at once, as a machine that fails does."""
        self._served.kill()

    def close(self) -> None:
        self._served.terminate()
        self._served.communicate(timeout=PATIENCE_S)


class Commands:
    """The command line over one state folder."""

    def __init__(self, folder: Path, url: str, cluster: str, state: str = "") -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.temporary = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
        """Its folder for temporary files, with a path short enough for the sockets of a Ray."""
        self._env = environment(
            ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=url, CORTEX_STATE=state or str(folder / "state"), NO_COLOR="1",
            CORTEX_CLUSTER=cluster, TMPDIR=str(self.temporary),
        )  # fmt: skip

    def start(self, *words: str, node: Node | None = None) -> subprocess.Popen[str]:
        """``cortex`` with these words, its own process group; attached to the head, or to another node."""
        command = ["-m", "actors.cli"] if node is None else ["-c", ATTACHED, str(node.folder)]
        started = subprocess.Popen(
            [sys.executable, *command, *words], env=self._env, cwd=self._folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(started)
        return started

    def close(self) -> None:
        """Leave nothing running and nothing lying about."""
        for started in self._started:
            started.kill()
            started.wait()
            if started.stdout is not None:  # nobody may have read what it said
                started.stdout.close()
        shutil.rmtree(self.temporary, ignore_errors=True)


def write_rows(path: Path, count: int, prefix: str) -> list[str]:
    """Requests in the Message Batches format, each with its own text and user; their names."""
    names = [f"{prefix}-{number}" for number in range(count)]
    with path.open("w") as out:
        for number, name in enumerate(names):
            ask = f"Answer yes or no: is {number} an even number? ({name})"
            params = {
                "model": "m", "max_tokens": 16, "metadata": {"user_id": name},
                "messages": [{"role": "user", "content": ask}],
            }  # fmt: skip
            out.write(json.dumps({"custom_id": name, "params": params}) + "\n")
    return names


def names_in(path: Path) -> list[str]:
    """The custom_ids of a results file, as they stand there."""
    with path.open() as lines:
        return [json.loads(line)["custom_id"] for line in lines]
