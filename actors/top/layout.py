"""How tables and curves find room on a terminal: widths, heights, sparklines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

GAP = 2
"""Between two columns."""
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".:-=+*#%"


class Column(msgspec.Struct, frozen=True):
    """One column of a table. Of those that do not fit beside each other the highest ranks are left out."""

    title: str
    rank: int = 0
    right: bool = False
    """Its texts end at its right edge: numbers."""
    width_max: int = 60
    """A longer text is cut."""
    width_least: int = 12
    """So much of a text is kept where there is little room, if it is shown at all."""


class TableRow(msgspec.Struct, frozen=True):
    """One row: what it is called, its cells, how it is meant, and all that is known of it."""

    key: str
    cells: tuple[str, ...]
    level: str = ""
    """``good``, ``warn``, ``bad``, ``dim`` or nothing. It only repeats what a word in the row says."""
    details: tuple[tuple[str, str], ...] = ()
    about: str = ""
    """The most that one line can say of it: what it waits for, why it is as it is."""


class TopTable(msgspec.Struct, frozen=True):
    """Rows of one kind. ``name`` is for programs, ``none`` stands there where there are no rows."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    none: str = ""


class SignalCurve(msgspec.Struct, frozen=True):
    """One signal, second by second, the newest last; and what it is now, in words."""

    label: str
    values: tuple[float, ...]
    now: str


def columns_shown(table: TopTable, width: int) -> list[tuple[int, int]]:
    """(place, width) of the columns that fit beside each other, in their order. The first is always there.

    What is left over goes to the column of the lowest rank that was cut.
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
    """Numbers are never cut."""
    column = table.columns[place]
    return wanted if column.right else min(wanted, max(len(column.title), column.width_least))


def _wanted(table: TopTable, place: int) -> int:
    column = table.columns[place]
    longest = max((len(row.cells[place]) for row in table.rows), default=0)
    return min(max(longest, len(column.title)), column.width_max)


def cell(text: str, width: int, right: bool = False) -> str:
    """A text in exactly so many columns; one that is cut ends in a mark."""
    text = text if len(text) <= width else text[: max(0, width - 1)] + "…"
    return text.rjust(width) if right else text.ljust(width)


def heights(room: int, wanted: Mapping[str, int], first: str = "", least: int = 2) -> dict[str, int]:
    """Lines for each section out of ``room``: ``first`` gets what it wants before the others, then all in their order.

    Each gets ``least`` lines before any gets more; sections at the end get none where not even that is there.
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


def spark(values: Sequence[float], width: int, plain: bool = False) -> str:
    """A curve in one line of characters, the newest at the right edge. The highest bar is the highest value; a second
    without anything is blank. Where there are more seconds than columns, a column shows the highest of its seconds."""
    bars = _ASCII_LEVELS if plain else _BARS
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
