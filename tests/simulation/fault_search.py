"""Search for planted faults in worlds that nobody chose: how many are run until the watch finds each fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest

from tests.simulation import (
    mutations_batches,  # noqa: F401 - registers its faults on import
    mutations_control,  # noqa: F401
    mutations_hostile,  # noqa: F401
    mutations_roles,  # noqa: F401
    mutations_time,  # noqa: F401
)
from tests.simulation.mutations import FAULTS, Fault
from tests.simulation.runner import live
from tests.simulation.scenario import LARGE_EVERY, plan
from tests.simulation.soak import across

SEEDS = 2_000
"""Seeds in which each fault must be found."""
FIRST = 600_000
"""First of these seeds. No fault was ever pinned to a seed near it, nor did a world of one ever fail."""


class Search(msgspec.Struct):
    """What became of the search for one fault."""

    name: str
    run: int
    """Worlds that were run."""
    seed: int = -1
    """Seed that found it; -1: none did."""
    told: str = ""
    """The watch's message."""

    @property
    def line(self) -> str:
        """Row of the table."""
        first_line = self.told.strip().splitlines()[0] if self.told else "NOT FOUND"
        return f"{self.name}: {self.run} worlds, {f'seed {self.seed}: ' if self.told else ''}{first_line[:110]}"


def worlds(fault: Fault, seeds: range) -> Iterator[int]:
    """Yield these seeds, those in which the fault is likely to show first, without worlds of a thousand branches."""
    small = [seed for seed in seeds if seed % LARGE_EVERY != LARGE_EVERY - 1]
    likely = {seed for seed in small if fault.likely(plan(seed))}
    yield from sorted(likely)
    yield from (seed for seed in small if seed not in likely)


def search(name: str, seeds: range, worlds_max: int = SEEDS) -> Search:
    """Plant a fault, and run these seeds until one finds it, likely ones first, without the seeds that are pinned to it.

    A world that also fails without the fault has found nothing.
    """
    fault, run = FAULTS[name], 0
    for seed in worlds(fault, seeds):
        if run == worlds_max:
            break
        run += 1
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            verdict = live(seed)
        if verdict.broken and not live(seed).broken:
            return Search(name, run, seed, verdict.broken)
    return Search(name, run)


def _search(task: tuple[str, int, int, int]) -> Search:
    name, first, seeds, worlds_max = task
    return search(name, range(first, first + seeds), worlds_max)


def searches(
    names: Iterable[str], cores: int, first: int = FIRST, seeds: int = SEEDS, worlds_max: int = SEEDS
) -> Iterator[Search]:
    """Search for each of these faults, and yield what was found, in their order."""
    return across(_search, [(name, first, seeds, worlds_max) for name in names], cores)


def told(names: Iterable[str], cores: int, first: int, seeds: int, worlds_max: int) -> int:
    """Print the table of these faults; return exit code 1 if one was not found."""
    missed = 0
    for found in searches(names or FAULTS, cores, first, seeds, worlds_max):
        print(found.line, flush=True)
        missed += not found.told
    return 1 if missed else 0
