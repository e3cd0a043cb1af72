"""Mean duration of calls in the last half minute, against the median half minute before: a provider that has become
slow answers each call, fails none, and shows in no count."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Any, NamedTuple

from actors.common.units import span
from actors.monitoring.stall_detector import unsaved_words

WINDOW_S = 30.0
"""Length of a window, in seconds."""
WINDOWS_KEPT = 2_880
"""Earlier windows that the median is taken of: a day of them."""

SLOWER_TIMES = 5.0
"""Multiple of the median window from which calls count as slow."""
CALLS_MIN = 10
"""Calls that must have been answered in a window for it to count: fewer are long or short by chance."""
LOOKS_MIN = 20
"""Looks of a window at which calls must have been in flight for it to count. The number in flight is known at the looks
alone: the share of time in which a call is in flight, estimated from 60 looks of which 20 find one, has a standard
error of 18 % (binomial), but of 39 % where 6 find one."""


class _Look(NamedTuple):
    """Totals of a job at one look."""

    at_s: float
    busy_s: float
    """Seconds in flight of all attempts."""
    busy_looks: int
    """Looks that found attempts in flight."""
    failed: int
    answered: int
    output_tokens: int
    input_tokens: int


class CallDurations:
    """Mean durations of the answered calls of one run, by Little's law (Operations Research 9, 1961, 383): the mean
    number in flight divided by the calls that are answered a second. Times are seconds of a monotonic clock.

    Calls are slow if a call takes much longer than before, and also each token of its answer and each token of its
    prompt: rows that are sorted by length take longer and longer, and their provider is as quick as it was. A window in
    which an attempt failed does not count, since its duration is part of the sum. Slow windows count as earlier ones
    too: after as much time as calls were quick, slow calls are the usual ones and are told no more.
    """

    def __init__(self) -> None:
        self._seen: deque[_Look] = deque()
        """Looks of the last window."""
        self._earlier: deque[tuple[float, ...]] = deque(maxlen=WINDOWS_KEPT)
        """Seconds a call, an output token and an input token in earlier windows, which do not overlap."""
        self._kept_at_s = 0.0
        """End of the last of these windows."""
        self._usual: tuple[float, ...] = ()
        """Their medians; empty before the first."""

    def words(self, facts: dict[str, Any], at_s: float) -> str:
        """Return how slow calls are now, if they are much slower than they were; else empty. ``facts``: a job's status
        at this time. Calls that wait in a message batch are not in flight."""
        if facts.get("outcome") != "running" or facts.get("batches"):
            return ""
        seen = self._seen
        if unsaved_words(facts):
            seen.clear()  # replies wait for the journal: how long they took is not known
        seen.append(_look(facts, at_s, seen[-1] if seen else None))
        while len(seen) > 2 and seen[1].at_s <= at_s - WINDOW_S:
            seen.popleft()
        first, last = seen[0], seen[-1]
        answered = last.answered - first.answered
        if at_s - first.at_s < WINDOW_S or answered < CALLS_MIN or last.failed != first.failed:
            return ""
        if last.busy_looks - first.busy_looks < LOOKS_MIN:
            return ""
        busy_s = last.busy_s - first.busy_s
        counts = (answered, last.output_tokens - first.output_tokens, last.input_tokens - first.input_tokens)
        now, usual = tuple(busy_s / count if count > 0 else 0.0 for count in counts), self._usual
        if not usual or at_s >= self._kept_at_s + WINDOW_S:
            self._kept_at_s = at_s
            self._earlier.append(now)
            self._usual = tuple(map(median_low, zip(*self._earlier, strict=True)))
        if not facts.get("in_flight") or not usual:
            return ""
        if any(each < SLOWER_TIMES * before for each, before in zip(now, usual, strict=True)):
            return ""
        return f"calls are slow: one takes {span(now[0])}, where it took {span(usual[0])}"


def _look(facts: dict[str, Any], at_s: float, last: _Look | None) -> _Look:
    in_flight = facts.get("in_flight") or 0
    before_s, busy_s, looks = (last.at_s, last.busy_s, last.busy_looks) if last is not None else (at_s, 0.0, 0)
    given = facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"]
    return _Look(
        at_s, busy_s + in_flight * (at_s - before_s), looks + bool(in_flight), sum(facts["failures"].values()),
        facts["paid_calls"], facts["output_tokens"], given,
    )  # fmt: skip
