"""1, 10 and 200 jobs at once under one limit: ``python -m benchmarks.many_jobs --json``.

All jobs draw on one pool through one scheduler, each with its own channel and journal. Half of the jobs have twice the
weight (`--priority`) of the others, and all have more rows than can be asked. The model answers after a fixed time and
counts calls a second of all jobs and each job's share, from the moment when all are at work until the first ends. The
share that a weight should bring is weight / sum of weights.

Inline the jobs are channels of one process, like child jobs and shards: one event loop, one scheduler, one branch. On
a private Ray (``--cluster local``) each job is started as a user would, in its own process (150 MB): 200 jobs need a
larger machine, so the default is 1 and 10. There the times of answers come from the journals.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

import cortex
from actors.api.client import new_loop
from actors.api.session import Session
from actors.common.gc_tuning import settle
from actors.jobs.spec import JobSpec
from actors.journal.journal import StateFolder
from actors.limits import overrides
from actors.routing.model_spec import ModelSpec
from actors.routing.routes import destination
from actors.runtime.inline import InlineRuntime
from actors.simulator.settings import SimulatorSettings
from benchmarks.harness import figures
from benchmarks.harness.bare_costs import PrivateRay, another
from benchmarks.harness.rows import Lost, params
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.values.limits import Limits
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure
from policies.failures.route_choice import pool_name
from policies.limits.limit import PoolCaps

RATE_OFF_MAX, SHARE_OFF_MAX = 0.15, 0.10
WEIGHTS = (1.0, 2.0)
SETTLE_S = 180.0
"""Seconds allowed until all jobs are at work."""


class Steady:
    """Model that answers after a fixed time and counts by the job named in the prompt."""

    endpoint, rate = "steady", None

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        body = msgspec.json.encode({"id": "msg", "content": [{"type": "text", "text": "yes"}]})
        self._reply = Reply(body, "end_turn", "steady", Usage(20, 1))
        self.answered: Counter[str] = Counter()

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Return the answer."""
        await asyncio.sleep(self._latency_s)
        self.answered[job_of(body)] += 1
        return self._reply

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: the count is not needed."""
        return None

    async def close(self) -> None:
        """Do nothing: no resource is held."""


def job_of(body: bytes) -> str:
    """Return the job named in a request."""
    at = body.index(b"job-")
    return body[at : at + 7].decode()


class Endless:
    """Endless rows of one job."""

    def __init__(self, job: str) -> None:
        self._body = msgspec.json.encode(params(0) | {"messages": [{"role": "user", "content": f"{job}: yes or no?"}]})
        self._numbers = itertools.count()

    def seek(self, position: int) -> None:
        """Start from the first row."""

    def read(self, rows_max: int) -> Any:
        """Return the next rows."""
        rows = tuple(events.Row(str(n), self._body, 16) for n in itertools.islice(self._numbers, rows_max))
        return _Window(rows, int(rows[-1].key) + 1)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class _Window(msgspec.Struct):
    rows: tuple[events.Row, ...]
    position: int
    ended: bool = False


class Shared(InlineRuntime):
    """Runtime shared by all jobs; closing by one job leaves it to the others."""

    async def close(self) -> None:
        """Do nothing: other jobs still use the runtime."""

    async def close_all(self) -> None:
        """Close the runtime."""
        await super().close()


class _Session(Session):
    def __init__(self, runtime: Shared, order: JobSpec, **rest: Any) -> None:
        super().__init__(order, {}, **rest)
        self._shared = runtime

    async def _runtime(self, cluster: str) -> Any:
        return self._shared


def order(number: int, state: Path, given: argparse.Namespace, **more: Any) -> tuple[JobSpec, float]:
    """Return the job spec of one job with its weight."""
    weight = WEIGHTS[number % len(WEIGHTS)]
    limits = Limits(concurrency=given.concurrency, priority=weight)
    job = another("job")
    return JobSpec(program=Batch(), job=job, state=str(state), limits=limits, cluster=given.cluster, **more), weight


def judged(counts: dict[str, int], weights: dict[str, float], took_s: float) -> dict[str, float]:
    """Return calls a second of all jobs, and the worst and mean deviation of a share from its weight's."""
    total, all_weights = sum(counts.values()), sum(weights.values())
    off = [abs(counts.get(job, 0) / total / (weight / all_weights) - 1) for job, weight in weights.items()]
    by_weight = {w: sum(counts.get(job, 0) for job, weight in weights.items() if weight == w) for w in WEIGHTS}
    found = {"calls_per_s": round(total / took_s), "share_off_worst": round(max(off), 3),
             "share_off_mean": round(sum(off) / len(off), 3)}  # fmt: skip
    if len(weights) > 1:
        found["heavy_to_light"] = round(by_weight[WEIGHTS[1]] / by_weight[WEIGHTS[0]], 3)
    return found


