"""Lines and tables of text on standard output: one line for each, whatever the texts of others hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from cortex.values.display import clipped, one_line

CELL_MAX: Final = 200
"""Most characters of a cell: a name of others may have any number, and each line of the table would be as wide."""

LINE_MAX: Final = 2_000
"""Most characters of a line: about as many as the longest name of a row, 2,048, of which a list has the beginning."""


def bounded_line(text: str) -> str:
    """Return a text of which no part can pass for a line of ours: further lines are indented, and it is cut to
    ``LINE_MAX`` characters."""
    return one_line(text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield the lines of a table whose columns are aligned, those in ``right`` to the right.

    A cell is shown on one line and cut to ``CELL_MAX`` characters: no name of others makes a line of its own.
    """
    table = [[clipped(text, CELL_MAX) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            text.rjust(width) if column in right else text.ljust(width) for column, (text, width) in enumerate(cells)
        ).rstrip()
