"""After how many quiet rounds something is done about them, and what: a table."""

from __future__ import annotations

import pytest

from policies.decisions.stagnation import Patience, Step, next_step


@pytest.mark.parametrize(
    ("quiet", "reframed", "patience", "step"),
    [
        (0, 0, Patience(3, 1), Step.GO_ON),
        (2, 0, Patience(3, 1), Step.GO_ON),
        (3, 0, Patience(3, 1), Step.REFRAME),
        (0, 1, Patience(3, 1), Step.GO_ON),
        (2, 1, Patience(3, 1), Step.GO_ON),
        (3, 1, Patience(3, 1), Step.STOP),
        (4, 1, Patience(3, 1), Step.STOP),
        (3, 0, Patience(3, 0), Step.STOP),
        (3, 1, Patience(3, 2), Step.REFRAME),
        (3, 2, Patience(3, 2), Step.STOP),
        (1, 0, Patience(1, 1), Step.REFRAME),
        (1, 1, Patience(1, 1), Step.STOP),
    ],
)
def test_go_on_reframe_or_stop(quiet, reframed, patience, step):
    assert next_step(quiet, reframed, patience) is step


@pytest.mark.parametrize("numbers", [(0, 1), (-1, 0), (3, -1)])
def test_patience_that_makes_no_sense_is_refused(numbers):
    with pytest.raises(ValueError, match="must be"):
        Patience(*numbers)
