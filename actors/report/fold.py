"""The figures of a report: one pass over the turns of a job and its child jobs, bounded however many there are."""

from __future__ import annotations

import math

from actors.report.naming import HELD, NAME_CHARACTERS, OPEN, SAID, breaker_of, name_of, said
from actors.report.reading import Reading, Settled, Step
from actors.report.sketches import Axis, Digest, Series, Top
from actors.report.tallies import Branch, Failing, Period, Sums, Track
from actors.waiting import named
from cortex import commands, events
from cortex.dryrun import clipped
from cortex.election import VOTE
from cortex.state import ENDED, Goal, State
from policies.failure import RULES

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
_QUIET_GOALS = 20_000


class Segment(tuple[float, float, str, str, int, str]):
    """One attempt: begun, ended (seconds since 1970), branch, outcome, goal, job."""

    __slots__ = ()


class Fold:
    """Figures of a job. ``take`` each of its readings; the job's own first."""

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
        self.routes: dict[str, Sums] = {}
        self.kinds: dict[str, Sums] = {}
        self.labels: dict[str, Sums] = {}
        self.jobs: dict[str, Sums] = {}
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

    # -- one journal -----------------------------------------------------------------------------------------------

    def take(self, reading: Reading) -> None:
        """All turns of one journal."""
        one = _One(self, reading)
        for each in reading.steps():
            one.turn(each)
        one.close()

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


