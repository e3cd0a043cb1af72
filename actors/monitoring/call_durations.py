"""Mean duration of calls in the last half minute, against the quickest half minute of the run: a provider that has
become slow answers each call, fails none, and shows in no count."""

from __future__ import annotations

from collections import deque
from typing import Any

from actors.common.units import span
from actors.monitoring.stall_detector import unsaved_words

WINDOW_S = 30.0
"""Length of the window of a mean, in seconds."""

SLOWER_TIMES = 5.0
"""Multiple of the quickest half minute's mean from which calls count as slow."""
CALLS_MIN = 10
"""Attempts that must have ended in a window for its mean to count: fewer are long or short by chance."""


class CallDurations:
    """Mean durations of the attempts of one run, by Little's law (Operations Research 9, 1961, 383): the mean number in
    flight divided by the attempts that end a second. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, float]] = deque()
        """Time, attempts that have ended, and seconds in flight of all attempts, at each look of the last window."""
        self._quickest_s = 0.0

    def words(self, facts: dict[str, Any], at_s: float) -> str:
        """Return how slow calls are now, if they are much slower than they were; else empty. ``facts``: a job's status
        at this time. Calls that wait in a message batch are not in flight."""
        in_flight = facts.get("in_flight") or 0
        if facts.get("outcome") != "running" or facts.get("batches"):
            return ""
        seen = self._seen
        if unsaved_words(facts):
            seen.clear()  # replies wait for the journal: how long they took is not known
        last_s, _, sum_s = seen[-1] if seen else (at_s, 0, 0.0)
        seen.append((at_s, facts["attempts"] - in_flight, sum_s + in_flight * (at_s - last_s)))
        while len(seen) > 2 and seen[1][0] <= at_s - WINDOW_S:
            seen.popleft()
        ended = seen[-1][1] - seen[0][1]
        if at_s - seen[0][0] < WINDOW_S or ended < CALLS_MIN:
            return ""
        mean_s = (seen[-1][2] - seen[0][2]) / ended
        if not self._quickest_s or 0 < mean_s < self._quickest_s:
            self._quickest_s = mean_s
        if not in_flight or mean_s < SLOWER_TIMES * self._quickest_s:
            return ""
        return f"calls are slow: one takes {span(mean_s)}, where it took {span(self._quickest_s)}"
