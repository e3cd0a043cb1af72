"""Which few rows stand for all of them?

Rows are cut into strata by the size of their prompts, and from each a few are drawn by chance: short and long ones are
all heard of (stratified sampling; Cochran, Sampling Techniques, 3rd ed. 1977, chapter 5). A stratum is an equal part of
the rows and of their bytes together, half of each: cut by rows alone, the few long rows that make up much of a bill
would hardly be drawn; cut by bytes alone, the many short ones would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

STRATA_MAX: Final = 8
ROWS_LEAST: Final = 4
"""Rows drawn from a stratum, where there are so many: with fewer, how much they differ is a guess."""


class Stratum(msgspec.Struct, frozen=True):
    """Rows of about one size, and those that were drawn of them: their places among all rows, ascending."""

    rows: int
    drawn: tuple[int, ...]

    @property
    def weight(self) -> float:
        """Rows that each of the drawn stands for."""
        return self.rows / len(self.drawn)


def drawn(sizes: Sequence[int], wanted: int, draw: Callable[[], float]) -> tuple[Stratum, ...]:
    """So many rows in their strata, or all of them where there are no more. ``draw`` gives numbers in [0, 1).

    None for no rows. Raises ValueError for less than one row wanted.
    """
    if wanted < 1:
        raise ValueError(f"a sample has 1 row or more, not {wanted}")
    if not sizes:
        return ()
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    parts = _cut(order, sizes, max(1, min(STRATA_MAX, wanted // ROWS_LEAST)))
    counts = _shared_out([len(part) for part in parts], wanted)
    return tuple(
        Stratum(len(part), tuple(sorted(part[place] for place in _some(len(part), count, draw))))
        for part, count in zip(parts, counts, strict=True)
        if count
    )


def _cut(order: list[int], sizes: Sequence[int], parts: int) -> list[list[int]]:
    """The rows, in order of size, in so many parts of equal measure, fewer where rows are few."""
    per_row, per_byte = 1 / len(order), 1 / max(sum(sizes), 1)
    found: list[list[int]] = []
    begin, measure = 0, 0.0
    for place, row in enumerate(order, 1):
        measure += per_row + per_byte * sizes[row]
        if measure >= 2 * (len(found) + 1) / parts - 1e-9 and len(found) < parts - 1:
            found.append(order[begin:place])
            begin = place
    if begin < len(order):
        found.append(order[begin:])
    return found


def _shared_out(rows: list[int], wanted: int) -> list[int]:
    """How many are drawn of each: equal parts, all where there are fewer, and what is left over goes to the others."""
    counts = [0] * len(rows)
    left = min(wanted, sum(rows))
    while left:
        open_ = [place for place, most in enumerate(rows) if counts[place] < most]
        each, more = divmod(left, len(open_))
        for rank, place in enumerate(reversed(open_)):  # the longest rows first: they differ most
            counts[place] += min(each + (rank < more), rows[place] - counts[place])
        left = min(wanted, sum(rows)) - sum(counts)
    return counts


def _some(rows: int, count: int, draw: Callable[[], float]) -> set[int]:
    """So many different numbers below ``rows``, each set as likely as any (Floyd; Bentley and Floyd, CACM 30, 1987)."""
    found: set[int] = set()
    for last in range(rows - count, rows):
        place = int(draw() * (last + 1))
        found.add(last if place in found else place)
    return found
