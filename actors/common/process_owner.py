"""Owner of a run: the process that holds a job, and whether it is alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs a job: so that a second run can tell a live one from what a killed one left behind."""

    host: str
    pid: int
    """The driver's process."""
    started: str
    """When that process started, as the system counts; with the pid it names one process and no other."""
    cluster: str
    """Where its actors live: ``inline``, ``local``, or a cluster's address."""
    channel_pid: int = 0
    ray_folder: str = ""
    """Where a Ray of the driver's own keeps its files."""
    ray_mark: str = ""
    """Stands in the environment of all its processes, and in no other's."""
    ray_pids: tuple[tuple[int, str], ...] = ()
    """Its processes when the run began, with their start times."""


def this_owner(cluster: str) -> Owner:
    """This process, as owner of a run."""
    return Owner(host=socket.gethostname(), pid=os.getpid(), started=process_started(os.getpid()), cluster=cluster)


def owner_record(owner: Owner | bytes) -> bytes:
    """The owner as it stands beside the journal, with the process that serves it."""
    known = msgspec.json.decode(owner, type=Owner) if isinstance(owner, bytes) and owner else owner
    if isinstance(known, bytes):
        known = this_owner("inline")
    return msgspec.json.encode(msgspec.structs.replace(known, channel_pid=os.getpid()))


def process_started(pid: int) -> str:
    """When a process started, in the system's own count; empty where it is gone or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] == "Z" else fields[19]


def alive(owner: Owner) -> bool:
    """Whether the owner's driver still runs. One on another host is taken to live."""
    if owner.host != socket.gethostname():
        return True
    if Path("/proc/self/stat").exists():
        return bool(owner.started) and process_started(owner.pid) == owner.started
    try:
        os.kill(owner.pid, 0)
    except OSError:
        return False
    return True
