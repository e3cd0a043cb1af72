"""A job with shards on a real Ray: each has a process of its own, and whoever dies, every row is there once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.cluster_processes import PATIENCE_S, Head, Provider
from tests.cluster.test_kills import ROWS, Batch, begin, explained, facts_of, kill, provider

__all__ = ["begin", "provider"]

SHARDS = 3
NAME = "s"
LATENCY_MS = 40.0
VICTIMS = ["channel:s", "channel:s~1", "channel:s~2", "channel:s~3", "driver", "cortex", "branch", "channel:s"]


async def out_now(runtime: Any) -> int:
    """Permits out, and calls in flight, over all shards; what does not answer now counts as nothing."""
    found = [await facts_of(runtime, f"{NAME}~{number + 1}") for number in range(SHARDS)]
    return sum(max(facts["permits"], facts["in_flight"]) for facts in found if facts is not None)


async def when(runtime: Any, results: int) -> int:
    """Wait until so many rows have finished: what was out in that moment."""
    deadline_s = time.monotonic() + PATIENCE_S
    facts = None
    while time.monotonic() < deadline_s:
        facts = await facts_of(runtime, NAME) or facts
        if facts is not None and facts["results"] >= results and (out := await out_now(runtime)):
            assert facts["outcome"] == "running", facts
            return out
        await asyncio.sleep(0.05)
    raise AssertionError(f"the job came to a halt before {results} results: {facts}")


@pytest.mark.release  # `.ci/run` runs `make chaos`
async def test_whoever_dies_every_row_of_every_shard_is_there_once(
    runtime: Any, head: Head, provider: Provider, begin: Callable[[str, str], Batch], tell: Callable[[str], None],
) -> None:  # fmt: skip
    chance = random.Random(4)
    victims = list(VICTIMS)
    chance.shuffle(victims)
    batch = begin(NAME, head.address)
    batch.options = ("--shards", str(SHARDS), "--concurrency", "24")  # slow enough for all that is to happen
    batch.drive()
    out = 0
    async with explained(runtime, head, batch):
        await when(runtime, 1)
        pids = {(await runtime.peer(f"channel:{NAME}~{number + 1}").ask("hello"))[1] for number in range(SHARDS)}
        for moment in sorted(chance.randrange(100, ROWS * 6 // 10) for _ in victims):
            out += await when(runtime, moment)
            victim = victims.pop()
            if victim == "driver":
                batch.kill_driver()
                batch.drive(chance.choice(("batch", "resume", "attach")))
            else:
                await kill(runtime, victim, chance)
        await batch.end()
    assert len(pids) == SHARDS
    batch.check()
    stats = provider.stats()
    again = stats["second_complete_answers_by_user"]
    tell(f"{again} second complete answers; {out} permits out at the {len(VICTIMS)} kills, summed")
    assert stats["distinct_users_answered"] == ROWS
    assert again <= out
