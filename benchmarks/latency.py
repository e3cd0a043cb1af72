"""Time added to each call of a chain, whose prompts contain the answer before: ``python -m benchmarks.latency
--json``.

Cortex adds the time from one turn of its channel to the next, by the journal, minus the branch's measured time of the
call; the model is in process and answers at once. A step is on disk before it is sent. Baselines, in turns: one bare
commit of as many bytes on the same disk, and the chain with its state on a memory file system, where available.

On Ray (``--cluster local``) the model is the **simulated** provider; the baseline is a round trip between two bare
actors on the same Ray in the same minutes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import cortex
from actors.common.gc_tuning import settle
from actors.journal.journal import StateFolder
from benchmarks.harness import figures
from benchmarks.harness.bare_costs import MEMORY, WARM, PrivateRay, another, commits_ms
from benchmarks.harness.chains import Chain, chain
from benchmarks.harness.rows import Lost
from cortex.state import events
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure

ADDED_MS_MAX = 0.3
"""Goal inline, p50."""
TRIPS_MAX = 2.0
"""Goal on Ray, p50, in bare round trips."""
TAIL_MAX = 3.0
"""Goal for p99, as a multiple of the goal for p50."""


class AtOnce:
    """Model with a constant answer."""

    endpoint, rate = "at-once", None

    def __init__(self) -> None:
        body = msgspec.json.encode({"id": "msg", "content": [{"type": "text", "text": "yes"}]})
        self._reply = Reply(body, "end_turn", "at-once", Usage(20, 1))

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Return the answer."""
        return self._reply

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the count is not needed."""
        return None

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def added_ms(state: Path, job: str, calls: int) -> tuple[list[float], list[float], int]:
    """Return the time added to each call, the time of each call, both in ms, and the bytes of a turn, from the journal
    of a finished job. Raises ``Lost`` where an answer is missing or doubled."""
    journal = StateFolder(str(state)).journal(job)
    try:
        at_s, took_s, goals = [], [], set()
        for _, turn in journal.turns():
            for event in (each for batch in turn.batches for each in batch):
                if type(event) is events.Answered:
                    at_s.append(turn.at_s)
                    took_s.append(event.elapsed_s)
                    goals.add((event.goal, event.sample))
        sizes = [len(blob) for _, blob in journal.blobs(journal.seq)]
    finally:
        journal.close()
    if not len(at_s) == len(goals) == calls:
        raise Lost(f"{calls} calls, {len(at_s)} answers to {len(goals)} goals in the journal")
    steps = [1e3 * (later - earlier - took) for earlier, later, took in zip(at_s, at_s[1:], took_s[1:], strict=False)]
    return steps[WARM:], [1e3 * each for each in took_s], int(statistics.median(sizes))


def ran(form: str, calls: int, folder: Path, cluster: str) -> tuple[list[float], list[float], int]:
    """Run one chain in its own state folder; return the values of `added_ms`."""
    program = Chain(calls=calls) if form == "program" else chain(calls=calls)
    job = another("chain")
    with tempfile.TemporaryDirectory(dir=folder) as state:
        model: Any = AtOnce() if cluster == "inline" else "sim"
        done = cortex.run(program, model=model, state=state, cluster=cluster, job=job, progress=False)
        if done.outcome != "complete" or done.answer != calls:
            raise Lost(f"{done!r}")
        return added_ms(Path(state), job, calls)


def told(rounds: list[list[float]]) -> dict[str, float]:
    """Return the medians over the rounds of p50 and p99."""
    cuts = [statistics.quantiles(each, n=100) for each in rounds]
    return {"p50_ms": figures.median([c[49] for c in cuts], 3), "p99_ms": figures.median([c[98] for c in cuts], 3)}


def beside(taken: dict[str, list[list[float]]], ray: PrivateRay | None, folder: Path, size_bytes: int) -> None:
    """Measure the baselines. Called before and after each chain, so a machine that is slow for some seconds shows in
    both."""
    taken.setdefault("bare_commit", []).append(commits_ms(folder, size_bytes))
    if ray is not None:
        taken.setdefault("bare_round_trip", []).append(ray.trips_ms(size_bytes))


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds, in turns."""
    folder = Path(given.state)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"benchmark": "latency", "cluster": given.cluster, "calls": given.calls,
                             "machine": figures.machine()}  # fmt: skip
    taken: dict[str, list[list[float]]] = {}
    ray = PrivateRay() if given.cluster == "local" else None
    places = {"": folder} | ({"_in_memory": MEMORY} if MEMORY.is_dir() and not given.disk_only else {})
    forms = given.forms.split(",")
    size = 600
    try:
        for round_ in range(given.rounds):
            for form in forms[round_ % len(forms) :] + forms[: round_ % len(forms)]:
                for where, place in places.items():
                    beside(taken, ray, folder, size)
                    added, took, size = ran(form, given.calls, place, ray.cluster if ray else "inline")
                    taken.setdefault(f"{form}{where}", []).append(added)
                    taken.setdefault("bare_call", []).append(took)
                    found["turn_bytes"] = size
            figures.said("  ".join(f"{name} {told(some[-1:])}" for name, some in taken.items()), given.json)
        beside(taken, ray, folder, size)
    finally:
        if ray is not None:
            ray.close()
    found.update({name: told(some) for name, some in taken.items()})
    bound_ms = TRIPS_MAX * found["bare_round_trip"]["p50_ms"] if ray is not None else ADDED_MS_MAX
    found["must_reach"] = {"p50_ms": round(bound_ms, 3), "p99_ms": round(TAIL_MAX * bound_ms, 3)}
    ours = found[forms[0]]
    found["reached"] = all(ours[cut] < found["must_reach"][cut] for cut in ("p50_ms", "p99_ms"))
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000, help="calls of each chain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", choices=("inline", "local"), default="inline")
    parser.add_argument("--forms", default="program,flow", help="forms to measure; the first is compared with the goal")
    parser.add_argument("--state", default=tempfile.gettempdir(), help="folder on the disk to measure")
    parser.add_argument("--disk-only", action="store_true", help="skip the memory file system")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args()
    settle()
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