def capped(state: Path, wish: ModelSpec, model: Any, concurrency: int) -> None:
    """Cap the pool's calls at once, as `cortex limit` does."""
    folder = StateFolder(str(state))
    folder.prepare()
    route = destination(wish, Limits(), {}, model).route
    pool = pool_name(route.endpoint, route.credential, route.model)
    overrides.put(folder, pool, PoolCaps(concurrency=concurrency, who="the benchmark"))


async def inline(jobs: int, state: Path, given: argparse.Namespace) -> dict[str, float]:
    """Run ``jobs`` jobs in this process."""
    model, runtime = Steady(given.latency_ms / 1e3), Shared()
    capped(state, ModelSpec(), model, given.concurrency)
    sessions, weights = [], {}
    for number in range(jobs):
        asked, weight = order(number, state, given)
        sessions.append(_Session(runtime, asked, source=Endless(asked.job), model=model))
        weights[asked.job] = weight
    running = [asyncio.create_task(session.run()) for session in sessions]
    try:
        began_s = time.monotonic()
        while len(model.answered) < jobs:
            if time.monotonic() - began_s > SETTLE_S or any(task.done() for task in running):
                raise Lost(f"of {jobs} jobs {len(model.answered)} were answered in {time.monotonic() - began_s:.0f} s")
            await asyncio.sleep(0.1)
        await asyncio.sleep(given.warm_s)
        before, began_s = Counter(model.answered), time.monotonic()
        await asyncio.sleep(given.seconds)
        counts, took_s = Counter(model.answered) - before, time.monotonic() - began_s
    finally:
        for session in sessions:
            with contextlib.suppress(Exception):
                await session.stop("drain", "the benchmark")
        ended = await asyncio.gather(*running, return_exceptions=True)
        await runtime.close_all()
    for session, each in zip(sessions, ended, strict=True):
        if isinstance(each, BaseException):
            raise each
        if each.facts["rows_succeeded"] != model.answered[session.job]:
            raise Lost(f"{session.job}: {model.answered[session.job]} answers, {each.facts['rows_succeeded']} results")
    return judged(counts, weights, took_s)


class _Rows:
    """Rows for `cortex.submit`."""

    sink = None

    def __init__(self, job: str) -> None:
        self.source = Endless(job)

    def begin(self, asked: JobSpec) -> None:
        """Do nothing."""

    def read(self, value: Any) -> Any:
        """Do nothing: results are not read."""
        return None

    def end(self, outcome: str) -> None:
        """Do nothing: no resource is held."""


def on_ray(jobs: int, state: Path, given: argparse.Namespace) -> dict[str, float]:
    """Run ``jobs`` jobs on the private Ray of this process."""
    spec = ModelSpec(
        model="sim", simulated=SimulatorSettings(error=0.0, latency_ms=given.latency_ms, latency_spread=0.0)
    )
    capped(state, spec, None, given.concurrency)
    running, weights = [], {}
    for number in range(jobs):
        asked, weight = order(number, state, given)
        weights[asked.job] = weight
        rows: Any = _Rows(asked.job)
        running.append(
            cortex.submit(Batch(), wish=spec, rows=rows, job=asked.job, state=str(state), cluster="local",
                          limits=asked.limits)
        )  # fmt: skip
    began_s = time.monotonic()
    while True:
        entries = [job.status() for job in running]
        if all(facts.get("rows_succeeded") for facts in entries):
            break
        for job, facts in zip(running, entries, strict=True):
            if facts["outcome"] == "interrupted":
                job.result()  # raises the job's error
        if time.monotonic() - began_s > SETTLE_S + 10 * jobs:
            raise Lost(f"not all of {jobs} jobs were answered in {time.monotonic() - began_s:.0f} s")
        time.sleep(0.5)
    time.sleep(given.warm_s)
    from_s = time.time()
    time.sleep(given.seconds)
    until_s = time.time()
    for job in running:
        job.drain()
    done = {job.name: job.result() for job in running}
    counts = {}
    for name, result in done.items():
        at_s = answered_at_s(state, name)
        if len(at_s) != result.facts["rows_succeeded"]:
            raise Lost(f"{name}: {len(at_s)} answers in the journal, {result.facts['rows_succeeded']} results")
        counts[name] = sum(from_s <= each < until_s for each in at_s)
    return judged(counts, weights, until_s - from_s)


