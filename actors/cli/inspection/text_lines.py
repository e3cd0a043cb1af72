"""Lines of text on standard output: wrapped on a terminal, unformatted elsewhere."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from actors.common.terminal import console
from actors.common.text_table import bounded_line

_LABEL = 12


def time_of(at_s: float) -> str:
    """Return the local time of day, to the millisecond."""
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


class OutputLines:
    """Printer of lines: wrapped and styled on a terminal, plain text elsewhere."""

    def __init__(self) -> None:
        self._console: Any = None
        if sys.stdout.isatty():
            self._console = console(highlight=False)

    def line(self, style: str, indent: int, text: str) -> None:
        """Print a line. A name in it that has lines of its own makes none here."""
        text = bounded_line(text)
        if self._console is None:
            print(" " * indent + text)
            return
        from rich.padding import Padding
        from rich.text import Text

        self._console.print(Padding(Text(text, style=style), (0, 0, 0, indent)))

    def labelled(self, label: str, text: str) -> None:
        """Print a text beside its label; further lines are indented below the first."""
        margin = 4 + _LABEL
        first, *rest = text.split("\n")
        if self._console is None:
            print(f"    {label:<{_LABEL}}{first}")
            for line in rest:
                print(" " * margin + line)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=0)
        table.add_column(width=margin)
        table.add_column(ratio=1)
        table.add_row(Text(f"    {label}", style="dim"), Text(text))
        self._console.print(table)
