"""Calls a second with a model that answers at once: ``python -m benchmarks.null --json``.

Measures Cortex's own cost with all its promises: select, lease, batch, branch, absorb, journal. ``ray`` and ``inline``
run a program with minimal calls (``null_program.Null``) on a private Ray with two branches and in one process;
``ray_batch`` and ``inline_batch`` are `cortex batch` with the same model, which also reads rows from a file and writes
results into one. Alternatives: one Ray actor call, one Ray task or one asyncio task a call (``peers``), and the least
program that is still durable (``durable``), on Ray and in one process. All take turns, each in fresh processes;
medians over the rounds.

Cortex runs as the real command: journal on disk with every flush, default telemetry. The rate is the journal's view,
from the turn in which there were permits and something to ask to the last turn with an answer, so start-up does not
count. ``late`` is the rate of the second half of the calls, when the pool's limit has been found. Every call must be
answered once by the journal, and each result must be its own answer; otherwise there is no figure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actors.journal.journal import StateFolder
from benchmarks.harness import command, figures, processes, rows
from cortex.state import events

JOB = "null"
LONGEST_S = 900.0
OURS = ("ray", "inline", "ray_batch", "inline_batch")
PEERS = {
    "ray_actor_call": ["peers", "actor"], "ray_task": ["peers", "task"], "asyncio": ["peers", "asyncio"],
    "bare_durable_ray": ["durable", "ray"], "bare_durable": ["durable", "inline"],
}  # fmt: skip
SLOW = ("ray_actor_call", "ray_task")
ROADS = (*OURS, *PEERS)


class Rates(msgspec.Struct):
    """Rates of one run by its journal."""

    calls_per_s: float
    late_calls_per_s: float
    commits: int
    journal_bytes: int
    first_s: float
    last_s: float


def journalled(state: Path, calls: int) -> Rates:
    """Return the rates of a finished job. Raises ``rows.Lost`` where a call is not answered exactly once."""
    journal = StateFolder(str(state)).journal(JOB)
    granted_s = fed_s = 0.0
    answered: list[float] = []
    goals: set[int] = set()
    commits = 0
    for _, turn in journal.turns(0):
        commits += 1
        for event in (event for batch in turn.batches for event in batch):
            if isinstance(event, events.Answered):
                goals.add(event.goal)
                answered.append(turn.at_s)
            elif isinstance(event, events.PermitsGranted):
                granted_s = granted_s or turn.at_s
            elif isinstance(event, events.RowsRead):
                fed_s = fed_s or turn.at_s
    size_bytes = journal.size_bytes()
    journal.close()
    if not len(goals) == len(answered) == calls:
        raise rows.Lost(f"{calls} calls, and the journal has {len(answered)} answers to {len(goals)} of them")
    first_s, last_s, half_s = max(granted_s, fed_s), answered[-1], answered[calls // 2]
    late = (calls - calls // 2 - 1) / max(1e-9, last_s - half_s)
    return Rates(calls / (last_s - first_s), late, commits, size_bytes, first_s, last_s)


class Bench:
    """Runs of the benchmark, in a folder of their own."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self._folder, self._given = folder, given
        self._runs = 0
        self._input = folder / "requests.jsonl"
        rows.write_input(self._input, given.calls)
        self.found: dict[str, list[dict[str, Any]]] = {}

    def take(self, road: str) -> float:
        """Run one round of one variant; return its rate."""
        found = self._ours(road) if road in OURS else self._peer(road)
        self.found.setdefault(road, []).append(found)
        return float(found["calls_per_s"])

    def _peer(self, road: str) -> dict[str, Any]:
        calls = self._given.peer_calls if road in SLOW else self._given.calls
        module, form = PEERS[road]
        argv = [sys.executable, "-m", f"benchmarks.null.{module}", form, "--calls", str(calls)]
        if module == "durable":
            argv += ["--state", self._given.state]
        return dict(msgspec.json.decode(_ran(argv).splitlines()[-1]))

    def _ours(self, road: str) -> dict[str, Any]:
        self._runs += 1
        calls, cluster = self._given.calls, "local" if road.startswith("ray") else "inline"
        state, output = self._folder / f"state-{self._runs}", self._folder / f"results-{self._runs}.jsonl"
        places = self._given.concurrency
        program = ["run", "benchmarks.null.null_program:Null", "-p", f"calls={calls}", "-p", f"ahead={2 * places}"]
        what = ["batch", str(self._input)] if road.endswith("_batch") else program
        where = ["-o", str(output), "--state", str(state), "--cluster", cluster, "--model", "sim", "--job", JOB]
        argv = [sys.executable, "-m", "benchmarks.harness.instant_model", *what, *where]
        argv += ["--concurrency", str(places), "--json"]
        with processes.Cpu() as cpu:
            text = _ran(argv)
        summary = msgspec.json.decode(text.splitlines()[-1])
        entries = (summary["outcome"], summary["rows_succeeded"], summary["attempts"])
        if entries != ("complete", calls, calls):
            raise rows.Lost(f"{calls} calls on {road}, and the summary says {entries}")
        rows.check_all(rows.results(output) if road.endswith("_batch") else _numbers(output), calls)
        rates = journalled(state, calls)
        spent = {name: round(1e6 * s / calls, 1) for name, s in cpu.between(rates.first_s, rates.last_s).items()}
        return {**msgspec.structs.asdict(rates), "elapsed_s": summary["elapsed_s"], "cpu_us": spent}


