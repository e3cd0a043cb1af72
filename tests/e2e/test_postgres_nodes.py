"""A cluster whose journals are in PostgreSQL: a channel runs on any node, and a node that dies with it stops no job."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.orphan_cleanup import below
from actors.journal.journal import StateFolder
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.runtime.ray_runtime import start_runtime
from tests.cluster.cluster_processes import Commands, Provider, another_node, names_in, ray_head, write_rows
from tests.support.postgres_server import Server, serving

ROWS = 1_200
PERMITS = 24
"""No more of the job's calls are under way at any moment."""


@pytest.fixture
def server() -> Iterator[Server]:
    """One that waits for its disk, as in production."""
    yield from serving(durable=True)


async def _asked(runtime: Any, job: str, method: str) -> Any:
    try:
        return await runtime.peer(f"channel:{job}").ask(method)
    except (PeerUnavailable, PeerGone):
        return None


async def _put_there(runtime: Any, job: str, state: str, node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a job's channel made on that node, as Ray might do by itself."""
    here = ray.get_runtime_context().get_node_id()
    (there,) = [each["NodeID"] for each in ray.nodes() if each["Alive"] and each["NodeID"] != here]
    monkeypatch.setattr(runtime, "_where", lambda role, args: NodeAffinitySchedulingStrategy(there, soft=True))
    monkeypatch.setattr(
        "actors.runtime.ray_runtime.host_address", lambda node, nodes: ""
    )  # a place in particular would tie it to this host
    for _ in range(20):  # soft: Ray may choose another until it knows the node well
        await runtime.start_actor("channel", f"channel:{job}", job, state)
        _, pid = await runtime.peer(f"channel:{job}").ask("hello")
        if int(pid) in {each for each, _ in below(node)}:
            return
        await runtime.end_actor(f"channel:{job}")
    raise AssertionError(f"Ray never started channel:{job} on the other node")


async def _begun(runtime: Any, job: str, driver: Any) -> None:
    """Wait until a good part of the job is done."""
    facts: dict[str, Any] = {}
    while facts.get("results", 0) < ROWS // 10:
        assert driver.poll() is None, driver.communicate()[0]
        await asyncio.sleep(0.05)
        facts = msgspec.json.decode(await _asked(runtime, job, "status") or b"{}")


async def test_a_node_that_dies_with_a_channel_on_it_stops_no_job(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # of driver and nodes alike: large windows go from one to the other
    provider = Provider(latency_ms=200.0)
    write_rows(tmp_path / "in.jsonl", ROWS, "n")
    state = server.state()
    with ray_head() as head:
        commands = Commands(tmp_path, provider.url, head.address, state=state)
        runtime = await start_runtime(head.address, {})
        try:
            with another_node(head) as started:
                await _put_there(runtime, "j", state, started.pid, monkeypatch)
                few = ("--concurrency", str(PERMITS))
                driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "j", *few)
                await _begun(runtime, "j", driver)
                for pid, _ in below(started.pid):
                    os.kill(pid, signal.SIGKILL)
                text, _ = await asyncio.to_thread(driver.communicate)
                assert driver.returncode == 0, text
                names = Counter(names_in(tmp_path / "out.jsonl"))
                assert (len(names), max(names.values())) == (ROWS, 1)
                source = StateFolder(state).journal("j")
                assert source.newest_epoch() >= 2, "its channel was started again, on the node that is left"
                source.close()
                assert provider.stats()["second_complete_answers_by_user"] <= PERMITS
        finally:
            await runtime.close()
            commands.close()
            provider.close()
