"""Incidents caused on this machine, in one process and a provider: `cortex status` names each within 15 s, in the words of
the runbook, and the log has the line that the runbook names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.cli_runner import Done, cortex, until
from tests.e2e import tools
from tests.e2e.drills.ground import Ground, ground
from tests.e2e.drills.incidents import like, named, says

__all__ = ["cortex"]
pytestmark = pytest.mark.long
ROWS = 20_000
CLOCK = """
import os, sys, time

place, real = sys.argv.pop(1), time.time
time.time = lambda: real() + (7200 if os.path.exists(place) else 0)
from actors.cli import main

sys.exit(main())
"""
"""``cortex`` whose clock is two hours ahead from the moment at which a file exists."""


@pytest.fixture
def place(tmp_path: Path, cortex: Callable[..., Done]) -> Iterator[Ground]:
    """A provider that answers within 0.1 s, and says nothing of its limits."""
    with ground(tmp_path, cortex, "latency_ms=100", "latency_spread=0", "limits_told=nothing") as found:
        yield found


def _drill(place: Ground, name: str) -> dict[str, str]:
    """Return the status that names an incident as the runbook does."""
    incident = named(name)
    return place.named(lambda status: says(incident, status))[0]


def _logged(place: Ground, event: str, level: str) -> None:
    """Wait for a line of the log."""
    until(lambda: any((line.get("event"), line["level"]) == (event, level) for line in place.lines()))


def test_a_provider_that_is_down_and_back(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8)
    place.provider(faults={"server_error": 1.0})
    status = _drill(place, "provider down")
    assert "Internal server error" in status["waits"]
    _logged(place, "job.waits", "warning")
    place.provider(faults={})
    before = place.done()
    until(lambda: place.done() > before + 20, 40)
    assert "waits" not in place.status() or "breaker" not in place.status()["waits"]
    _logged(place, "job.goes_on", "info")


def test_a_provider_that_hangs(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8, wait=20)
    place.provider(faults={"hang": 1.0})
    _drill(place, "provider hangs")


def test_a_storm_of_429_and_the_time_after_it(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8, wait=20)
    place.provider(faults={"throttled": 1.0}, throttled_retry_after_s=3)
    assert "asks to wait" not in _drill(place, "storm of 429")["waits"], "the same thing twice"
    _logged(place, "job.failures", "info")
    place.provider(faults={"throttled_bare": 1.0})
    _drill(place, "storm of 429 that names no wait")
    place.provider(faults={})
    before = place.done()
    until(lambda: place.done() > before + 100, 20)


def test_a_wrong_key_and_one_that_is_put_right(place: Ground) -> None:
    place.provider(keys=["sk-ant-second"])
    place.begin(ROWS, "--concurrency", 8, wait=0)
    assert place.over() == 3
    status = _drill(place, "wrong key")
    assert status["resume"] == "cortex resume mine"
    _logged(place, "job.blocked", "error")
    _logged(place, "job.ended", "error")


def test_a_key_that_is_rotated_while_the_job_waits_for_it(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8, "--wait-blocked", "1h")
    place.provider(keys=["sk-ant-second"])
    _drill(place, "key rotated, `--wait-blocked`")
    _logged(place, "job.blocked", "error")
    before = place.done()
    place.write_key("sk-ant-second")
    until(lambda: place.done() > before + 8, 20)
    _logged(place, "job.unblocked", "info")


def test_a_cap_that_comes_near_and_is_reached(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8, "--max-cost", "0.02", "--price", "input=3,output=15", wait=20)
    _drill(place, "cap near")
    assert place.over() == 3
    _drill(place, "cap reached")
    _logged(place, "job.ended", "warning")


def test_a_deadline_that_comes_near(place: Ground) -> None:
    place.begin(ROWS, "--concurrency", 8, "--deadline", "+1m", wait=20)
    _drill(place, "deadline near")
    _logged(place, "job.progress", "warning")


def test_a_clock_that_is_set(place: Ground, tmp_path: Path) -> None:
    place.begin(ROWS, "--concurrency", 8, program=[sys.executable, "-c", CLOCK, str(tmp_path / "set")])
    (tmp_path / "set").touch()
    _drill(place, "clock set")
    before = place.done()
    until(lambda: place.done() > before + 20)


@pytest.mark.parametrize("how", ["fast", "slow"])
def test_a_disk_that_fills(
    tmp_path: Path, cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        tools.missing("root", "a small disk is mounted by root alone")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False).returncode:
        tools.missing("mount", "this machine lets nobody mount a disk")
    try:
        monkeypatch.setenv("CORTEX_STATE", str(disk / "state"))
        with ground(tmp_path, cortex, "latency_ms=20", "latency_spread=0") as place:
            place.begin(ROWS, "--concurrency", 8)
            fill = disk / "other"
            with fill.open("wb", buffering=0) as out:
                while place.job is not None and place.job.poll() is None:
                    try:
                        out.write(bytes(1 << 18))
                    except OSError:
                        time.sleep(0.05)
                    if how == "slow":
                        time.sleep(0.1)
            assert place.over() == 3
            _drill(place, "disk full")
            assert any("is full" in line["message"] for line in place.lines() if line["level"] == "error")
            fill.unlink()
            assert "is full" not in place.status().get("why", "")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_words_of_the_page_are_compared_as_they_stand() -> None:
    assert like("no reply for … to …", "no reply for 3 s to 4 calls")
    assert not like("no reply for … to …", "a reply for 3 s to 4 calls")
    assert not like("the cap", "the cap is near")
