"""Output of one screen of ``top`` as text, for a pipe, a log or a simple terminal."""

from __future__ import annotations

from textwrap import wrap

from actors.top.layout import GAP, SignalCurve, TopTable, cell, columns_shown, spark
from actors.top.view import Screen

SPARK_WIDTH = 60


def lines(shown: Screen, width: int, ascii_only: bool = False) -> list[str]:
    """Return the lines of the screen, cut to ``width``. ``ascii_only``: use ASCII characters only."""
    texts = [f"{shown.title}  {shown.where}"]
    if shown.trouble:
        texts.append(shown.trouble)
    for table in shown.tables:
        if not table.rows and not table.none:
            continue
        texts += ["", *table_lines(table, width)]
        for row in table.rows:
            if table.name == "jobs" and row.level == "warn" and row.about:
                texts += ["", *wrap(row.about, width)]
        if table.name != "routes":
            continue
        for row in table.rows:
            found = shown.curves.get(row.key, ())
            if any(any(curve.values) for curve in found):
                texts += ["", *curve_lines(row.cells[0], found, width, ascii_only)]
    return [line.rstrip()[:width] for line in texts]


def table_lines(table: TopTable, width: int) -> list[str]:
    """Return the lines of a table, below its titles."""
    if not table.rows:
        return [table.none]
    shown = columns_shown(table, width)
    gap = " " * GAP
    titles = [cell(table.columns[place].title, wide, table.columns[place].right) for place, wide in shown]
    texts = [gap.join(titles)]
    for row in table.rows:
        texts.append(gap.join(cell(row.cells[place], wide, table.columns[place].right) for place, wide in shown))
    return texts


def curve_lines(title: str, curves: tuple[SignalCurve, ...], width: int, ascii_only: bool = False) -> list[str]:
    """Return the lines of curves: label, curve, present value."""
    label = max((len(curve.label) for curve in curves), default=0)
    now = max((len(curve.now) for curve in curves), default=0)
    room = min(SPARK_WIDTH, width - label - now - 4)
    texts = [f"{title}: the last minute, second by second"]
    for curve in curves:
        drawn = spark(curve.values, room, ascii_only) if room > 0 else ""
        texts.append(f"{curve.label.ljust(label)}  {drawn}  {curve.now.rjust(now)}")
    return texts
