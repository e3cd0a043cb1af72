"""Stall detector: one line when a route without replies stops the work, one when replies come again."""

from __future__ import annotations

from typing import Any

from actors.common.units import span
from actors.jobs.wait_reasons import time_of_day

REPORT_AFTER_S = 5.0
"""Seconds without a reply before a line is printed; shorter stalls show in the figures only."""


SILENT_S = 10.0
"""Seconds that the oldest call in flight may take before the silence is told, however fast calls were before."""
SLOWER_TIMES = 5.0
"""Multiple of the mean duration of calls that the oldest one may take before the silence is told. Little's law
(Operations Research 9, 1961, 383): the mean duration is the number in flight divided by the calls that end a second."""
SILENT_MAX_S = 300.0
"""Seconds after which the silence is told in any case: the mean of a job that rested meanwhile is too long."""


UNSAVED_S = 5.0
"""Seconds that an event may wait for the journal before this is told: replies wait for it too, and the provider is not
silent."""


def unsaved_words(facts: dict[str, Any]) -> str:
    """Return for how long the oldest event has waited to be saved, if that is long; else empty."""
    unsaved_s = facts.get("unsaved_s") or 0.0
    if unsaved_s < UNSAVED_S or facts.get("outcome") != "running":
        return ""
    return f"the disk or database of the journal has not answered for {span(unsaved_s)}: replies wait to be saved"


class SilenceClock:
    """Clock of the oldest call in flight: monotonic, so that a clock that is set changes nothing."""

    def __init__(self) -> None:
        self._asked_at_s = 0.0
        self._seen_s = 0.0

    def words(self, facts: dict[str, Any], monotonic_s: float) -> str:
        """Return ``silence_words`` of a job's status at this time."""
        asked_at_s = facts.get("oldest_asked_at_s") or 0.0
        if asked_at_s != self._asked_at_s:
            self._asked_at_s, self._seen_s = asked_at_s, monotonic_s
        return silence_words(facts, monotonic_s - self._seen_s)


def silence_words(facts: dict[str, Any], silent_s: float) -> str:
    """Return how long the oldest call in flight has had no reply, if that is much longer than calls took before; else
    empty. ``facts``: a job's status. Calls that wait in a message batch are not in flight."""
    asked_s, in_flight = facts.get("oldest_asked_at_s") or 0.0, facts.get("in_flight") or 0
    if not asked_s or not in_flight or facts.get("outcome") != "running" or facts.get("batches"):
        return ""
    ended = facts["calls"] - facts["reused_calls"] - in_flight
    usual_s = in_flight * max(0.0, asked_s - facts["began_at_s"]) / ended if ended > 0 else 0.0
    if silent_s < min(max(SILENT_S, SLOWER_TIMES * usual_s), SILENT_MAX_S):
        return ""
    calls = "the call in flight" if in_flight == 1 else f"the oldest of {in_flight:,} calls in flight"
    before = f"; a call took {span(usual_s)} before" if ended > 0 and facts["epoch"] == 1 else ""
    return f"no reply for {span(silent_s)} to {calls}{before}"


class StallDetector:
    """Stall detector of one job."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}
        """Reported routes -> time since which no usable reply has come."""
        self._silent = False

    def news(self, facts: dict[str, Any], now_s: float, silent: str = "") -> list[str]:
        """Return new lines, from a job's status at this time. ``silent``: words of ``SilenceClock``."""
        new = []
        if silent and not self._silent:
            new.append(f"waits: {silent}; each call ends at its own deadline, if it has one, and is tried again")
        elif self._silent and not silent:
            new.append("calls are answered again: the job goes on")
        self._silent = bool(silent)
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
