"""Checks of the machine: file descriptors, memory, the metrics port."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong

_OWN_FILES = 150
"""File descriptors of a run beside its connections: journals, sockets, pipes, files of libraries."""
MB = 1 << 20
_NEEDED_BYTES = {"": 300 * MB, "local": 1_200 * MB}
"""Cluster -> bytes of memory that a run needs: one process with some rows; a private Ray has seven processes of about
140 MB each (measured)."""


def descriptors(asked: DoctorOptions) -> Iterator[Finding]:
    """Check that as many connections as calls in flight can be open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = asked.concurrency + _OWN_FILES
    text = f"{'any number of' if soft < 0 else f'{soft:,}'} file descriptors"
    text += f"; --concurrency {asked.concurrency} may need {needed:,}"
    if 0 <= soft < needed:
        reach = f"ulimit -n {needed}" if hard < 0 or hard >= needed else f"raise the hard limit ({hard:,}) to {needed}"
        yield wrong("descriptors", text, f"{reach}, or give a lower --concurrency")
        return
    yield ok("descriptors", text)


def memory(asked: DoctorOptions) -> Iterator[Finding]:
    """Check the free memory of the machine and of the container."""
    free = available_bytes()
    if free is None:
        yield ok("memory", "this system does not report free memory")
        return
    needed = _NEEDED_BYTES.get(asked.cluster, _NEEDED_BYTES[""])
    text = f"{free / MB:,.0f} MB free; a run needs about {needed / MB:,.0f} MB"
    if free < needed // 2:
        yield wrong("memory", text, "end other processes, or give the container more memory")
    elif free < needed:
        yield warning("memory", text, "end other processes, or give the container more memory")
    else:
        yield ok("memory", text)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that may still be used: the smaller of the machine's available memory and the container's.

    None if neither is known.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):
        match = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
        if match is not None:
            found.append(1024 * int(match[1]))
    with contextlib.suppress(OSError, ValueError):
        most = (cgroup / "memory.max").read_text().strip()
        if most != "max":
            used = int((cgroup / "memory.current").read_text()) - _given_back(cgroup)
            found.append(max(0, int(most) - used))
    return min(found) if found else None


def _given_back(cgroup: Path) -> int:
    """Return the bytes of inactive file cache in a container's memory. They count as used, but are freed when needed;
    the Kubernetes working set leaves them out too."""
    with contextlib.suppress(OSError):
        match = re.search(r"^inactive_file (\d+)$", (cgroup / "memory.stat").read_text(), re.MULTILINE)
        return int(match[1]) if match is not None else 0
    return 0


def port(asked: DoctorOptions) -> Iterator[Finding]:
    """Check that the address of ``--metrics-listen`` is free."""
    if not asked.metrics_listen:
        return
    host, colon, number = asked.metrics_listen.rpartition(":")
    if not colon or not number.isdecimal() or int(number) > 65_535:
        text = f"--metrics-listen {asked.metrics_listen} is no HOST:PORT"
        yield wrong("port", text, "give an address like 127.0.0.1:9464")
        return
    try:
        found = socket.getaddrinfo(host.strip("[]") or None, int(number), type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(found[4])
    except OSError as error:
        text = f"--metrics-listen {asked.metrics_listen}: {error.strerror or error}"
        yield wrong("port", text, "give another port, or end the process that listens there")
        return
    yield ok("port", f"{asked.metrics_listen} is free for metrics")
