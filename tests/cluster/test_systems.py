"""Every ready program survives the death of its channel in the middle, and comes to the answer that it had without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cortex
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from tests.cluster.cluster_processes import KEY, PATIENCE_S, Provider, environment
from tests.support.program_cases import SYSTEMS, System

LATENCY_MS = 150.0
"""So that there is a middle to be killed in."""
DRIVER = """
import json, sys
from pathlib import Path
import cortex
from tests.support.program_cases import SYSTEMS

folder, address, url = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
jobs = []
for system in SYSTEMS:
    place = folder / system.name
    place.mkdir()
    jobs.append(cortex.submit(
        system.made(place), job=system.name, model="m", base_url=url, cluster=address, state=str(folder / "state"),
        prompt_tokens_max=system.prompt_tokens_max, max_output_tokens=512,
    ))
for system, job in zip(SYSTEMS, jobs, strict=True):
    done = job.result()
    print(json.dumps([system.name, done.outcome, done.why, done.answer, done.rows]), flush=True)
"""


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider(latency_ms=LATENCY_MS, error=0)
    yield found
    found.close()


def undisturbed(system: System, folder: Path) -> list[Any]:
    """What it comes to in one process, without a kill."""
    folder.mkdir()
    done = cortex.run(
        system.made(folder), model=SimulatedModel(SimulatorSettings(error=0)), cluster="inline", progress=False,
        state=str(folder / "state"), prompt_tokens_max=system.prompt_tokens_max, max_output_tokens=512,
    )  # fmt: skip
    return [done.calls, done.answer, done.rows]


def begun(folder: Path, address: str, url: str) -> subprocess.Popen[str]:
    """One process that runs them all."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), address, url], cwd=folder, text=True,
        env=environment(ANTHROPIC_API_KEY=KEY), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


async def killed(runtime: Any, system: System, driver: subprocess.Popen[str]) -> int:
    """Kill the channel of this program when it is in the middle; how many permits were out."""
    channel = runtime.peer(f"channel:{system.name}")
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        await asyncio.sleep(0.05)
        assert driver.poll() is None, (system.name, "the driver ended", driver.communicate()[0])
        try:
            facts = msgspec.json.decode(await channel.ask("status"))
        except (PeerUnavailable, PeerGone):
            continue
        assert facts["outcome"] == "running", (system.name, "it was over before it was killed", facts)
        if facts["calls"] >= system.midway:
            _, pid = await channel.ask("hello")
            os.kill(pid, signal.SIGKILL)
            return max(facts["permits"], facts["in_flight"])
    raise AssertionError(f"{system.name} never came to its middle")


@pytest.mark.release  # `.ci/run` runs `make chaos`
async def test_a_killed_channel_changes_no_answer(
    runtime: Any, address: str, provider: Provider, folder: Path, tell: Callable[[str], None]
) -> None:
    calm = [await asyncio.to_thread(undisturbed, system, folder / f"calm-{system.name}") for system in SYSTEMS]
    driver = begun(folder, address, provider.url)
    try:
        out = sum(await asyncio.gather(*(killed(runtime, system, driver) for system in SYSTEMS)))
        text, _ = await asyncio.to_thread(driver.communicate, timeout=PATIENCE_S)
    finally:
        driver.kill()
    assert driver.returncode == 0, text
    found = [json.loads(line) for line in text.splitlines() if line.startswith("[")]
    for system, without, ended in zip(SYSTEMS, calm, found, strict=True):
        name, outcome, why, answer, rows = ended
        assert (name, outcome, why) == (system.name, "complete", ""), ended
        assert system.right(answer, rows), ended
        _, answer_without, rows_without = json.loads(json.dumps(without))
        assert answer == answer_without
        assert sorted(map(str, rows)) == sorted(map(str, rows_without))
    stats = provider.stats()
    again = stats["complete_answers"] - sum(calls for calls, _, _ in calm)
    tell(f"{again} answers more than without kills; {out} permits out at the {len(SYSTEMS)} kills, summed")
    assert 0 <= again <= out
    assert stats["prompts_too_long"] == 0
