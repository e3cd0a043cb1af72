"""Runs of many seeds on several cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NoReturn

from tests.simulation.runner import Verdict, live
from tests.simulation.shrinking import shrunk_seed

SHOWN_MAX = 20
SHRUNK_MAX = 5
"""Failing seeds that are shrunk at the end, two minutes each at most."""
LOOK_EVERY_S = 10.0


def replay(seed: int) -> str:
    """Return the command that replays a seed."""
    return f"python -m tests.simulation {seed} --transcript"


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, however it ended, and leave Ctrl-C to the parent.

    A worker of a pool waits for work for ever when its parent was killed: the pipe that it reads has its other end in
    the other workers too. The pipe that `multiprocessing` keeps for the purpose is held by the parent alone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a process that was started by another has to end with it"

    def watch() -> NoReturn:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def across(one: Callable[[Any], Any], many: Iterable[Any], cores: int, chunk: int = 1) -> Generator[Any, None, None]:
    """Call ``one`` for each of ``many`` in separate, newly started processes. They end when the iterator is closed.

    A forked process would inherit locks and signal handlers of threads that earlier tests left behind (Ray's among
    them), and might hang for ever. A pool that loses a process reports it at once.
    """
    others, asked = set(multiprocessing.active_children()), list(many)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=end_with_parent) as pool:
        try:
            parts = deque(pool.submit(_each, one, asked[at : at + chunk]) for at in range(0, len(asked), chunk))
            while parts:
                yield from parts.popleft().result()
        except BaseException:  # nobody waits for what is under way
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


def _each(one: Callable[[Any], Any], some: list[Any]) -> list[Any]:
    return [one(each) for each in some]


def verdicts(
    seeds: range, cores: int, one: Callable[[int], Verdict] = live, chunk: int = 4
) -> Generator[Verdict, None, None]:
    """Run these seeds and yield their verdicts."""
    return across(one, seeds, cores, chunk)


def _cpu_s() -> float:
    """Return the CPU time of all processes that have run seeds, in seconds: the machine may do other work."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Stopped(BaseException):
    """Signal that ends a soak, whatever code is running."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Context in which the first SIGINT or SIGTERM raises ``Stopped`` with its number; a second one does what it did
    before.
    """
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def stop(number: int, frame: object) -> NoReturn:
        restore()
        raise Stopped(number)

    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        restore()


def soak(first: int, count: int, cores: int) -> int:
    """Run ``count`` seeds and print the rate.

    Returns exit code 1 if one failed; the shortest script of each is printed. After SIGINT or SIGTERM the rate so far is
    printed, and the exit code is 130 or 143.
    """
    began_s = told_s = time.monotonic()
    before_s = _cpu_s()
    done = failed = calls = deaths = stopped = 0
    wrong: list[int] = []
    virtual_s = 0.0
    try:
        with stoppable(), contextlib.closing(verdicts(range(first, first + count), cores)) as found:
            for verdict in found:
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
    except Stopped as signalled:
        stopped = signalled.args[0]
    took_s = time.monotonic() - began_s
    print(
        f"{f'stopped: {done:,} of {count:,}' if stopped else f'{done:,}'} seeds in {took_s:,.0f} s on {cores}"
        f" {'core' if cores == 1 else 'cores'}: {done / took_s * 3600:,.0f} seeds an hour,"
        f" {(_cpu_s() - before_s) / max(1, done):.3f} s of CPU each, {calls:,} calls, {deaths:,} deaths,"
        f" {virtual_s / 3600:,.1f} virtual hours, {failed} failed",
        flush=True,
    )
    if stopped:
        return 128 + stopped
    for seed in wrong[:SHRUNK_MAX]:
        print(shrunk_seed(seed), flush=True)
    return 1 if failed else 0
