"""A key is where a call needs it, and nowhere else: no environment, no file, no table of Ray's, no word of ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.orphan_cleanup import below
from tests.cluster.cluster_processes import KEY, PATIENCE_S, Commands, Head, Provider, write_rows
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, http

ROWS = 300
SLOWLY = ("--concurrency", "10", "--json", "--verbose")
SLOW_MS, QUICK_MS = 2_000.0, 20.0
"""Latency of the answers until the processes were looked at, which takes less than the minute that the job would, and of
those after it."""


def _holders(pids: Iterable[int], key: str = KEY) -> list[str]:
    """Processes in whose environment or command line the key stands."""
    found = []
    for pid in pids:
        for name in ("environ", "cmdline"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue
            if key.encode() in text:
                found.append(f"{name} of {pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()[:100]!r}")
    return found


def _files(*folders: Path) -> list[str]:
    """Files that hold the key; sockets and what vanishes meanwhile are passed over."""
    found = []
    read = 0
    for place in folders:
        for folder, _, names in os.walk(place):  # `Path.rglob` fails where a folder vanishes meanwhile
            for path in (Path(folder, name) for name in names):
                try:
                    text = path.read_bytes() if path.is_file() else b""
                except OSError:
                    continue
                read += len(text)
                if KEY.encode() in text:
                    found.append(str(path))
    assert read > 100_000, "there was nothing to look at"
    return found


def _tables() -> str:
    """All that Ray knows of actors, jobs and nodes, and all that is kept in its key-value store."""
    import ray
    from ray._private import state
    from ray.experimental import internal_kv

    spaces = [None, b"fun", b"job", b"cluster", b"session", b"tracing", b"dashboard", b"healthcheck", b"serve"]
    kept = [
        (key, internal_kv._internal_kv_get(key, namespace=space))
        for space in spaces
        for key in internal_kv._internal_kv_list(b"", namespace=space)
    ]
    assert kept
    return repr((kept, state.actors(), state.jobs(), ray.nodes(), ray.util.list_named_actors(all_namespaces=True)))


async def _running(provider: Provider, driver: subprocess.Popen[str], ends: bool = False) -> None:
    """Wait until calls are made. ``ends``: the run may be over by then, as one whose key is refused."""
    deadline_s = time.monotonic() + PATIENCE_S
    while provider.stats()["requests"] < 20 and driver.poll() is None:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
    assert ends or driver.poll() is None, driver.communicate()[0]


@pytest.mark.long
@pytest.mark.parametrize("refused", [False, True], ids=["taken", "refused"])
async def test_a_key_is_nowhere_on_a_cluster(runtime: Any, head: Head, folder: Path, refused: bool) -> None:
    provider = Provider(latency_ms=SLOW_MS, keys=("another",) if refused else ())
    commands = Commands(folder, provider.url, head.address)
    write_rows(folder / "in.jsonl", ROWS, f"k{refused}")
    driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", f"keys-{refused}", *SLOWLY)
    try:
        await _running(provider, driver, ends=refused)
        assert _holders(pid for pid, _ in below(head.pid)) == []
        provider.set(latency_ms=QUICK_MS)
        text, _ = await asyncio.to_thread(driver.communicate)
        assert driver.returncode == (3 if refused else 0), f"{text}\n{head.logs()}"
        assert KEY not in text
        assert _files(folder, head.folder, commands.temporary) == []
        assert KEY not in _tables()
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_a_key_renewed_in_its_file_is_read_where_the_calls_are_made(
    runtime: Any, head: Head, folder: Path
) -> None:
    """Every branch is refused once, reads the file for itself, and goes on: no attempt fails and nothing pauses."""
    renewed = KEY[::-1]
    provider = Provider(latency_ms=SLOW_MS, latency_spread=0.0, keys=(KEY,))
    commands = Commands(folder, provider.url, head.address)
    write_rows(folder / "in.jsonl", ROWS, "renewed")
    (folder / "key").write_text(KEY)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "renewed", "--api-key-file", "key", "--concurrency", "20")
    driver = commands.start(*job, "--json")
    try:
        await _running(provider, driver)
        (folder / "next").write_text(renewed)
        (folder / "next").replace(folder / "key")
        provider.set(keys=[renewed], latency_ms=QUICK_MS)
        text, _ = await asyncio.to_thread(driver.communicate)
        assert driver.returncode == 0, text
        last = json.loads(text.splitlines()[-1])
        assert (last["rows_succeeded"], last["paid_calls"], last["failures"]) == (ROWS, ROWS, {})
        assert 1 <= provider.stats()["unauthorised"] <= 20
        (folder / "key").unlink()
        assert _files(folder, head.folder, commands.temporary) == []
        assert renewed not in text and KEY not in text
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_a_key_is_nowhere_in_a_private_ray(folder: Path) -> None:
    """Its processes are started by one that has the key in its environment."""
    provider = Provider(latency_ms=SLOW_MS)
    commands = Commands(folder, provider.url, "local")
    write_rows(folder / "in.jsonl", ROWS, "p")
    driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", *SLOWLY)
    try:
        await _running(provider, driver)
        processes = [pid for pid, _ in below(driver.pid)]
        assert len(processes) > 5
        assert _holders([driver.pid]), "the user's own process has it: else this test sees nothing"
        assert _holders(processes) == []
        assert _files(folder, commands.temporary) == []
        provider.set(latency_ms=QUICK_MS)
        text, _ = await asyncio.to_thread(driver.communicate)
        assert driver.returncode == 0, text
        assert KEY not in text
        assert _files(folder, commands.temporary) == []
    finally:
        commands.close()
        provider.close()


@pytest.mark.long
async def test_keys_of_aws_are_the_branches_alone_in_a_private_ray(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay with the driver, whose input and output they may open; no process of Ray's inherits them."""
    _, secret, _ = cloud_server.KEYS
    for name, value in zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), cloud_server.KEYS[:2], strict=True):
        monkeypatch.setenv(name, value)
    write_rows(folder / "in.jsonl", ROWS, "aws")

    latency_ms = SLOW_MS

    async def slowly() -> Answer:
        await asyncio.sleep(latency_ms / 1_000)
        return http(MESSAGE)

    with cloud_server.served(lambda _: slowly()) as server:
        commands = Commands(folder, server.url, "local")
        at = ("--provider", "bedrock,region=eu-west-1", "--base-url", server.url)
        driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", *at, *SLOWLY)
        try:
            deadline_s = time.monotonic() + PATIENCE_S
            while len(server.asked) < 20 and driver.poll() is None:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.02)
            assert driver.poll() is None, driver.communicate()[0]
            processes = [pid for pid, _ in below(driver.pid)]
            assert len(processes) > 5
            assert _holders([driver.pid], secret), "the user's own process has it: else this test sees nothing"
            assert _holders(processes, secret) == []
            latency_ms = QUICK_MS
            text, _ = await asyncio.to_thread(driver.communicate)
        finally:
            commands.close()
    assert driver.returncode == 0, text
    assert json.loads(text.splitlines()[-1])["rows_succeeded"] == ROWS
    assert all(asked.headers["authorization"].startswith("AWS4-HMAC-SHA256") for asked in server.asked)
    assert secret not in text
    for path in folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
