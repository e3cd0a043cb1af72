"""Have too many rows failed for the job to go on? (`--max-failed`, and the first rows failing alike.)"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class FailedMax(msgspec.Struct, frozen=True):
    """How many rows may fail: a count or a share. Raises ValueError, one line, for what is neither."""

    count: int | None = None
    share: float | None = None
    """Of the finished rows, above 0 and below 1."""
    finished_min: int = 20
    """Fewer finished rows are too few to speak of a share."""

    def __post_init__(self) -> None:
        if (self.count is None) == (self.share is None):
            raise ValueError("how many rows may fail is a count or a share, one of them")
        if self.count is not None and self.count < 0:
            raise ValueError(f"how many rows may fail must be 0 or more, not {self.count}")
        if self.share is not None and not 0 < self.share < 1:
            raise ValueError(f"the share of rows that may fail must be above 0 and below 1, not {self.share}")
        if self.finished_min < 1:
            raise ValueError(f"a share is of 1 finished row or more, not of {self.finished_min}")


def parse_failed_max(text: str) -> FailedMax:
    """`25` is a count; `5%` and `0.05` are a share. Raises ValueError, one line, for anything else."""
    shown = text.strip()
    try:
        if shown.endswith("%"):
            return FailedMax(share=float(shown[:-1]) / 100)
        return FailedMax(share=float(shown)) if "." in shown else FailedMax(count=int(shown))
    except ValueError as error:
        raise ValueError(f"{text!r} is no number of rows (25) and no share of them (5% or 0.05): {error}") from None


def too_many_failed(rule: FailedMax | None, failed: int, finished: int) -> bool:
    """Did more of the finished rows fail than may? Without a rule, never."""
    if rule is None:
        return False
    if rule.count is not None:
        return failed > rule.count
    assert rule.share is not None
    return finished >= rule.finished_min and failed > rule.share * finished


def all_alike(first: int, finished: int, failed: Mapping[str, int]) -> str:
    """The kind of failure that all of the first `first` finished rows ended in; empty where there is no such.

    Whatever is wrong then, it is not the rows. `failed` counts rows by kind; `first` 0 asks nothing. After the first
    good row it is over for good, so the answer needs no memory beyond the counts.
    """
    if 0 < first <= finished:
        for kind, n in failed.items():
            if n == finished:
                return kind
    return ""
