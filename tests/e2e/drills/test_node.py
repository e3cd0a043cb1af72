"""A node of a Ray is lost: `cortex status` and `cortex top` name it and say when, one alert does, and the job goes on; a node
that is told to end is not lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.cluster.orphan_cleanup import below
from tests.cli.cli_runner import Done, cortex, until
from tests.cluster.cluster_processes import PATIENCE_S, another_node, ray_head
from tests.e2e.drills.ground import ground

__all__ = ["cortex"]
pytestmark = pytest.mark.long
POD = "cortex-branch-worker-x7k2p"


def test_a_node_that_is_lost_and_back_and_then_told_to_end(
    tmp_path: Path, cortex: Callable[..., Done], promtool: str
) -> None:
    """The health checks of this Ray are those of ``WATCHFUL``; with its defaults it finds a loss later."""
    with ground(tmp_path, cortex, "latency_ms=250", "latency_spread=0") as place, ray_head() as head:
        place.begin(20_000, "--concurrency", 2, "--cluster", head.address)  # its cortex is on the head, which is alone
        with another_node(head, RAY_CLOUD_INSTANCE_ID=POD) as lost:
            until(lambda: place.status().get("nodes", "") == "2 up", PATIENCE_S)
            place.quiet()
            place.caused()
            for pid, _ in below(lost.pid):
                os.kill(pid, signal.SIGKILL)
            assert place.drill("node lost")["nodes"].startswith(f"1 up; {POD} lost at ")
        (seen,) = json.loads(cortex("top", "--once", "--json").out)["clusters"]
        assert [told["host"] for told in seen["lost"].values()] == [POD]
        with another_node(head, RAY_CLOUD_INSTANCE_ID=POD) as back:
            until(lambda: place.status().get("nodes", "") == "2 up", PATIENCE_S)
            os.kill(back.pid, signal.SIGTERM)
            until(lambda: "nodes" not in place.status(), PATIENCE_S)
        before = place.done()
        until(lambda: place.done() > before + 8)
        place.judge(promtool)
        logs = "".join(path.read_text() for path in head.folder.glob("session_2*/logs/worker-*"))
        assert '"event":"node.lost"' in logs
        assert POD in logs
