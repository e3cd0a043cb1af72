"""What a call costs and leaves behind, the more calls a job has: ``python -m benchmarks.scale --json``.

Jobs of 10,000, 100,000 and 1,000,000 calls, inline, with a model that answers at once, each in a process of its own
(`benchmarks.scaling`): `cortex batch`, and a program that keeps all its rows. Told of each are the CPU of a call,
memory by the line fitted through three quarters of the calls, and the journal's size; of the largest of each kind, how
long it takes to open the finished job from its snapshot, to ask for `cortex status`, to recover a job that was killed
at the worst moment, just before a snapshot, and to replay the whole journal from its first turn. K from a snapshot and
K from the journal must be the same, byte for byte.

Whether a call costs more the more there are is told twice. In time: the sizes are gone through up and down, each is
compared with the one run just before or after it, and the ratios' medians are multiplied up, so that what moves the
machine between two minutes falls out. And counted, without a clock: functions of ours for calls after few and after
many others (`benchmarks.growth`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import command, figures, growth
from benchmarks.scaling import JOB

SIZES = "10000,100000,1000000"
COST_MAX = 1.15
"""What the dearest size may cost, a call, of the cheapest."""
BYTES_MAX = {"batch": 100, "kept": 1_000}
REPLAY_S_MAX, OPEN_S_MAX = 3.0, 2.0
"""For a million events, and for a finished job of a million calls."""


def child(*arguments: str) -> dict[str, Any]:
    """One part of it in a process of its own. Raises ``RuntimeError`` where it fails."""
    argv = [sys.executable, "-m", "benchmarks.scaling", *arguments]
    ended = subprocess.run(argv, env=command.environment(), capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(argv[2:])}: {ended.stderr[-2_000:]}")
    found: dict[str, Any] = msgspec.json.decode(ended.stdout.splitlines()[-1])
    return found


def status_s(state: Path) -> float:
    """How long `cortex status` takes, from its start to its end."""
    argv = [sys.executable, "-m", "actors.cli", "status", JOB, "--state", str(state), "--json"]
    began_s = time.perf_counter()
    subprocess.run(argv, env=command.environment(), capture_output=True, check=True)
    return round(time.perf_counter() - began_s, 2)


def in_turn(sizes: list[int], rounds: int) -> list[int]:
    """Up and down again, the largest once a round."""
    way = [*sizes, *sizes[-2::-1]]
    return way * rounds


def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of several runs of one size."""
    return {name: figures.median([run[name] for run in runs], 1) for name in runs[0]}


def grows(sizes: list[int], ran: list[tuple[int, float]]) -> dict[str, float]:
    """What a call of each size costs, of one of the smallest: by the medians of ratios of runs beside each other."""
    ratios: dict[int, list[float]] = {size: [] for size in sizes[1:]}
    for (a, cost_a), (b, cost_b) in pairwise(ran):
        if a != b:
            ratios[max(a, b)].append(cost_b / cost_a if b > a else cost_a / cost_b)
    costs, cost = {str(sizes[0]): 1.0}, 1.0
    for size in sizes[1:]:
        cost *= figures.median(ratios[size], 3)
        costs[str(size)] = round(cost, 3)
    return costs


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All sizes of all kinds."""
    sizes = sorted(int(size) for size in given.sizes.split(","))
    found: dict[str, Any] = {"machine": figures.machine(), "sizes": sizes, "reached": {}}
    for kind in given.kinds.split(","):
        runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        ran: list[tuple[int, float]] = []
        for size in in_turn(sizes, given.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as name:
                runs[size].append(child(kind, str(size), name))
                ran.append((size, runs[size][-1]["cpu_us"]))
                told = " ".join(f"{key}={value}" for key, value in runs[size][-1].items())
                figures.said(f"{kind:6} {size:9,} {told}", given.json)
                if size == sizes[-1] and len(runs[size]) == 1:
                    opened = child("open", str(size), name, "--kind", kind)
                    opened["status_s"] = status_s(Path(name) / kind)
                    figures.said(f"{kind:6} {size:9,} {opened}", given.json)
        by_size = {str(size): summed(some) for size, some in runs.items()}
        costs = grows(sizes, ran)
        spread = round(max(costs.values()) / min(costs.values()), 3)
        counted = growth.measured(kind, growth.after_some(sizes[-1]))
        figures.said(f"{kind:6} cost {costs}; functions of ours: {counted['spread']}", given.json)
        found[kind] = {"sizes": by_size, "cost": costs, "cost_spread": spread, "opened": opened, "counted": counted}
        replay_s = opened["replayed_s"] / opened["events"] * 1e6
        found["reached"][kind] = {
            "cost": spread <= COST_MAX,
            "cost_counted": counted["spread"] <= COST_MAX,
            "memory": by_size[str(sizes[-1])]["bytes_beyond_payload"] < BYTES_MAX[kind],
            "replay": replay_s < REPLAY_S_MAX,
            "recovery": opened.get("recovered_s", 0.0) < REPLAY_S_MAX,
            "open": opened["opened_s"] < OPEN_S_MAX,
        }
    return found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    parser.add_argument("--sizes", default=SIZES, help="calls of a job, with commas")
    parser.add_argument("--calls", type=int, default=0, help="the largest size alone, and a tenth of it: for a look")
    parser.add_argument("--kinds", default="batch,kept", help="batch, kept, or both with a comma")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where journals and results stand meanwhile")
    given = parser.parse_args()
    if given.calls:
        given.sizes = f"{max(1, given.calls // 10)},{given.calls}"
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
