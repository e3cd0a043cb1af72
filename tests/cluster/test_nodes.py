"""A node that dies takes its branches along: they come back elsewhere, and the job goes on. Whoever was attached to it
is told, and goes on from another. Its spans are whole, though they come from two nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.orphan_cleanup import below
from actors.ports.runtime import PeerGone, PeerUnavailable
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Head, Provider, another_node, names_in, write_rows
from tests.support.otlp_collector import HttpCollector, attributes, well_formed

ROWS = 1_200
PERMITS = 20
"""Of each of two jobs: no more of its calls are under way at any moment."""
OTHER_HOST = "--node-ip-address=127.0.0.2"
"""To Ray, another machine: what is tied to one is not started again on the other."""
KEPT = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "50"}


async def _pid(runtime: Any, name: str) -> int:
    _, pid = await runtime.peer(name).ask("hello")
    return int(pid)


async def _pid_once_there(runtime: Any, name: str) -> int:
    """The same of an actor that was just started, and may be slow to answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await _pid(runtime, name)
            except (PeerUnavailable, PeerGone):
                await asyncio.sleep(0.1)


async def _is_below(runtime: Any, name: str, node: int) -> bool:
    try:
        return await _pid(runtime, name) in {pid for pid, _ in below(node)}
    except (PeerUnavailable, PeerGone):
        return False


async def _facts(runtime: Any, job: str) -> dict[str, Any]:
    try:
        return dict(msgspec.json.decode(await runtime.peer(f"channel:{job}").ask("status")))
    except (PeerUnavailable, PeerGone):
        return {}


def _here() -> str:
    return str(ray.get_runtime_context().get_node_id())


async def _moved(runtime: Any, name: str, node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a branch started on the other node, as Ray might do by itself, once it knows of that node."""
    (there,) = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != _here()]
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "_where", lambda role, args: NodeAffinitySchedulingStrategy(there, soft=True))
        for _ in range(20):
            await runtime.end_actor(name)
            await runtime.start_actor("branch", name)
            if await _pid_once_there(runtime, name) in {pid for pid, _ in below(node)}:
                return
    raise AssertionError(f"Ray never started {name} on the other node")


def _told_enough(collector: HttpCollector) -> bool:
    """Whether attempts of both branches were told, and as many rows as `_check_spans` expects of the node that dies."""
    spans = list(collector.spans)
    branches = {str(attributes(span)["cortex.branch"]) for span in spans if span.name == "attempt"}
    rows = [span for span in spans if span.name.startswith("goal row")]
    return branches == {"branch:0", "branch:1"} and len(rows) >= ROWS // 20


def _check_spans(collector: HttpCollector, kept: Path, there: str) -> None:
    """What the node told while it lived, to a collector, and what was told after, from the head, which keeps less."""
    assert {resource["cortex.node"] for resource in collector.resources} == {there}
    before = len(collector.named("goal row"))
    assert before >= ROWS // 20
    collector.read(kept)
    assert len({resource["cortex.node"] for resource in collector.resources}) == 2
    assert len(collector.named("goal row")) > before
    well_formed(collector)
    (job,) = collector.named("invoke_workflow")
    assert attributes(job)["cortex.rows.succeeded"] == ROWS
    for spans in collector.traces.values():
        ids = {span.span_id: span for span in spans}
        for span in spans:
            if span.name in ("attempt", "chat m", "select", "absorb"):
                assert ids[span.parent_span_id].name == ("chat m" if span.name == "attempt" else "goal row")


@pytest.mark.long
async def test_a_node_that_dies_costs_no_row_and_makes_no_span_an_orphan(
    runtime: Any, head: Head, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(latency_ms=5000.0)  # no job is through before both have begun
    commands = Commands(folder, provider.url, head.address)
    rows = write_rows(folder / "in.jsonl", ROWS, "n")
    others = write_rows(folder / "in-there.jsonl", ROWS, "t")
    try:
        with HttpCollector() as collector, another_node(head, OTHER_HOST, **KEPT, **collector.environ()) as started:
            node = started.pid
            (node_id,) = [each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeID"] != _here()]
            await _moved(runtime, "branch:1", node, monkeypatch)
            few = ("--concurrency", str(PERMITS))
            driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "nodes", *few)
            words = ("batch", "in-there.jsonl", "-o", "out-there.jsonl", "--job", "there", *few)
            there = commands.start(*words, node=started)
            async with asyncio.timeout(PATIENCE_S):
                for rows_done, latency_ms in ((1, 150.0), (ROWS // 10, 2000.0)):
                    for job in ("nodes", "there"):
                        while (await _facts(runtime, job)).get("results", 0) < rows_done:  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                    provider.set(latency_ms=latency_ms)  # at last: jobs that are through would need no other branch
                while not _told_enough(collector):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            for job, root in (("nodes", head.pid), ("there", node)):
                channel = await _pid(runtime, f"channel:{job}")
                assert channel in {pid for pid, _ in below(root)}, "it is where its disk is"
            for pid, _ in below(node):
                os.kill(pid, signal.SIGKILL)
            text, _ = await asyncio.to_thread(there.communicate)
            assert there.returncode == 3, text
            assert "the node of the Ray that this run was attached to has died: cortex resume there" in text
            there = commands.start("resume", "there")
            async with asyncio.timeout(PATIENCE_S):
                while not await _is_below(runtime, "branch:1", head.pid):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            provider.set(latency_ms=150.0)
            text, _ = await asyncio.to_thread(driver.communicate)
            assert driver.returncode == 0, text
            assert Counter(names_in(folder / "out.jsonl")) == Counter(rows)
            text, _ = await asyncio.to_thread(there.communicate)
            assert there.returncode == 0, text
            assert Counter(names_in(folder / "out-there.jsonl")) == Counter(others)
            assert provider.stats()["second_complete_answers_by_user"] <= 2 * PERMITS
            _check_spans(collector, folder / "state" / "traces" / "there.jsonl", node_id)
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_branches_take_the_nodes_of_a_ray_in_turns(runtime: Any, head: Head) -> None:
    names = [f"branch:{slot}" for slot in range(100, 106)]
    with another_node(head) as started:
        try:
            for name in names:
                await runtime.start_actor("branch", name)
            pids = [await _pid_once_there(runtime, name) for name in names]
            there = [pid in {each for each, _ in below(started.pid)} for pid in pids]
        finally:
            for name in names:
                await runtime.end_actor(name)
    assert there in ([False, True] * 3, [True, False] * 3)
