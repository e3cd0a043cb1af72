"""Stratified sample of rows by prompt size.

Rows are divided into strata by the size of their prompts, and a few rows are drawn at random from each, so short and
long rows are both represented (stratified sampling; Cochran, Sampling Techniques, 3rd ed. 1977, chapter 5). A stratum
is an equal part of rows and bytes together, weighted half and half: by rows alone, the few long rows that make up much
of a bill would hardly be drawn; by bytes alone, the many short rows would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

STRATA_MAX: Final = 8
"""Largest number of strata."""
ROWS_LEAST: Final = 4
"""Rows drawn from a stratum, if it has as many: with fewer, the estimate of their variance is a guess."""


class Stratum(msgspec.Struct, frozen=True):
    """Rows of similar size: their number, and the positions of the drawn rows among all rows, ascending."""

    rows: int
    drawn: tuple[int, ...]

    @property
    def weight(self) -> float:
        """Number of rows that each drawn row represents."""
        return self.rows / len(self.drawn)


def drawn(sizes: Sequence[int], wanted: int, draw: Callable[[], float]) -> tuple[Stratum, ...]:
    """Draw ``wanted`` rows in strata, or all rows if there are no more. ``draw`` returns numbers in [0, 1).

    Returns no strata for no rows. Raises ValueError if ``wanted`` is below 1.
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
    """Divide the rows, in order of size, into ``parts`` of equal measure; fewer if there are few rows."""
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
    """Number of rows drawn from each stratum: equal parts, or all rows of a small stratum; the remainder goes to the
    others.
    """
    counts = [0] * len(rows)
    left = min(wanted, sum(rows))
    while left:
        open_ = [place for place, most in enumerate(rows) if counts[place] < most]
        each, more = divmod(left, len(open_))
        for rank, place in enumerate(reversed(open_)):  # longest rows first: their variance is largest
            counts[place] += min(each + (rank < more), rows[place] - counts[place])
        left = min(wanted, sum(rows)) - sum(counts)
    return counts


def _some(rows: int, count: int, draw: Callable[[], float]) -> set[int]:
    """Draw ``count`` distinct numbers below ``rows``, all sets equally likely (Floyd; Bentley and Floyd, CACM 30,
    1987).
    """
    found: set[int] = set()
    for last in range(rows - count, rows):
        place = int(draw() * (last + 1))
        found.add(last if place in found else place)
    return found
