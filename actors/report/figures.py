"""Figures of a report: sums, series and distributions. Their size does not grow with the job."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.report.counters import BranchActivity, BreakerPeriod, CallTotals, FailureCount, GoalTrack
from actors.report.sketches import BinnedSeries, LargestValues, QuantileSketch, TimeAxis

BINS_MAX = 200
"""Most bins of time."""
BINS_MIN = 24
"""Fewest bins of time."""
BRANCHES_MAX = 40
"""Most branches counted separately; all others share one entry."""
OTHERS = "others"
NO_BRANCH = "branch not known"
SEGMENTS_MAX = 1_500
"""Most attempts drawn individually; above it, only sums are drawn."""
OUTSTANDING = 25
"""Goals kept by each measure: slowest, dearest, most retried."""
PROMPTS = 12
"""Largest prompts shown."""
HAPPENINGS_MAX = 200
"""Most events listed."""
PERIODS_MAX = 400
"""Most breaker periods kept."""


class AttemptSegment(tuple[float, float, str, str, int, str]):
    """Attempt as a tuple: start and end (Unix time), branch, outcome, goal, job."""

    __slots__ = ()


class ReportFigures:
    """Figures of a job and its child jobs, filled by ``fold``."""

    def __init__(self, begin_s: float, end_s: float, turns: int, unnamed: bool = False) -> None:
        """Create empty figures. ``turns``: approximate number of turns, which determines the number of bins: a short
        job gets fewer. ``unnamed``: keep no text of the user's."""
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
        """Totals by job, route and kind of goal."""
        self.labelled: dict[str, list[str]] = {}
        """Labels by job."""
        self.left_nusd = 0
        """Charge, in 1e-9 USD, for attempts in flight when the job ended."""
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
        """Calls, bytes of all prompts and bytes of the largest, by constructor."""
        self.own: dict[tuple[str, int], GoalTrack] = {}
        """Goals that K keeps after their end, with their own figures (without those of subgoals)."""

    # -- sums ------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, CallTotals]:
        """Totals by job: the job itself and its child jobs."""
        return self._by(lambda cell: [cell[0]])

    @property
    def routes(self) -> dict[str, CallTotals]:
        """Totals by route, under its display name."""
        return self._by(lambda cell: [cell[1]])

    @property
    def kinds(self) -> dict[str, CallTotals]:
        """Totals by kind of goal."""
        return self._by(lambda cell: [cell[2]])

    @property
    def labels(self) -> dict[str, CallTotals]:
        """Totals by label of the job."""
        return self._by(lambda cell: self.labelled.get(cell[0], []))

    def _by(self, names: Callable[[tuple[str, str, str]], list[str]]) -> dict[str, CallTotals]:
        found: dict[str, CallTotals] = {}
        for cell, sums in self._cells.items():
            for name in names(cell):
                found.setdefault(name, CallTotals()).add(sums)
        return found

    def cell(self, job: str, route: str, kind: str) -> CallTotals:
        """Return the totals that an attempt belongs to."""
        return self._cells.setdefault((job, route, kind), CallTotals())

    # -- events and entries ------------------------------------------------------------------------------------------

    def happened(self, at_s: float, text: str) -> None:
        """List a rare event of a job, with its time."""
        if len(self.happenings) < HAPPENINGS_MAX:
            self.happenings.append((at_s, text))
        else:
            self.more_happenings += 1

    def branch(self, name: str) -> BranchActivity:
        """Return the activity of a branch, or the shared entry above ``BRANCHES_MAX`` branches."""
        found = self.branches.get(name)
        if found is None:
            if len(self.branches) >= BRANCHES_MAX:
                name = OTHERS
            found = self.branches.setdefault(name, BranchActivity(self.axis))
        return found

    def failing(self, kind: str) -> FailureCount:
        """Return the count of this kind of failure."""
        return self.failures.setdefault(kind, FailureCount())
