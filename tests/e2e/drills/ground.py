"""Ground of the drills: a provider whose faults can be changed, a job in a process of its own, and what its state says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cli.cli_runner import Done, environment, until
from tests.e2e import background_jobs, tools

CORTEX = (sys.executable, "-m", "actors.cli")
NAMED_S = 15.0
"""Seconds within which `cortex status` must name the cause of an incident."""
BEGUN_S = 60.0
"""Seconds that a job may take for its first replies."""


class Ground:
    """One incident: its provider, its job ``mine`` and the commands of an operator."""

    def __init__(self, folder: Path, cortex: Callable[..., Done], stack: ExitStack, *settings: str) -> None:
        self.folder, self._cortex, self._stack = folder, cortex, stack
        self.key_file = folder / "key"
        self.write_key("sk-ant-first")
        self.url = stack.enter_context(background_jobs.provider(folder / "provider.log", *settings))
        self.job: subprocess.Popen[bytes] | None = None
        self.log = folder / "job.log"

    def write_key(self, key: str) -> None:
        """Put a key into the file that the job reads, as a mounted secret changes."""
        self.key_file.write_text(key)

    def provider(self, **settings: Any) -> None:
        """Change the provider. ``faults``: shares of requests by kind; an empty dict ends them."""
        asked = urllib.request.Request(f"{self.url}/_sim/settings", json.dumps(settings).encode(), method="POST")
        urllib.request.urlopen(asked, timeout=10).close()

    def begin(self, rows: int, *options: object, wait: int = 1, program: Sequence[str] = CORTEX) -> None:
        """Begin the job and wait until ``wait`` rows have their results. ``program``: what runs `cortex`."""
        asked = background_jobs.requests(self.folder / "in.jsonl", rows)
        words = (
            "batch", asked, "-o", self.folder / "out.jsonl", "--job", "mine", "--model", "claude-test",
            "--base-url", self.url, "--api-key-file", self.key_file, "--log-format", "json", "--cluster", "inline",
        )  # fmt: skip
        own = {name: value for name, value in environment().items() if not name.startswith("ANTHROPIC_")}
        command = [*program, *map(str, (*words, *options))]
        self.job = self._stack.enter_context(tools.running(command, self.log, env=own, cwd=self.folder))
        if wait:
            until(lambda: self.done() >= wait or self.job is None or self.job.poll() is not None, BEGUN_S)
            assert self.job.poll() is None, self.log.read_text()

    def done(self) -> int:
        """Return how many results are written."""
        output = self.folder / "out.jsonl"
        return output.read_bytes().count(b"\n") if output.exists() else 0

    def status(self) -> dict[str, str]:
        """Return the lines of `cortex status mine`, by their names; lines of one name are joined. What it says on
        standard error, as where it cannot read the journal, has no name."""
        done = self._cortex("status", "mine")
        found = {"": done.err.strip()}
        for line in done.out.splitlines():
            name, text = line[:10].strip(), line[10:]
            found[name] = f"{found[name]}; {text}" if name in found else text
        return found

    def named(self, true: Callable[[dict[str, str]], bool]) -> tuple[dict[str, str], float]:
        """Return the first status for which ``true`` holds, and after how many seconds it came."""
        began_s, last = time.monotonic(), {}
        while time.monotonic() - began_s < NAMED_S:
            last = self.status()
            if true(last):
                return last, time.monotonic() - began_s
            time.sleep(0.3)
        raise AssertionError(f"not named within {NAMED_S} s: {last}\n{self.log.read_text()[-3000:]}")

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the job's log so far; each is an object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def over(self, timeout_s: float = 60.0) -> int:
        """Wait for the end of the job and return its exit code."""
        assert self.job is not None
        return self.job.wait(timeout_s)


@contextmanager
def ground(folder: Path, cortex: Callable[..., Done], *settings: str) -> Iterator[Ground]:
    """The ground of one incident."""
    with ExitStack() as stack:
        yield Ground(folder, cortex, stack, *settings)
