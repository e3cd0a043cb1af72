"""Incidents caused on this machine, in one process and a provider: `cortex status` names each within 15 s, in the words of
the runbook, the log has the line that the runbook names, and of all alerts the one that the runbook names fires, in time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.cli_runner import Done, cortex, until
from tests.e2e import tools
from tests.e2e.drills.ground import Ground, ground
from tests.e2e.drills.incidents import like

__all__ = ["cortex"]
pytestmark = pytest.mark.long
ROWS = 20_000
GIB = 1 << 30
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


def _logged(place: Ground, event: str, level: str) -> None:
    """Wait for a line of the log."""
    until(lambda: any((line.get("event"), line["level"]) == (event, level) for line in place.lines()))


def test_a_provider_that_is_down_and_back(place: Ground, promtool: str) -> None:
    place.begin(ROWS, "--concurrency", 8)
    place.quiet()
    place.provider(faults={"server_error": 1.0})
    status = place.drill("provider down")
    assert "Internal server error" in status["waits"]
    _logged(place, "job.waits", "warning")
    place.provider(faults={})
    before = place.done()
    place.goes_on(before + 20, 40)
    until(lambda: "breaker" not in place.status().get("waits", ""))  # told once a second
    _logged(place, "job.goes_on", "info")
    place.judge(promtool)


def test_a_provider_that_hangs(place: Ground, promtool: str) -> None:
    place.begin(ROWS, "--concurrency", 8, wait=20)
    place.quiet()
    place.provider(faults={"hang": 1.0})
    place.drill("provider hangs")
    place.provider_begins()
    before = place.done()
    place.goes_on(before + 20, 40)
    place.judge(promtool)


def test_a_storm_of_429_and_the_time_after_it(place: Ground, promtool: str) -> None:
    """Some calls are answered, as in a storm that others cause; without any, `CortexNoProgress` would be right too."""

    def stormed() -> bool:
        attempts = partial(place.record.risen, "cortex_attempts_total")
        return attempts('kind="throttled"') >= attempts('kind="answered"') > 0

    place.begin(ROWS, "--concurrency", 8, wait=20)
    place.quiet()
    place.provider(faults={"throttled_bare": 0.7})
    place.caused()
    place.drill("storm of 429 that names no wait", whole=stormed)
    place.provider(faults={})
    before = place.done()
    place.goes_on(before + 100, 20)
    place.quiet(minutes=10)
    place.provider(faults={"throttled": 0.7}, throttled_retry_after_s=1)
    place.caused()
    assert "asks to wait" not in place.drill("storm of 429", whole=stormed)["waits"], "the same thing twice"
    _logged(place, "job.failures", "info")
    place.provider(faults={})
    before = place.done()
    place.goes_on(before + 20, 20)
    place.judge(promtool)


def test_a_wrong_key_and_one_that_is_put_right(place: Ground, promtool: str) -> None:
    place.provider(keys=["sk-ant-second"])
    place.begin(ROWS, "--concurrency", 8, wait=0)
    _logged(place, "job.blocked", "error")
    place.caused()
    assert place.over() == 3
    status = place.drill("wrong key")
    assert status["resume"] == "cortex resume mine"
    _logged(place, "job.ended", "error")
    place.write_key("sk-ant-second")
    place.resume()
    place.judge(promtool)


def test_a_key_that_is_rotated_while_the_job_waits_for_it(place: Ground, promtool: str) -> None:
    place.begin(ROWS, "--concurrency", 8, "--wait-blocked", "1h")
    place.quiet()
    place.provider(keys=["sk-ant-second"])
    place.drill("key rotated, `--wait-blocked`", lasts_min=10)  # its breaker is open all the time
    _logged(place, "job.blocked", "error")
    before = place.done()
    place.write_key("sk-ant-second")
    place.goes_on(before + 8, 20)
    _logged(place, "job.unblocked", "info")
    place.judge(promtool)


def test_a_cap_that_comes_near_and_is_reached(place: Ground, promtool: str) -> None:
    place.provider(latency_ms=125)
    place.begin(ROWS, "--concurrency", 1, "--max-cost", "1", "--price", "input=3,output=15", wait=20)
    place.drill("cap near")
    place.provider(latency_ms=20)
    place.caused()
    place.set("--max-cost", "0.02")
    assert place.over() == 3
    place.drill("cap reached")
    _logged(place, "job.ended", "warning")
    place.resume("--max-cost", "100")
    place.judge(promtool)


def test_a_deadline_that_comes_near(place: Ground, promtool: str) -> None:
    place.provider(latency_ms=125)
    place.begin(ROWS, "--concurrency", 1, "--deadline", "+30m", wait=8)
    place.drill("deadline near")
    _logged(place, "job.progress", "warning")
    place.set("--deadline", "+6h")
    place.judge(promtool)


def test_a_clock_that_is_set(place: Ground, tmp_path: Path, promtool: str) -> None:
    place.begin(ROWS, "--concurrency", 8, program=[sys.executable, "-c", CLOCK, str(tmp_path / "set")])
    place.quiet()
    (tmp_path / "set").touch()
    place.drill("clock set")
    before = place.done()
    until(lambda: place.done() > before + 20)
    place.judge(promtool)


@pytest.mark.parametrize("how", ["fast", "slow"])
def test_a_disk_that_fills(
    tmp_path: Path, cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, how: str, promtool: str
) -> None:
    """A disk of 40 GiB that is made smaller, at once or by and by: what is left of it at last is filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        tools.missing("root", "a small disk is mounted by root alone")
    if not _sized(disk, 40 * GIB, "tmpfs", "-t", "tmpfs"):
        tools.missing("mount", "this machine lets nobody mount a disk")
    try:
        monkeypatch.setenv("CORTEX_STATE", str(disk / "state"))
        with ground(tmp_path, cortex, "latency_ms=20", "latency_spread=0") as place:
            place.begin(ROWS, "--concurrency", 8)
            place.quiet()
            for left in range(39, 8, -3) if how == "slow" else ():
                _sized(disk, left * GIB)
                time.sleep(0.1)
            place.caused()
            _sized(disk, 24 << 20)
            fill = disk / "other"
            with fill.open("wb", buffering=0) as out:
                while place.job is not None and place.job.poll() is None:
                    try:
                        out.write(bytes(1 << 20))
                    except OSError:
                        time.sleep(0.05)
            assert place.over() == 3
            place.drill("disk full")
            assert any("is full" in line["message"] for line in place.lines() if line["level"] == "error")
            fill.unlink()
            _sized(disk, 40 * GIB)
            assert "is full" not in place.status().get("why", "")
            place.resume()
            place.judge(promtool)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def _sized(disk: Path, size: int, what: str = "remount", *more: str) -> bool:
    """Give a disk in memory this size; return whether that was possible. Only what is written takes memory."""
    option = f"size={size}" if more else f"{what},size={size}"
    command = ["mount", *more, "-o", option, *([what] if more else []), str(disk)]
    return subprocess.run(command, check=False).returncode == 0


def test_words_of_the_page_are_compared_as_they_stand() -> None:
    assert like("no reply for … to …", "no reply for 3 s to 4 calls")
    assert not like("no reply for … to …", "a reply for 3 s to 4 calls")
    assert not like("the cap", "the cap is near")
