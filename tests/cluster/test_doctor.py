"""``cortex doctor --cluster``: the nodes of a real Ray are asked what they have installed, and nothing stays there."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import ended, environment, started
from tests.cluster.cluster_processes import Head

pytestmark = pytest.mark.cluster


@pytest.mark.long
async def test_every_node_tells_its_releases(head: Head, runtime: Any, tmp_path: Path) -> None:
    end_s = time.monotonic() + 60
    while len(await runtime.nodes()) > 1:  # a node that an earlier test ended is listed until its health checks fail
        assert time.monotonic() < end_s
        await asyncio.sleep(0.5)
    more = environment(CORTEX_STATE=str(tmp_path / "state"))
    with started("doctor", "--model", "sim", "--cluster", head.address, "--json", env=more) as child:
        done = await asyncio.to_thread(ended, child, 60.0)
    facts = {each["check"]: each for each in json.loads(done.out)["findings"]}
    assert (facts["cluster"]["state"], done.code) == ("ok", 0), (facts["cluster"], done.err)
    assert f"1 node of {head.address} with Ray " in facts["cluster"]["said"]
