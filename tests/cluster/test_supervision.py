"""A branch that is killed is noticed and its calls made again soon; one that is asked to end, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.experimental import internal_kv

from actors.cluster.actor_classes import export_key
from actors.ports.runtime import PeerGone, PeerUnavailable
from policies.limits.queueing import START
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, names_in, write_rows

NOTICED_S = 3.0
"""Within which a death is noticed, or within the time in which the same machine begins a job, if that is longer."""
LATENCY_S, LATENCY_AGAIN_S = 20.0, 0.1
"""Of the calls that are under way at the death, so that none is over before it, and of those that are made again."""


async def _pid(runtime: Any, name: str) -> int:
    while True:
        try:
            _, pid = await runtime.peer(name).ask("hello")
            return int(pid)
        except (PeerUnavailable, PeerGone):
            await asyncio.sleep(0.1)


async def _working(runtime: Any, job: str) -> int:
    """The pid of a branch that makes calls for a job."""
    while True:
        for name in await runtime.names("branch:"):
            try:
                if (await runtime.peer(name).ask("beat", job))["phase"] == "calling":
                    return await _pid(runtime, name)
            except (PeerUnavailable, PeerGone):
                continue
        await asyncio.sleep(0.1)


async def _until(done: Callable[[], bool], within_s: float) -> float:
    began_s = time.monotonic()
    while not await asyncio.to_thread(done):
        assert time.monotonic() - began_s < within_s
        await asyncio.sleep(0.02)
    return time.monotonic() - began_s


@pytest.mark.long
async def test_a_killed_branch_is_noticed_soon(
    runtime: Any, address: str, folder: Path, tell: Callable[[str], None]
) -> None:
    provider = Provider(latency_ms=1_000 * LATENCY_S, latency_spread=0.0)
    commands = Commands(folder, provider.url, address)
    rows = write_rows(folder / "in.jsonl", START, "s")
    try:
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "noticed")
        begun_s = await _until(lambda: provider.stats()["in_flight"] == START, PATIENCE_S)
        provider.set(latency_ms=1_000 * LATENCY_AGAIN_S)
        os.kill(await _working(runtime, "noticed"), signal.SIGKILL)
        # There are no more rows than calls: a further request was made because of the death alone.
        took_s = await _until(lambda: provider.stats()["requests"] > START, PATIENCE_S)
        tell(f"noticed and made again after {took_s:.2f} s")
        text, _ = await asyncio.to_thread(driver.communicate)
        assert driver.returncode == 0, text
        assert Counter(names_in(folder / "out.jsonl")) == Counter(rows)
        assert took_s < max(NOTICED_S, begun_s)
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_a_branch_that_is_asked_to_end_hands_back_what_it_has(runtime: Any, address: str, folder: Path) -> None:
    provider = Provider(latency_ms=2_000)
    commands = Commands(folder, provider.url, address)
    rows = write_rows(folder / "in.jsonl", 60, "t")
    try:
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "asked")
        await _until(lambda: provider.stats()["in_flight"] >= 4, PATIENCE_S)
        pid = await _working(runtime, "asked")
        os.kill(pid, signal.SIGTERM)
        text, _ = await asyncio.to_thread(driver.communicate)
        assert driver.returncode == 0, text
        assert Counter(names_in(folder / "out.jsonl")) == Counter(rows)
        assert provider.stats()["requests"] == 60, "nothing was made twice"
        await _until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S)
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_a_channel_whose_class_ray_has_lost_comes_back_as_soon_as_somebody_asks_for_it(
    runtime: Any, address: str, folder: Path
) -> None:
    """As after a split of hosts: Ray begins the channel's process again and again, and none of them finds its class."""
    provider = Provider(latency_ms=3_000)  # the job is not over before its channel is killed
    commands = Commands(folder, provider.url, address)
    rows = write_rows(folder / "in.jsonl", 60, "u")
    try:
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "lost", "--concurrency", "4")
        await _until(lambda: provider.stats()["requests"] >= 8, PATIENCE_S)
        driver.kill()
        handle = await runtime.handle("channel:lost")
        key = export_key(handle._actor_id.job_id, handle._ray_actor_creation_function_descriptor)
        assert internal_kv._internal_kv_del(key, namespace="fun") == 1
        os.kill(await _pid(runtime, "channel:lost"), signal.SIGKILL)
        await asyncio.sleep(2)
        provider.set(latency_ms=100)
        resumed = commands.start("resume", "lost")
        text, _ = await asyncio.to_thread(resumed.communicate, timeout=PATIENCE_S)
        assert resumed.returncode == 0, text
        assert Counter(names_in(folder / "out.jsonl")) == Counter(rows)
    finally:
        commands.close()
        provider.close()
