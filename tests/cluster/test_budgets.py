"""A label's budget on a cluster: its cortex lends, two jobs never pass it together, raised both go on, and a cortex that
was killed comes back knowing what it lent."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from actors.cli.control.budget import _ask_all, _facts
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, write_rows

PRICED = (
    "--price",
    "input=3,output=15",
    "--max-output-tokens",
    "40",
    "--label",
    "team=search",
    "--wait-blocked",
    "10m",
)


async def _said(commands: Commands, *words: str) -> str:
    started = commands.start(*words)
    text, _ = await asyncio.to_thread(started.communicate, timeout=PATIENCE_S)
    assert started.returncode == 0, text
    return text


@pytest.mark.long
async def test_two_jobs_of_a_cluster_share_a_budget(runtime: Any, address: str, folder: Path) -> None:
    provider = Provider(latency_ms=50)
    commands = Commands(folder, provider.url, address)
    write_rows(folder / "a.jsonl", 300, "a")
    write_rows(folder / "b.jsonl", 300, "b")

    async def budget() -> dict[str, Any]:
        found = await _ask_all(runtime.peer("cortex"))  # the command would join the Ray anew each time
        return _facts(next(iter(found.values())))

    async def at_rest(cap: float) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            found = await budget()
            assert found["spent_usd"] + found["lent_usd"] <= cap
            if found["spent_usd"] > cap - 0.0015 and found["lent_usd"] < 0.0005:
                return found
            assert time.monotonic() < end_s, found
            await asyncio.sleep(0.5)

    try:
        await _said(commands, "budget", "team=search", "--max-cost-per-day", "0.01", "--cluster", address)
        drivers = [
            commands.start("batch", f"{job}.jsonl", "-o", f"{job}.out.jsonl", "--job", job, *PRICED) for job in "ab"
        ]
        first = await at_rest(0.01)
        assert set(first["jobs"]) <= {"a", "b"}  # the first that begins may be lent all, if the other is slow to begin
        await runtime.kill_actor("cortex")
        await runtime.start_actor("cortex", "cortex", 2)
        await _said(commands, "budget", "team=search", "--max-cost-per-day", "0.02", "--cluster", address)
        second = await at_rest(0.02)
        assert sum(second["jobs"].values()) > sum(first["jobs"].values())  # either job may be lent all that was added
        await _said(commands, "budget", "team=search", "--max-cost-per-day", "9", "--cluster", address)
        for driver in drivers:
            text, _ = await asyncio.to_thread(driver.communicate, timeout=PATIENCE_S)
            assert driver.returncode == 0, text
        last = await budget()
        assert all(last["jobs"][job] > first["jobs"].get(job, 0.0) for job in "ab")
        reported = json.loads((await _said(commands, "budget", "--json", "--cluster", address)).splitlines()[-1])
        assert reported["budgets"][0]["max_cost_usd"] == 9
    finally:
        await _said(commands, "budget", "team=search", "--remove", "--cluster", address)
        commands.close()
        provider.close()
