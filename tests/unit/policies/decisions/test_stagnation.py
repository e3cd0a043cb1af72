"""After how many quiet rounds something is done about them, and what: a table."""

from __future__ import annotations

import pytest

from policies.decisions.stagnation import StagnationPolicy, StagnationStep, next_step


@pytest.mark.parametrize(
    ("quiet", "reframed", "patience", "step"),
    [
        (0, 0, StagnationPolicy(3, 1), StagnationStep.GO_ON),
        (2, 0, StagnationPolicy(3, 1), StagnationStep.GO_ON),
        (3, 0, StagnationPolicy(3, 1), StagnationStep.REFRAME),
        (0, 1, StagnationPolicy(3, 1), StagnationStep.GO_ON),
        (2, 1, StagnationPolicy(3, 1), StagnationStep.GO_ON),
        (3, 1, StagnationPolicy(3, 1), StagnationStep.STOP),
        (4, 1, StagnationPolicy(3, 1), StagnationStep.STOP),
        (3, 0, StagnationPolicy(3, 0), StagnationStep.STOP),
        (3, 1, StagnationPolicy(3, 2), StagnationStep.REFRAME),
        (3, 2, StagnationPolicy(3, 2), StagnationStep.STOP),
        (1, 0, StagnationPolicy(1, 1), StagnationStep.REFRAME),
        (1, 1, StagnationPolicy(1, 1), StagnationStep.STOP),
    ],
)
def test_go_on_reframe_or_stop(quiet, reframed, patience, step):
    assert next_step(quiet, reframed, patience) is step


@pytest.mark.parametrize("numbers", [(0, 1), (-1, 0), (3, -1)])
def test_patience_that_makes_no_sense_is_refused(numbers):
    with pytest.raises(ValueError, match="must be"):
        StagnationPolicy(*numbers)
