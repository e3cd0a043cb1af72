"""Progress on standard error: a live bar on a terminal, a line every few seconds elsewhere.

Progress is always one line. Parts that do not fit the width are left out, the least important first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from actors.common.terminal import console
from actors.common.tolerant_stream import tolerant
from actors.monitoring.deadline_monitor import risk_words
from actors.monitoring.row_failures import RowFailureMonitor, failed_rows
from actors.monitoring.throughput import ThroughputEstimator, of_job
from cortex.values.display import one_line
from policies.estimates.price import usd_text

LINE_EVERY_S = 5.0
BAR_WIDTH = 24
BAR_LEAST = 8
"""Least width of the bar in columns. Below it, or with less than ``FIGURES_LEAST`` left, only figures are shown."""
FIGURES_LEAST = 40
CUT_RANK = 3
"""Parts up to this rank are cut short instead of left out: they give the reason of a standstill in quoted words."""
CUT_LEAST = 20


class ProgressBar:
    """Display of the figures of a job. ``form``: ``text`` or ``json``, for output that is no terminal. ``elsewhere``:
    the job's log is in a cluster, so that JSON here has its warnings of failed rows too."""

    def __init__(
        self, stream: TextIO | None = None, rows: int | None = None, *, form: str = "text",
        clock: Callable[[], float] = time.monotonic, elsewhere: bool = False,
    ) -> None:  # fmt: skip
        self._row_failures: RowFailureMonitor | None = None
        self._elsewhere = elsewhere and form == "json"
        self._stream = tolerant(stream or sys.stderr)
        self._rows = rows
        self._form = form
        self._clock = clock
        self._speed = ThroughputEstimator()
        self._live: Any = None
        self._next_line_s = clock() + LINE_EVERY_S
        self._last: Any = None

    def show(self, facts: dict[str, Any]) -> None:
        """Show one state of the job."""
        reported = self.facts(facts)
        if self._form == "text" and self._draws():
            self._draw(reported)
            return
        if self._elsewhere:
            self._warn(facts)
        now_s = self._clock()
        still = {
            name: value for name, value in reported.items() if name not in ("rate_per_s", "left_s", "projected_end_s")
        }
        if now_s >= self._next_line_s and still != self._last:
            self._next_line_s, self._last = now_s + LINE_EVERY_S, still
            text = _line(reported) if self._form == "text" else _log_line(reported)
            print(one_line(text), file=self._stream, flush=True)

    def _warn(self, facts: dict[str, Any]) -> None:
        """Print the warnings of failed rows."""
        import logging

        from actors.observability.logs.formatting import line_of

        counts = facts["rows_succeeded"] + facts["rows_failed"], _failed(facts)
        if self._row_failures is None:
            self._row_failures = RowFailureMonitor(*counts)
        for message, fields in self._row_failures.news(*counts):
            event = {"event": "job.rows_failing", "job": facts["job"], **fields}
            print(line_of(message, "cortex.progress", logging.WARNING, **event), file=self._stream, flush=True)

    def facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the shown figures as fields, for a line of JSON or another display.

        Each call records the count of results, from which later calls derive the rate.
        """
        cap = facts.get("max_cost_usd")
        return {
            "job": facts["job"], **of_job(self._speed, facts, self._clock(), self._rows or 0),
            "cost_usd": facts["cost_usd"], "max_cost_usd": cap, "reused_calls": facts["reused_calls"],
            "rows_failed": facts["rows_failed"], "rows_failed_by_kind": _failed(facts),
            "attempts_failed": dict(facts["failures"]), "waits": "; ".join(_waits(facts)),
            "projected_end_s": facts.get("projected_end_s"), "deadline_at_risk": facts.get("deadline_at_risk"),
        }  # fmt: skip

    def line(self, facts: dict[str, Any]) -> str:
        """Return the figures as one line."""
        return _line(self.facts(facts))

    def print_line(self, line: str) -> None:
        """Print a permanent line above the figures."""
        if self._form == "json":
            from actors.observability.logs.formatting import line_of

            line = line_of(line, "cortex.program")
        line = one_line(line)
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    # -- on a terminal -----------------------------------------------------------------------------------------------

    def _draws(self) -> bool:
        """Return True if the stream is a terminal that can overwrite its output."""
        return self._stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")

    def _draw(self, facts: dict[str, Any]) -> None:
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=console(self._stream), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._drawn(facts), refresh=True)

    def _drawn(self, facts: dict[str, Any]) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = self._live.console.width - 1  # some terminals wrap after a character in the last column
        bar = bar_width(width) if facts["expected"] else 0
        figures = Text(fitted(parts(facts), width - (bar + 1 if bar else 0)), no_wrap=True, overflow="ellipsis")
        if not bar:
            return figures
        row = Table.grid(padding=(0, 1))
        row.add_column(width=bar, no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=facts["expected"], completed=facts["done"], width=bar), figures)
        return row


# -- text ----------------------------------------------------------------------------------------------------------


def bar_width(width: int) -> int:
    """Return the width of the bar in columns on a terminal of this width; 0: no bar."""
    left = min(BAR_WIDTH, max(BAR_LEAST, width // 5), width - FIGURES_LEAST - 1)
    return left if left >= BAR_LEAST else 0


def fitted(found: list[tuple[int, str]], width: int) -> str:
    """Return the parts that fit in one line, chosen by rank, the lowest first.

    Text in brackets is added where room is left after that. Parts up to ``CUT_RANK`` are cut instead of left out.
    """
    kept: dict[int, str] = {}
    ranked = sorted(range(len(found)), key=lambda at: found[at][0])
    used = 0
    for at in ranked:
        text = found[at][1].partition(" (")[0]
        needs = len(text) + (2 if kept else 0)
        if not kept or used + needs <= width:
            kept[at] = text
            used += needs
        elif found[at][0] <= CUT_RANK and width - used - 2 >= CUT_LEAST:
            kept[at] = f"{found[at][1][: width - used - 3]}…"
            used = width
    for at in ranked:
        more = len(found[at][1]) - len(kept.get(at, ""))
        if at in kept and more and used + more <= width:
            kept[at] = found[at][1]
            used += more
    line = ", ".join(kept[at] for at in sorted(kept))
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def parts(facts: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the parts of the line in their order, each with its rank; rank 0 is the most important."""
    done, expected, unit = facts["done"], facts["expected"], facts["unit"]
    of = f"{done:,}/{expected:,} {unit}" if expected else f"{done:,} {unit[:-1] if done == 1 else unit}"
    found = [(0, of), (1, f"{_rate(facts['rate_per_s'])}/s")]
    if facts["left_s"] is not None and done < (expected or 0):
        found.append((2, f"{_span(facts['left_s'])} left"))
    if risk := risk_words(facts):
        found.append((2, risk))
    if facts["cost_usd"]:
        cap = facts["max_cost_usd"]
        spent = usd_text(round(facts["cost_usd"] * 1e9))
        found.append((5, f"{spent} of ${cap:g}" if cap else spent))
    if facts["reused_calls"]:
        found.append((9, f"{facts['reused_calls']:,} reused"))
    if facts["rows_failed"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["rows_failed_by_kind"].items())
        found.append((4, f"{facts['rows_failed']:,} failed" + (f" ({kinds})" if kinds else "")))
    if facts["attempts_failed"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in facts["attempts_failed"].items())
        found.append((8, f"attempts failed: {kinds}"))
    if facts["waits"]:
        found.append((6 if facts["rate_per_s"] else 3, facts["waits"]))  # while results come, waits are short-lived
    found.append((7, str(facts["job"])))
    return found


def _line(facts: dict[str, Any]) -> str:
    found = parts(facts)
    return f"{facts['job']}: {', '.join(text for _, text in found[:-1])}"


def _log_line(facts: dict[str, Any]) -> str:
    """Return the figures as a line of the log: its message is the line of text, its fields are the figures. The level
    is ``warning`` if the deadline is at risk."""
    import logging

    from actors.observability.logs.formatting import line_of

    level = logging.WARNING if facts["deadline_at_risk"] else logging.INFO
    return line_of(_line(facts), "cortex.progress", level, event="job.progress", job=facts["job"], progress=facts)


def _failed(facts: dict[str, Any]) -> dict[str, int]:
    return failed_rows(facts.get("rows_failed_by_kind", {}), facts.get("rows_refused", 0))


def _waits(facts: dict[str, Any]) -> list[str]:
    lines = ["waiting for a key"] if facts.get("unarmed") else []
    return [*lines, facts["waits"]] if facts.get("waits") else lines


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}" if per_s >= 0.1 or not per_s else f"{per_s:.3f}"


def _span(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02d}m" if hours else f"{m}m{s:02d}s"
