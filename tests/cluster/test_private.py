"""A private Ray lives as long as somebody in its process uses it, beside any other Ray on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.ports.runtime import ClusterError
from tests.cluster.cluster_processes import Commands, environment, write_rows

TWO_JOBS = """
import asyncio, os, threading
from actors.runtime.ray_runtime import start_runtime

started = threading.Event()

def first():
    async def job():
        runtime = await start_runtime("local", {})
        started.set()
        await runtime.close()
    asyncio.run(job())

async def second():
    started.wait()
    runtime = await start_runtime("local", {})
    await asyncio.to_thread(one.join)
    for _ in range(5):
        await asyncio.sleep(0.1)
        _, pid = await asyncio.wait_for(runtime.peer("branch:0").ask("hello"), 10)
    nice = [os.getpriority(os.PRIO_PROCESS, each) for each in (int(pid), 0)]
    print(sorted(await runtime.names("")), nice[0] - nice[1], flush=True)
    await runtime.close()

one = threading.Thread(target=first)
one.start()
asyncio.run(second())
"""


@pytest.mark.usefixtures("address")
@pytest.mark.long
def test_a_job_that_ends_leaves_the_private_ray_to_the_other_job_of_its_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_JOBS], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['branch:0', 'branch:1', 'cortex'] 0", done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("127.0.0.1:1", "no Ray answers at 127.0.0.1:1: Connection refused"),
        pytest.param(
            "ray://127.0.0.1:1", "no Ray answers at ray://127.0.0.1:1: Connection refused", marks=pytest.mark.long
        ),
        ("http://127.0.0.1:1", "no Ray answers at http://127.0.0.1:1: Connection refused"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_clear_line(folder: Path, cluster: str, said: str) -> None:
    commands = Commands(folder, "http://127.0.0.1:1", cluster)
    write_rows(folder / "in.jsonl", 3, "x")
    try:
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl")
        text, _ = driver.communicate(timeout=30)
    finally:
        commands.close()
    assert driver.returncode == 2
    assert len(text.strip().splitlines()) == 1, text
    assert said in text


async def test_an_actor_that_cannot_be_made_is_told_in_one_line_and_not_tried_for_ever(runtime: Any) -> None:
    with pytest.raises(ClusterError, match=r"^broken cannot start on .*: TypeError: ") as caught:
        await runtime.start_actor("cortex", "broken", *"too many")
    assert "\n" not in str(caught.value)
    assert "broken" not in await runtime.names("")
