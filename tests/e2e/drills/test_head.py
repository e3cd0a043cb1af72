"""The head of a Ray is lost: `cortex status` says so at once, the command ends with exit code 3, `cortex jobs` tells which jobs
rest, and a new head has the job resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.cli.jobs.resting import RestingJobs
from actors.cluster.orphan_cleanup import below
from actors.journal.journal import StateFolder
from actors.journal.state_folder import STATE_DEFAULT
from cortex.scheduler.state import LEASE_S
from cortex.state.events import NODE_ENDED
from tests.cli.cli_runner import Done, cortex, each_once, until
from tests.cluster.cluster_processes import ray_head
from tests.e2e.drills.ground import ground
from tests.e2e.drills.incidents import like, named, says

__all__ = ["cortex"]
pytestmark = pytest.mark.release
ROWS = 600
LOST, GONE = "head of the Ray lost", "head of the Ray lost, its command gone"


def test_a_head_that_is_lost(tmp_path: Path, cortex: Callable[..., Done]) -> None:
    with ground(tmp_path, cortex, "latency_ms=200", "latency_spread=0") as place:
        with ray_head() as head:
            place.begin(ROWS, "--concurrency", 8, "--cluster", head.address)
            for pid, _ in below(head.pid):
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"gcs_server"):
                    os.kill(pid, signal.SIGKILL)
            place.named(lambda status: says(named(LOST), status))
            assert place.over(120) == 3
            place.named(lambda status: says(named(GONE), status))
            told = place.log.read_text()
            assert "to go on: cortex resume mine" in told
            assert "The program will terminate" not in told, "Ray ended the process"
            jobs = cortex("jobs")
            assert "interrupted: its head is lost; resumable" in jobs.out
            assert like("…no Ray answers at …: 1 job rests, nothing is lost: cortex resume mine…", jobs.err)
        with ray_head() as again:
            done = cortex("resume", "mine", "--cluster", again.address, "--api-key-file", place.key_file)
            assert done.code == 0, done.err
        each_once(tmp_path / "out.jsonl", ROWS)


@pytest.mark.parametrize("drained", [False, True], ids=["killed", "drained for a restart"])
def test_a_job_goes_on_by_itself_on_the_next_head(tmp_path: Path, cortex: Callable[..., Done], drained: bool) -> None:
    """As in a pod that is started again: its driver goes along with the head."""
    state = StateFolder(os.environ.get("CORTEX_STATE") or STATE_DEFAULT)
    with ground(tmp_path, cortex, "latency_ms=200", "latency_spread=0") as place:
        with ray_head() as head:
            place.begin(ROWS, "--concurrency", 8, "--cluster", head.address)
            assert place.job is not None
            place.job.kill()
            place.over()
            assert place.status()["state"].startswith("in a cluster, without a driver")
            if drained:
                done = cortex("drain", "--all", "--for-restart", "--within", "30s", "--cluster", head.address)
                assert done.code == 0, done.err
        until(lambda: [each.job for each in RestingJobs(state).look()] == ["mine"], LEASE_S + 15)
        if drained:
            assert place.status()["why"].startswith(f"drained by {NODE_ENDED}")
        else:
            assert place.status()["state"].startswith("interrupted") and "cortex tend" in cortex("jobs").err
        with ray_head() as again:
            words = ("--cluster", again.address, "--api-key-file", place.key_file)
            done = cortex("tend", *words)
            assert done.code == 0, done.err
            assert f"job mine goes on: the Ray at {head.address} was lost, and {again.address} answers" in done.err
            assert cortex("tend", *words).err == "", "nothing rests"
        assert place.status()["state"].startswith("complete")
        each_once(tmp_path / "out.jsonl", ROWS)
