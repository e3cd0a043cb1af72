"""A private Ray lives as long as somebody in its process uses it, beside any other Ray on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.ports.runtime import ClusterError
from tests.cluster.cluster_processes import PATIENCE_S, Commands, environment, write_rows

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
        _, pid = await asyncio.wait_for(runtime.peer("branch:0").ask("hello"), 100)
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
        [sys.executable, "-c", TWO_JOBS],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['branch:0', 'branch:1', 'cortex'] 0", done.stdout + done.stderr
    assert done.stderr == ""


LISTENING = """
import asyncio, contextlib, os, socket
from pathlib import Path
from actors.runtime.ray_runtime import start_runtime

def listening():
    names = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN: include/net/tcp_states.h of Linux
                raw = bytes.fromhex(fields[1].partition(":")[0])
                words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                names[fields[9]] = socket.inet_ntop(socket.AF_INET if table == "tcp" else socket.AF_INET6, words)
    return names

async def look():
    runtime = await start_runtime("local", {})
    pids = [os.getpid(), *(int(pid) for pid, _ in runtime._connection.private.processes())]
    for name in await runtime.names(""):
        pids.append(int((await runtime.peer(name).ask("hello"))[1]))
    names, found = listening(), []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            for each in list(Path(f"/proc/{pid}/fd").iterdir()):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    if (link := os.readlink(each)).startswith("socket:["):
                        found.append(names.get(link[8:-1]))
    print(sum(each is not None for each in found) > 3, sorted({each for each in found if each}), flush=True)
    await runtime.close()

asyncio.run(look())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
def test_no_process_of_a_private_ray_listens_on_the_network() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTENING],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, _, addresses = done.stdout.strip().partition(" ")
    assert said == "True", "nothing listens: the test looks at the wrong processes"
    assert not set(json.loads(addresses.replace("'", '"'))) - {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, addresses


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
        text, _ = driver.communicate(timeout=PATIENCE_S)
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
