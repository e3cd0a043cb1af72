"""Servers of one model under a job on a standing Ray: added, taken out and killed, while its command changes too."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster_processes import PATIENCE_S, Commands, Head, Provider, write_rows
from tests.cluster.test_kills import names_in

ROWS = 600
SLOTS, LATENCY_MS, LATENCY_MEANWHILE_MS, LATENCY_LAST_MS = 4, 1_000, 5_000, 20
"""Two such servers do the rows in 75 s, and while a command starts in five times that: the job is not over before it,
on any machine. At the end they are quick."""


@pytest.fixture
def servers() -> Iterator[list[Provider]]:
    with ExitStack() as stack:
        settings = {"slots": SLOTS, "latency_ms": LATENCY_MS, "error": 0.0}
        yield [stack.enter_context(closing(Provider(seed=seed, **settings))) for seed in (1, 2, 3)]


def until(true: Callable[[], bool], command: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> None:
    """Wait until something is so, while the job's command runs: a job that is over proves nothing."""
    end_s = time.monotonic() + timeout_s
    while not true():
        assert command.poll() is None, command.communicate()[0]
        assert time.monotonic() < end_s, "it never came so far"
        time.sleep(0.05)


def of(*chosen: Provider) -> tuple[str, ...]:
    return tuple(word for each in chosen for word in ("--base-url", each.url))


@contextmanager
def slower(servers: list[Provider]) -> Iterator[None]:
    """Have few rows done meanwhile."""
    for each in servers:
        each.set(latency_ms=LATENCY_MEANWHILE_MS)
    yield
    for each in servers:
        each.set(latency_ms=LATENCY_MS)


@pytest.mark.long
def test_servers_come_and_go_before_and_after_an_attach(servers: list[Provider], head: Head, folder: Path) -> None:
    """One is added and one taken out; the command is killed, and another one attaches; then one comes back and one dies."""
    one, two, three = servers
    out = folder / "out.jsonl"
    rows = write_rows(folder / "in.jsonl", ROWS, "row")

    def results() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    def answered(server: Provider) -> int:
        return int(server.stats()["complete_answers"])

    with closing(Commands(folder, one.url, head.address)) as commands:

        def done(*words: str) -> str:
            command = commands.start(*words)
            with slower(servers):
                said, _ = command.communicate(timeout=PATIENCE_S)
            assert command.returncode == 0, said
            return said

        begun = commands.start("batch", str(folder / "in.jsonl"), "-o", str(out), "--job", "fleet", *of(one, two))
        until(lambda: results() >= 20, begun)
        assert "its work is shared by 2 servers from now on" in done("set", "fleet", *of(one, three))
        until(lambda: answered(three) >= 8 and two.stats()["in_flight"] == 0, begun)
        left_out = answered(two)
        begun.kill()
        begun.communicate()

        before = results()
        with slower(servers):
            attached = commands.start("attach", "fleet")
            until(lambda: results() > before, attached)  # results are written by a command alone
        before = results()
        until(lambda: results() >= before + 20, attached)
        assert answered(two) <= left_out + SLOTS, "it was taken out, and gets no more after the attach"
        done("set", "fleet", *of(three, two))
        until(lambda: answered(two) >= left_out + SLOTS + 8, attached)
        two.kill()
        for server in (one, three):
            server.set(latency_ms=LATENCY_LAST_MS)
        said, _ = attached.communicate(timeout=PATIENCE_S)
        assert attached.returncode == 0, f"{said}\n{head.logs()}"
        assert "fleet: complete, 600 of 600 rows succeeded" in said
        ended = commands.start("down")
        said, _ = ended.communicate(timeout=PATIENCE_S)
        assert ended.returncode == 0, said
    assert Counter(names_in(out)) == Counter(rows)
