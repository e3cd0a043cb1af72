"""Throughput of a job, and the time that the rest takes at that rate: over the last half minute, not since the start.

Results of earlier runs, and a burst of reused replies at the start, soon leave the window. Whether a deadline is at
risk is judged by the rate over a longer window, the farther off the deadline is.
"""

from __future__ import annotations

from collections import deque

from policies.estimates.deadline_outlook import outlook

WINDOW_S = 30.0
"""Length of the window for the mean rate, in seconds."""
STEP_S = 0.5
"""Least time between two kept samples, in seconds: at most 60 samples are kept."""
SURE_S = 2.0
"""Seconds of observation before anything is predicted."""
STILL_S = 20.0
"""Seconds of observation without a result before a job is said to stand still: a first answer of a large model, or a
pool that begins with two permits, takes some seconds."""
RISK_SHARE = 0.01
"""Share of the time left to a deadline over which the rate is taken that puts it at risk: 36 s of an hour. A pause of
some seconds, as at the start, puts no deadline at risk that is hours away; a slow job does, also if its replies come in
bursts."""
TOLD_SHARE = RISK_SHARE / 2
"""Share of the time left that is observed before a risk is told: 9 s of half an hour, 108 s of six."""
SAMPLES = 60
"""Samples kept of such a window."""
RESULTS_MIN = 10
"""Results from which a rate is known before that: the first few come at the pace of a pool that still grows."""


class ThroughputEstimator:
    """Rate of one growing count. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._long: deque[tuple[float, int]] = deque()

    def saw(self, at_s: float, done: int) -> None:
        """Record the count at a time."""
        seen = self._seen
        if seen and done < seen[-1][1]:
            seen.clear()  # the count was reset
        if len(seen) > 1 and at_s - seen[-2][0] < STEP_S:
            seen.pop()
        seen.append((at_s, done))
        while len(seen) > 2 and seen[1][0] <= at_s - WINDOW_S:
            seen.popleft()

    def per_s(self, at_s: float) -> float:
        """Return the recent rate per second; 0 without progress or with too few samples."""
        if not self._seen:
            return 0.0
        (from_s, from_), (_, done) = self._seen[0], self._seen[-1]
        passed_s = at_s - from_s
        return (done - from_) / passed_s if passed_s > 0 else 0.0

    def left_s(self, at_s: float, left: int) -> float | None:
        """Return the seconds for ``left`` more at this rate; None if unknown."""
        rate = self.per_s(at_s)
        return None if rate <= 0 or left < 0 or not self.sure(at_s) else left / rate

    def sure(self, at_s: float) -> bool:
        """Return True after ``SURE_S`` of observation."""
        return bool(self._seen) and at_s - self._seen[0][0] >= SURE_S

    def known_per_s(self, at_s: float) -> float | None:
        """Return the recent rate per second; None while it is not known, 0 for a job that stands still."""
        if not self.sure(at_s):
            return None
        (from_s, from_), (_, done) = self._seen[0], self._seen[-1]
        return self.per_s(at_s) if at_s - from_s >= STILL_S or done - from_ >= RESULTS_MIN else None

    def over(self, at_s: float, window_s: float) -> tuple[float, float]:
        """Return the rate per second over a window, and the seconds of it that were observed: fewer than ``window_s``
        after the first sample. The window is longer than ``WINDOW_S``: each call keeps a sample of it."""
        if not self._seen:
            return 0.0, 0.0
        long, (last_s, done) = self._long, self._seen[-1]
        if long and done < long[-1][1]:
            long.clear()  # the count was reset
        if not long:
            long.append(self._seen[0])
        if last_s - long[-1][0] >= window_s / SAMPLES:
            long.append((last_s, done))
        while len(long) > 1 and long[1][0] <= at_s - window_s:
            long.popleft()
        from_s, from_ = long[0]
        passed_s = at_s - from_s
        return ((done - from_) / passed_s if passed_s > 0 else 0.0), passed_s


def of_job(speed: ThroughputEstimator, facts: dict[str, object], at_s: float, rows: int = 0) -> dict[str, object]:
    """Return rate and remaining time of a job as facts (``rate_per_s``, ``left_s``), in rows, or in calls for a job
    without rows (``unit``)."""
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
    """Return the projected end of a job, and whether its deadline is at risk, as facts; None if unknown. Both are by
    the rate over ``RISK_SHARE`` of the time left, the last half minute at least; a risk after ``TOLD_SHARE`` of it.

    ``at_s``: time of the monotonic clock; ``now_s``: the same moment, in seconds since 1970.
    """
    expected = _number(facts, "rows_expected")
    deadline = facts.get("deadline_at_s")
    if not expected:
        return {"projected_end_s": None, "deadline_at_risk": None}
    deadline_at_s = float(deadline) if isinstance(deadline, int | float) else None
    left = expected - _number(facts, "rows_succeeded") - _number(facts, "rows_failed")
    remaining_s = max(0.0, (deadline_at_s or now_s) - now_s)
    rate, observed_s = speed.over(at_s, max(WINDOW_S, RISK_SHARE * remaining_s))
    found = outlook(now_s, deadline_at_s, left, None if speed.known_per_s(at_s) is None else rate)
    ends_at_s = None if found.ends_at_s is None else round(found.ends_at_s, 1)
    risk = None if found.at_risk and observed_s < TOLD_SHARE * remaining_s else found.at_risk
    return {"projected_end_s": ends_at_s, "deadline_at_risk": risk}


def _number(facts: dict[str, object], name: str) -> int:
    found = facts.get(name)
    return found if isinstance(found, int) else 0
