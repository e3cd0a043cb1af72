"""Tools from outside: where they are, what to do where they are not, and one running beside a test.

A test asks for a tool by its fixture (``chromium``, ``browser``, ``prometheus``, ``promtool``, ``tmux``, ``phoenix``, ``litellm``;
``conftest.py``). Where the tool is missing the test is skipped, with a reason that says what to install; what was skipped
for that reason stands at the end of the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MISSING = "not installed: "

# Chromium without a screen, an account, or anything it would ask the network for by itself.
CHROMIUM = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def on_path(command: str, package: str = "") -> str:
    """The full path of a command, or a skip that says how to get it."""
    found = shutil.which(command)
    if found is None:
        pytest.skip(f"{MISSING}{command}. On Debian, as root: apt-get install {package or command}")
    return found


def in_venv(variable: str, command: str, package: str) -> str:
    """A command in the virtual environment that ``make e2e`` made for it and names in ``variable``, or on the PATH."""
    place = os.environ.get(variable, "")
    found = shutil.which(command, path=str(Path(place, "bin").resolve())) if place else None
    if found is None and not place:
        found = shutil.which(command)
    if found is None:
        pytest.skip(
            f"{MISSING}{command}. `make e2e` installs it; or: pip install {package}, in an environment of its own"
        )
    return found


@contextmanager
def running(command: Sequence[str | Path], log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A tool beside the test, its output in ``log``: asked to stop at the end, killed where it does not within 10 s."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **options
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def missing(what: str, why: str) -> None:
    """Skip, with a reason that says what this machine has not."""
    pytest.skip(f"{MISSING}{what}. {why}")


class NotYetError(OSError):
    """What a test waits for has not come; its text says what is missing."""


def until(
    come: Callable[[], Any],
    timeout_s: float,
    what: str,
    beside: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> Any:
    """What ``come`` gives as soon as it is true. An error of the connection, and ``NotYetError``, count as not yet.

    Fails after ``timeout_s``, or at once when the process ``beside`` has ended, with the end of its ``log``.
    """
    end_s = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            if last := come():
                return last
        except (OSError, urllib.error.URLError) as error:
            last = error
        ended = beside is not None and beside.poll() is not None
        if ended or time.monotonic() > end_s:
            text = log.read_text(errors="replace")[-2000:] if log is not None else ""
            why = f"ended with {beside.returncode}" if beside is not None and ended else f"not within {timeout_s:.0f} s"
            pytest.fail(f"{what}: {why}; last: {last!r}\n{text}")
        time.sleep(0.1)


def fetch(url: str, body: Any = None, timeout_s: float = 10.0) -> Any:
    """The JSON that an address answers with; ``body`` is posted as JSON."""
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, sent, {"Content-Type": "application/json"} if sent else {})
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.loads(answer.read())


def checked(command: Sequence[str]) -> None:
    """Run a command that has to end well; what it says is in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
