"""Owner of a run: the process that holds a job, and whether it is alive."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Process that runs a job, so that another run can tell a live run from the remains of a killed one."""

    host: str
    pid: int
    """Process id of the driver."""
    started: str
    """Start time of that process, in the system's units. With the pid it identifies the process."""
    cluster: str
    """Location of its actors: ``inline``, ``local``, or a cluster's address."""
    channel_pid: int = 0
    ray_folder: str = ""
    """Folder of the files of the driver's private Ray."""
    ray_mark: str = ""
    """Mark in the environment of all processes of the private Ray, and of no others."""
    ray_pids: tuple[tuple[int, str], ...] = ()
    """Processes of the private Ray at the start of the run: (pid, start time)."""

    @property
    def ends_with_its_driver(self) -> bool:
        """True if no actor of the run outlives the driver: all but those of a standing cluster."""
        return self.cluster in ("inline", "local", "child")


def this_owner(cluster: str) -> Owner:
    """Return this process as owner of a run."""
    return Owner(host=socket.gethostname(), pid=os.getpid(), started=process_started(os.getpid()), cluster=cluster)


def owner_record(owner: Owner | bytes) -> bytes:
    """Return the owner as stored beside the journal, with the id of this process as the channel's."""
    known = msgspec.json.decode(owner, type=Owner) if isinstance(owner, bytes) and owner else owner
    if isinstance(known, bytes):
        known = this_owner("inline")
    return msgspec.json.encode(msgspec.structs.replace(known, channel_pid=os.getpid()))


def process_started(pid: int) -> str:
    """Return the start time of a process, in the system's units; empty if it has ended or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] == "Z" else fields[19]


def stopped(owner: Owner) -> str:
    """Return the words for a driver that lives and does nothing: a signal has stopped it (SIGSTOP, Ctrl-Z) until
    SIGCONT, or a debugger holds it until the debugger lets it go, and SIGCONT changes nothing (states T and t of
    /proc/PID/stat, proc(5); ptrace(2), "Ptrace-stopped tracees"). Empty if it is neither, or this machine cannot tell.
    """
    try:
        state = Path(f"/proc/{owner.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
    words = stop_words(state, owner.pid)
    return words if words and owner.host == socket.gethostname() and alive(owner) else ""


def stop_words(state: str, pid: int) -> str:
    """Return the words for a process in this state of /proc/PID/stat; empty for one that may run."""
    if state == "t":
        return "held by a debugger: it goes on when the debugger lets it go"
    return f"stopped by a signal: `kill -CONT {pid}` lets it go on" if state == "T" else ""


def alive(owner: Owner) -> bool:
    """Return whether the owner's driver still runs. A driver on another host counts as alive."""
    if owner.host != socket.gethostname():
        return True
    if Path("/proc/self/stat").exists():
        return bool(owner.started) and process_started(owner.pid) == owner.started
    try:
        os.kill(owner.pid, 0)
    except OSError:
        return False
    return True
