"""A real terminal: tmux, its keys sent and its screen read."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.repository_rules import ROOT


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, tmux: str, socket: Path) -> None:
        self._tmux = [tmux, "-S", str(socket), "-f", "/dev/null"]

    def run(self, *arguments: str) -> str:
        """A command of tmux."""
        return subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, timeout=60, check=True).stdout

    def keys(self, *keys: str) -> None:
        """Press these."""
        self.run("send-keys", *keys)

    def screen(self, colours: bool = False) -> list[str]:
        """What is on it now, line by line; with the escape sequences of its colours where they are asked for."""
        return self.run("capture-pane", "-p", *(["-e"] if colours else [])).splitlines()

    def resize(self, width: int, height: int) -> None:
        """Another size."""
        self.run("resize-window", "-x", str(width), "-y", str(height))

    def until(self, true: Callable[[str], object], timeout_s: float = 120.0) -> str:
        """Wait for the screen to be as it should."""
        end_s = time.monotonic() + timeout_s
        while not true(text := "\n".join(self.screen())):
            assert time.monotonic() < end_s, f"it never came so far:\n{text}"
            time.sleep(0.1)
        return text


@contextmanager
def terminal(
    tmux: str, folder: Path, command: Sequence[object], width: int = 80, height: int = 24, *,
    piped: Path | None = None, **environ: str,
) -> Iterator[Terminal]:  # fmt: skip
    """``cortex`` with these arguments in a terminal of this size; its exit code stands on the screen at the end.

    ``piped``: a file that comes to it through a pipe.
    """
    set_ = {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environ
    words = ["env", "-u", "COLUMNS", "-u", "LINES", *(f"{name}={value}" for name, value in set_.items())]
    words += [sys.executable, "-m", "actors.cli", *map(str, command)]
    before = f"cat {shlex.quote(str(piped))} | " if piped is not None else ""
    line = f"{before}{shlex.join(words)}; echo exit code $?; sleep 600"
    place = tempfile.mkdtemp(prefix="ct-")  # a path short enough for a socket, and a server of its own
    made = Terminal(tmux, Path(place, "tmux"))
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    new = [*made._tmux, "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(folder), line]
    subprocess.run(new, env=environment, timeout=60, check=True)
    try:
        yield made
    finally:
        made.run("kill-server")
        shutil.rmtree(place, ignore_errors=True)
