"""Calls a second over real HTTP, compared with a loop around the SDK: ``python -m benchmarks.http --json``.

All variants ask one server (20 ms an answer) for equal calls, in turns, each in fresh processes; medians over the
rounds. The rate is the server's view, from the first request to the last answer, so start-up does not count;
``whole_s`` includes everything. `cortex batch` reads its rows from a file, keeps its journal on disk and writes its
results; every call must be answered exactly once with its own answer.

``bare`` is two processes on the client of a branch alone, each with ``--at-once`` requests at the server all the time.
A permit of a job is held from its grant until its reply is on disk, so of the ``--concurrency`` permits of ``ray``
fewer calls are at the server (``at_server``, by the server's clock); ``ray_more`` has half as many permits again.
``bare_by_sdk`` and ``ray_by_sdk`` use the SDK's own client. ``ray_chat`` and ``inline_chat`` ask by OpenAI's chat
completions in place of the Messages API, ``ray_responses`` and ``inline_responses`` by its Responses API, and
``openai_sdk`` is a loop around OpenAI's SDK.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import baselines, command, figures, rows
from benchmarks.harness.server import Counts, RunningServer

BARE_PROCESSES = 2
ROADS = (
    "ray", "ray_more", "ray_chat", "ray_responses", "inline", "inline_chat", "inline_responses", "sdk", "sdk_uvloop",
    "openai_sdk", "bare", "ray_by_sdk", "bare_by_sdk",
)  # fmt: skip
DEFAULT = "ray,inline,sdk"
PAIRS = (
    ("ray_chat", "ray"), ("inline_chat", "inline"), ("ray_responses", "ray"), ("inline_responses", "inline"),
    ("ray_chat", "openai_sdk"), ("inline_chat", "openai_sdk"),
)  # fmt: skip
"""Roads of which the ratio of each round counts, since both run in it."""
PIPED: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


class Bench:
    """Runs of the benchmark, in a folder of their own."""

    def __init__(self, folder: Path, url: str, calls: int, concurrency: int, at_once: int) -> None:
        self._folder = folder
        self._url = url
        self._calls = calls
        self._concurrency = concurrency
        self._at_once = at_once
        self._runs = 0
        self._input = folder / "requests.jsonl"
        rows.write_input(self._input, calls)
        self.roads: dict[str, Callable[[], float]] = {
            "ray": lambda: self._cortex("local"),
            "ray_more": lambda: self._cortex("local", places=self._concurrency * 3 // 2),
            "ray_by_sdk": lambda: self._cortex("local", "benchmarks.harness.sdk_variant"),
            "ray_chat": lambda: self._cortex("local", api="chat"),
            "ray_responses": lambda: self._cortex("local", api="responses"),
            "inline": lambda: self._cortex("inline"),
            "inline_chat": lambda: self._cortex("inline", api="chat"),
            "inline_responses": lambda: self._cortex("inline", api="responses"),
            "sdk": lambda: self._loops("sdk", 1),
            "sdk_uvloop": lambda: self._loops("sdk", 1, "--uvloop"),
            "openai_sdk": lambda: self._loops("openai_sdk", 1),
            "bare": lambda: self._loops("bare", BARE_PROCESSES, "--uvloop"),
            "bare_by_sdk": lambda: self._loops("bare_by_sdk", BARE_PROCESSES, "--uvloop"),
        }

    def _cortex(self, cluster: str, module: str = command.MODULE, places: int = 0, api: str = "messages") -> float:
        """Run `cortex batch` with a fresh state folder; return its seconds in all."""
        self._runs += 1
        state, output = self._folder / f"state-{self._runs}", self._folder / f"results-{self._runs}.jsonl"
        where = ["--base-url", self._url, "--api", api, "--model", rows.MODEL]
        run = command.batch(
            self._input, output, state, *where, "--cluster", cluster, "--concurrency", str(places or self._concurrency),
            module=module,
        )  # fmt: skip
        entries = (run.summary["outcome"], run.summary["rows_succeeded"], run.summary["attempts"])
        if entries != ("complete", self._calls, self._calls):
            raise rows.Lost(f"{self._calls} calls on {cluster}, and the summary says {entries}")
        rows.check_all(rows.results(output), self._calls)
        return run.whole_s

    def _loops(self, road: str, processes: int, *options: str) -> float:
        """Run a baseline, its calls divided among processes that start together; return the seconds. The baseline
        checks its answers."""
        began = time.perf_counter()
        share = -(-self._calls // processes)
        working = []
        for first in range(0, self._calls, share):
            calls = min(share, self._calls - first)
            what = ["--url", self._url, "--first", str(first), "--calls", str(calls), "--at-once", str(self._at_once)]
            argv = [sys.executable, "-m", "benchmarks.harness.baselines", road, *what, "--wait", *options]
            working.append(subprocess.Popen(argv, env=command.environment(), **PIPED))
        if not begun_together(working):
            raise rows.Lost(f"the loop {road} failed")
        return time.perf_counter() - began


def begun_together(working: Sequence[subprocess.Popen[str]]) -> bool:
    """Start all processes when all are ready, and wait for them; return whether all succeeded."""
    try:
        there = all(process.stdout and process.stdout.readline().strip() == baselines.THERE for process in working)
        for process in working if there else ():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        codes = [process.wait() for process in working] if there else [1]
        return not any(codes)
    finally:
        for process in working:
            process.kill()
            process.communicate()


def check_counts(counts: Counts, calls: int, road: str) -> None:
    """Check that the server saw each call exactly once. Raises ``rows.Lost``."""
    if (counts.requests, counts.distinct, counts.doubled) != (calls, calls, 0):
        raise rows.Lost(f"{road}: {calls} calls, and the server saw {counts}")


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds. Raises ``rows.Lost`` where a call is not answered exactly once."""
    names = given.roads.split(",")
    rates: dict[str, list[float]] = {name: [] for name in names}
    wholes: dict[str, list[float]] = {name: [] for name in names}
    at_server: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, Any] = {"machine": figures.machine()}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, RunningServer(given.delay_ms) as server:
        bench = Bench(Path(folder), server.url, given.calls, given.concurrency, given.at_once)
        for round_ in range(given.rounds):
            for name in names:
                server.reset()
                wholes[name].append(bench.roads[name]())
                counts = server.counts()
                check_counts(counts, given.calls, name)
                rates[name].append(counts.calls_per_s)
                at_server[name].append(counts.in_flight_mean)
                busy = counts.cpu_s / (counts.last_s - counts.first_s)
                text = f"{counts.calls_per_s:7.0f} calls/s, {counts.in_flight_mean:3.0f} at the server"
                text += f", {wholes[name][-1]:5.1f} s whole, server busy {busy:.0%}"
                figures.said(f"round {round_ + 1} {name:10} {text}", given.json)
    for name in names:
        found[name] = {
            "calls_per_s": figures.median(rates[name], 0),
            "rounds": [round(rate) for rate in rates[name]],
            "whole_s": figures.median(wholes[name]),
            "at_server": figures.median(at_server[name], 0),
        }
    for name, road in PAIRS:
        if name in found and road in found:
            pairs = zip(rates[name], rates[road], strict=True)
            found[f"{name}_to_{road}"] = figures.median([mine / theirs for mine, theirs in pairs], 3)
    if "sdk" in found:
        sdk = found["sdk"]["calls_per_s"]
        for name, key in (("ray", "ratio"), ("inline", "ratio_inline"), ("bare", "ratio_bare")):
            if name in found:
                found[key] = round(found[name]["calls_per_s"] / sdk, 2)
    for name, road in (("ray", "bare"), ("ray_more", "bare"), ("inline", "bare"), ("ray_by_sdk", "bare_by_sdk")):
        if name in found and road in found:
            found[f"{name}_to_{road}"] = round(found[name]["calls_per_s"] / found[road]["calls_per_s"], 2)
    shape = {"calls": given.calls, "rounds": given.rounds, "delay_ms": given.delay_ms}
    return {**found, **shape, "concurrency": given.concurrency, "at_once": given.at_once}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--roads", default=DEFAULT, help=f"any of {', '.join(ROADS)}")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, default=300, help="permits of a cortex batch")
    parser.add_argument("--at-once", type=int, default=100, help="calls at once of each loop")
    given = parser.parse_args()
    if unknown := set(given.roads.split(",")) - set(ROADS):
        parser.error(f"no such road: {', '.join(sorted(unknown))}; there are {', '.join(ROADS)}")
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
