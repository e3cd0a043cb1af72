"""Job of a given size in this process, with a model that answers at once, for `benchmarks.scale`.

``python -m benchmarks.harness.scale_worker batch 10000 FOLDER``, then ``open`` with the same arguments. ``batch``:
`cortex batch`, whose finished rows leave memory. ``kept``: a program that keeps every row and its answer in K. Both
run from a file to a file with the journal on disk, every result checked. ``open``: time to open the finished job from
its snapshot and from its whole journal.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import cortex
from actors.api.client import new_loop
from actors.api.session import Session
from actors.common.gc_tuning import settle, unwatched
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sources.line_source import LineSource
from actors.files.sources.row_source import BatchSource
from actors.history.catalog import last_state
from actors.jobs.spec import JobSpec
from actors.journal.journal import StateFolder
from actors.programs.loader import load
from actors.routing.model_spec import ModelSpec
from benchmarks.harness import figures, rows
from benchmarks.harness.models import AtOnce
from benchmarks.harness.processes import fitted_slope
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits
from cortex.values.reply import Reply
from policies.failures.failure import Failure

JOB = "scale"
CONCURRENCY = 300
SAMPLE_CALLS = 250
"""Calls between two samples of memory."""
WORST_EVENTS = 100_000
"""Largest number of events between two snapshots of a job of a million rows (``actors.channel.journal_maintenance``).
"""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")


class Looking(AtOnce):
    """Model that samples the resources used by the process as it is asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.looks: list[tuple[int, float, float]] = []
        """Samples: (calls so far, CPU seconds, resident memory in bytes)."""

    def look(self) -> None:
        """Take a sample."""
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * _PAGE_BYTES
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.looks.append((self.calls, used.ru_utime + used.ru_stime, resident))

    async def call(self, body: bytes, **how: Any) -> Reply | Failure:
        """Return the answer."""
        if self.calls % SAMPLE_CALLS == 0:
            self.look()
        self.calls += 1
        return await super().call(body, **how)


class Kept(Program, frozen=True):
    """Program that asks every row and keeps it with its answer, as any program does that reads all rows at its end."""

    def select(self, k: State) -> Iterable[cortex.Ask]:
        """Return every row unchanged."""
        for goal in k.open("row"):
            yield cortex.Ask(goal, cortex.Prompt("row", (cortex.Part(cortex.Role.GOAL, goal.value.decode()),)))

    def absorb(self, k: State, goal: cortex.Goal, reply: Reply) -> Iterable[cortex.Resolve]:
        """Keep the answer."""
        yield cortex.Resolve(goal, reply.text)

    def answer(self, k: State) -> int:
        """Return the number of answered rows, which reads all of K."""
        return sum(goal.answer is not None for goal in k.goals_of("row"))


def write_input(kind: str, path: Path, calls: int) -> None:
    """Write the input: requests or lines."""
    if kind == "batch":
        rows.write_input(path, calls)
    else:
        path.write_text("".join(rows.prompt(number) + "\n" for number in range(calls)))


def check_results(kind: str, path: Path, calls: int) -> None:
    """Check that every row has one answer, its own. Raises ``rows.Lost``."""
    found = rows.results(path)
    if kind == "kept":
        lines = (msgspec.json.decode(line) for line in path.open("rb"))
        found = ((f"r{int(line['row']) - 1:06d}", line["answer"]) for line in lines)
    rows.check_all(found, calls)


def run(kind: str, calls: int, folder: Path) -> dict[str, Any]:
    """Run the job from rows to results; return the cost of a call and the memory it left."""
    input_, output = folder / f"{kind}.in", folder / f"{kind}.out"
    write_input(kind, input_, calls)
    source: Any = LineSource(str(input_), spool=folder / "spool")
    if kind == "batch":
        source = BatchSource(str(input_), model=rows.MODEL, output_tokens_max=None, spool=folder / "spool")
    source.check()
    order = JobSpec(
        program=Batch() if kind == "batch" else Kept(), model_spec=ModelSpec(model=rows.MODEL), job=JOB,
        state=str(folder / kind),
        cluster="inline", limits=Limits(concurrency=CONCURRENCY, output_tokens_max=rows.OUTPUT_TOKENS_MAX),
    )  # fmt: skip
    model = Looking()
    settle()
    session = Session(order, {}, source=source, sink=FileSink(str(output)), model=model)
    began_s = time.perf_counter()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        ended = runner.run(session.run())
    whole_s = time.perf_counter() - began_s
    model.look()
    source.close()
    entries = (ended.facts["outcome"], ended.facts["rows_succeeded"], ended.facts["attempts"], model.calls)
    if entries != ("complete", calls, calls, calls):
        raise rows.Lost(f"{calls} calls, and the job says {entries}")
    check_results(kind, output, calls)
    source.close()
    payload = sum(map(len, (rows.prompt(0), "row 000000"))) if kind == "kept" else 0
    return {"whole_s": round(whole_s, 1), **read(model.looks, calls, payload), **_sizes(folder / kind)}


