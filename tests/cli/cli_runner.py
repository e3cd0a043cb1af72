"""The command line under test: in this process, where a start would cost half a second, or in one of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LONG = re.compile(
    r"\S+: [\d,]+(/[\d,]+)? (rows?|calls?), |"
    r"cortex: \S+: (waits: (no reply for|the disk or database of the journal has not answered for) [\d.]+ |"
    r"calls are answered again: )"
)
"""What a run of more than five seconds says of how far it is, and one of more than ten of what it waits for: on a busy
machine any run may be such."""

FIELDS = [
    "job", "outcome", "rows", "rows_succeeded", "rows_failed", "rows_unreadable", "calls", "attempts",
    "failures", "paid_calls", "reused_calls", "paid_again", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_creation_tokens", "cost_usd", "cost_assumed_usd", "calls_before", "cost_before_usd", "elapsed_s", "answer", "output", "resume",
    "replies_over_reserved", "cost_over_cap_usd", "tokens_over_cap",
]  # fmt: skip


STATUS_FIELDS = [
    *FIELDS, "why", "waits", "route", "routes", "permits", "in_flight", "deadline_at_s", "paused_until_s", "limits",
    "batches", "rows_failed_by_kind", "rows_by_ending", "rows_refused", "failed_row", "failed_said", "max_cost_usd",
    "limits_by", "limits_at_s", "labels", "awaited", "sleeps_until_s", "epoch", "began_at_s", "last_turn_at_s", "ended_at_s", "live",
    "projected_end_s", "deadline_at_risk",
]  # fmt: skip


class Done(msgspec.Struct, frozen=True):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """The object that ``--json`` put last on standard output."""
        found = json.loads(self.out.splitlines()[-1])
        assert list(found) in (FIELDS, STATUS_FIELDS)
        return found

    def said(self) -> list[str]:
        """What people read: every line is ours, and none is a traceback. Logs are JSON lines beside it, and what a run
        says because it takes long is left out."""
        lines = [line for line in self.err.splitlines() if not line.startswith('{"time":') and not LONG.match(line)]
        assert "Traceback" not in self.err
        assert all(line.startswith("cortex: ") for line in lines), self.err
        return [line.removeprefix("cortex: ") for line in lines]

    def refused(self, *words: str) -> str:
        """The one line of a command that did nothing, with exit code 2."""
        lines = self.said()
        assert self.code == 2, self
        assert len(lines) == 1, self.err
        for word in words:
            assert word in lines[0], lines[0]
        return lines[0]


@pytest.fixture
def cortex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Callable[..., Done]]:
    """Run a command in this process, in an empty folder of its own."""
    from actors.cli.main import enter

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a program's folder is looked in as long as its process lives
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: object) -> Done:
        capfdbinary.readouterr()
        if arguments[:1] == ("doctor",):  # one of its checks imports Ray, for which a busy machine needs longer
            monkeypatch.setattr("actors.cli.admin.doctor.LIMIT_S", PATIENCE_S)
        code = enter([str(each) for each in arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Done(code, out.decode(), err.decode())

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def environment(**more: str) -> dict[str, str]:
    """What a process of its own sees: this test's state folder, and our packages."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@contextmanager
def started(*arguments: object, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; it is killed if the test leaves it running."""
    command = [sys.executable, "-m", "actors.cli", *(str(each) for each in arguments)]
    options = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()} | more
    child = subprocess.Popen(command, **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def ended(child: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> Done:
    """Wait for its end."""
    out, err = child.communicate(timeout=timeout_s)
    return Done(child.returncode, out, err)


def until(true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait for another process to come so far."""
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, "it never came so far"
        time.sleep(0.02)


HANGING = ("--sim", "hang=0.4", "--sim", "latency_ms=1")


def rows_that_hang(run: Callable[..., Done], output: object, *command: object) -> Done:
    """Run the job ``mine``, in which only rows that hang fail, by their timeout.

    A machine that stands still for a moment has others fail too; their replies come late, and are paid. The job is then
    begun anew with four times the timeout.
    """
    state = Path(os.environ["CORTEX_STATE"])
    for timeout_s in (0.5, 2.0, 8.0, 32.0):
        done = run(*command, *HANGING, "--goal-timeout", f"{timeout_s}s")
        k = last_state(StateFolder(str(state)), "mine")
        if k.tally.succeeded == k.ledger.paid_calls > 1:
            return done
        shutil.rmtree(state)
        Path(str(output)).unlink(missing_ok=True)
    raise AssertionError(f"calls that do not hang are not answered within {timeout_s} s")


def request(key: str, text: str = "Answer with one of: bug, praise.\n\nIt crashes.", **params: Any) -> str:
    """A line of input."""
    asked = {"max_tokens": 8, "messages": [{"role": "user", "content": text}], "model": "claude-test"} | params
    return json.dumps({"custom_id": key, "params": asked})


def requests(path: Path, count: int, model: str = "claude-test") -> Path:
    """A file of input."""
    text = "Answer with one of: bug, praise.\n\nIt crashes {} times."
    path.write_text("".join(request(f"r{i}", text.format(i), model=model) + "\n" for i in range(count)))
    return path


def keys(path: Path) -> Counter[str]:
    """How often each custom_id stands in a results file."""
    return Counter(json.loads(line)["custom_id"] for line in path.read_text().splitlines())


def each_once(path: Path, count: int) -> None:
    """Every row of ``requests`` stands in the results exactly once."""
    assert keys(path) == Counter(f"r{i}" for i in range(count))


def kinds(path: Path) -> dict[str, str]:
    """What became of each row."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        line["custom_id"]: line["result"].get("error", {}).get("error", {}).get("type") or line["result"]["type"]
        for line in lines
    }