class _One:
    """One journal being folded."""

    def __init__(self, fold: Fold, reading: Reading) -> None:
        self._fold, self._reading, self._job = fold, reading, reading.name
        self._child = "~" in reading.name
        self._tracks: dict[int, Track] = {}
        self._last_s = reading.begin_s
        self._before: dict[str, int] = {}
        self._calls = 0
        self._attempts = _carried_attempts(reading)
        self._ended = 0
        self._flights = self._permits = 0
        self._events_permits: dict[int, int] = {}
        self._open: dict[int, Period] = {}
        self._labels = [f"{name}={value}" for name, value in dict(getattr(reading.terms, "labels", None) or {}).items()]

    def turn(self, each: Step) -> None:
        """One turn of it."""
        fold, k, at_s = self._fold, self._reading.k, each.turn.at_s
        fold.in_flight.hold(self._last_s, at_s, self._flights)
        fold.permits.hold(self._last_s, at_s, self._permits)
        self._last_s = max(self._last_s, at_s)
        for one in each.settled:
            self._settled(one)
        for flight in each.left:
            fold.left_nusd += flight.charge.nusd
            self._sums(flight.route, k.goals.get(flight.goal) if k is not None else None, flight.charge.nusd)
        for batch in each.turn.batches:
            for event in batch:
                if type(event) is events.Granted:
                    self._granted(event, at_s)
                    continue
                if type(event) is events.Written:
                    fold.written = max(fold.written, event.rows)
                if type(event) is events.Rejoined:
                    self._events_permits.clear()
                    self._permits = 0
                if type(event) in SAID and not (self._child and type(event) is events.Opened):
                    fold.happened(at_s, f"{self._job}: {said(event)}" if self._child else said(event))
        if k is not None:
            for command in each.out:
                if type(command) is commands.Call:
                    self._call(k, command, at_s)
            self._counts(k, at_s)
            self._ends(k, each.settled, at_s)
            self._flights, self._permits = len(k.flights), k.permits
        fold.permits_most = max(fold.permits_most, self._permits)

    def close(self) -> None:
        """The journal is read to its end."""
        k = self._reading.k
        for period in self._open.values():
            period.to_s = self._last_s
        if k is not None:
            for flight in k.flights.values():
                self._sums(flight.route, k.goals.get(flight.goal), 0)  # under way: asked, and not yet charged
            self._sweep(k, self._last_s, True)
        else:
            for track in self._tracks.values():
                self._outstanding(track)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _settled(self, each: Settled) -> None:
        fold, event = self._fold, each.event
        for sums in self._places(each.place, each.goal):
            sums.take(each)
        fold.spent.add(each.at_s, each.known_nusd)
        track = self._track(each)
        track.last_s = max(track.last_s, each.at_s)
        track.known_nusd += each.known_nusd
        if isinstance(event, events.Recalled):
            fold.reused.add(each.at_s)
            return
        if self._reading.k is None:
            self._count_alone(each, track)
        if not each.counts:
            fold.dropped += 1
            return
        track.busy_s += each.elapsed_s
        outcome = "answered"
        if isinstance(event, events.Broke):
            outcome = str(event.failure.kind)
            track.failed += 1
            track.failure, track.said = outcome, clipped(event.failure.message, NAME_CHARACTERS * 2)
            fold.failing(outcome).say(event.failure.message, track.name or f"goal {event.goal}")
        else:
            usage = event.reply.usage
            track.tokens += usage.input_tokens_billed + usage.output_tokens
            fold.answered.add(each.at_s)
            fold.latency.add(each.elapsed_s)
            fold.latencies[fold.axis.bin(each.at_s)].add(each.elapsed_s)
            fold.waits.add(each.waited_s)
            fold.input_tokens.add(usage.input_tokens_billed)
            fold.output_tokens.add(usage.output_tokens)
        if each.by or each.elapsed_s:
            fold.branch(each.by or NO_BRANCH).take(each)
            self._segment(each, outcome)

    def _segment(self, each: Settled, outcome: str) -> None:
        fold = self._fold
        if fold.segments is None:
            return
        made = (each.begun_s, each.at_s, each.by or NO_BRANCH, outcome, each.event.goal, self._job)
        fold.segments.append(Segment(made))
        if len(fold.segments) > SEGMENTS_MAX:
            fold.segments = None

    def _places(self, place: int, goal: Goal | None) -> list[Sums]:
        """All the sums that an attempt belongs to."""
        fold, routes = self._fold, self._reading.terms.routes
        route = named(routes[place]) if place < len(routes) else "a route that is gone"
        kind = goal.kind if goal is not None else "unknown"
        found = [
            fold.routes.setdefault(route, Sums()), fold.kinds.setdefault(kind, Sums()),
            fold.jobs.setdefault(self._job, Sums()),
        ]  # fmt: skip
        return found + [fold.labels.setdefault(label, Sums()) for label in self._labels]

    def _sums(self, place: int, goal: Goal | None, assumed_nusd: int) -> None:
        for sums in self._places(place, goal):
            sums.assumed_nusd += assumed_nusd
            sums.attempts += 1

    def _count_alone(self, each: Settled, track: Track) -> None:
        """What K would have counted."""
        fold = self._fold
        assert not isinstance(each.event, events.Recalled)
        fold.attempts += 1
        track.attempts += 1
        if isinstance(each.event, events.Answered):
            fold.calls += 1
            track.lost = False
        else:
            self._fail(str(each.event.failure.kind), each.at_s, 1)
            track.lost = RULES[each.event.failure.kind].again == "no"

    def _fail(self, kind: str, at_s: float, count: int) -> None:
        fold = self._fold
        fold.failing(kind).take(at_s, count)
        series = fold.failed.get(kind)
        if series is None:
            series = fold.failed[kind] = Series(fold.axis)
        series.add(at_s, count)

    def _counts(self, k: State, at_s: float) -> None:
        """What K counts, as it grew in this turn: so the sums of a report are those of the job."""
        fold = self._fold
        fold.calls += k.tally.calls - self._calls
        fold.attempts += k.ledger.attempts - self._attempts
        self._calls, self._attempts = k.tally.calls, k.ledger.attempts
        if k.tally.failures != self._before:
            for kind, count in k.tally.failures.items():
                more = count - self._before.get(kind, 0)
                if more:
                    self._fail(str(kind), at_s, more)
            self._before = dict(k.tally.failures)

    # -- goals -----------------------------------------------------------------------------------------------------

    def _call(self, k: State, call: commands.Call, at_s: float) -> None:
        fold = self._fold
        goal = k.goals.get(call.goal)
        track = self._tracks.get(call.goal)
        if track is None:
            track = self._tracks[call.goal] = Track(self._job, call.goal, first_s=at_s)
        if goal is not None:
            track.object, track.kind = goal, goal.kind
            track.name = track.name or ("" if fold.unnamed and not goal.row else name_of(goal, call.sample))
        track.attempts += 1
        size = len(call.body)
        constructor = goal.constructor if goal is not None else ""
        calls, total, most = fold.constructors.get(constructor, (0, 0, 0))
        if len(fold.constructors) < 200 or constructor in fold.constructors:
            fold.constructors[constructor] = (calls + 1, total + size, max(most, size))
        if fold.prompts.takes(size):
            fold.prompts.offer(size, (self._job, call.goal, call.attempt, size, constructor, track.name, call.body))

    def _track(self, each: Settled) -> Track:
        found = self._tracks.get(each.event.goal)
        if found is None:
            found = self._tracks[each.event.goal] = Track(self._job, each.event.goal, first_s=each.begun_s)
            if each.goal is not None:
                found.object, found.kind = each.goal, each.goal.kind
                found.name = "" if self._fold.unnamed and not each.goal.row else name_of(each.goal, each.event.sample)
        return found

    def _ends(self, k: State, settled: list[Settled], at_s: float) -> None:
        for each in settled:
            track = self._tracks.get(each.event.goal)
            if track is not None and (each.goal is None or each.goal.status in ENDED):
                self._end(k, track)
        if k.ended + sum(k.tally.failed_for_good.values()) != self._ended or len(self._tracks) > _QUIET_GOALS:
            self._ended = k.ended + sum(k.tally.failed_for_good.values())
            if len(self._tracks) > _QUIET_GOALS or not settled:
                self._sweep(k, at_s, False)

    def _sweep(self, k: State, at_s: float, all_of_them: bool) -> None:
        """Goals that ended because of others, or of the time."""
        for track in [*self._tracks.values()]:
            goal = track.object
            if all_of_them or (isinstance(goal, Goal) and goal.status in ENDED):
                self._end(k, track)

    def _end(self, k: State, track: Track) -> None:
        goal, fold = track.object, self._fold
        del self._tracks[track.goal]
        track.object = None
        if isinstance(goal, Goal):
            if goal.failure is not None:
                track.failure, track.said = str(goal.failure.kind), clipped(goal.failure.message, NAME_CHARACTERS * 2)
                if goal.failure.kind in ("malformed", "refused", "faulty"):
                    fold.failing(track.failure).say(goal.failure.message, track.name or f"goal {goal.id}")
            track.lost = goal.failure is not None and goal.status in ENDED
            if goal.kind == VOTE and goal.parent:
                self._to_parent(track, goal)
                return
            if track.goal in k.goals:
                self._keep(track)
        self._outstanding(track)

    def _to_parent(self, track: Track, goal: Goal) -> None:
        """Votes leave K; what they cost is their election's."""
        known = self._fold.own.get((self._job, goal.parent)) or self._tracks.get(goal.parent)
        if known is None:
            known = self._tracks[goal.parent] = Track(self._job, goal.parent, first_s=track.first_s)
            known.object = self._reading.k.goals.get(goal.parent) if self._reading.k is not None else None
            if isinstance(known.object, Goal):
                known.kind = known.object.kind
                known.name = "" if self._fold.unnamed else name_of(known.object, "")
        known.add(track)

    def _keep(self, track: Track) -> None:
        own = self._fold.own
        before = own.get((self._job, track.goal))
        if before is not None:
            before.add(track)
        else:
            own[self._job, track.goal] = track

    def _outstanding(self, track: Track) -> None:
        fold = self._fold
        fold.slowest.offer(track.took_s, track)
        if track.known_nusd:
            fold.dearest.offer(track.known_nusd, track)
        if track.failed:
            fold.retried.offer(track.failed, track)
        if track.lost:
            fold.goals_failed += 1
            if len(fold.failed_goals) < OUTSTANDING * 2:
                fold.failed_goals.append(track)

    # -- leave to ask ----------------------------------------------------------------------------------------------

    def _granted(self, event: events.Granted, at_s: float) -> None:
        fold, routes = self._fold, self._reading.terms.routes
        if self._reading.k is None:
            self._events_permits[event.route] = event.permits
            self._permits = sum(self._events_permits.values())
        state = breaker_of(event)
        before = self._open.get(event.route)
        if before is not None and before.state == state:
            before.to_s = at_s
            return
        if before is not None:
            before.to_s = at_s
            del self._open[event.route]
            if not state and before.state != HELD:
                fold.happened(at_s, f"the breaker of {before.route} closed")
        if not state or len(fold.periods) >= PERIODS_MAX:
            return
        route = named(routes[event.route]) if event.route < len(routes) else "a route that is gone"
        period = self._open[event.route] = Period(route, state, at_s, at_s, event.why)
        fold.periods.append(period)
        if state == OPEN:
            fold.happened(at_s, f"the breaker of {route} opened: {event.why or 'no reason was given'}")


def _carried_attempts(reading: Reading) -> int:
    """Attempts that the job had made before its program changed and it began anew: they are not in these turns."""
    for batch in reading.opened.batches:
        for event in batch:
            if isinstance(event, events.Opened) and event.carried is not None:
                return event.carried.attempts
    return 0
