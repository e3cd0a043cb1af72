"""Hosts on one machine: each with its own addresses, processes, name and disk, on cables that can be pulled.

A host is a set of Linux namespaces (network, mounts, processes, name) held by its first process: when that dies, all of
the host is gone at once, as when the power fails. Its disk stays: a folder that is ``/mnt`` there, and that no other host
can see. A switch, in a network namespace of its own, joins the cables. Nothing of the machine's own network is touched, so
that two runs at a time do not meet, and nothing has a name that could be left behind.

Needs root, and ``ip`` (Debian: iproute2); ``unshare``, ``nsenter`` and ``setpriv`` are util-linux, which is always there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e import tools

CLUSTER, WORLD = "cluster", "world"
"""The two cables of each host: where the other hosts are, and where the provider is."""
NETWORKS = {CLUSTER: "10.77.0", WORLD: "10.78.0"}
DISK = "/mnt"
"""Where a host sees its disk: on every host the same path, and never the same files."""
_FIRST = """
set -e
mount --bind "$1" /mnt
mount -t tmpfs none "$2"
hostname "$3"
ip link set lo up
echo up
while :; do sleep 3600 & wait; done
"""
"""A host's first process. It waits, so that whoever is orphaned there is reaped."""


def needed() -> None:
    """Skip where there can be no hosts."""
    tools.on_path("ip", "iproute2")
    if os.geteuid() != 0:
        tools.missing("root", "namespaces of network and mounts are made by root alone")
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    if tried.returncode:
        tools.missing("namespaces", f"this machine allows none: {tried.stderr.strip()}")


def _held(*words: str) -> tuple[subprocess.Popen[str], int]:
    """A process in namespaces of its own that says one line when it is up, and its id. It dies with this one."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *words]
    outer = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert outer.stdout is not None
    text = outer.stdout.readline()
    assert text == "up\n", text + outer.stdout.read()
    (inner,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    return outer, int(inner)


def _ended(held: subprocess.Popen[str]) -> None:
    held.kill()  # and with it, by --kill-child, all that is in there
    held.wait()
    if held.stdout is not None:
        held.stdout.close()


def _ip(pid: int, *lines: str) -> None:
    """``ip`` with each of these lines, in the network of a process."""
    done = subprocess.run(
        ["nsenter", "--net", "-t", str(pid), "ip", "-batch", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


class Host:
    """One host."""

    def __init__(self, network: Network, name: str) -> None:
        self._held: subprocess.Popen[str] | None = None
        self._beside: list[subprocess.Popen[str]] = []
        number = network.take_in(self)
        self.name = name
        self.address = f"{NETWORKS[CLUSTER]}.{number}"
        self.outward = f"{NETWORKS[WORLD]}.{number}"
        self.disk = network.folder / name
        """As this machine sees it."""
        self._network = network
        self._number = number
        self._first = 0
        self.disk.mkdir()
        self.come()

    def come(self) -> None:
        """Be there, with the cables in; for the first time, or again after it was lost."""
        assert self._held is None
        own = ("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
        self._held, self._first = _held(
            *own, "sh", "-c", _FIRST, "sh", str(self.disk), str(self._network.folder), self.name
        )  # fmt: skip
        for cable, network in NETWORKS.items():
            self._network.connect(self._first, cable, f"{cable[0]}-{self.name}", f"{network}.{self._number}")
        _ip(self._first, f"route add default dev {CLUSTER}")

    def lose(self) -> None:
        """Power off: every process is gone at once, nothing is said to anybody. The disk stays."""
        if self._held is not None:
            _ended(self._held)
            self._held = None
        for each in self._beside:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()
        self._beside.clear()

    def pull(self, cable: str = CLUSTER) -> None:
        """Pull a cable: what is sent goes nowhere, and nobody is told."""
        self._network.switch(f"link set {cable[0]}-{self.name} down")

    def plug(self, cable: str = CLUSTER) -> None:
        """Put it back."""
        self._network.switch(f"link set {cable[0]}-{self.name} up")

    def start(self, *words: str, environ: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        """A command on this host, in the folder that is its disk."""
        into = ["nsenter", "--net", "--mount", "--uts", "--ipc", "--pid", "-t", str(self._first)]
        into += ["sh", "-c", 'cd "$0" && exec "$@"', DISK]  # after it has entered, so that it is there
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        started = subprocess.Popen([*into, *words], env=dict(environ), stdin=subprocess.DEVNULL, text=True, **options)
        self._beside.append(started)
        return started


class Network:
    """A switch and the hosts on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hosts: list[Host] = []
        self._switch, self._at = _held("--net", "sh", "-c", "echo up; exec sleep infinity")  # it starts nothing
        self.switch(*(line for name in NETWORKS for line in (f"link add {name} type bridge", f"link set {name} up")))

    def take_in(self, host: Host) -> int:
        """One more host, which ends with the network; its number, the last part of its addresses."""
        self._hosts.append(host)
        return len(self._hosts)

    def switch(self, *lines: str) -> None:
        """Have the switch do something, in the words of ``ip``."""
        _ip(self._at, *lines)

    def connect(self, pid: int, cable: str, port: str, address: str) -> None:
        """Lay a cable from a host to the switch; the address is the host's."""
        until_s = time.monotonic() + 5  # the cable of a host that was just lost goes a moment later
        while True:
            try:
                self.switch(f"link add {port} type veth peer name {cable} netns {pid}")
                break
            except AssertionError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.05)
        self.switch(f"link set {port} master {cable}", f"link set {port} up")
        _ip(pid, f"address add {address}/24 dev {cable}", f"link set {cable} up")

    def close(self) -> None:
        """End every host and the switch; their networks are gone with their processes."""
        for host in self._hosts:
            host.lose()
        _ended(self._switch)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network with no host yet; nothing of it is left after the block."""
    needed()
    with tempfile.TemporaryDirectory(prefix="ch-", dir="/tmp") as folder:
        made = Network(Path(folder))
        try:
            yield made
        finally:
            made.close()
