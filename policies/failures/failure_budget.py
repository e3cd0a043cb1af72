"""Failure budget of a job: the number of failed rows at which the job ends (`--max-failed`, or first rows failing
alike).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FINISHED_MIN: Final = 20
"""Finished rows below which no share is computed: one failure among the first two rows is not half of a million."""


def too_many_failed(rule: float | None, failed: int, finished: int) -> bool:
    """Return True if the bound is reached.

    `rule` from 1 up is a count of failed rows; below 1, a share of the finished rows, once there are `FINISHED_MIN` of
    them. None: no bound.
    """
    if rule is None:
        return False
    if rule >= 1:
        return failed >= rule
    return finished >= FINISHED_MIN and failed >= rule * finished


def all_alike(first: int, finished: int, failed: Mapping[str, int]) -> str:
    """Return the failure kind in which all finished rows ended, if at least `first` have finished; otherwise an empty
    text.

    Such failures are not caused by the rows. `failed` counts failed rows by kind; `first` 0 turns the check off. One
    good row ends the check for good, so the counts are all the state it needs.
    """
    if 0 < first <= finished:
        for kind, n in failed.items():
            if n == finished:
                return kind
    return ""
