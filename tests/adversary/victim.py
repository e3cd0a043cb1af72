"""The victim of an attack: a command in a process of its own, and what must hold of it afterwards."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cortex.values.display import printable
from tests.cluster.cluster_processes import environment
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-adversary-0123456789abcdef"
"""Key that must be found in no file and in no line."""
FAULT = "a fault of cortex"
WITHIN_S = 2 * PATIENCE_S
"""Seconds that a command may take. It ends one that hangs: a busy machine takes half a minute to begin one."""


class Ended(NamedTuple):
    """Command that has ended: exit code, text of both streams, largest memory in MB, seconds."""

    code: int
    text: str
    peak_mb: float
    took_s: float

    def faults(self) -> list[str]:
        """Return what no command may say, whatever happens to it."""
        found = [f"it said {word!r}" for word in ("Traceback", FAULT) if word in self.text]
        if KEY in self.text:
            found.append("it showed the key")
        if printable(self.text) != self.text:
            found.append("it showed control characters")
        return found


class Victim:
    """Commands over one folder."""

    def __init__(self, folder: Path, url: str, **more: str) -> None:
        self.folder = folder
        self._env = environment(
            ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=url, CORTEX_STATE=str(folder / "state"), NO_COLOR="1",
            CORTEX_CLUSTER="inline", TMPDIR=str(folder), **more,
        )  # fmt: skip

    def start(self, *words: object, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        """Start a command. ``before``: called in its process before it begins (limits)."""
        return subprocess.Popen(
            [sys.executable, "-m", "actors.cli", *map(str, words)], env=self._env, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=before,
        )  # fmt: skip

    def ended(self, started: subprocess.Popen[str], within_s: float) -> Ended:
        """Wait for a command, and kill it if it takes too long: its code is then -9."""
        began_s, peak_mb = time.monotonic(), 0.0
        while True:
            with contextlib.suppress(OSError, IndexError):
                pages = int(Path(f"/proc/{started.pid}/statm").read_text().split()[1])
                peak_mb = max(peak_mb, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
            try:
                text, _ = started.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - began_s > within_s:
                    kill(started)
        return Ended(started.returncode, text or "", peak_mb, time.monotonic() - began_s)

    def run(self, *words: object, within_s: float = WITHIN_S, before: Callable[[], None] | None = None) -> Ended:
        """Run a command to its end."""
        return self.ended(self.start(*words, before=before), within_s)

    def keys_in_files(self) -> list[str]:
        """Return the files of the folder that hold the key."""
        return [
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*")
            if path.is_file() and KEY.encode() in path.read_bytes()
        ]  # fmt: skip


def kill(started: subprocess.Popen[str]) -> None:
    """``kill -9`` of a command and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


def wait(done: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait until something is so, for as long at most."""
    until_s = time.monotonic() + within_s
    while not done() and time.monotonic() < until_s:
        time.sleep(0.02)


def write_requests(path: Path, count: int) -> list[str]:
    """Write requests in the Message Batches format, or a table if the path ends in ``.csv``; return their names."""
    names = [f"r{number}" for number in range(count)]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *((name, f"Say {name}") for name in names)])
        return names
    with path.open("w") as out:
        for name in names:
            params = {
                "model": "m", "max_tokens": 16, "metadata": {"user_id": name},
                "messages": [{"role": "user", "content": f"Say {name}"}],
            }  # fmt: skip
            out.write(json.dumps({"custom_id": name, "params": params}) + "\n")
    return names


def results_of(path: Path) -> dict[str, list[Any]]:
    """Return the results of a file by the name of their row; a row that is there twice has two."""
    found: dict[str, list[Any]] = {}
    if not path.exists():
        return found
    if path.suffix == ".csv":
        with path.open(newline="") as table:
            for row in csv.DictReader(table):
                found.setdefault(row["id"], []).append(row)
        return found
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for text in lines:
            result = json.loads(text)
            found.setdefault(result["custom_id"], []).append(result)
    return found


def wrong_rows(found: Mapping[str, list[Any]], names: list[str], whole: bool = True) -> str:
    """Return what is wrong with the rows of a results file; empty if nothing is. ``whole``: all must be there."""
    counts = Counter({name: len(results) for name, results in found.items()})
    twice = [name for name, count in counts.items() if count > 1]
    missing, strange = set(names) - counts.keys(), counts.keys() - set(names)
    parts = [f"{len(twice)} rows twice" if twice else "", f"{len(strange)} rows that were never asked" if strange else ""]
    parts.append(f"{len(missing)} rows missing" if missing and whole else "")
    return ", ".join(filter(None, parts))
