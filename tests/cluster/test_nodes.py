"""A node that dies takes its branches along: they come back elsewhere, and the job goes on."""

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

from actors.cluster.leftovers import below
from tests.cluster.processes import Commands, Head, Provider, another_node, names_in, write_rows

ROWS = 1_500


async def _pid(runtime: Any, name: str) -> int:
    _, pid = await runtime.peer(name).ask("hello")
    return int(pid)


async def _moved(runtime: Any, name: str, node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a branch started on the other node, as Ray might do by itself, once it knows of that node."""
    here = ray.get_runtime_context().get_node_id()
    (there,) = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "_where", lambda role: NodeAffinitySchedulingStrategy(there, soft=True))
        for _ in range(20):
            await runtime.end_actor(name)
            await runtime.start_actor("branch", name)
            if await _pid(runtime, name) in {pid for pid, _ in below(node)}:
                return
    raise AssertionError(f"Ray never started {name} on the other node")


async def test_a_node_that_dies_costs_no_row(
    runtime: Any, head: Head, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(latency_ms=30.0)
    commands = Commands(folder, provider.url, head.address)
    rows = write_rows(folder / "in.jsonl", ROWS, "n")
    try:
        with another_node(head) as node:
            await _moved(runtime, "branch:1", node, monkeypatch)
            driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "nodes")
            while provider.stats()["distinct_users_answered"] < ROWS // 4:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            facts = msgspec.json.decode(await runtime.peer("channel:nodes").ask("status"))
            channel = await _pid(runtime, "channel:nodes")
            assert channel in {pid for pid, _ in below(head.pid)}, "it is where its disk is"
            for pid, _ in below(node):
                os.kill(pid, signal.SIGKILL)
            said, _ = await asyncio.to_thread(driver.communicate)
            assert driver.returncode == 0, said
            assert Counter(names_in(folder / "out.jsonl")) == Counter(rows)
            assert provider.stats()["second_complete_answers_by_user"] <= facts["permits"]
            assert await _pid(runtime, "branch:1") in {pid for pid, _ in below(head.pid)}
    finally:
        commands.close()
        provider.close()
