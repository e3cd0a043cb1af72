"""The head of a Ray is lost: `cortex status` says so at once, the command ends with exit code 3, `cortex jobs` tells which jobs
rest, and a new head has the job resumed."""

from __future__ import annotations

import contextlib
import importlib
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
from tests.cluster.cluster_processes import PATIENCE_S, ray_head
from tests.e2e import tools
from tests.e2e.drills.ground import ground
from tests.e2e.drills.incidents import like, named, says
from tests.support.ports import free_port

__all__ = ["cortex"]
pytestmark = pytest.mark.long
ROWS = 600
LOST, GONE = "head of the Ray lost", "head of the Ray lost, its command gone"
LATENCY_MS, LATENCY_LAST_MS = 1_000, 5
"""Four calls at once do the rows in 150 s: the head is lost before they are done, on any machine. At last they are
quick."""


@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.release)], ids=["with its machine", "alone"])
def test_a_head_that_is_lost(tmp_path: Path, cortex: Callable[..., Done], promtool: str, alone: bool) -> None:
    """The alert is asked of Ray's own port, as in Kubernetes. Alone: the command waits for the head for ``SILENT_S``, then ends.
    With its machine: the command is there too, as in a pod, and goes after the head."""
    try:
        importlib.import_module("ray.dashboard.optional_deps")
    except ImportError as error:
        pytest.skip(f"{tools.MISSING}ray[default] ({error.name}). `make e2e` installs it")
    port = free_port()
    metered, often = (f"--metrics-export-port={port}",), {"RAY_metrics_report_interval_ms": "2000"}
    with ground(tmp_path, cortex, f"latency_ms={LATENCY_MS}", "latency_spread=0") as place:
        page = place.record.scrape(f"http://127.0.0.1:{port}/metrics", ray_io_cluster="c1", instance="head")

        def told(name: str) -> bool:
            return any(key.startswith(f"ray_{name}") for key in page.scrapes[-1].values)

        with ray_head(*metered, **often) as head:
            place.begin(ROWS, "--concurrency", 4, "--cluster", head.address, scraped=False)
            both = ("cortex_rows_expected", "cortex_ends_kept")
            tools.until(lambda: all(map(told, both)), PATIENCE_S, "the job on Ray's port")
            place.quiet()
            place.caused()
            processes = [pid for pid, _ in below(head.pid)]
            (server,) = (pid for pid in processes if _program(pid).endswith(b"gcs_server"))
            os.kill(server, signal.SIGKILL)
            place.named(lambda status: says(named(LOST), status))
            assert place.job is not None
            for pid in (place.job.pid, *processes) if not alone else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code = place.over()
            place.caused()
            place.named(lambda status: says(named(GONE), status))
            tools.until(lambda: not told("cortex_"), PATIENCE_S, "nothing is told of the job any more")
            place.caused()
            place.drill(GONE)
            if alone:
                text = place.log.read_text()
                assert code == 3 and "to go on: cortex resume mine" in text
                assert "The program will terminate" not in text, "Ray ended the process"
            jobs = cortex("jobs")
            assert "interrupted: its head is lost; resumable" in jobs.out
            assert like("…no Ray answers at …: 1 job rests, nothing is lost: cortex resume mine…", jobs.err)
        place.provider(latency_ms=LATENCY_LAST_MS)
        with ray_head(*metered, **often) as again:
            done = cortex("resume", "mine", "--cluster", again.address, "--api-key-file", place.key_file)
            assert done.code == 0, done.err
            tools.until(lambda: told("cortex_job_ended"), PATIENCE_S, "the end of the job on Ray's port")
            place.quiet(works=False)
        each_once(tmp_path / "out.jsonl", ROWS)
        place.seen(promtool)


def _program(pid: int) -> bytes:
    """Return the path of what a process runs; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return b""


@pytest.mark.release
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
        resting = RestingJobs(state)
        until(lambda: [each.job for each in resting.look()] == ["mine"], LEASE_S + 15)
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
