"""Have so many rows failed that the job should end? (`--max-failed`, and the first rows failing alike.)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FINISHED_MIN: Final = 20
"""Fewer finished rows are too few to speak of a share: one failure among the first two is no half of a million."""


def too_many_failed(rule: float | None, failed: int, finished: int) -> bool:
    """Is the bound reached? `rule` from 1 up is a count of failed rows; below 1, a share of the finished ones, once
    there are `FINISHED_MIN` of them. Without a rule, never.
    """
    if rule is None:
        return False
    if rule >= 1:
        return failed >= rule
    return finished >= FINISHED_MIN and failed >= rule * finished


def all_alike(first: int, finished: int, failed: Mapping[str, int]) -> str:
    """The kind of failure that all the finished rows ended in, the first `first` and those that came home since;
    empty where there is no such.

    Whatever is wrong then, it is not the rows. `failed` counts rows by kind; `first` 0 asks nothing. One good row ends
    the question for good, so that the counts are all the memory it needs.
    """
    if 0 < first <= finished:
        for kind, n in failed.items():
            if n == finished:
                return kind
    return ""
