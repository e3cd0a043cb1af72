"""Traces of a job on a real Ray whose channel, branch and driver are killed: whole all the same; and no key anywhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cluster.orphan_cleanup import below
from actors.history.catalog import last_owner
from actors.journal.journal import StateFolder
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, write_rows
from tests.support.otlp_collector import HttpCollector, attributes, well_formed

ROWS = 3_000
HEADER = "top-secret-of-the-collector"


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider(latency_ms=60.0, seed=1)
    yield found
    found.close()


def until(done, what: str, within_s: float = PATIENCE_S) -> None:
    end_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.02)


def of_role(driver: int, name: str) -> int:
    """A process of an actor of this role, by the title that Ray gives it."""
    for pid in below(driver):
        try:
            data = Path(f"/proc/{pid[0]}/cmdline").read_bytes()
        except OSError:
            continue
        if data.lower().startswith(b"ray::" + name.encode()):
            return pid[0]
    return 0


@pytest.mark.release  # `test_nodes` kills a node, and looks at the spans
def test_no_span_is_an_orphan_though_channel_branch_and_driver_are_killed(folder, provider):
    with HttpCollector() as collector:
        commands = Commands(folder, provider.url, "local")
        commands._env |= collector.environ() | {
            "OTEL_TRACES_SAMPLER": "always_on", "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={HEADER}",
        }  # fmt: skip
        write_rows(folder / "in.jsonl", ROWS, "r")
        try:
            _killed(collector, commands, folder)
        finally:
            commands.close()
        well_formed(collector)
        rows = [span for span in collector.named("goal row") if attributes(span)["cortex.goal.status"] == "resolved"]
        assert len(rows) == len({attributes(span)["cortex.row.key"] for span in rows}) == ROWS
        assert all(headers["x-key"] == HEADER for headers in collector.headers)
        assert len({resource["process.pid"] for resource in collector.resources}) >= 3
        branches = {attributes(span)["cortex.branch"] for span in collector.named("attempt") if span.status.code == 0}
        assert branches == {"branch:0", "branch:1"}
        assert [s for s in collector.named("attempt") if attributes(s).get("error.type") == "lost"]
        assert HEADER.encode() not in b"".join(
            path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()
        )


def _killed(collector: HttpCollector, commands: Commands, folder: Path) -> None:
    words = ("batch", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), "--job", "r", "--concurrency", "96")
    driver = commands.start(*words)
    until(lambda: len(collector.spans) > 1_000, "spans")
    processes = below(driver.pid)
    assert len(processes) > 4
    for pid, _ in processes:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            assert HEADER.encode() not in environ.read(), f"process {pid} was begun with it"
    owner = last_owner(StateFolder(folder / "state"), "r")
    assert owner is not None
    os.kill(owner.channel_pid, signal.SIGKILL)
    seen = len(collector.spans)
    until(lambda: len(collector.spans) > seen + 1_500, "spans of a channel that was started again")
    branch = of_role(driver.pid, "branch")
    assert branch
    os.kill(branch, signal.SIGKILL)
    seen = len(collector.spans)
    until(lambda: len(collector.spans) > seen + 1_500, "spans after a branch has died")
    driver.kill()
    driver.communicate()
    again = commands.start(*words)
    out, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, out
