"""Scheduler's CPU a call on 1, 2 and 4 real Ray nodes of one machine: a part of ``benchmarks.nodes``.

Each node is a raylet with one core to give, and adds 100 permits for calls of half a second, so twice the nodes make
twice the calls. A job has at least two branches, and on more nodes one on each. `cortex batch` runs over real HTTP on
a Ray that was started separately. CPU of processes, from `/proc`, counts from a quarter of the answers to nine tenths
of them, which excludes start, finding of the pool's limit, and end.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.journal.journal import StateFolder
from benchmarks.harness import command, figures, processes, rows
from benchmarks.harness.server import RunningServer
from cortex.state import events
from tests.cluster.cluster_processes import another_node, ray_head

JOB = "nodes"
PLACES = 100
CALL_MS, SPREAD = 500.0, 0.5
"""Milliseconds of an answer, and the share by which it may be shorter or longer."""
WARM, TAIL = 0.25, 0.9
"""Shares of the answers between which CPU is counted."""
PATIENT = {"RAY_health_check_failure_threshold": "60"}
"""Ray setting: several raylets share the cores, and none may be declared dead."""


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[tuple[str, list[int]]]:
    """Start a Ray of ``nodes`` nodes; yield its address and the root process of each node."""
    with contextlib.ExitStack() as started:
        head = started.enter_context(ray_head("--num-cpus=1", **PATIENT))
        others = [started.enter_context(another_node(head, **PATIENT)) for _ in range(nodes - 1)]
        yield head.address, [head.pid, *(node.pid for node in others)]


def measure(nodes: int, seconds: float) -> dict[str, Any]:
    """Run one job on ``nodes`` nodes. Raises ``rows.Lost`` where a call is not answered exactly once."""
    calls = int(nodes * PLACES * seconds / (CALL_MS / 1e3) / (TAIL - WARM))
    with tempfile.TemporaryDirectory(prefix="nodes-") as place, RunningServer(CALL_MS, SPREAD) as server:
        folder = Path(place)
        rows.write_input(folder / "in.jsonl", calls)
        with cluster(nodes) as (address, roots), processes.Cpu() as cpu:
            where = ["--base-url", server.url, "--model", rows.MODEL, "--cluster", address, "--job", JOB]
            where += ["--concurrency", str(nodes * PLACES)]
            run = command.batch(folder / "in.jsonl", folder / "out.jsonl", folder / "state", *where)
            branches = [Counter(map(processes.name_of, processes.family(root)))["ray::Branch"] for root in roots]
        if not all(branches):
            raise RuntimeError(f"of {nodes} nodes some had no branch: {branches}")
        entries = (run.summary["outcome"], run.summary["rows_succeeded"], run.summary["attempts"])
        counts = server.counts()
        if entries != ("complete", calls, calls) or (counts.requests, counts.distinct) != (calls, calls):
            raise rows.Lost(f"{calls} calls on {nodes} nodes, the summary says {entries}, and the server saw {counts}")
        rows.check_all(rows.results(folder / "out.jsonl"), calls)
        answered = _answered(folder / "state")
    first, last = int(WARM * calls), int(TAIL * calls)
    begun_s, ended_s = answered[first], answered[last]
    spent = cpu.between(begun_s, ended_s, least=0.0)
    took_s = ended_s - begun_s
    return {
        "calls_per_s": round((last - first) / took_s, 1),
        "branches_on_each": branches,
        "cortex_us_a_call": round(1e6 * spent["ray::Cortex"] / (last - first), 1),
        "cortex_share_of_a_core": round(spent["ray::Cortex"] / took_s, 4),
        "channel_us_a_call": round(1e6 * spent["ray::Channel"] / (last - first), 1),
        "branches_us_a_call": round(1e6 * spent["ray::Branch"] / (last - first), 1),
        "seconds": round(took_s, 1),
    }


def _answered(state: Path) -> list[float]:
    """Return the times at which each call's answer was on disk."""
    journal = StateFolder(str(state)).journal(JOB)
    with contextlib.closing(journal):
        found = [
            turn.at_s for _, turn in journal.turns(0) for batch in turn.batches for event in batch
            if isinstance(event, events.Answered)
        ]  # fmt: skip
    return found


def rounds(given: argparse.Namespace) -> dict[str, Any]:
    """Run all sizes in turns; return medians over the rounds."""
    sizes = [int(size) for size in given.ray_nodes.split(",") if size]
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for round_ in range(given.rounds if sizes else 0):
        for size in sizes:
            found[size].append(own := measure(size, given.ray_seconds))
            figures.said(f"round {round_ + 1} ray {size} nodes: {own}", given.json)
    return {str(size): _medians(some) for size, some in found.items()}


def _medians(some: list[dict[str, Any]]) -> dict[str, Any]:
    middle = {key: figures.median([own[key] for own in some], 4) for key in some[0] if key != "branches_on_each"}
    rounds = [own["cortex_us_a_call"] for own in some]
    return {**middle, "cortex_rounds": rounds, "branches_on_each": [own["branches_on_each"] for own in some]}
