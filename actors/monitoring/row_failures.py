"""Monitor of failed rows: a warning at the first of a kind, and when many of the last rows fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ROWS_MIN = 50
"""Rows over which a share is taken, at least: the alert ``CortexRowsFailing`` asks for as many."""
SHARE_MAX = 0.05
"""Share of failed rows above which it is told: one in twenty, as in ``CortexRowsFailing``."""
REFUSED = "refused before sending"
"""Word, beside the kinds of failures, for rows that no attempt was made for: a faulty line of the input."""


def failed_rows(by_kind: Mapping[str, int], refused: int) -> dict[str, int]:
    """Return the failed rows by kind, with those that were refused before sending."""
    counts = {str(kind): count for kind, count in by_kind.items()}
    return {**counts, REFUSED: refused} if refused else counts


class RowFailureMonitor:
    """Monitor of the failed rows of one job. ``ended`` and ``by_kind``: the counts at its beginning."""

    def __init__(self, ended: int = 0, by_kind: Mapping[str, int] | None = None) -> None:
        self._kinds = {str(kind) for kind, count in (by_kind or {}).items() if count}
        self._ended, self._failed = ended, sum((by_kind or {}).values())
        self._many = False

    def news(self, ended: int, by_kind: Mapping[str, int]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (message, fields) of each new warning. ``ended``: rows that have ended so far, failed ones included;
        ``by_kind``: failed rows so far."""
        for kind in sorted({str(kind) for kind, count in by_kind.items() if count} - self._kinds):
            self._kinds.add(kind)
            yield f"the first row failed: {kind}", {"kind": kind}
        failed = sum(by_kind.values())
        rows, bad = ended - self._ended, failed - self._failed
        if rows < 0 or bad < 0:  # failed rows were taken back by a retry
            self._ended, self._failed = ended, failed
        elif rows >= ROWS_MIN:
            self._ended, self._failed = ended, failed
            before, self._many = self._many, bad > SHARE_MAX * rows
            if self._many and not before:
                share = f"{100 * bad / rows:.3g} %"
                yield f"{bad:,} of the last {rows:,} rows failed ({share})", {"rows": rows, "rows_failed": bad}
