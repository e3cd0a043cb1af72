"""What a call costs and leaves behind, the more calls a job has: ``python -m benchmarks.scale --json``.

Jobs of 10,000, 100,000 and 1,000,000 calls, inline, with a model that answers at once, each in a process of its own
(`benchmarks.scaling`): `cortex batch`, and a program that keeps all its rows. Told of each are the CPU of a call,
memory by the line fitted through three quarters of the calls, and the journal's size; of the largest of each kind, how
long it takes to open the finished job from its snapshot, to ask for `cortex status`, to recover a job that was killed
at the worst moment, just before a snapshot, and to replay the whole journal from its first turn. K from a snapshot and
K from the journal must be the same, byte for byte. The sizes are gone through up and down, so that what others do on
the machine does not fall on one of them; medians.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import command, figures
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


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All sizes of all kinds."""
    sizes = sorted(int(size) for size in given.sizes.split(","))
    found: dict[str, Any] = {"machine": figures.machine(), "sizes": sizes, "reached": {}}
    for kind in given.kinds.split(","):
        runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        for size in in_turn(sizes, given.rounds):
            with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as name:
                runs[size].append(child(kind, str(size), name))
                told = " ".join(f"{key}={value}" for key, value in runs[size][-1].items())
                figures.said(f"{kind:6} {size:9,} {told}", given.json)
                if size == sizes[-1] and len(runs[size]) == 1:
                    opened = child("open", str(size), name, "--kind", kind)
                    opened["status_s"] = status_s(Path(name) / kind)
                    figures.said(f"{kind:6} {size:9,} {opened}", given.json)
        by_size = {str(size): summed(some) for size, some in runs.items()}
        costs = [each["cpu_us"] for each in by_size.values()]
        spread = round(max(costs) / min(costs), 3)
        found[kind] = {"sizes": by_size, "cost_spread": spread, "opened": opened}
        replay_s = opened["replayed_s"] / opened["events"] * 1e6
        found["reached"][kind] = {
            "cost": spread <= COST_MAX,
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
