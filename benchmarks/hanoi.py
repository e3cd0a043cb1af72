"""Steps a second of the voting program, each step voted on with k = 3: ``python -m benchmarks.hanoi --json``.

A step of a chain begins when the one before is decided and on disk. Measured: one chain, and several towers in one job
side by side. Steps are counted in the journal, from the first turn with an answer to the last, so start-up does not
count. Two models: an in-process model that knows the moves and answers at once, which leaves the cost of Cortex alone;
and the **simulated** provider, whose bounded reasoner reads each prompt. In turns and on the same disk: bare commits
of a step's size, an upper bound for any chain that is durable step by step; and the chain on a memory file system,
where available.

On Ray (``--cluster local``) both models run in each branch; the baseline is round trips between two bare actors.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

import cortex
from actors.common.gc_tuning import settle
from actors.journal.journal import StateFolder
from actors.routing.model_spec import ModelSpec
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from benchmarks.harness import figures, instant_model
from benchmarks.harness.bare_costs import MEMORY, PrivateRay, another, commits_ms
from benchmarks.harness.chains import Towers
from benchmarks.harness.models import Oracle
from benchmarks.harness.rows import Lost
from cortex.programs.hanoi import Hanoi
from cortex.state import events

K = 3
REACH = {"inline": 4_000, "local": 300}
"""Goals in steps a second of one chain."""
SIDE_BY_SIDE = 16
SIDE_BY_SIDE_MIN = 8.0
"""Goal on Ray: steps of ``SIDE_BY_SIDE`` chains in one job, as a multiple of one chain's."""


def cpu_s() -> float:
    """Return the CPU seconds used by this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rate(state: Path, job: str, moves: int) -> tuple[float, int]:
    """Return steps a second of a finished job by its journal, and the bytes of a turn. Raises ``Lost`` if a vote came
    twice or votes are missing."""
    journal = StateFolder(str(state)).journal(job)
    try:
        at_s, seen = [], set()
        for _, turn in journal.turns():
            for event in (each for batch in turn.batches for each in batch):
                if type(event) is events.Answered:
                    at_s.append(turn.at_s)
                    seen.add((event.goal, event.sample))
        size = int(statistics.median(len(blob) for _, blob in journal.blobs(journal.seq)))
    finally:
        journal.close()
    if len(seen) != len(at_s) or len(seen) < K * moves:
        raise Lost(f"{moves} moves, {len(at_s)} answers to {len(seen)} votes in the journal")
    return (moves - 1) / (at_s[-1] - at_s[0]), size


def ran(model: Any, disks: int, chains: int, folder: Path, cluster: str) -> dict[str, float]:
    """Run one job in its own state folder; return steps a second, and inline also CPU a step, start-up included."""
    program = Hanoi(disks=disks, k=K) if chains == 1 else Towers(disks=disks, k=K, chains=chains)
    moves = chains * (2**disks - 1)
    with tempfile.TemporaryDirectory(dir=folder) as state:
        before_s = cpu_s()
        job = another("steps")
        to = {"wish": model} if isinstance(model, ModelSpec) else {"model": model}
        done = cortex.run(program, **to, state=state, cluster=cluster, job=job, progress=False)
        used_s = cpu_s() - before_s
        if not done.answer or not done.answer["solved"] or done.answer["moves"] != moves:
            raise Lost(f"{done!r}")
        steps_per_s, size = rate(Path(state), job, moves)
    found = {"steps_per_s": steps_per_s, "turn_bytes": size}
    return found | ({"cpu_us_per_step": used_s / moves * 1e6} if cluster == "inline" else {})


def _models(inline: bool) -> dict[str, Any]:
    """Return the models by the suffix of their figures' names. On Ray each branch makes its own."""
    if inline:
        return {"": Oracle(), "_simulated": SimulatedModel(SimulatorSettings(error=0.0))}
    return {
        "": ModelSpec(model="sim", simulated=SimulatorSettings(models=instant_model.ORACLE)),
        "_simulated": ModelSpec(model="sim", simulated=SimulatorSettings(error=0.0, models=("sim",))),
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds, in turns."""
    folder = Path(given.state)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "benchmark": "hanoi", "machine": figures.machine(), "steps": 2**given.disks - 1, "k": K,
        "cluster": given.cluster, "rounds": [],
    }  # fmt: skip
    if given.cluster == "local":
        instant_model.install()
    ray = PrivateRay() if given.cluster == "local" else None
    inline = ray is None
    places = {"": folder} | ({"_in_memory": MEMORY} if MEMORY.is_dir() else {})
    try:
        for _ in range(given.rounds):
            measured: dict[str, Any] = {}
            for where, place in places.items():
                for chains in (1, SIDE_BY_SIDE):
                    name = f"{'one' if chains == 1 else 'side_by_side'}{where}"
                    for kind, model in _models(inline).items():
                        if not (inline and where and kind):
                            measured[f"{name}{kind}"] = ran(model, given.disks, chains, place, given.cluster)
            size = int(measured["one_simulated"]["turn_bytes"])
            measured["bare_commits_per_s"] = 1e3 / statistics.median(commits_ms(folder, size))
            if ray is not None:
                measured["bare_round_trips_per_s"] = 1e3 / statistics.median(ray.trips_ms(size))
            found["rounds"].append(measured)
            figures.said(f"{measured}", given.json)
    finally:
        if ray is not None:
            ray.close()
    return found | summary(found["rounds"], given.cluster)


def summary(rounds: list[dict[str, Any]], cluster: str) -> dict[str, Any]:
    """Return medians and bests over the rounds, and whether the goals are reached."""
    facts: dict[str, Any] = {}
    for name, first in rounds[0].items():
        if isinstance(first, dict):
            rates = [each[name]["steps_per_s"] for each in rounds]
            facts[name] = {"best": round(max(rates)), "median": round(statistics.median(rates))}
            if "cpu_us_per_step" in first:
                facts[name]["cpu_us_per_step"] = round(min(each[name]["cpu_us_per_step"] for each in rounds))
        else:
            facts[name] = round(statistics.median(each[name] for each in rounds))
    for kind in ("", "_simulated"):
        ratios = [each[f"side_by_side{kind}"]["steps_per_s"] / each[f"one{kind}"]["steps_per_s"] for each in rounds]
        facts[f"side_by_side_times{kind}"] = figures.median(ratios)
    facts["must_reach"] = REACH[cluster]
    facts["reached"] = facts["one"]["median"] >= REACH[cluster]
    if cluster != "inline":
        facts["reached"] &= facts["side_by_side_times"] >= SIDE_BY_SIDE_MIN
    return facts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hanoi", description=__doc__)
    parser.add_argument("--disks", type=int, default=11, help="disks of a chain of 2^disks - 1 steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", choices=("inline", "local"), default="inline")
    parser.add_argument("--state", default=tempfile.gettempdir(), help="folder on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args()
    settle()
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
