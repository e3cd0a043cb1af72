"""What a killed run left behind is ended; nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.cluster.orphan_cleanup import MARK, below, end_leftovers, end_processes, marked
from actors.common.process_owner import Owner, process_started, this_owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="told by /proc")

STAY = "print('here', flush=True); import time; time.sleep(600)"


@pytest.fixture
def stay() -> Iterator[Any]:
    """Starts processes that stay; with a mark or without."""
    started: list[subprocess.Popen[str]] = []

    def start(mark: str = "", code: str = STAY) -> subprocess.Popen[str]:
        env = {**os.environ, **({MARK: mark} if mark else {})}
        one = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline()
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


def _dead_owner(**more: Any) -> Owner:
    """A run whose driver is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return msgspec.structs.replace(this_owner("local"), pid=gone.pid, started="1", **more)


def test_marked_and_recorded_processes_are_ended_and_no_others(stay: Any, tmp_path: Path) -> None:
    mine, recorded, other, reused = stay("mark-1"), stay(), stay("mark-2"), stay()
    folder = tmp_path / "cortex-abc"
    (folder / "r" / "session_1").mkdir(parents=True)
    owner = _dead_owner(
        ray_mark="mark-1", ray_folder=str(folder),
        ray_pids=((recorded.pid, process_started(recorded.pid)), (reused.pid, "12345")),
    )  # fmt: skip
    assert set(end_leftovers(owner)) == {mine.pid, recorded.pid}
    assert (mine.wait(60), recorded.wait(60)) == (-9, -9)
    assert (other.poll(), reused.poll()) == (None, None)
    assert not folder.exists()


def test_a_living_owner_another_host_and_another_cluster_are_left_alone(stay: Any, tmp_path: Path) -> None:
    one = stay("mark-1")
    alive = msgspec.structs.replace(this_owner("local"), ray_mark="mark-1")
    elsewhere = _dead_owner(ray_mark="mark-1", host="elsewhere")
    assert end_leftovers(alive) == end_leftovers(elsewhere) == []
    assert end_leftovers(msgspec.structs.replace(_dead_owner(ray_mark="mark-1"), cluster="inline")) == []
    assert end_leftovers(_dead_owner()) == []
    assert one.poll() is None


def test_a_folder_that_is_no_rays_is_not_removed(tmp_path: Path) -> None:
    named_otherwise, without_session = tmp_path / "work", tmp_path / "cortex-work"
    (named_otherwise / "r" / "session_1").mkdir(parents=True)
    without_session.mkdir()
    for folder in (named_otherwise, without_session):
        end_leftovers(_dead_owner(ray_mark="mark-1", ray_folder=str(folder)))
        assert folder.exists()


def test_descendants_are_found_with_their_start_times(stay: Any) -> None:
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STAY!r}]).wait()"
    parent = stay("mark-3", child)
    found = below(parent.pid)
    assert len(found) == 1
    assert marked("mark-3") == {parent.pid, found[0][0]}
    assert found[0][1] == process_started(found[0][0])
    assert set(end_processes((), "mark-3", grace_s=0)) == {parent.pid, found[0][0]}


def test_who_ends_within_the_grace_is_not_killed(stay: Any) -> None:
    soon = stay("mark-4", "print('here', flush=True); import time; time.sleep(0.1)")
    assert end_processes(((soon.pid, process_started(soon.pid)),), "mark-4", grace_s=60) == []
    assert soon.wait(60) == 0
