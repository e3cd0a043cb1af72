"""Progress on standard error: a live bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

LINE_EVERY_S = 5.0


class Bar:
    """Shows the figures of a job as they come."""

    def __init__(self, stream: TextIO | None = None, rows: int | None = None) -> None:
        self._stream = stream or sys.stderr
        self._rows = rows
        self._live: Any = None
        self._task: Any = None
        self._began_s = time.monotonic()
        self._next_line_s = self._began_s + LINE_EVERY_S
        self._first: int | None = None
        self._last = ""

    def show(self, facts: dict[str, Any]) -> None:
        """Show one state of the job."""
        if self._first is None:
            self._first = int(facts["results"])
        if self._stream.isatty():
            self._show_live(facts)
        elif time.monotonic() >= self._next_line_s and (line := self.line(facts)) != self._last:
            self._next_line_s = time.monotonic() + LINE_EVERY_S
            self._last = line
            print(line, file=self._stream, flush=True)

    def line(self, facts: dict[str, Any]) -> str:
        """The figures as one line."""
        done = int(facts["results"])
        elapsed_s = max(0.001, time.monotonic() - self._began_s)
        rate = (done - (self._first or 0)) / elapsed_s
        said = [f"{done:,}/{self._rows:,} rows" if self._rows else f"{done:,} rows", f"{rate:.1f}/s"]
        if self._rows and rate > 0 and done < self._rows:
            said.append(f"{_span((self._rows - done) / rate)} left")
        if facts["cost_usd"]:
            said.append(f"{facts['cost_usd']:.4f} USD")
        if facts["reused_calls"]:
            said.append(f"{facts['reused_calls']:,} reused")
        said += [f"{count:,} {kind}" for kind, count in facts["failures"].items()]
        if facts.get("unarmed"):
            said.append("waiting for a key")
        if facts.get("waits"):
            said.append(facts["waits"])
        return f"{facts['job']}: {', '.join(said)}"

    def _show_live(self, facts: dict[str, Any]) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            console = Console(file=self._stream)
            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
            self._live = Progress(*columns, console=console, transient=True)
            self._task = self._live.add_task("", total=self._rows)
            self._live.start()
        self._live.update(self._task, completed=facts["results"], description=self.line(facts))

    def say(self, line: str) -> None:
        """Show a line that stays, above the figures."""
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _span(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02d}m" if hours else f"{m}m{s:02d}s"
