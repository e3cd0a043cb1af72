"""Two clusters, one account: two processes with state folders of their own, one provider, one database between them.
One of them may be a Ray, whose cortex comes back and knows that it shares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.orphan_cleanup import below
from actors.journal.postgres.connection import close_idle
from tests.cli.cli_runner import Done, cortex, each_once, ended, environment, requests, started
from tests.cluster.cluster_processes import Head, names_in, ray_head
from tests.e2e.tools import until
from tests.support.patience import PATIENCE_S

__all__ = ["cortex"]
MODEL = "claude-haiku-4-5"
LATENCY_MS, LATENCY_FIRST_MS = 500, 5_000
"""So long that calls overlap on a busy machine; and until both jobs have begun: else one would spend all alone."""


@pytest.fixture
def provider() -> Iterator[str]:
    """Its address. It counts what is asked of it, by whomever."""
    with started("simulate", "--port", 0, "-s", f"latency_ms={LATENCY_MS}", env=environment()) as server:
        assert server.stdout is not None
        yield server.stdout.readline().rpartition(" ")[2].strip()


def _stats(provider: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{provider}/_sim/stats") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _set(provider: str, **settings: float) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{provider}/_sim/settings", json.dumps(settings).encode())).close()


def _both(
    tmp_path: Path, provider: str, count: int, *more: object, begun: Callable[[], None] = lambda: None
) -> list[Done]:
    """A job of the same name in each of two state folders, at once. ``begun`` is called beside them."""
    running = []
    for name in "ab":
        asked = requests(tmp_path / f"{name}.jsonl", count, MODEL)
        asked.write_text(asked.read_text().replace("It crashes.", f"It crashes, {name}."))
        command = ("batch", asked, "-o", tmp_path / f"{name}.out", "--base-url", provider, "--job", "j", *more)
        own = {"CORTEX_STATE": str(tmp_path / f"state-{name}"), "ANTHROPIC_API_KEY": "sk-test"}
        running.append(started(*command, env=environment(**own)))
    with running[0] as one, running[1] as other:
        begun()
        return [ended(each, 2 * PATIENCE_S) for each in (one, other)]


@pytest.fixture
def shared(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CORTEX_LIMITS", database)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    return database


def test_a_limit_holds_across_both(cortex: Callable[..., Done], tmp_path: Path, provider: str, shared: str) -> None:
    first = requests(tmp_path / "first.jsonl", 1, MODEL)
    assert cortex("batch", first, "-o", tmp_path / "first.out", "--base-url", provider).code == 0
    shown = cortex("limit", "haiku", "--concurrency", 4)
    assert "for all clusters that share postgresql://" in shown.err
    for done in _both(tmp_path, provider, 60):
        assert done.code == 0, done.err
    for name in "ab":
        each_once(tmp_path / f"{name}.out", 60)
    found = _stats(provider)
    assert (found["in_flight_max"], found["requests"]) == (4, 121)
    close_idle()


def test_a_budget_of_a_label_holds_across_both(
    cortex: Callable[..., Done], tmp_path: Path, provider: str, shared: str
) -> None:
    price = ("--price", "input=1000,output=1000")
    assert cortex("budget", "team=search", "--max-cost-per-day", "1.5").code == 0

    def both_ask() -> None:
        until(lambda: _stats(provider)["in_flight"] > 5, PATIENCE_S, "calls of both jobs")
        _set(provider, latency_ms=LATENCY_MS)

    _set(provider, latency_ms=LATENCY_FIRST_MS)
    ended_so = _both(tmp_path, provider, 100, "--label", "team=search", "--concurrency", 5, *price, begun=both_ask)
    for done in ended_so:
        assert done.code == 3, done.err
        assert "the budget team=search of $1.50 a day has" in done.err
    found = _stats(provider)
    paid_usd = (found["input_tokens"] + found["output_tokens"]) * 1_000 / 1e6
    (budget,) = json.loads(cortex("budget", "--json").out)["budgets"]
    assert 1.2 < paid_usd <= 1.5
    assert budget["spent_usd"] == pytest.approx(paid_usd)
    assert len(budget["jobs"]) == 2
    assert os.environ["CORTEX_LIMITS"] not in (tmp_path / "a.out").read_text()
    close_idle()


def _cortex_of(head: Head) -> set[int]:
    """The process of a Ray's cortex."""
    processes = {pid: Path(f"/proc/{pid}/cmdline") for pid, _ in below(head.pid)}
    return {pid for pid, path in processes.items() if path.exists() and path.read_bytes().startswith(b"ray::Cortex")}


def _rows(path: Path) -> int:
    return len(names_in(path)) if path.exists() else 0


def _come(path: Path, rows: int, job: subprocess.Popen[str]) -> None:
    """Wait until so many results are there, of a job that goes on."""
    until(lambda: _rows(path) >= rows or job.poll() is not None, PATIENCE_S, f"results at {path}")
    assert job.poll() is None, job.communicate()


@pytest.mark.release  # `make e2e` has both clusters alive
def test_a_limit_holds_across_a_ray_whose_cortex_is_killed_and_another_cluster(
    cortex: Callable[..., Done], tmp_path: Path, provider: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = requests(tmp_path / "first.jsonl", 1, MODEL)
    assert cortex("batch", first, "-o", tmp_path / "first.out", "--base-url", provider).code == 0
    assert cortex("limit", "haiku", "--concurrency", 6).code == 0
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    counts, running = {"ray": 450, "inline": 350}, {}
    _set(provider, latency_ms=200)
    with ray_head() as head, ExitStack() as both:
        for name, count in counts.items():
            asked = requests(tmp_path / f"{name}.jsonl", count, MODEL)
            asked.write_text(asked.read_text().replace("It crashes.", f"It crashes, {name}."))
            command = ("batch", asked, "-o", tmp_path / f"{name}.out", "--base-url", provider, "--job", "j")
            env = environment(CORTEX_STATE=str(tmp_path / f"state-{name}"), ANTHROPIC_API_KEY="sk-test")
            where = ("--cluster", head.address if name == "ray" else "inline")
            running[name] = both.enter_context(started(*command, *where, env=env))
            if name == "ray":  # a Ray takes its time: both are to be at it when its cortex is killed
                _come(tmp_path / "ray.out", 10, running[name])
        _come(tmp_path / "inline.out", 5, running["inline"])
        (killed,) = _cortex_of(head)
        os.kill(killed, signal.SIGKILL)
        until(lambda: bool(_cortex_of(head) - {killed}), PATIENCE_S, "a cortex that comes back", running["ray"])
        there = _rows(tmp_path / "ray.out")
        for name, each in running.items():
            done = ended(each)
            assert done.code == 0, (name, done.err)
        assert there < counts["ray"], "it had granted for the new one what it did after that"
    for name, count in counts.items():
        each_once(tmp_path / f"{name}.out", count)
    found = _stats(provider)
    assert (found["in_flight_max"], found["requests"]) == (6, 1 + sum(counts.values()))
    close_idle()
