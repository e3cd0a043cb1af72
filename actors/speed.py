"""How fast a job gets on now, and how long the rest takes at that speed: over the last half minute, not since it began.

What a resumed job brings along, and a burst of remembered replies at its beginning, are soon out of sight.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 30.0
"""The speed is the mean over so long."""
STEP_S = 0.5
"""Nothing finer is kept: 60 moments at the most."""
SURE_S = 2.0
"""Before it has watched for so long it foretells nothing."""


class Speed:
    """Watches one count that only grows. Times are in seconds, of a clock that never goes back."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, at_s: float, done: int) -> None:
        """So much is done by now."""
        seen = self._seen
        if seen and done < seen[-1][1]:
            seen.clear()  # it counts anew
        if len(seen) > 1 and at_s - seen[-2][0] < STEP_S:
            seen.pop()
        seen.append((at_s, done))
        while len(seen) > 2 and seen[1][0] <= at_s - WINDOW_S:
            seen.popleft()

    def per_s(self, at_s: float) -> float:
        """How much a second was done of late; 0 where nothing was, or nobody can tell yet."""
        if not self._seen:
            return 0.0
        (from_s, from_), (_, done) = self._seen[0], self._seen[-1]
        passed_s = at_s - from_s
        return (done - from_) / passed_s if passed_s > 0 else 0.0

    def left_s(self, at_s: float, left: int) -> float | None:
        """Seconds that so much more takes at this speed; None where nobody can tell."""
        rate = self.per_s(at_s)
        if rate <= 0 or left < 0 or at_s - self._seen[0][0] < SURE_S:
            return None
        return left / rate


def of_job(speed: Speed, facts: dict[str, object], at_s: float, rows: int = 0) -> dict[str, object]:
    """Fields for people and programs: ``rate_per_s`` and ``left_s`` of a job with these facts, in rows or, where it has
    none, in calls (``unit``)."""
    expected = rows or _number(facts, "rows_expected")
    unit = "rows" if expected or _number(facts, "results") else "calls"
    done = _number(facts, "results" if unit == "rows" else "calls")
    speed.saw(at_s, done)
    left_s = speed.left_s(at_s, expected - done) if expected else None
    return {
        "unit": unit, "done": done, "expected": expected or None, "rate_per_s": round(speed.per_s(at_s), 3),
        "left_s": None if left_s is None else round(left_s, 1),
    }  # fmt: skip


def _number(facts: dict[str, object], name: str) -> int:
    found = facts.get(name)
    return found if isinstance(found, int) else 0
