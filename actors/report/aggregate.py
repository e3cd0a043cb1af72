"""Fold of the turns of a job and its child jobs into the figures of a report, in one pass."""

from __future__ import annotations

from actors.history.annotated_turns import AnnotatedTurn, JournalReader, SettledAttempt
from actors.jobs.wait_reasons import named
from actors.report.counters import BreakerPeriod, CallTotals, GoalTrack
from actors.report.figures import NO_BRANCH, OUTSTANDING, PERIODS_MAX, SEGMENTS_MAX, AttemptSegment, ReportFigures
from actors.report.labels import HELD, LABELLED_EVENTS, NAME_CHARACTERS, OPEN, breaker_of, event_label, name_of
from actors.report.sketches import BinnedSeries
from cortex.state import commands, events
from cortex.state.state import ENDED, Goal, State
from cortex.values.display import clipped
from cortex.values.election import VOTE
from cortex.values.limits import Route
from policies.failures.failure import RULES

_ENDED_KEPT = 1_000
"""Tracked goals beyond twice the live ones before ended goals are searched for. A goal may end without an event of
its own: by another goal, or by time."""


def fold(readings: list[JournalReader], unnamed: bool = False) -> ReportFigures:
    """Return the figures of a job from all its readings, the job's own first. ``unnamed``: keep no text of the
    user's."""
    begin_s, end_s = min(each.begin_s for each in readings), max(each.end_s for each in readings)
    figures = ReportFigures(begin_s, end_s, sum(each.turns for each in readings), unnamed)
    for reading in readings:
        figures.labelled[reading.name] = [f"{name}={value}" for name, value in reading.terms.labels.items()]
        one = _JournalFold(figures, reading)
        for each in reading.steps():
            one.turn(each)
        one.close()
    return figures


