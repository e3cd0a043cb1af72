"""``cortex doctor --cluster``: the nodes of a real Ray are asked what they have installed, and nothing stays there."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import ended, environment, started
from tests.cluster.cluster_processes import PATIENCE_S, Head

pytestmark = pytest.mark.cluster


@pytest.mark.long
async def test_every_node_tells_its_releases(head: Head, runtime: Any, tmp_path: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while len(await runtime.nodes()) > 1:  # a node that an earlier test ended is listed until its health checks fail
        assert time.monotonic() < end_s
        await asyncio.sleep(0.5)
    more = environment(CORTEX_STATE=str(tmp_path / "state"))
    while True:
        with started("doctor", "--model", "sim", "--cluster", head.address, "--json", env=more) as child:
            done = await asyncio.to_thread(ended, child, PATIENCE_S)
        facts = {each["check"]: each for each in json.loads(done.out)["findings"]}
        if "no task ran there within 15 s" not in facts["cluster"]["said"] or time.monotonic() > end_s:
            break  # else a busy machine, of which that is the truth
    assert (facts["cluster"]["state"], done.code) == ("ok", 0), (facts["cluster"], done.err)
    assert f"1 node of {head.address} with Ray " in facts["cluster"]["said"]