def _numbers(output: Path) -> Any:
    """Yield results of ``null_program.Null``, which has checked each goal's answer, as rows."""
    with output.open("rb") as lines:
        for line in lines:
            number = msgspec.json.decode(line, type=int)
            yield f"r{number:06d}", f"row {number:06d}"


def _ran(argv: list[str]) -> str:
    """Return a command's output. Raises ``RuntimeError`` where the command fails or never ends."""
    ended = subprocess.run(argv, env=command.environment(), capture_output=True, text=True, timeout=LONGEST_S)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(argv[1:6])} ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    return ended.stdout


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds. Raises ``rows.Lost`` where a call is not answered exactly once."""
    names = given.roads.split(",")
    found: dict[str, Any] = {"benchmark": "null", "machine": figures.machine()}
    with tempfile.TemporaryDirectory(prefix="null-", dir=given.state) as folder:
        bench = Bench(Path(folder), given)
        for round_ in range(given.rounds):
            for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                rate = bench.take(name)
                figures.said(f"round {round_ + 1} {name:15}{rate:9,.0f} calls/s", given.json)
    middle: Callable[[str, str], float] = lambda road, key: figures.median([run[key] for run in bench.found[road]], 0)  # noqa: E731
    for name in names:
        rounds = [round(run["calls_per_s"]) for run in bench.found[name]]
        found[name] = {"calls_per_s": middle(name, "calls_per_s"), "rounds": rounds}
        if name in OURS:
            last = bench.found[name][-1]
            found[name] |= {
                "late_calls_per_s": middle(name, "late_calls_per_s"),
                "commits": middle(name, "commits"),
                "journal_bytes_a_call": round(last["journal_bytes"] / given.calls),
                "cpu_us": [run["cpu_us"] for run in bench.found[name]],
            }
    actor = found.get("ray_actor_call", {}).get("calls_per_s")
    for name, bare in (("ray", "bare_durable_ray"), ("inline", "bare_durable")):
        if actor and name in found:
            found[f"{name}_to_actor_call"] = round(found[name]["calls_per_s"] / actor, 1)
        if bare in found and name in found:
            found[f"{name}_to_{bare}"] = round(found[name]["calls_per_s"] / found[bare]["calls_per_s"], 2)
    shape = {"calls": given.calls, "peer_calls": given.peer_calls, "rounds": given.rounds}
    return {**found, **shape, "concurrency": given.concurrency, "load_1min_at_end": figures.machine()["load_1min"]}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--peer-calls", type=int, default=10_000, help="calls of the slow Ray alternatives")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--roads", default=",".join(ROADS), help=f"any of {', '.join(ROADS)}")
    parser.add_argument("--concurrency", type=int, default=1_000, help="permits of a job")
    parser.add_argument("--state", default=tempfile.gettempdir(), help="folder on the disk to measure")
    given = parser.parse_args()
    if unknown := set(given.roads.split(",")) - set(ROADS):
        parser.error(f"no such road: {', '.join(sorted(unknown))}; there are {', '.join(ROADS)}")
    Path(given.state).mkdir(parents=True, exist_ok=True)
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
