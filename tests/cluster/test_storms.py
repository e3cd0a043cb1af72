"""A short storm of 429 that no load causes: the earlier rate is back, for the job that met it and for one beside it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, write_rows

LATENCY_MS, AT_ONCE = 1_000.0, 20
"""Twenty answers a second, which a busy machine makes as well as an idle one."""
BEFORE_S, STORM_S, BACK_S, WINDOW_S = 10.0, 10.0, 30.0, 5.0
REFUSED = {"throttled_bare": 1.0}
"""429 with neither a Retry-After nor rate-limit headers."""


async def _rate(provider: Provider, over_s: float) -> float:
    """Answers a second, of all jobs."""
    began_s, before = time.monotonic(), provider.stats()["complete_answers"]
    await asyncio.sleep(over_s)
    return float(provider.stats()["complete_answers"] - before) / (time.monotonic() - began_s)


async def _until(done: object, what: str, within_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("where", ["inline", "ray"])
async def test_the_earlier_rate_is_back_after_a_storm_and_a_second_job_has_its_part(
    where: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    """On a Ray both jobs have one pool; inline, the second one is in a process of its own.

    The rate is back within ``BACK_S``, or within five times what the first job took on this machine to begin, if that
    is longer: meanwhile the process of the second one begins."""
    cluster = "inline" if where == "inline" else request.getfixturevalue("address")
    provider = Provider(latency_ms=LATENCY_MS, latency_spread=0.0)
    commands = Commands(folder, provider.url, cluster)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", f"storm-{where}", "--concurrency", str(AT_ONCE))
    beside = ("batch", "beside.jsonl", "-o", "beside.out", "--job", f"beside-{where}", "--concurrency", "5", "--json")
    write_rows(folder / "in.jsonl", 20_000, f"{where}-s")
    write_rows(folder / "beside.jsonl", 100, f"{where}-b")
    try:
        started_s = time.monotonic()
        commands.start(*job)
        await _until(lambda: provider.stats()["complete_answers"] > 0, "the job answers")
        back_s = max(BACK_S, 5 * (time.monotonic() - started_s))
        await _until(lambda: provider.stats()["complete_answers"] > 3 * AT_ONCE, "the job answers")
        before = await _rate(provider, BEFORE_S)
        provider.set(faults=REFUSED)
        await asyncio.sleep(STORM_S)
        provider.set(faults={})
        ended_s = time.monotonic()
        second = commands.start(*beside)
        rates = []
        while not rates or rates[-1] < 0.9 * before:
            rates.append(await _rate(provider, WINDOW_S))
            took_s = time.monotonic() - ended_s
            assert took_s <= back_s + WINDOW_S, f"{before:.1f} a second before the storm, then {rates}"
        text, _ = await asyncio.wait_for(asyncio.to_thread(second.communicate), PATIENCE_S)
        assert second.returncode == 0, text
        assert json.loads(text.splitlines()[-1])["rows_succeeded"] == 100
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
@pytest.mark.parametrize("where", ["inline", "ray"])
async def test_what_a_storm_taught_is_told_while_it_lasts_and_dropped_when_it_should_be(
    where: str, request: pytest.FixtureRequest, folder: Path
) -> None:
    cluster = "inline" if where == "inline" else request.getfixturevalue("address")
    provider = Provider(latency_ms=LATENCY_MS, latency_spread=0.0)
    commands = Commands(folder, provider.url, cluster)
    write_rows(folder / "in.jsonl", 20_000, f"{where}-t")
    name = f"told-{where}"

    async def said(*words: str) -> str:
        return (await asyncio.to_thread(commands.start(*words).communicate))[0]

    async def says(pattern: str, *words: str) -> None:
        deadline_s, text = time.monotonic() + PATIENCE_S, ""
        while re.search(pattern, text) is None:
            assert time.monotonic() < deadline_s, text
            text = await said(*words)

    try:
        commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", name, "--concurrency", str(AT_ONCE))
        await _until(lambda: provider.stats()["complete_answers"] > 3 * AT_ONCE, "the job answers")
        provider.set(faults=REFUSED)
        learned = r"learned: [\d.,]+ (requests/s|calls at once) after 429, since 20\d\d-"
        await says(learned, "limit")
        provider.set(faults={})
        assert "dropped what was learned" in await said("limit", provider.url, "--forget")
        assert re.search(learned, await said("limit")) is None
    finally:
        commands.close()
        provider.close()
