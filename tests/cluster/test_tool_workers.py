"""Tools on a cluster: a worker that is killed takes along the runs that it had begun, and no other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.ports.runtime import PeerGone, PeerUnavailable
from tests.cluster.cluster_processes import PATIENCE_S, environment

RUNS = 120
"""The first of them end when a worker was killed: until then no machine is through with the others."""
AT_ONCE = 16
PROGRAM = f"""
import json, sys, time
from pathlib import Path
import cortex

@cortex.tool(at_once={AT_ONCE})
def nap(number: int, folder: str) -> int:
    with (Path(folder) / "begun").open("a") as begun:
        begun.write(f"{{number}}\\n")
    for _ in range(4_000):
        if (Path(folder) / "go").exists():
            break
        time.sleep(0.05)
    return number

@cortex.flow
async def naps(ctx, count: int, folder: str) -> list:
    async def one(number: int) -> object:
        return await ctx.run(nap, number, folder)
    return await ctx.map(one, list(range(count)), on_failure="keep")

done = cortex.run(naps(count={RUNS}, folder=sys.argv[3]), model="sim", cluster=sys.argv[1], state=sys.argv[2],
                  progress=False)
print(json.dumps([each if isinstance(each, int) else str(each) for each in done.answer]))
"""


def _started(script: Path, address: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), address, str(folder / "state"), str(folder)], cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


async def _pids(runtime: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in await runtime.names("worker:"):
        try:
            found[name] = int((await runtime.peer(name).ask("hello"))[1])
        except (PeerUnavailable, PeerGone):
            continue
    return found


def _begun(folder: Path) -> list[int]:
    path = folder / "begun"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.long
async def test_of_many_tools_only_those_that_a_killed_worker_had_begun_are_of_unknown_effect(
    runtime: Any, address: str, folder: Path
) -> None:
    script = folder / "naps.py"
    script.write_text(PROGRAM)
    started = _started(script, address, folder)
    try:
        until_s = time.monotonic() + PATIENCE_S
        pids: dict[str, int] = {}
        while len(pids) < 2 or "worker:0" not in pids or len(_begun(folder)) < AT_ONCE:
            assert time.monotonic() < until_s, (pids, _begun(folder))
            assert started.poll() is None, started.communicate()
            await asyncio.sleep(0.1)
            pids = await _pids(runtime)
        os.kill(pids["worker:0"], signal.SIGKILL)
        (folder / "go").touch()
        out, err = await asyncio.to_thread(started.communicate, timeout=PATIENCE_S)
    finally:
        started.kill()
    assert started.returncode == 0, err
    answer = json.loads(out.strip().splitlines()[-1])
    lost = [each for each in answer if not isinstance(each, int)]
    assert all("effect unknown" in each for each in lost), lost
    assert len(lost) <= AT_ONCE, "what had not begun went elsewhere"
    begun = Counter(_begun(folder))
    assert set(begun.values()) == {1}, "nothing began twice"
    done = {each for each in answer if isinstance(each, int)}
    assert set(range(RUNS)) - done <= set(begun), "what was lost had begun"
