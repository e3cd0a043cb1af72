"""A branch that is killed is noticed, and its calls are on their way again, within seconds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Commands, Provider, write_rows

ROWS = 20
"""As many as may be in flight at the start: all are sent at once, and whatever is sent later was sent before."""
LATENCY_MS = 8_000.0
WITHIN_S = 10.0
"""The figure to reach is 3 s, printed; the bound leaves room for a machine that does other things."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider(latency_ms=LATENCY_MS, latency_spread=0.0)
    yield found
    found.close()


async def _until(provider: Provider, sent: int) -> None:
    deadline_s = time.monotonic() + 30
    while (stats := await asyncio.to_thread(provider.stats))["in_flight"] < sent:
        assert time.monotonic() < deadline_s, stats
        await asyncio.sleep(0.01)


async def _sent_again(provider: Provider, over: asyncio.Task[Any]) -> list[tuple[float, int]]:
    """When, in seconds from now, the count of requests grew, and to what; looked at until the job is over."""
    began_s, seen = time.monotonic(), []
    while not over.done():
        requests = (await asyncio.to_thread(provider.stats))["requests"]
        if requests > (seen[-1][1] if seen else ROWS):
            seen.append((time.monotonic() - began_s, requests))
        await asyncio.sleep(0.01)
    return seen


async def test_the_calls_of_a_killed_branch_are_sent_again_soon(
    runtime: Any, address: str, provider: Provider, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(folder / "in.jsonl", ROWS, "n")
    commands = Commands(folder, provider.url, address)
    try:
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "notice")
        await _until(provider, ROWS)
        branches = [runtime.peer(name) for name in await runtime.names("branch:")]
        busy = [branch for branch in branches if (await branch.ask("beat", "notice"))["phase"] == "calling"]
        _, pid = await busy[0].ask("hello")
        os.kill(pid, signal.SIGKILL)
        over = asyncio.create_task(asyncio.to_thread(driver.communicate))
        seen = await _sent_again(provider, over)
        said, _ = await over
        assert driver.returncode == 0, said
        assert seen, "it had nothing in flight"
        again = seen[-1][1] - ROWS
        with capsys.disabled():
            print(f"\na killed branch's {again} calls were sent again after {seen[0][0]:.2f} to {seen[-1][0]:.2f} s")
        assert again <= ROWS
        assert seen[-1][0] < WITHIN_S
    finally:
        commands.close()
