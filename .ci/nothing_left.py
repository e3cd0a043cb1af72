"""Run a command, then see that all it started is gone: ``nothing_left.py [--grace SECONDS] COMMAND...``.

The exit code is the command's; 1 when it succeeded but something was left. What is left is named and ended.

On Linux this process becomes the reaper of its descendants (``PR_SET_CHILD_SUBREAPER``), so one that outlives
its parent, with whatever name, session or environment, is still found as a descendant of ours. Elsewhere a
variable in the environment, which children inherit, marks them, and ``ps`` shows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GRACE_S = 90.0  # Ray's agents live up to 15 s after the driver that started them was killed; on a busy machine, longer
MARK = "CORTEX_STARTED_BY"


def _adopt_orphans() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _descendants() -> dict[int, str]:
    """Living processes below this one: id and command line."""
    parent_of: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parent_of[int(folder.name)] = int(parent)
    found: dict[int, str] = {}
    below = {os.getpid()}
    while below:
        below = {pid for pid, parent in parent_of.items() if parent in below}
        for pid in below:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found[pid] = b" ".join(words).decode(errors="replace").strip()
    return found


def _marked(mark: str) -> dict[int, str]:
    """Living processes that carry the mark in their environment, by ``ps`` (BSD and macOS)."""
    listing = subprocess.run(
        ["ps", "-axwwE", "-o", "pid=,command="], capture_output=True, text=True, check=False
    )
    rows = (line.split(None, 1) for line in listing.stdout.splitlines() if f"{MARK}={mark}" in line)
    return {int(row[0]): row[1] for row in rows if int(row[0]) != os.getpid()}


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(command: list[str], mark: str) -> int:
    """The command's exit code. Orphans are reaped on the way, so that none is seen as a zombie by a test."""
    started = subprocess.Popen(command, env={**os.environ, MARK: mark})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command as well
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(started.pid, number))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == started.pid:
            code = os.waitstatus_to_exitcode(status)
            started.returncode = code
            return code if code >= 0 else 128 - code


def _wait_for_none(grace_s: float, find: Callable[[], dict[int, str]]) -> dict[int, str]:
    """What is still there when the grace is over; mostly nothing, and then at once."""
    deadline_s = time.monotonic() + grace_s
    while (left := find()) and time.monotonic() < deadline_s:
        _reap()
        time.sleep(0.05)
    _reap()
    return left


def main() -> int:
    """Run the command of the command line; see the text above."""
    grace_s, command = GRACE_S, sys.argv[1:]
    if command[:1] == ["--grace"]:
        grace_s, command = float(command[1]), command[2:]
    mark = f"{os.getpid()}.{time.time_ns()}"
    find = _descendants if _adopt_orphans() else lambda: _marked(mark)
    started_s = time.monotonic()
    code = _run(command, mark)
    print(f"{time.monotonic() - started_s:.0f} s", file=sys.stderr)

    left = _wait_for_none(grace_s, find)
    for pid, words in left.items():
        print(f"left running after the command ended: {pid} {words[:200]}", file=sys.stderr)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if left:
        _wait_for_none(2.0, find)  # so that they are reaped here, not left as zombies to who adopts them
    return code or (1 if left else 0)


if __name__ == "__main__":
    sys.exit(main())
