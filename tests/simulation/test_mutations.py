"""Proof that the simulation can fail: every planted fault is found in a world that found it before, or within 500
worlds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.simulation import (
    mutations_batches,  # noqa: F401 - registers its faults on import
    mutations_control,  # noqa: F401
    mutations_hostile,  # noqa: F401
    mutations_roles,  # noqa: F401
    mutations_time,  # noqa: F401
)
from tests.simulation.mutations import FAULTS, catch
from tests.simulation.soak import across

SEEDS = 500
OWN_FAULT = re.compile(r"\b(Type|Attribute|Name|Import|Key|Index|Value)Error\b")
CORES = 2


def _catch(name: str) -> tuple[str, int, str]:
    return catch(name, SEEDS)


@pytest.mark.long
def test_every_planted_fault_is_caught(tell: Callable[[str], None]) -> None:
    assert len(FAULTS) >= 97
    found = list(across(_catch, FAULTS, CORES))
    missed = [f"{name}: {FAULTS[name].rule}" for name, seed, _ in found if seed < 0]
    assert not missed, "\n".join(missed)
    by_chance = [f"{name}: {answer.splitlines()[0]}" for name, _, answer in found if OWN_FAULT.search(answer)]
    assert not by_chance, "the planted code does not fit what it is planted in any more:\n" + "\n".join(by_chance)
    tell("\n".join(f"{name}: seed {seed}: {answer.splitlines()[0]}" for name, seed, answer in sorted(found)))
