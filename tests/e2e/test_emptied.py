"""What Kubernetes' hooks call, on a real Ray of three nodes: a node and a cluster are emptied, and all of it ended.

The nodes say what they are for, as KubeRay's worker groups do: branches live on the branch node alone.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_processes import Commands, Node, Provider, another_node, names_in, ray_head, write_rows

ROWS = 600
SLOW = ("--concurrency", "8")
"""So that a job is not over before it is told to rest: a command takes seconds to connect."""


def said(commands: Commands, *words: str, node: Node | None = None, code: int = 0) -> str:
    started = commands.start(*words, node=node)
    text, _ = started.communicate(timeout=120)
    assert started.returncode == code, text
    return text


def live(commands: Commands, job: str) -> dict[str, Any]:
    text = said(commands, "status", job, "--json")
    return dict(json.loads(text.strip().splitlines()[-1]))


def some_results(path: Path, more_than: int, driver: subprocess.Popen[str]) -> None:
    until_s = time.monotonic() + 60
    while not path.exists() or len(path.read_bytes().splitlines()) <= more_than:
        assert driver.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.release  # `make e2e` drains a branch and a node
def test_a_node_and_a_cluster_are_emptied_and_no_row_is_lost(tmp_path):
    provider = Provider(latency_ms=1500.0)
    rows = write_rows(tmp_path / "in.jsonl", ROWS, "e")
    with (
        ray_head("--labels=cortex/role=control") as head,
        another_node(head, "--labels=cortex/role=branch") as branches,
        another_node(head, "--labels=cortex/role=worker") as workers,
    ):
        commands = Commands(tmp_path, provider.url, head.address)
        try:
            driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "e", *SLOW)
            some_results(tmp_path / "out.jsonl", 10, driver)

            nodes = {one["node"] for one in live_staff(commands).values()}
            here = said(commands, "drain", "--node", "here", "--json", node=workers)
            assert nodes and json.loads(here.splitlines()[-1])["node"] not in nodes, "branches are on the branch node"

            message = said(commands, "drain", "--all", "--within", "60s")
            assert "job e rests, and can be resumed" in message
            text, _ = driver.communicate(timeout=60)
            assert driver.returncode == 3, text
            done = len(names_in(tmp_path / "out.jsonl"))
            assert 10 < done < ROWS

            driver = commands.start("resume", "e", "--accept-partial")
            some_results(tmp_path / "out.jsonl", done + 10, driver)
            gone = said(commands, "down", "--within", "60s", "--json")
            facts = json.loads(gone.strip().splitlines()[-1])
            assert facts["left"] == [] and {"branch:0", "cortex"} <= {*facts["ended"]}, facts
            text, _ = driver.communicate(timeout=60)
            assert driver.returncode == 3, f"it rests: {text}"
            assert json.loads(said(commands, "down", "--json").strip().splitlines()[-1])["ended"] == []

            done = len(names_in(tmp_path / "out.jsonl"))
            driver = commands.start("resume", "e")
            some_results(tmp_path / "out.jsonl", done + 10, driver)
            text = said(commands, "drain", "--node", "here", "--within", "60s", node=branches)
            assert "is empty, and gets no more work" in text
            # No branch is left, and none comes: the job waits for one, and is ended all the same when the time is over.
            message = said(commands, "down", "--within", "3s")
            assert "job e still has calls in flight" in message
            text, _ = driver.communicate(timeout=60)
            assert driver.returncode in (1, 3), text
            said(commands, "resume", "e", "--concurrency", "300")
            assert Counter(names_in(tmp_path / "out.jsonl")) == Counter(rows)
            assert provider.stats()["second_complete_answers_by_user"] == 0, "nothing was asked twice"
        finally:
            commands.close()
            provider.close()


def live_staff(commands: Commands) -> dict[str, Any]:
    """The branches that the cluster's cortex knows, each with its node."""
    text = said(commands, "top", "--once", "--json")
    (cluster,) = json.loads(text.strip().splitlines()[-1])["clusters"]
    return dict(cluster["staff"])
