"""The figures of a report: sums, series and distributions, of a size that does not grow with the job."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.report.counters import Branch, Failing, Period, Sums, Track
from actors.report.sketches import Axis, Digest, Series, Top

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


class Segment(tuple[float, float, str, str, int, str]):
    """One attempt: begun, ended (seconds since 1970), branch, outcome, goal, job."""

    __slots__ = ()


class Figures:
    """Of a job and its child jobs; ``fold`` fills them."""

    def __init__(self, begin_s: float, end_s: float, turns: int, unnamed: bool = False) -> None:
        """``turns``: about how many there are, so that a short job is not cut into bins with nothing in them;
        ``unnamed``: no text of the user's is kept."""
        axis = self.axis = Axis(begin_s, end_s, min(BINS_MAX, max(BINS_MIN, 3 * math.isqrt(turns))))
        self.unnamed = unnamed
        self.answered, self.reused, self.spent = Series(axis), Series(axis), Series(axis)
        self.failed: dict[str, Series] = {}
        self.in_flight, self.permits = Series(axis), Series(axis)
        self.permits_most = 0
        self.latencies = [Digest() for _ in range(axis.bins)]
        self.latency, self.waits = Digest(), Digest()
        self.input_tokens, self.output_tokens = Digest(), Digest()
        self.calls = self.attempts = self.dropped = self.written = 0
        self._cells: dict[tuple[str, str, str], Sums] = {}
        """By job, route and kind of goal."""
        self.labelled: dict[str, list[str]] = {}
        """The labels of each job."""
        self.left_nusd = 0
        """Charged for what was under way when the job ended."""
        self.failures: dict[str, Failing] = {}
        self.branches: dict[str, Branch] = {}
        self.segments: list[Segment] | None = []
        self.periods: list[Period] = []
        self.happenings: list[tuple[float, str]] = []
        self.more_happenings = 0
        self.slowest, self.dearest, self.retried = Top(OUTSTANDING), Top(OUTSTANDING), Top(OUTSTANDING)
        self.failed_goals: list[Track] = []
        self.goals_failed = 0
        self.prompts = Top(4 * PROMPTS)
        self.constructors: dict[str, tuple[int, int, int]] = {}
        """Calls, bytes of all prompts, bytes of the largest, by constructor."""
        self.own: dict[tuple[str, int], Track] = {}
        """Goals that K keeps after their end, and what was done for each of them itself."""

    # -- sums ------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, Sums]:
        """By the job itself and its child jobs."""
        return self._by(lambda cell: [cell[0]])

    @property
    def routes(self) -> dict[str, Sums]:
        """By route, as people name it."""
        return self._by(lambda cell: [cell[1]])

    @property
    def kinds(self) -> dict[str, Sums]:
        """By kind of goal."""
        return self._by(lambda cell: [cell[2]])

    @property
    def labels(self) -> dict[str, Sums]:
        """By label of the job, where it has some."""
        return self._by(lambda cell: self.labelled.get(cell[0], []))

    def _by(self, names: Callable[[tuple[str, str, str]], list[str]]) -> dict[str, Sums]:
        found: dict[str, Sums] = {}
        for cell, sums in self._cells.items():
            for name in names(cell):
                found.setdefault(name, Sums()).add(sums)
        return found

    def cell(self, job: str, route: str, kind: str) -> Sums:
        """The sums that an attempt belongs to."""
        return self._cells.setdefault((job, route, kind), Sums())

    # -- one at a time --------------------------------------------------------------------------------------------

    def happened(self, at_s: float, said: str) -> None:
        """Something that a reader wants to know of, and that happens a few times in a job."""
        if len(self.happenings) < HAPPENINGS_MAX:
            self.happenings.append((at_s, said))
        else:
            self.more_happenings += 1

    def branch(self, name: str) -> Branch:
        """The branch of this name, or the one that stands for all others."""
        found = self.branches.get(name)
        if found is None:
            if len(self.branches) >= BRANCHES_MAX:
                name = OTHERS
            found = self.branches.setdefault(name, Branch(self.axis))
        return found

    def failing(self, kind: str) -> Failing:
        """Failures of this kind."""
        return self.failures.setdefault(kind, Failing())
