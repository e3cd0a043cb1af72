"""Layout of tables and curves on a terminal: widths, heights, sparklines. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

GAP = 2
"""Blank columns between two columns of a table."""
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".:-=+*#%"


class Column(msgspec.Struct, frozen=True):
    """Column of a table. If columns do not fit beside each other, those of the highest ranks are left out."""

    title: str
    rank: int = 0
    right: bool = False
    """True to align texts at the right edge, as for numbers."""
    width_max: int = 60
    """Most characters of a text; longer ones are cut."""
    width_least: int = 12
    """Least width of a shown column where room is short."""


class TableRow(msgspec.Struct, frozen=True):
    """Row of a table: its key, cells, level and details."""

    key: str
    cells: tuple[str, ...]
    level: str = ""
    """``good``, ``warn``, ``bad``, ``dim`` or empty. The level only repeats a word of the row."""
    details: tuple[tuple[str, str], ...] = ()
    about: str = ""
    """Longest one-line description: the reason of a wait or of the state."""


class TopTable(msgspec.Struct, frozen=True):
    """Rows of one kind. ``name``: name for programs. ``none``: text shown if there are no rows."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    none: str = ""


class SignalCurve(msgspec.Struct, frozen=True):
    """Signal by second, the newest value last, and its present value as text."""

    label: str
    values: tuple[float, ...]
    now: str


def columns_shown(table: TopTable, width: int) -> list[tuple[int, int]]:
    """Return (place, width) of the columns that fit beside each other, in their order. The first column is always
    shown.

    Room that is left goes to cut columns, the lowest rank first.
    """
    wanted = [_wanted(table, place) for place in range(len(table.columns))]
    shown: list[int] = []
    used = 0
    for place in sorted(range(len(wanted)), key=lambda place: table.columns[place].rank):
        least = _least(table, place, wanted[place])
        needs = least + (GAP if shown else 0)
        if shown and used + needs > width:
            continue
        shown.append(place)
        used += needs
    spare = max(0, width - used)
    given = {}
    for place in shown:
        least = _least(table, place, wanted[place])
        more = min(spare, wanted[place] - least)
        given[place], spare = least + more, spare - more
    return [(place, min(given[place], width)) for place in sorted(shown)]


def _least(table: TopTable, place: int, wanted: int) -> int:
    """Return the least width of a column; numbers are never cut."""
    column = table.columns[place]
    return wanted if column.right else min(wanted, max(len(column.title), column.width_least))


def _wanted(table: TopTable, place: int) -> int:
    column = table.columns[place]
    longest = max((len(row.cells[place]) for row in table.rows), default=0)
    return min(max(longest, len(column.title)), column.width_max)


def cell(text: str, width: int, right: bool = False) -> str:
    """Return a text in exactly ``width`` columns; a cut text ends in an ellipsis."""
    text = text if len(text) <= width else text[: max(0, width - 1)] + "…"
    return text.rjust(width) if right else text.ljust(width)


def heights(room: int, wanted: Mapping[str, int], first: str = "", least: int = 2) -> dict[str, int]:
    """Return the lines of each section out of ``room``: ``first`` gets its wanted lines before the others.

    Each section gets ``least`` lines before any gets more; the last ones get none if room is too short.
    """
    given = dict.fromkeys(wanted, 0)
    for name in _order(wanted, first):
        given[name] = min(least, wanted[name]) if room >= min(least, wanted[name]) else 0
        room -= given[name]
    for name in _order(wanted, first):
        if given[name]:
            more = min(room, wanted[name] - given[name])
            given[name] += more
            room -= more
    return given


def _order(wanted: Mapping[str, int], first: str) -> list[str]:
    return sorted(wanted, key=lambda name: name != first)


def spark(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """Return a curve as one line of characters, the newest value at the right edge.

    The highest bar is the highest value; zero is blank. With more values than columns, a column shows the highest of
    its values.
    """
    bars = _ASCII_LEVELS if ascii_only else _BARS
    if width <= 0:
        return ""
    if len(values) > width:
        each = -(-len(values) // width)
        skip = len(values) % each
        parts = [values[:skip]] if skip else []
        parts += [values[at : at + each] for at in range(skip, len(values), each)]
        values = [max(part) for part in parts]
    top = max(values, default=0.0)
    drawn = [" " if value <= 0 else bars[min(len(bars) - 1, int(value / top * len(bars)))] for value in values]
    return "".join(drawn).rjust(width)
