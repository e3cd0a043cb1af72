"""How fast a job gets on now, and how long the rest takes at that speed: over the last half minute, not since it began.

What a resumed job brings along, and a burst of remembered replies at its beginning, are soon out of sight.
"""

from __future__ import annotations

from collections import deque

from policies.estimates.deadline_outlook import outlook

WINDOW_S = 30.0
"""The speed is the mean over so long."""
STEP_S = 0.5
"""Nothing finer is kept: 60 moments at the most."""
SURE_S = 2.0
"""Before it has watched for so long it foretells nothing."""


class ThroughputEstimator:
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
        return None if rate <= 0 or left < 0 or not self.sure(at_s) else left / rate

    def sure(self, at_s: float) -> bool:
        """Whether it has watched for long enough."""
        return bool(self._seen) and at_s - self._seen[0][0] >= SURE_S


def of_job(speed: ThroughputEstimator, facts: dict[str, object], at_s: float, rows: int = 0) -> dict[str, object]:
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


def forecast(speed: ThroughputEstimator, facts: dict[str, object], at_s: float, now_s: float) -> dict[str, object]:
    """Fields for people and programs: when a job with these facts will have ended, and whether its deadline is at risk;
    None where nobody can tell. ``now_s``: the same moment, in seconds since 1970."""
    expected = _number(facts, "rows_expected")
    deadline = facts.get("deadline_at_s")
    if not expected:
        return {"projected_end_s": None, "deadline_at_risk": None}
    deadline_at_s = float(deadline) if isinstance(deadline, int | float) else None
    left = expected - _number(facts, "rows_succeeded") - _number(facts, "rows_failed")
    found = outlook(now_s, deadline_at_s, left, speed.per_s(at_s) if speed.sure(at_s) else None)
    ends_at_s = None if found.ends_at_s is None else round(found.ends_at_s, 1)
    return {"projected_end_s": ends_at_s, "deadline_at_risk": found.at_risk}


def _number(facts: dict[str, object], name: str) -> int:
    found = facts.get(name)
    return found if isinstance(found, int) else 0
