"""Shrinking of a failing world: the shortest script, of jobs and faults, in which the same thing goes wrong."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import msgspec

from tests.simulation.runner import Verdict, live
from tests.simulation.scenario import BatchingPlan, JobPlan, Plan, ProviderPlan, Trouble, plan

RUNS_MAX = 400
"""Worlds that are tried at most."""
WITHIN_S = 120.0
"""Seconds after which shrinking ends with what it has."""

Run = Callable[[Plan], Verdict]


def shrunk(made: Plan, run: Run | None = None, within_s: float = WITHIN_S) -> tuple[Plan, int]:
    """Return the smallest plan found that breaks like ``made``, and the number of worlds that were tried.

    Greedy: whatever can be left out, or set to its default, without losing the complaint, is; until nothing more can
    be. A world's other random draws change with it, so a smaller one may be there that is not found.
    """
    run = run or (lambda each: live(each.seed, made=each))
    wanted, until_s = complaint(run(copy.deepcopy(made))), time.monotonic() + within_s
    tried = 1
    if not wanted:
        return made, tried
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(made):
            if tried >= RUNS_MAX or time.monotonic() > until_s:
                return made, tried
            tried += 1
            if complaint(run(copy.deepcopy(candidate))) == wanted:
                made, smaller = candidate, True
                break
    return made, tried


def complaint(verdict: Verdict) -> str:
    """Return what is broken without its numbers and names of rows, to recognise it in another world; empty if nothing
    is.
    """
    lines = verdict.broken.strip().splitlines()
    return re.sub(r"'[^']*'|\d+(\.\d+)?", "#", lines[0].partition(": ")[2] or lines[-1]) if lines else ""


def _candidates(made: Plan) -> Iterator[Plan]:
    """Yield plans that are a little smaller, those that leave out most first."""
    for keep in _parts(made.troubles_at):
        yield _with(made, troubles_at=keep)
    if len(made.jobs) > 1:
        for place in range(len(made.jobs)):
            yield _with(made, jobs=made.jobs[:place] + made.jobs[place + 1 :])
    for name, value in (("trouble", 0.0), ("idle_s", 0.0), ("branches", 1), ("workers", 1), ("nodes", 1),
                        ("apart", False), ("pool_cap", 0)):  # fmt: skip
        if getattr(made, name) != value:
            yield _with(made, **{name: value})
    for name, value in (("provider", ProviderPlan(made.provider.latency_s)), ("batching", BatchingPlan())):
        if getattr(made, name) != value:
            yield _with(made, **{name: value})
    for place, job in enumerate(made.jobs):
        for changed in _smaller_jobs(job):
            yield _with(made, jobs=[*made.jobs[:place], changed, *made.jobs[place + 1 :]])


def _parts(troubles: list[Trouble]) -> Iterator[list[Trouble]]:
    """Yield lists without a half, a quarter, …, and at last without one."""
    size = len(troubles)
    while size:
        for at in range(0, len(troubles), size):
            yield troubles[:at] + troubles[at + size :]
        size //= 2


def _smaller_jobs(job: JobPlan) -> Iterator[JobPlan]:
    for rows in (job.rows // 2, job.rows - 1):
        if 0 < rows < job.rows:
            yield _with(job, rows=rows)
    plain = JobPlan(job.name)
    for field in fields(JobPlan):
        if field.name not in ("name", "rows", "program", "concurrency", "window_rows") and (
            getattr(job, field.name) != (value := getattr(plain, field.name))
        ):
            yield _with(job, **{field.name: value})


def _with(made: Any, **changed: Any) -> Any:
    other = copy.copy(made)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def script(made: Plan) -> str:
    """Return a plan as text: what differs from the defaults, and each fault with its time."""
    lines = [f"world {made.seed}{_differences(made, Plan(made.seed))}"]
    lines += [f"  job {job.name}{_differences(job, JobPlan(job.name))}" for job in made.jobs]
    lines += [f"  provider{_differences(made.provider, ProviderPlan())}", f"  batches{_differences(made.batching, BatchingPlan())}"]
    lines += [
        f"  {each.at_s:8.3f} s  {each.kind} {each.target} for {each.for_s:g} s, {each.amount:.3f}"
        for each in made.troubles_at
    ]
    return "\n".join(lines)


def _differences(made: Any, plain: Any) -> str:
    named = [
        f"{field.name}={getattr(made, field.name)!r}" for field in fields(made)
        if field.name not in ("seed", "name", "jobs", "provider", "batching", "troubles_at")
        and getattr(made, field.name) != getattr(plain, field.name)
    ]  # fmt: skip
    return f": {', '.join(named)}" if named else ""


def encoded(made: Plan) -> bytes:
    """Return a plan as JSON, for ``python -m tests.simulation --script FILE``."""
    return msgspec.json.encode(made)


def decoded(blob: bytes) -> Plan:
    """Return the plan of a JSON text."""
    return msgspec.json.decode(blob, type=Plan)


def shrunk_seed(seed: int, within_s: float = WITHIN_S) -> str:
    """Shrink a failing seed; return the script, how it was found, and its JSON."""
    made, tried = shrunk(plan(seed), within_s=within_s)
    return f"{script(made)}\n  shortest of {tried} worlds; as JSON: {encoded(made).decode()}"
