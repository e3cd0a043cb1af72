"""A job is backed up while it runs, then its machine is lost; what was saved goes on, and pays what came after it again.

The commands are those of ``docs/jobs.md`` and of the runbook in ``k8s/README.md``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.journal.journal import StateFolder, replies_in
from actors.simulator.frontends.in_memory import SimulatedModel
from tests.cli.cli_runner import ROOT, Done, cortex, each_once, environment, requests, started, until
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import Server, binaries

__all__ = ["cortex"]
COUNT = 1_200
"""Rows of a job that takes 100 s: it is not over before it was saved three times."""
SLOW = ("--sim", "latency_ms=500", "--concurrency", "6")
FAST = ("--sim", "latency_ms=0")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the simulated provider is asked in this process."""
    seen: list[bytes] = []
    call = SimulatedModel.call

    async def counted(self: Any, body: bytes, **more: Any) -> Any:
        seen.append(body)
        return await call(self, body, **more)

    monkeypatch.setattr(SimulatedModel, "call", counted)
    return seen


def _command(state: str) -> list[str]:
    requests(Path("in.jsonl"), COUNT)
    return ["batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", "--state", state]


def _paid(state: str) -> int:
    source = StateFolder(state).journal("mine")
    try:
        return len({hash_ for hash_, _, _ in replies_in(source.turns())})
    finally:
        source.close()


def _more_than(number: int) -> bool:
    return number < 0 or _paid("state") > _paid(f"saved-{number}")


def _lines() -> int:
    path = Path("out.jsonl")
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("page", ["docs/jobs.md", "k8s/README.md"])
def test_the_pages_have_the_commands_that_are_tried_here(page: str) -> None:
    text = (ROOT / page).read_text()
    for command in ("cortex backup ", "pg_dump --format=custom --file=cortex.dump ", "pg_restore --dbname="):
        assert command in text


@pytest.mark.parametrize("output", ["kept", "lost"])
def test_a_folder_with_a_running_job_is_saved_and_goes_on_elsewhere(
    cortex: Callable[..., Done], asked: list[bytes], output: str
) -> None:
    with started(*_command("state"), *SLOW) as child:
        for number, rows in enumerate((6, 12, 18)):
            until(lambda rows=rows, before=number - 1: _lines() >= rows and _more_than(before))
            done = cortex("backup", f"saved-{number}", "--state", "state", "--json")
            assert done.code == 0, done
            assert json.loads(done.out.splitlines()[-1])["resumable"] == ["mine"]
        until(lambda: _more_than(2))
        child.kill()
        child.wait()
    lost = _paid("state")
    shutil.rmtree("state")
    if output == "lost":
        Path("out.jsonl").unlink()
    saved = [_paid(f"saved-{number}") for number in range(3)]
    assert 6 <= saved[0] < saved[1] < saved[2] < lost
    shutil.copytree("saved-2", "state")
    done = cortex("resume", "mine", "--state", "state", *FAST, "--json")
    assert done.code == 0, done
    each_once(Path("out.jsonl"), COUNT)
    assert len(asked) == COUNT - saved[2], "what came after the backup is asked again, and nothing else"
    del asked[:]
    Path("out.jsonl").unlink()
    done = cortex("resume", "mine", "--state", "saved-0", *FAST)  # an older one, on a machine of its own
    assert done.code == 0, done
    each_once(Path("out.jsonl"), COUNT)
    assert len(asked) == COUNT - saved[0]


def test_a_database_is_saved_by_its_own_tools(
    cortex: Callable[..., Done], asked: list[bytes], postgres: Server, database: str, tmp_path: Path
) -> None:
    found = binaries()
    if found is None or not (found / "pg_dump").exists():
        pytest.skip("no pg_dump here")
    env = environment(LC_ALL="C")
    postgres.does("DROP DATABASE IF EXISTS first", "DROP DATABASE IF EXISTS second", "CREATE DATABASE first")
    first, second = postgres.address("first"), postgres.address("second")
    text = cortex("backup", "cortex.dump", "--state", first).refused("pg_dump --format=custom", first, "pg_restore")
    assert "cortex.dump" in text
    with started(*_command(first), *SLOW) as child:
        until(lambda: _lines() >= 18)
        dump = [found / "pg_dump", "--format=custom", "--file=cortex.dump", first]
        subprocess.run(dump, env=env, check=True, timeout=PATIENCE_S)
        more = _paid(first) + 6
        until(lambda: _paid(first) >= more)
        child.kill()
        child.wait()
    time.sleep(0.2)
    postgres.does("CREATE DATABASE second")
    subprocess.run([found / "pg_restore", f"--dbname={second}", "cortex.dump"], env=env, check=True, timeout=PATIENCE_S)
    saved = _paid(second)
    assert 18 <= saved < _paid(first)
    Path("out.jsonl").unlink()
    done = cortex("resume", "mine", "--state", second, *FAST)
    assert done.code == 0, done
    each_once(Path("out.jsonl"), COUNT)
    assert len(asked) == COUNT - saved
