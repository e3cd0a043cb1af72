"""Removal of the processes and the folder of a private Ray whose run was killed, by the record in the journal.

A process is ended only if it provably belongs to that run: its environment holds the mark of that one Ray, or its id
and its start time are in the record.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from actors.common.process_owner import Owner, alive, process_started

MARK = "CORTEX_PRIVATE_RAY"
"""Variable in the environment of every process of a private Ray."""
_PATIENCE_S = 10.0


def end_leftovers(owner: Owner) -> list[int]:
    """End the processes that the killed owner of a job left on this host, and remove its folder. Return the ended ids.

    Does nothing if the owner is alive, was on another host, or had no private Ray.
    """
    if owner.cluster != "local" or not owner.ray_mark or owner.host != socket.gethostname() or alive(owner):
        return []
    ended = end_processes(owner.ray_pids, owner.ray_mark, grace_s=0.0)
    folder = Path(owner.ray_folder)
    if folder.name.startswith("cortex-") and any(folder.glob("r/session_*")):
        shutil.rmtree(folder, ignore_errors=True)
    return ended


def end_processes(known: tuple[tuple[int, str], ...], mark: str, grace_s: float = 3.0) -> list[int]:
    """Wait up to ``grace_s`` seconds for processes to end, then kill them. Return the ids of the killed ones."""
    ended: list[int] = []
    began_s = time.monotonic()
    while (waited_s := time.monotonic() - began_s) < grace_s + _PATIENCE_S:
        known = tuple((pid, started) for pid, started in known if started and process_started(pid) == started)
        found = (marked(mark) if mark else set()).union(pid for pid, _ in known)
        if not found:
            break
        for pid in found if waited_s >= grace_s else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended += [pid for pid in found if pid not in ended and waited_s >= grace_s]
        time.sleep(0.02)
    return ended


def marked(mark: str) -> set[int]:
    """Return the ids of this user's processes whose environment holds the mark, without this process."""
    return {pid for pid, text in _environments() if f"{MARK}={mark}" in text} - {os.getpid()}


def _environments() -> list[tuple[int, str]]:
    if not Path("/proc/self/environ").exists():
        done = subprocess.run(["ps", "-xwwE", "-o", "pid=,command="], capture_output=True, text=True, check=False)
        rows = (line.split(None, 1) for line in done.stdout.splitlines())
        return [(int(row[0]), row[1]) for row in rows if len(row) == 2]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # owned by another user, or ended meanwhile; a dead process has no environment
            with contextlib.suppress(OSError):
                found.append((int(folder.name), (folder / "environ").read_bytes().decode(errors="replace")))
    return found


def below(root: int) -> tuple[tuple[int, str], ...]:
    """Return (id, start time) of the live descendants of a process; empty on a system without ``/proc``."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return tuple((pid, started) for pid in found if (started := process_started(pid)))