def answered_at_s(state: Path, job: str) -> list[float]:
    """Return the times at which a job's answers were absorbed. Raises ``Lost`` where an answer came twice."""
    journal = StateFolder(str(state)).journal(job)
    try:
        found = [
            (turn.at_s, event.goal)
            for _, turn in journal.turns()
            for batch in turn.batches
            for event in batch
            if type(event) is events.Answered
        ]
    finally:
        journal.close()
    if len({goal for _, goal in found}) != len(found):
        raise Lost(f"{job}: an answer came twice")
    return [at_s for at_s, _ in found]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds; the numbers of jobs take turns."""
    counts = [int(each) for each in (given.jobs or ("1,10,200" if given.cluster == "inline" else "1,10")).split(",")]
    folder = Path(given.state)
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    found: dict[str, Any] = {
        "benchmark": "many_jobs", "machine": figures.machine(), "cluster": given.cluster,
        "concurrency": given.concurrency, "latency_ms": given.latency_ms,
        "limit_calls_per_s": round(given.concurrency / given.latency_ms * 1e3),
    }  # fmt: skip
    ray = PrivateRay() if given.cluster == "local" else None
    try:
        for round_ in range(given.rounds):
            for count in counts[round_ % len(counts) :] + counts[: round_ % len(counts)]:
                with tempfile.TemporaryDirectory(dir=folder) as state:
                    if ray is None:
                        with asyncio.Runner(loop_factory=new_loop) as runner:
                            each = runner.run(inline(count, Path(state), given))
                    else:
                        each = on_ray(count, Path(state), given)
                taken[count].append(each)
                figures.said(f"{count} jobs: {each}", given.json)
    finally:
        if ray is not None:
            ray.close()
    for count, rounds in taken.items():
        found[f"jobs_{count}"] = {name: figures.median([each[name] for each in rounds], 3) for name in rounds[0]}
    one = found[f"jobs_{counts[0]}"]["calls_per_s"]
    rates = {count: found[f"jobs_{count}"]["calls_per_s"] / one for count in counts}
    found["rate_to_one"] = {str(count): round(rate, 3) for count, rate in rates.items()}
    found["reached"] = reached(rates.values(), (each["share_off_worst"] for some in taken.values() for each in some))
    return found


def reached(rates: Iterable[float], shares_off: Iterable[float]) -> bool:
    """Return whether rates (as multiples of one job's) and worst shares of all rounds reach the goals. A rate far
    above one fails too: the one job had not found the pool's limit yet."""
    return all(abs(rate - 1) <= RATE_OFF_MAX for rate in rates) and max(shares_off) <= SHARE_OFF_MAX


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_jobs", description=__doc__)
    parser.add_argument("--jobs", default="", help="jobs at once, separated by commas; first: baseline")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", choices=("inline", "local"), default="inline")
    parser.add_argument("--concurrency", type=int, default=300, help="calls at once allowed by the pool")
    parser.add_argument("--latency-ms", type=float, default=500.0, help="milliseconds of an answer")
    parser.add_argument("--seconds", type=float, default=8.0, help="counted seconds")
    parser.add_argument("--warm-s", type=float, default=4.0, help="uncounted seconds after all jobs are at work")
    parser.add_argument("--state", default=tempfile.gettempdir(), help="folder on the disk to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args()
    settle()
    figures.tell(measure(given))


if __name__ == "__main__":
    main()
