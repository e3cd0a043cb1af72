"""Failure budget of a job: the number of failed rows at which the job ends (`--max-failed`, or first rows failing
alike).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

FINISHED_MIN: Final = 20
"""Finished rows below which no share is computed: one failure among the first two rows is not half of a million."""


def too_many_failed(rule: float | None, failed: int, finished: int, unreadable: int = 0, rows: int = 0) -> bool:
    """Return True if the bound is reached.

    `rule` from 1 up is a count of failed rows; below 1, a share of the finished rows, once there are `FINISHED_MIN` of
    them. None: no bound.

    `unreadable` records of the input count as failed rows; the input also has `rows` readable ones. A share counts as
    many of the unreadable records as fall to the finished rows. It is reached at once if the unreadable records alone
    reach it over the whole input, since no success can undo that.
    """
    if rule is None:
        return False
    if rule >= 1:
        return failed + unreadable >= rule
    rows = max(rows, finished)
    if unreadable and rows + unreadable >= FINISHED_MIN and unreadable >= rule * (rows + unreadable):
        return True
    if finished < FINISHED_MIN:
        return False
    passed = unreadable * finished / rows
    return failed + passed >= rule * (finished + passed)


def too_many_unreadable(rule: Fraction, unreadable: int, rows: int) -> bool:
    """Return True if more records of an input are unreadable than `rule` accepts.

    `rule` from 1 up is a count of records; below 1, a share of all records of the input; 0 accepts none. `rows`: the
    readable records.
    """
    return unreadable > (rule if rule >= 1 else rule * (unreadable + rows))


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
