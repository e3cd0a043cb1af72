"""Resident memory and CPU time of a process and its descendants, sampled from `/proc`. Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Sample(msgspec.Struct, frozen=True):
    """Sample of one process."""

    at_s: float
    """Seconds since the first sample."""
    done: float
    """Share of the work done at that time, 0 to 1."""
    rss_mb: float


class Watch:
    """Sampler of a process family in a thread. ``done`` returns the share of the work done, 0 to 1."""

    def __init__(self, root: int, done: Callable[[], float], every_s: float = 0.2) -> None:
        self.samples: dict[str, list[Sample]] = {}
        """Samples by process: last name and number."""
        self._names: dict[int, str] = {}
        self._by_pid: dict[int, list[Sample]] = {}
        self._root = root
        self._done = done
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            at_s, done = time.monotonic() - began, self._done()
            for pid in family(self._root):
                rss_mb = _rss_mb(pid)
                if rss_mb:
                    self._names[pid] = name_of(pid)
                    self._by_pid.setdefault(pid, []).append(Sample(at_s, done, rss_mb))
            self._over.wait(self._every_s)

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join()
        self.samples = {f"{self._names[pid]} {pid}": some for pid, some in self._by_pid.items()}


def family(root: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            parents.setdefault(int(fields[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _rss_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * _PAGE_BYTES / 1e6


def name_of(pid: int) -> str:
    """Return a name: `driver`, a Ray actor's class, or the system's name of the process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
        comm = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
    if {"actors.cli", "benchmarks.harness.instant_model"} & set(words) and not words[0].endswith("py-spy"):
        return "driver"
    if words and words[0].startswith("ray::"):
        return words[0].partition(".")[0]  # after the class comes the method that runs at the moment
    return comm or "?"


def fitted_slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the points; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


_ENDING = frozenset({"python", "python3", "?"})
"""Names of our processes after they have released their command line."""


class Cpu:
    """Sampler of the CPU time of all processes started by this one, while the block runs."""

    def __init__(self, every_s: float = 0.1) -> None:
        self._looks: dict[int, list[tuple[float, float]]] = {}
        """Samples by process: (seconds since 1970, CPU seconds)."""
        self._names: dict[int, str] = {}
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Cpu:
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for pid in family(os.getpid()):
                spent_s = _cpu_s(pid)
                if spent_s and pid != os.getpid():
                    if (name := name_of(pid)) not in _ENDING or pid not in self._names:
                        self._names[pid] = name
                    self._looks.setdefault(pid, []).append((time.time(), spent_s))

    def between(self, first_s: float, last_s: float, least: float = 0.01) -> dict[str, float]:
        """Return CPU seconds between two moments by process name, without those of a share below ``least``."""
        found: dict[str, float] = {}
        for pid, looks in self._looks.items():
            spent_s = _at(looks, last_s) - _at(looks, first_s)
            found[self._names[pid]] = found.get(self._names[pid], 0.0) + spent_s
        whole_s = sum(found.values())
        return {name: spent_s for name, spent_s in sorted(found.items()) if spent_s > least * whole_s}


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _at(looks: list[tuple[float, float]], at_s: float) -> float:
    """Return the CPU time at a moment, interpolated between the samples around it."""
    before = (looks[0][0], looks[0][1])
    for look in looks:
        if look[0] >= at_s:
            share = (at_s - before[0]) / (look[0] - before[0]) if look[0] > before[0] else 0.0
            return before[1] + max(0.0, share) * (look[1] - before[1])
        before = look
    return before[1]
