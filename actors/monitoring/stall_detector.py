"""Stall detector: one line when a route without replies stops the work, one when replies come again."""

from __future__ import annotations

from typing import Any

from actors.common.units import span
from actors.jobs.wait_reasons import time_of_day

REPORT_AFTER_S = 5.0
"""Seconds without a reply before a line is printed; shorter stalls show in the figures only."""


class StallDetector:
    """Stall detector of one job."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}
        """Reported routes -> time since which no usable reply has come."""

    def news(self, facts: dict[str, Any], now_s: float) -> list[str]:
        """Return new lines, from a job's status at this time."""
        new = []
        for route in facts.get("routes", ()):
            name, since_s = route["route"], route.get("failing_since_s", 0.0)
            if name in self._reported and not since_s:
                began_s = self._reported.pop(name)
                new.append(f"{name} replies again, after {span(now_s - began_s)}: the job goes on")
            elif name not in self._reported and route.get("stands_still") and now_s - since_s >= REPORT_AFTER_S:
                self._reported[name] = since_s
                lacks, since = route.get("lacks") or "no reply", time_of_day(since_s)
                new.append(
                    f"waits: {lacks} from {name} since {since}: {route['failing']}; it is tried now and then, and the "
                    "job goes on when it replies"
                )
        return new