class _JournalFold:
    """Fold of one journal."""

    def __init__(self, figures: ReportFigures, reading: JournalReader) -> None:
        self._figures, self._reading, self._job = figures, reading, reading.name
        self._child = "~" in reading.name
        self._cells: dict[tuple[int, str], CallTotals] = {}
        self._met: list[Route | None] = []
        self._tracks: dict[int, GoalTrack] = {}
        self._earlier: dict[str, GoalTrack | None] = {}
        """Reopened rows that have not failed again, with the goal that failed, if it is listed."""
        self._last_s = reading.begin_s
        self._before: dict[str, int] = {}
        self._calls = 0
        self._attempts = _carried_attempts(reading)
        self._ended = 0
        self._flights = self._permits = 0
        self._events_permits: dict[int, int] = {}
        self._open: dict[int, BreakerPeriod] = {}

    def turn(self, each: AnnotatedTurn) -> None:
        """Count one turn."""
        figures, k, at_s = self._figures, self._reading.k, each.turn.at_s
        figures.in_flight.hold(self._last_s, at_s, self._flights)
        figures.permits.hold(self._last_s, at_s, self._permits)
        before_s, self._last_s = self._last_s, max(self._last_s, at_s)
        for one in each.settled:
            self._settled(one)
        for flight in each.left:
            figures.left_nusd += flight.charge.nusd
            self._sums(flight.route, k.goals.get(flight.goal) if k is not None else None, flight.charge.nusd)
        job = f"{self._job}: " if self._child else ""
        for batch in each.turn.batches:
            for event in batch:
                if type(event) is events.PermitsGranted:
                    self._granted(event, at_s)
                    continue
                if type(event) is events.ResultsWritten:
                    figures.written = max(figures.written, event.rows)
                if type(event) is events.RowsReopened and not self._child:
                    self._taken_back(event)
                if type(event) is events.Rejoined:
                    self._events_permits.clear()
                    self._permits = 0
                    self._held_until(before_s)
                    gone_s = at_s - before_s
                    figures.happened(at_s, f"{job}{event_label(event)}, {gone_s:,.1f} s after its last turn")
                elif type(event) in LABELLED_EVENTS and not (self._child and type(event) is events.Opened):
                    figures.happened(at_s, f"{job}{event_label(event)}")
        if k is not None:
            for command in each.out:
                if type(command) is commands.Call:
                    self._call(k, command, at_s)
            self._counts(k, at_s)
            self._ends(k, each.settled, at_s)
            self._flights, self._permits = len(k.flights), k.permits
        figures.permits_most = max(figures.permits_most, self._permits)

    def _held_until(self, died_s: float) -> None:
        """End periods that a provider's Retry-After opened: while the channel was down, the job did not wait for
        them."""
        for route in [route for route, period in self._open.items() if period.state == HELD]:
            self._open.pop(route).to_s = died_s

    def close(self) -> None:
        """Close open periods and goals at the end of the journal."""
        k = self._reading.k
        for period in self._open.values():
            period.to_s = self._last_s
        if k is not None:
            for flight in k.flights.values():
                self._sums(flight.route, k.goals.get(flight.goal), 0)  # in flight: asked, and not yet charged
            self._sweep(k, self._last_s, True)
            self._restored(k)
        else:
            for track in self._tracks.values():
                self._outstanding(track)

    # -- attempts --------------------------------------------------------------------------------------------------

    def _settled(self, each: SettledAttempt) -> None:
        figures, event = self._figures, each.event
        self._cell(each.place, each.goal).take(each)
        figures.spent.add(each.at_s, each.known_nusd)
        track = self._track(each)
        track.last_s = max(track.last_s, each.at_s)
        track.known_nusd += each.known_nusd
        if isinstance(event, events.ReplyRecalled):
            figures.reused.add(each.at_s)
            return
        if self._reading.k is None:
            self._count_alone(each, track)
        if not each.counts:
            figures.dropped += 1
            return
        track.busy_s += each.elapsed_s
        outcome = "answered"
        if isinstance(event, events.AttemptFailed):
            outcome = str(event.failure.kind)
            track.failed += 1
            track.failure, track.message = outcome, clipped(event.failure.message, NAME_CHARACTERS * 2)
            figures.failing(outcome).record(event.failure.message, track.name or f"goal {event.goal}")
        else:
            usage = event.reply.usage
            track.tokens += usage.input_tokens_billed + usage.output_tokens
            figures.answered.add(each.at_s)
            figures.latency.add(each.elapsed_s)
            figures.latencies[figures.axis.bin(each.at_s)].add(each.elapsed_s)
            figures.waits.add(each.waited_s)
            if not usage.unknown:
                figures.input_tokens.add(usage.input_tokens_billed)
                figures.output_tokens.add(usage.output_tokens)
        if each.by or each.elapsed_s:
            figures.branch(each.by or NO_BRANCH).take(each)
            self._segment(each, outcome)

    def _segment(self, each: SettledAttempt, outcome: str) -> None:
        figures = self._figures
        if figures.segments is None:
            return
        made = (each.begun_s, each.at_s, each.by or NO_BRANCH, outcome, each.event.goal, self._job)
        figures.segments.append(AttemptSegment(made))
        if len(figures.segments) > SEGMENTS_MAX:
            figures.segments = None

    def _cell(self, place: int, goal: Goal | None) -> CallTotals:
        terms, kind = self._reading.terms, goal.kind if goal is not None else "unknown"
        route = terms.route if not place else terms.routes[place] if place < len(terms.routes) else None
        found = self._cells.get((id(route), kind))
        if found is None:
            name = named(route) if route is not None else "a removed route"
            found = self._cells[id(route), kind] = self._figures.cell(self._job, name, kind)
            self._met.append(route)  # keep a reference, so that ``id`` stays unique
        return found

    def _sums(self, place: int, goal: Goal | None, assumed_nusd: int) -> None:
        sums = self._cell(place, goal)
        sums.assumed_nusd += assumed_nusd
        sums.attempts += 1

    def _count_alone(self, each: SettledAttempt, track: GoalTrack) -> None:
        """Count an attempt as K would have, when the journal is read without its program."""
        figures = self._figures
        assert not isinstance(each.event, events.ReplyRecalled)
        figures.attempts += 1
        track.attempts += 1
        if isinstance(each.event, events.Answered):
            figures.calls += 1
            track.lost = False
        else:
            self._fail(str(each.event.failure.kind), each.at_s, 1)
            track.lost = RULES[each.event.failure.kind].again == "no"

    def _fail(self, kind: str, at_s: float, count: int) -> None:
        figures = self._figures
        figures.failing(kind).take(at_s, count)
        series = figures.failed.get(kind)
        if series is None:
            series = figures.failed[kind] = BinnedSeries(figures.axis)
        series.add(at_s, count)

    def _counts(self, k: State, at_s: float) -> None:
        """Add the growth of K's counters in this turn, so that the report's sums equal the job's."""
        if k.shards:
            return  # K counts what its shards report, and they have readings of their own
        figures = self._figures
        figures.calls += k.tally.calls - self._calls
        figures.attempts += k.ledger.attempts - self._attempts
        self._calls, self._attempts = k.tally.calls, k.ledger.attempts
        if k.tally.failures != self._before:
            for kind, count in k.tally.failures.items():
                more = count - self._before.get(kind, 0)
                if more:
                    self._fail(str(kind), at_s, more)
            self._before = dict(k.tally.failures)

    # -- goals -----------------------------------------------------------------------------------------------------

    def _call(self, k: State, call: commands.Call, at_s: float) -> None:
        figures = self._figures
        goal = k.goals.get(call.goal)
        track = self._tracks.get(call.goal)
        if track is None:
            track = self._tracks[call.goal] = GoalTrack(self._job, call.goal, first_s=at_s)
        if goal is not None:
            track.object, track.kind = goal, goal.kind
            track.name = track.name or ("" if figures.unnamed and not goal.row else name_of(goal, call.sample))
        track.attempts += 1
        size = len(call.body)
        constructor = goal.constructor if goal is not None else ""
        calls, total, most = figures.constructors.get(constructor, (0, 0, 0))
        if len(figures.constructors) < 200 or constructor in figures.constructors:
            figures.constructors[constructor] = (calls + 1, total + size, max(most, size))
        if figures.prompts.takes(size):
            figures.prompts.offer(size, (self._job, call.goal, call.attempt, size, constructor, track.name, call.body))

    def _track(self, each: SettledAttempt) -> GoalTrack:
        found = self._tracks.get(each.event.goal)
        if found is None:
            found = self._tracks[each.event.goal] = GoalTrack(self._job, each.event.goal, first_s=each.begun_s)
            if each.goal is not None:
                found.object, found.kind = each.goal, each.goal.kind
                if each.goal.row or not self._figures.unnamed:
                    found.name = name_of(each.goal, each.event.sample)
        return found

    def _ends(self, k: State, settled: list[SettledAttempt], at_s: float) -> None:
        for each in settled:
            track = self._tracks.get(each.event.goal)
            if track is not None and (each.goal is None or each.goal.status in ENDED):
                self._end(k, track)
        ended = k.ended + sum(k.tally.failed_for_good.values())
        if (ended != self._ended and not settled) or len(self._tracks) > 2 * k.live + _ENDED_KEPT:
            self._sweep(k, at_s, False)
        self._ended = ended

    def _sweep(self, k: State, at_s: float, all_of_them: bool) -> None:
        """End tracks of goals that ended without an event of their own: by another goal, or by time."""
        for track in [*self._tracks.values()]:
            goal = track.object
            if all_of_them or (isinstance(goal, Goal) and goal.status in ENDED):
                self._end(k, track)

    def _end(self, k: State, track: GoalTrack) -> None:
        goal, figures = track.object, self._figures
        del self._tracks[track.goal]
        track.object = None
        if isinstance(goal, Goal):
            if goal.failure is not None:
                track.failure, track.message = (
                    str(goal.failure.kind),
                    clipped(goal.failure.message, NAME_CHARACTERS * 2),
                )
                if goal.failure.kind in ("malformed", "refused", "faulty"):
                    figures.failing(track.failure).record(goal.failure.message, track.name or f"goal {goal.id}")
            track.lost, track.row = goal.failure is not None and goal.status in ENDED, goal.row
            if goal.kind == VOTE and goal.parent:
                self._to_parent(track, goal)
                return
            if track.goal in k.goals:
                self._keep(track)
        self._outstanding(track)

    def _to_parent(self, track: GoalTrack, goal: Goal) -> None:
        """Add a vote to its election's goal: votes leave K."""
        known = self._figures.own.get((self._job, goal.parent)) or self._tracks.get(goal.parent)
        if known is None:
            known = self._tracks[goal.parent] = GoalTrack(self._job, goal.parent, first_s=track.first_s)
            known.object = self._reading.k.goals.get(goal.parent) if self._reading.k is not None else None
            if isinstance(known.object, Goal):
                known.kind = known.object.kind
                known.name = "" if self._figures.unnamed else name_of(known.object, "")
        known.add(track)

    def _keep(self, track: GoalTrack) -> None:
        own = self._figures.own
        before = own.get((self._job, track.goal))
        if before is not None:
            before.add(track)
        else:
            own[self._job, track.goal] = track

    def _outstanding(self, track: GoalTrack) -> None:
        figures = self._figures
        figures.slowest.offer(track.took_s, track)
        if track.known_nusd:
            figures.dearest.offer(track.known_nusd, track)
        if track.failed:
            figures.retried.offer(track.failed, track)
        if track.lost:
            figures.goals_failed += 1
            self._earlier.pop(track.row, None)
            if len(figures.failed_goals) < OUTSTANDING * 2:
                figures.failed_goals.append(track)

    def _taken_back(self, event: events.RowsReopened) -> None:
        """Uncount rows that failed and are asked again."""
        figures = self._figures
        if self._reading.k is not None:
            self._sweep(self._reading.k, self._last_s, False)  # the failure of a row may not be counted yet
        again = set(event.keys) - self._earlier.keys()
        figures.goals_failed -= len(again)
        found = {each.row: each for each in figures.failed_goals if each.row in again}
        self._earlier |= {row: found.get(row) for row in again}
        figures.failed_goals = [each for each in figures.failed_goals if each.row not in again]

    def _restored(self, k: State) -> None:
        """Count reopened rows without a new outcome as failed, by their earlier results."""
        figures = self._figures
        found = [track for row, track in self._earlier.items() if row in k.withdrawn or row in k.standing]
        figures.goals_failed += len(found)
        figures.failed_goals += [track for track in found if track is not None]

    # -- permits ---------------------------------------------------------------------------------------------------

    def _granted(self, event: events.PermitsGranted, at_s: float) -> None:
        figures, routes = self._figures, self._reading.terms.routes
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
                figures.happened(at_s, f"the breaker of {before.route} closed")
        if not state or len(figures.periods) >= PERIODS_MAX:
            return
        route = named(routes[event.route]) if event.route < len(routes) else "a removed route"
        period = self._open[event.route] = BreakerPeriod(route, state, at_s, at_s, event.why)
        figures.periods.append(period)
        if state == OPEN:
            figures.happened(at_s, f"the breaker of {route} opened: {event.why or 'no reason was given'}")


def _carried_attempts(reading: JournalReader) -> int:
    """Return the attempts made before the program changed and the job was opened again; the turns read do not
    include these."""
    for batch in reading.opened.batches:
        for event in batch:
            if isinstance(event, events.Opened) and event.carried is not None:
                return event.carried.attempts
    return 0
