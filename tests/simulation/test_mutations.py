"""Proof that the simulation can fail: every planted fault is found in a world that found it before, or within 500
worlds; and within 2,000 seeds of which nobody knows anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.simulation.fault_search import FIRST, SEEDS, searches
from tests.simulation.mutations import FAULTS, catch
from tests.simulation.soak import across
from tests.simulation.test_seeds import FAILED_ONCE

WORLDS = 500
OWN_FAULT = re.compile(r"\b(Type|Attribute|Name|Import|Key|Index|Value)Error\b")
CORES = 2


def _catch(name: str) -> tuple[str, int, str]:
    return catch(name, WORLDS)


@pytest.mark.long
def test_every_planted_fault_is_caught(tell: Callable[[str], None]) -> None:
    assert len(FAULTS) >= 104
    found = list(across(_catch, FAULTS, CORES))
    missed = [f"{name}: {FAULTS[name].rule}" for name, seed, _ in found if seed < 0]
    assert not missed, "\n".join(missed)
    by_chance = [f"{name}: {answer.splitlines()[0]}" for name, _, answer in found if OWN_FAULT.search(answer)]
    assert not by_chance, "the planted code does not fit what it is planted in any more:\n" + "\n".join(by_chance)
    tell("\n".join(f"{name}: seed {seed}: {answer.splitlines()[0]}" for name, seed, answer in sorted(found)))


def test_no_fault_is_pinned_to_a_seed_in_which_it_is_searched_for() -> None:
    pinned = {*FAILED_ONCE, *(seed for fault in FAULTS.values() for seed in fault.seeds)}
    assert not pinned.intersection(range(FIRST, FIRST + SEEDS))


@pytest.mark.release
def test_every_planted_fault_is_found_within_2000_seeds_that_nobody_chose(tell: Callable[[str], None]) -> None:
    found = list(searches(FAULTS, CORES))
    tell("\n".join(each.line for each in found))
    missed = [f"{each.line}: {FAULTS[each.name].rule}" for each in found if not each.told]
    assert not missed, "\n".join(missed)
    by_chance = [each.line for each in found if OWN_FAULT.search(each.told)]
    assert not by_chance, "the planted code does not fit what it is planted in any more:\n" + "\n".join(by_chance)
