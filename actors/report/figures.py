"""The figures of a report: sums, series and distributions, of a size that does not grow with the job."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.report.counters import BranchActivity, BreakerPeriod, CallTotals, FailureCount, GoalTrack
from actors.report.sketches import BinnedSeries, LargestValues, QuantileSketch, TimeAxis

BINS_MAX = 200
BINS_MIN = 24
BRANCHES_MAX = 40
"""Branches with a line of their own; the rest share one."""
OTHERS = "others"
NO_BRANCH = "branch not known"
SEGMENTS_MAX = 1_500
"""Attempts that are drawn one by one; of more, only sums are drawn."""
OUTSTANDING = 25
PROMPTS = 12
HAPPENINGS_MAX = 200
PERIODS_MAX = 400


class AttemptSegment(tuple[float, float, str, str, int, str]):
    """One attempt: begun, ended (seconds since 1970), branch, outcome, goal, job."""

    __slots__ = ()


class ReportFigures:
    """Of a job and its child jobs; ``fold`` fills them."""

    def __init__(self, begin_s: float, end_s: float, turns: int, unnamed: bool = False) -> None:
        """``turns``: about how many there are, so that a short job is not cut into bins with nothing in them;
        ``unnamed``: no text of the user's is kept."""
        axis = self.axis = TimeAxis(begin_s, end_s, min(BINS_MAX, max(BINS_MIN, 3 * math.isqrt(turns))))
        self.unnamed = unnamed
        self.answered, self.reused, self.spent = BinnedSeries(axis), BinnedSeries(axis), BinnedSeries(axis)
        self.failed: dict[str, BinnedSeries] = {}
        self.in_flight, self.permits = BinnedSeries(axis), BinnedSeries(axis)
        self.permits_most = 0
        self.latencies = [QuantileSketch() for _ in range(axis.bins)]
        self.latency, self.waits = QuantileSketch(), QuantileSketch()
        self.input_tokens, self.output_tokens = QuantileSketch(), QuantileSketch()
        self.calls = self.attempts = self.dropped = self.written = 0
        self._cells: dict[tuple[str, str, str], CallTotals] = {}
        """By job, route and kind of goal."""
        self.labelled: dict[str, list[str]] = {}
        """The labels of each job."""
        self.left_nusd = 0
        """Charged for what was under way when the job ended."""
        self.failures: dict[str, FailureCount] = {}
        self.branches: dict[str, BranchActivity] = {}
        self.segments: list[AttemptSegment] | None = []
        self.periods: list[BreakerPeriod] = []
        self.happenings: list[tuple[float, str]] = []
        self.more_happenings = 0
        self.slowest, self.dearest, self.retried = (
            LargestValues(OUTSTANDING),
            LargestValues(OUTSTANDING),
            LargestValues(OUTSTANDING),
        )
        self.failed_goals: list[GoalTrack] = []
        self.goals_failed = 0
        self.prompts = LargestValues(4 * PROMPTS)
        self.constructors: dict[str, tuple[int, int, int]] = {}
        """Calls, bytes of all prompts, bytes of the largest, by constructor."""
        self.own: dict[tuple[str, int], GoalTrack] = {}
        """Goals that K keeps after their end, and what was done for each of them itself."""

    # -- sums ------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, CallTotals]:
        """By the job itself and its child jobs."""
        return self._by(lambda cell: [cell[0]])

    @property
    def routes(self) -> dict[str, CallTotals]:
        """By route, as people name it."""
        return self._by(lambda cell: [cell[1]])

    @property
    def kinds(self) -> dict[str, CallTotals]:
        """By kind of goal."""
        return self._by(lambda cell: [cell[2]])

    @property
    def labels(self) -> dict[str, CallTotals]:
        """By label of the job, where it has some."""
        return self._by(lambda cell: self.labelled.get(cell[0], []))

    def _by(self, names: Callable[[tuple[str, str, str]], list[str]]) -> dict[str, CallTotals]:
        found: dict[str, CallTotals] = {}
        for cell, sums in self._cells.items():
            for name in names(cell):
                found.setdefault(name, CallTotals()).add(sums)
        return found

    def cell(self, job: str, route: str, kind: str) -> CallTotals:
        """The sums that an attempt belongs to."""
        return self._cells.setdefault((job, route, kind), CallTotals())

    # -- one at a time --------------------------------------------------------------------------------------------

    def happened(self, at_s: float, text: str) -> None:
        """Something that a reader wants to know of, and that happens a few times in a job."""
        if len(self.happenings) < HAPPENINGS_MAX:
            self.happenings.append((at_s, text))
        else:
            self.more_happenings += 1

    def branch(self, name: str) -> BranchActivity:
        """The branch of this name, or the one that stands for all others."""
        found = self.branches.get(name)
        if found is None:
            if len(self.branches) >= BRANCHES_MAX:
                name = OTHERS
            found = self.branches.setdefault(name, BranchActivity(self.axis))
        return found

    def failing(self, kind: str) -> FailureCount:
        """Failures of this kind."""
        return self.failures.setdefault(kind, FailureCount())
