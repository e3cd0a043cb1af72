"""Runs of many seeds on several cores."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.simulation.runner import Verdict, live
from tests.simulation.shrinking import shrunk_seed

SHOWN_MAX = 20
SHRUNK_MAX = 5
"""Failing seeds that are shrunk at the end, two minutes each at most."""
LOOK_EVERY_S = 10.0


def replay(seed: int) -> str:
    """Return the command that replays a seed."""
    return f"python -m tests.simulation {seed} --transcript"


def across(one: Callable[[Any], Any], many: Iterable[Any], cores: int, chunk: int = 1) -> Iterator[Any]:
    """Call ``one`` for each of ``many`` in separate, newly started processes.

    A forked process would inherit locks and signal handlers of threads that earlier tests left behind (Ray's among
    them), and might hang for ever. A pool that loses a process reports it at once.
    """
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, many, chunksize=chunk)


def verdicts(seeds: range, cores: int, one: Callable[[int], Verdict] = live, chunk: int = 4) -> Iterator[Verdict]:
    """Run these seeds and yield their verdicts."""
    return across(one, seeds, cores, chunk)


def _cpu_s() -> float:
    """Return the CPU time of all processes that have run seeds, in seconds: the machine may do other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def soak(first: int, count: int, cores: int) -> int:
    """Run ``count`` seeds and print the rate. Returns exit code 1 if one failed; the shortest script of each is printed.
    """
    began_s = told_s = time.monotonic()
    before_s = _cpu_s()
    done = failed = calls = deaths = 0
    wrong: list[int] = []
    virtual_s = 0.0
    for verdict in verdicts(range(first, first + count), cores):
        done += 1
        calls += verdict.calls
        deaths += verdict.deaths
        virtual_s += verdict.virtual_s
        if verdict.broken:
            failed += 1
            wrong.append(verdict.seed)
            if failed <= SHOWN_MAX:
                print(f"{replay(verdict.seed)}\n    {verdict.broken.strip().splitlines()[-1]}", flush=True)
        if time.monotonic() - told_s >= LOOK_EVERY_S:
            told_s = time.monotonic()
            rate = done / (told_s - began_s)
            print(f"{done} of {count} seeds, {rate * 3600:,.0f} an hour, {failed} failed", file=sys.stderr)
    took_s = time.monotonic() - began_s
    print(
        f"{done:,} seeds in {took_s:,.0f} s on {cores} {'core' if cores == 1 else 'cores'}: {done / took_s * 3600:,.0f} seeds"
        f" an hour, {(_cpu_s() - before_s) / max(1, done):.3f} s of CPU each, {calls:,} calls, {deaths:,} deaths, {virtual_s / 3600:,.1f} virtual hours, {failed} failed",
        flush=True,
    )
    for seed in wrong[:SHRUNK_MAX]:
        print(shrunk_seed(seed), flush=True)
    return 1 if failed else 0
