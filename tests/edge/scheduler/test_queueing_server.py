"""A whole job, on virtual time, at a simulated server that queues calls as vLLM and llama.cpp do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.common.process_owner import this_owner
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import settings_from
from cortex.state.events import Row
from cortex.values.limits import JobTerms, Limits, Route
from tests.edge.support.in_process_job import ListSink, ListSource, armed
from tests.edge.support.virtual_clock import VirtualRuntime, virtually


def run(folder: Path, rows: int, *told: str) -> tuple[dict[str, Any], float]:
    """One job with the default limits to its end; its facts, and its seconds."""

    async def whole() -> tuple[dict[str, Any], float]:
        loop = asyncio.get_running_loop()
        model = SimulatedModel(settings_from(told), clock=lambda: 1_000_000.0 + loop.time())
        runtime = VirtualRuntime()
        terms = JobTerms(
            job="j", program="batch", params_json=b"{}", fingerprint="f", limits=Limits(), streams=True,
            route=Route(endpoint=model.endpoint, model="m"),
        )  # fmt: skip
        body = {"max_tokens": 40, "model": "m"}
        asked = [
            Row(f"r{n}", msgspec.json.encode({**body, "messages": [{"role": "user", "content": f"Say {n}"}]}), 40)
            for n in range(rows)
        ]
        opening = Opening(terms=terms, owner=this_owner("inline"), who="test")
        driver = Driver(runtime, str(folder), opening, armed(terms, model), source=ListSource(asked), sink=ListSink())
        try:
            return await driver.run(), loop.time()
        finally:
            await runtime.close()

    return virtually(whole())


@pytest.mark.parametrize(
    ("slots", "mean_ms", "rows", "timed_out", "ideal_s"),
    [
        (8, 10_000, 150, 0, 187.5),  # a third of the attempts used to time out
        (4, 20_000, 60, 16, 300),  # of the first twenty calls, those that wait longest
    ],
)
def test_a_job_at_a_server_that_queues(
    tmp_path: Path, slots: int, mean_ms: int, rows: int, timed_out: int, ideal_s: float
) -> None:
    facts, took_s = run(tmp_path, rows, f"slots={slots}", f"latency_ms={mean_ms}", "latency_spread=0.3")
    assert (facts["outcome"], facts["rows_succeeded"]) == ("complete", rows)
    assert facts["failures"].get("timed_out", 0) <= timed_out
    assert took_s < 1.1 * ideal_s + 2 * mean_ms / 1_000
