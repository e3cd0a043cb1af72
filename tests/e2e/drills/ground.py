"""Ground of the drills: a provider whose faults can be changed, a job in a process of its own, and what its state says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.cli.cli_runner import Done, environment, until
from tests.e2e import background_jobs, tools
from tests.e2e.drills.incidents import named, says
from tests.e2e.drills.recorded import Recording
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

CORTEX = (sys.executable, "-m", "actors.cli")
NAMED_S = 15.0
"""Seconds within which `cortex status` must name the cause of an incident."""
LOOK_S = 1.0
"""Seconds of a look that do not count among them, at most: an idle machine needs a hundredth for one, and a busy one
is late with all else as it is with a look."""
BEGUN_S = PATIENCE_S
"""Seconds that a job may take for its first replies."""
BEFORE_MIN, AFTER_MIN = 5, 30
"""Minutes for which the time before an incident, and after its mend, is repeated for the alert rules."""
MORE_MIN = 0.25
"""Minutes that an incident lasts longer than its alert may take: one scrape."""


class Ground:
    """One incident: its provider, its job ``mine`` and the commands of an operator."""

    def __init__(self, folder: Path, cortex: Callable[..., Done], stack: ExitStack, *settings: str) -> None:
        self.folder, self._cortex, self._stack = folder, cortex, stack
        self.key_file = folder / "key"
        self.write_key("sk-ant-first")
        self._ports = free_port(), free_port()
        self.record, self._cause, self._since_s = Recording(), 0, 0.0
        stack.callback(self.record.close)
        ends = ("metrics", "--create", "--metrics-listen", f"127.0.0.1:{self._ports[1]}")
        stack.enter_context(tools.running([*CORTEX, *ends], folder / "ends.log", env=environment(), cwd=folder))
        self._settings, port = settings, free_port()
        self._provider = stack.enter_context(ExitStack())
        self.url = f"http://127.0.0.1:{port}"
        self.provider_begins()
        self.job: subprocess.Popen[bytes] | None = None
        self._begun_s = 0.0
        self.log = folder / "job.log"

    def write_key(self, key: str) -> None:
        """Put a key into the file that the job reads, as a mounted secret changes."""
        self.key_file.write_text(key)

    def provider_begins(self) -> None:
        """Begin the provider, or end it with all its connections and begin it again, without faults."""
        self._provider.close()
        log, port = self.folder / "provider.log", int(self.url.rpartition(":")[2])
        self._provider.enter_context(background_jobs.provider(log, *self._settings, port=port))

    def provider(self, **settings: Any) -> None:
        """Change the provider. ``faults``: shares of requests by kind; an empty dict ends them."""
        asked = urllib.request.Request(f"{self.url}/_sim/settings", json.dumps(settings).encode(), method="POST")
        urllib.request.urlopen(asked, timeout=10).close()

    def begin(
        self, rows: int, *options: object, wait: int = 1, program: Sequence[str] = CORTEX, scraped: bool = True
    ) -> None:  # fmt: skip
        """Begin the job and wait until ``wait`` rows have their results. ``program``: what runs `cortex`; ``scraped``: whether
        the pages of the job and of `cortex metrics` are."""
        asked = background_jobs.requests(self.folder / "in.jsonl", rows)
        started_s = time.monotonic()
        words = self._watched(
            "batch", asked, "-o", self.folder / "out.jsonl", "--job", "mine", "--model", "claude-test",
            "--base-url", self.url, "--api-key-file", self.key_file, "--log-format", "json", "--cluster", "inline",
        )  # fmt: skip
        self._run(self.log, [*program, *map(str, (*words, *options))])
        for port, name in zip(self._ports, ("job", "ends"), strict=True) if scraped else ():
            self.record.scrape(f"http://127.0.0.1:{port}/metrics", instance=name)
        if wait:
            until(lambda: self.done() >= wait or self.job is None or self.job.poll() is not None, BEGUN_S)
            assert self.job.poll() is None, self.log.read_text()
        self._since_s = time.monotonic()
        self._begun_s = self._since_s - started_s

    def goes_on(self, more_than: int, within_s: float) -> None:
        """Wait until more results than that are written: within so many seconds, or within three times what the job
        took on this machine to begin, if that is longer."""
        until(lambda: self.done() > more_than, max(within_s, 3 * self._begun_s))

    def _watched(self, *words: object) -> tuple[object, ...]:
        return (*words, "--metrics-listen", f"127.0.0.1:{self._ports[0]}")

    def _run(self, log: Path, command: Sequence[str]) -> None:
        own = {name: value for name, value in environment().items() if not name.startswith("ANTHROPIC_")}
        self.job = self._stack.enter_context(tools.running(command, log, env=own, cwd=self.folder))

    def resume(self, *options: object) -> None:
        """Resume the job, which has ended, and wait until it has more results."""
        before, words = self.done(), self._watched("resume", "mine", "--api-key-file", self.key_file, *options)
        self._run(self.folder / "resumed.log", [*CORTEX, *map(str, words)])
        tools.until(lambda: self.done() > before + 8, BEGUN_S, "more results", self.job, self.folder / "resumed.log")

    def set(self, *words: object) -> None:
        """Change the settings of the job while it runs."""
        done = self._cortex("set", "mine", *words)
        assert done.code == 0, done.err

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
        """Return the first status for which ``true`` holds, and how many seconds after the incident it came: after the
        last ``caused``, else after the end of the work before it. Without the time of the looks: ``LOOK_S``."""
        looks_s = 0.0
        while True:
            began_s = time.monotonic()
            last = self.status()
            now_s = time.monotonic()
            looks_s += min(LOOK_S, now_s - began_s)
            took_s = now_s - self._since_s - looks_s
            if true(last) and took_s < NAMED_S:
                return last, took_s
            if true(last) or took_s >= NAMED_S:
                told = f"{last}\n{self.log.read_text()[-3000:]}"
                raise AssertionError(f"not named within {NAMED_S} s, but in {took_s:.1f} s: {told}")
            time.sleep(0.3)

    def drill(
        self, name: str, drifts: tuple[str, ...] = (), whole: Callable[[], bool] | None = None, lasts_min: float = 0.0,
    ) -> dict[str, str]:  # fmt: skip
        """Return the status that names an incident as the runbook does, and have it last until its alert must fire, alone;
        where it has none, no alert may. ``whole``: whether a round of it is over. ``lasts_min``: minutes that it
        lasts at least; its alert fires to their end, alone."""
        incident = named(name)
        status, _ = self.named(lambda status: says(incident, status))
        minutes = incident.within_min or AFTER_MIN
        end = self.record.stands(max(minutes, lasts_min) + MORE_MIN, drifts, whole)
        at = self.record.after(self._cause, minutes) if incident.alert else end
        for moment in {at, end} if lasts_min else {at}:
            self.record.expect(*filter(None, [incident.alert]), at=moment)
        self._cause = end
        return status

    def caused(self) -> None:
        """Count the time of the status and of the alert from now on. Else they count from the end of the time before that
        was repeated."""
        self._cause, self._since_s = self.record.caused(), time.monotonic()

    def quiet(self, minutes: float = BEFORE_MIN, works: bool = True) -> None:
        """Have ordinary work last: no alert may fire at its end. ``works``: whether the job does, and is not over."""
        self.record.caused()
        on = partial(self.record.risen, "cortex_job_progressed_seconds")
        self._cause = self.record.stands(minutes, whole=lambda: on() > 0 or not works)
        self.record.expect(at=self._cause)
        self._since_s = time.monotonic()

    def judge(self, promtool: str, minutes: float = AFTER_MIN) -> None:
        """Have work last after the mend, and see that each alert fired within its time, alone, and is over."""
        self.quiet(minutes)
        self.seen(promtool)

    def seen(self, promtool: str) -> None:
        """See that each alert fired within its time, alone."""
        assert not (told := self.record.failed(promtool, self.folder)), told

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the job's log so far, without one that is being written; each is an object."""
        return [json.loads(line) for line in self.log.read_text().rpartition("\n")[0].splitlines()]

    def over(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end of the job and return its exit code."""
        assert self.job is not None
        return self.job.wait(timeout_s)


@contextmanager
def ground(folder: Path, cortex: Callable[..., Done], *settings: str) -> Iterator[Ground]:
    """The ground of one incident."""
    with ExitStack() as stack:
        yield Ground(folder, cortex, stack, *settings)