def read(looks: list[tuple[int, float, float]], calls: int, payload_bytes: int) -> dict[str, Any]:
    """Return CPU of a call over all calls and over the last fifth, and memory a call by the line fitted through the
    last three quarters, minus the user's own data of a kept call."""
    (first, began_s, _), (_, ended_s, _) = looks[0], looks[-1]
    late = [look for look in looks if look[0] >= 0.8 * calls]
    steady = [(count, resident) for count, _, resident in looks if count >= calls / 4]
    grows = fitted_slope([(float(count), resident) for count, resident in steady[:-1]])
    return {
        "cpu_us": round((ended_s - began_s) / (calls - first) * 1e6, 1),
        "cpu_us_last_fifth": round((late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]) * 1e6, 1),
        "bytes_per_call": round(grows), "bytes_beyond_payload": round(grows - payload_bytes),
        "rss_mb": round(looks[-1][2] / 1e6, 1),
    }  # fmt: skip


def _sizes(state: Path) -> dict[str, float]:
    on_disk = {path.name: path.stat().st_size for path in (state / "jobs").glob("*.sqlite*")}
    return {"journal_mb": round(sum(on_disk.values()) / 1e6, 1)}


def reopened(kind: str, folder: Path) -> dict[str, Any]:
    """Open the finished job from its snapshot and replay it from its first turn; K must be equal. Also recover the job
    killed at the worst moment: from K of a snapshot `WORST_EVENTS` before the end."""
    state = StateFolder(str(folder / kind))
    settle()
    k, opened_s = timed(lambda: last_state(state, JOB))
    encoded = codec.encode_state(k)
    del k
    source = state.journal(JOB)
    found = sum(length(turn) for _, turn in source.turns())
    turns = (turn for _, turn in source.turns(source.opened_at()))
    early = first(turns, max(1, found - WORST_EVENTS))
    with unwatched():
        began_s = time.process_time()
        k, early_s = timed(lambda: codec.replay(None, early, made))
        cpu_s = time.process_time() - began_s
        snapshot = codec.encode_state(k)
        k, decoded_s = timed(lambda: codec.decode_state(snapshot))
        began_s = time.process_time()
        k, late_s = timed(lambda: codec.replay(k, turns, made))
        cpu_s += time.process_time() - began_s
    source.close()
    if codec.encode_state(k) != encoded:
        raise rows.Lost("K from the snapshot is not K from the journal")
    return {
        "opened_s": round(opened_s, 2), "replayed_s": round(early_s + late_s, 2), "events": found,
        "us_per_event": round(cpu_s / found * 1e6, 2), "k_mb": round(len(encoded) / 1e6, 2),
        "recovered_s": round(decoded_s + late_s, 2), "recovered_events": min(found, WORST_EVENTS),
    }  # fmt: skip


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a function's result and its seconds."""
    began_s = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began_s


def first(turns: Iterator[events.Turn], count: int) -> Iterator[events.Turn]:
    """Return turns until they have ``count`` events; the iterator keeps the rest."""
    for turn in turns:
        yield turn
        count -= length(turn)
        if count <= 0:
            return


def made(terms: JobTerms) -> Program:
    """Return the program of a job."""
    return load(terms.program, terms.params_json)


def length(turn: events.Turn) -> int:
    """Return the number of a journal's events."""
    return sum(map(len, turn.batches))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("batch", "kept", "open"))
    parser.add_argument("calls", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", default="batch", choices=("batch", "kept"), help="kind of the job to open")
    given = parser.parse_args()
    if given.what == "open":
        figures.tell(reopened(given.kind, given.folder))
    else:
        figures.tell(run(given.what, given.calls, given.folder))


if __name__ == "__main__":
    main()
