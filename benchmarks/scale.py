"""Cost and remains of a call by the size of its job: ``python -m benchmarks.scale --json``.

Jobs of 10,000, 100,000 and 1,000,000 calls, inline, with a model that answers at once, each in its own process
(`harness.scale_worker`): `cortex batch`, and a program that keeps all its rows. Reported are the CPU of a call, memory
by the line fitted through three quarters of the calls, and the journal's size; for the largest job of each kind also
the time to open the finished job from its snapshot, of `cortex status`, to recover a job killed at the worst moment
(just before a snapshot), and to replay the whole journal. K from a snapshot and K from the journal must be equal, byte
for byte.

Growth of the cost is measured twice. In CPU time: while the largest job runs, the smaller jobs run beside it over and
over, one at a time, so that changes of the machine's speed affect both; with two cores each has one. And counted:
functions of ours for calls after few and after many other calls (`benchmarks.growth`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import growth
from benchmarks.harness import command, figures
from benchmarks.harness.scale_worker import JOB

SIZES = "10000,100000,1000000"
COST_MAX = 1.15
"""Goal: cost of a call at the dearest size as a multiple of the cheapest."""
BYTES_MAX = {"batch": 100, "kept": 1_000}
REPLAY_S_MAX, OPEN_S_MAX = 3.0, 2.0
"""Goals in seconds for a million events, and for opening a finished job of a million calls."""


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Start one part in its own process."""
    argv = [sys.executable, "-m", "benchmarks.harness.scale_worker", *arguments]
    return subprocess.Popen(argv, env=command.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return a part's result. Raises ``RuntimeError`` where the part fails."""
    out, err = child.communicate()
    if child.returncode:
        raise RuntimeError(f"{child.args}: {err[-2_000:]}")
    found: dict[str, Any] = msgspec.json.decode(out.splitlines()[-1])
    return found


def status_s(state: Path) -> float:
    """Return the seconds of `cortex status`, from start to end."""
    argv = [sys.executable, "-m", "actors.cli", "status", JOB, "--state", str(state), "--json"]
    began_s = time.perf_counter()
    subprocess.run(argv, env=command.environment(), capture_output=True, check=True)
    return round(time.perf_counter() - began_s, 2)


def side_by_side(kind: str, sizes: Sequence[int], folder: Path, tell: Any) -> dict[int, list[dict[str, Any]]]:
    """Run the largest job, kept in ``folder``, and the smaller ones beside it, each at least once."""
    runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    large = begun(kind, str(sizes[-1]), str(folder))
    try:
        for size in cycle(sizes[:-1]):
            with tempfile.TemporaryDirectory(prefix="bench-", dir=folder.parent) as name:
                runs[size].append(ended(begun(kind, str(size), name)))
            tell(size, runs[size][-1])
            if large.poll() is not None and all(runs[each] for each in sizes[:-1]):
                break
        runs[sizes[-1]].append(ended(large))
    finally:
        large.kill()
    tell(sizes[-1], runs[sizes[-1]][-1])
    return runs


def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means of several runs of one size for ``grows``: a long run is a mean over its time, too."""
    return {name: round(statistics.fmean(run[name] for run in runs), 1) for name in runs[0]}


def grows(rounds: Sequence[dict[int, list[float]]]) -> dict[str, float]:
    """Return the cost of a call of each size relative to the smallest size: means of runs at the same time, medians of
    the rounds."""
    ratios: dict[int, list[float]] = {size: [] for size in rounds[0]}
    for costs in rounds:
        least = statistics.fmean(costs[min(costs)])
        for size, some in costs.items():
            ratios[size].append(statistics.fmean(some) / least)
    return {str(size): figures.median(some, 3) for size, some in ratios.items()}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all sizes of all kinds."""
    sizes = sorted(int(size) for size in given.sizes.split(","))
    found: dict[str, Any] = {"machine": figures.machine(), "sizes": sizes, "reached": {}}
    for kind in given.kinds.split(","):

        def tell(size: int, run: dict[str, Any], kind: str = kind) -> None:
            text = " ".join(f"{key}={value}" for key, value in run.items())
            figures.said(f"{kind:6} {size:9,} {text}", given.json)

        rounds: list[dict[int, list[dict[str, Any]]]] = []
        for round_ in range(given.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as name:
                folder = Path(name) / "largest"
                folder.mkdir()
                rounds.append(side_by_side(kind, sizes, folder, tell))
                if not round_:
                    opened = ended(begun("open", str(sizes[-1]), str(folder), "--kind", kind))
                    opened["status_s"] = status_s(folder / kind)
                    tell(sizes[-1], opened)
        by_size = {str(size): summed([run for each in rounds for run in each[size]]) for size in sizes}
        costs = grows([{size: [run["cpu_us"] for run in runs] for size, runs in each.items()} for each in rounds])
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
            "recovery": opened["recovered_s"] < REPLAY_S_MAX,
            "open": opened["opened_s"] < OPEN_S_MAX,
        }
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--sizes", default=SIZES, help="calls of a job, separated by commas")
    parser.add_argument("--calls", type=int, default=0, help="largest size, with a tenth of it: a first look")
    parser.add_argument("--kinds", default="batch,kept", help="batch, kept, or both separated by a comma")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", default=None, help="folder for journals and results during the run")
    given = parser.parse_args()
    if given.calls:
        given.sizes = f"{max(1, given.calls // 10)},{given.calls}"
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
