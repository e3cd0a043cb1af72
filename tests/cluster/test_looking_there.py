"""What ``status`` and ``top`` tell of a job on a cluster: who is drained, by whom; with its driver and without."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from actors.jobs.spec import who
from actors.journal.journal import StateFolder
from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, write_rows

ROWS = 400
LATENCY_MS = 600_000
"""So long that who is drained has something in flight until the job is cancelled, however long the commands take."""


async def _said(commands: Commands, *words: str) -> str:
    """Everything that a command says; it must end well."""
    started = commands.start(*words)
    text, _ = await asyncio.to_thread(started.communicate, timeout=PATIENCE_S)
    assert started.returncode == 0, text
    return text


async def _told(commands: Commands, *words: str) -> dict[str, Any]:
    return dict(json.loads((await _said(commands, *words)).splitlines()[-1]))


@pytest.mark.long
async def test_a_drained_branch_and_a_drained_node(runtime: Any, address: str, folder: Path) -> None:
    provider = Provider(latency_ms=LATENCY_MS, latency_spread=0.0)
    commands = Commands(folder, provider.url, address)
    write_rows(folder / "in.jsonl", ROWS, "n")
    me = who()
    try:
        few = ("--concurrency", "20", "--timeout", "1h")
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "seen", *few)
        published = folder / "state" / "live" / "seen.json"
        end_s = time.monotonic() + PATIENCE_S
        while not published.exists() or len(json.loads(published.read_text())["cortex"].get("staff", ())) < 2:
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < end_s
            await asyncio.sleep(0.2)
        staff: dict[str, Any] = {}
        while not (busy := [name for name, one in staff.items() if one["in_flight"]]):  # an idle one would leave at once
            assert time.monotonic() < end_s
            staff = (await _told(commands, "status", "seen", "--json"))["live"]["staff"]
        branch = busy[0]
        await _said(commands, "drain", "--branch", branch, "--cluster", address)
        end_s = time.monotonic() + PATIENCE_S
        while True:  # its driver's file is read, without Ray, and written about once a second
            live = (await _told(commands, "status", "seen", "--json"))["live"]
            if live["staff"][branch]["state"] != "up" or time.monotonic() > end_s:
                break
        assert (live["staff"][branch]["state"], live["staff"][branch]["drained_by"]) == ("draining", me)
        shown = await _said(commands, "status", "seen")
        assert f"{branch} draining, drained by {me}" in shown

        (node,) = live["nodes"]
        await _said(commands, "drain", "--node", node, "--cluster", address)
        asked = (await _told(commands, "status", "seen", "--json", "--cluster", address))["live"]  # the cortex itself
        assert asked["nodes"][node]["drained_by"] == me
        assert f"drained by {me}" in await _said(commands, "status", "seen", "--cluster", address)

        driver.send_signal(signal.SIGKILL)  # the job goes on there; nobody publishes it any more
        await asyncio.to_thread(driver.communicate)
        facts = await _told(commands, "status", "seen", "--json")
        assert (facts["outcome"], facts["live"]) == ("detached", None)
        assert StateFolder(folder / "state").is_attended("seen"), "its channel shows that it lives"
        seen = await _told(commands, "top", "--json", "--cluster", address)
        assert seen["clusters"][0]["where"] == f"cluster {address}"
        assert seen["clusters"][0]["nodes"][node]["drained_by"] == me
        by_name = {each["job"]: each for each in seen["jobs"]}
        assert (by_name["seen"]["source"], by_name["seen"]["outcome"]) == ("cluster", "running")
        screen = await _said(commands, "top", "--once", "--cluster", address)
        assert [socket.gethostname(), "drained"] in [line.split()[:2] for line in screen.splitlines()]
        await _said(commands, "cancel", "seen")
    finally:
        commands.close()
        provider.close()
        await runtime.end_actor("channel:seen")
        await runtime.end_actor("cortex")  # the node is drained in its eyes: tests that follow have another
        await runtime.start_actor("cortex", "cortex", 2)


@pytest.mark.long
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("more", [(), ("--shards", "2")], ids=" ".join)
async def test_unreadable_records_of_the_input_count_there(address: str, folder: Path, more: tuple[str, ...]) -> None:
    commands = Commands(folder, "http://127.0.0.1:1", address)
    job = f"lost{len(more)}"
    write_rows(folder / "in.jsonl", 10, "n")
    with (folder / "in.jsonl").open("a") as file:
        file.write("{broken\n" * 5)
    begin = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", job, "--model", "sim", *more)
    try:
        for accept, code, words in (
            ("33%", 2, "in.jsonl: 5 of 15 records (33.3%) are unreadable, more than the 33% accepted: nothing was asked"),
            ("34%", 3, f"{job}: complete, 10 of 15 rows succeeded, 5 unreadable, "),
        ):
            started = commands.start(*begin, "--accept-bad", accept)
            text, _ = await asyncio.to_thread(started.communicate, timeout=PATIENCE_S)
            assert (started.returncode, words in text) == (code, True), text
        facts = await _told(commands, "status", job, "--json")
        assert (facts["rows"], facts["rows_succeeded"], facts["rows_unreadable"]) == (15, 10, 5)
    finally:
        commands.close()
