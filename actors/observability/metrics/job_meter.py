"""Measurements of one job: histograms counted turn by turn, and K's own counters, read on request.

Histograms are folded from the events of each turn; there is no other work for a call. Values are gathered and counted
many at a time, which costs a third of counting them one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from actors.journal.journal import StateFolder
from actors.observability.base.conventions import (  # fmt: skip
    CHAT,
    OPERATION,
    OPERATION_DURATION,
    PROVIDER,
    REQUEST_MODEL,
    SERVER_ADDRESS,
    SERVER_PORT,
    TOKEN_TYPE,
    TOKEN_USAGE,
    provider_of,
)
from actors.observability.metrics.instruments import FOLDER, JOB, PHASE, SHARD
from actors.observability.metrics.job_ends import end_of, is_told
from actors.observability.metrics.job_samples import of_job
from actors.observability.metrics.journal_size import JournalSize, place_of
from actors.observability.metrics.samples import Exemplar, HistogramSample, Labels, NumberSample, spread
from actors.ports.telemetry import TurnTimings
from actors.providers.registry import address_in
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from cortex.values.limits import JobTerms

TURN = "cortex.turn.duration"
LAG_S = 60.0
"""Seconds over which the longest wait for the journal is reported."""
EXEMPLAR_S = 1.0
"""Least seconds between two changes of a bucket's exemplar."""
GATHERED_MAX = 4_096
"""Most values that wait to be counted."""

Ended = events.Answered | events.AttemptFailed
Sampled = Callable[[State, Ended], tuple[str, str] | None]
"""Returns trace id and span id of an attempt, or None if its trace is not kept."""


def nobody(k: State, event: Ended) -> None:
    """Return None: no traces are kept."""
    return


class _AttemptOutcomes:
    """Histograms of attempts at one route with one outcome: answered, or one kind of failure."""

    __slots__ = ("duration", "inputs", "outputs", "seconds", "tokens_in", "tokens_out")

    def __init__(self, own: Labels, kind: str) -> None:
        self.duration = spread(OPERATION_DURATION, (*own, ("error.type", kind)) if kind else own)
        self.tokens_in = spread(TOKEN_USAGE, (*own, (TOKEN_TYPE, "input")))
        self.tokens_out = spread(TOKEN_USAGE, (*own, (TOKEN_TYPE, "output")))
        self.seconds: list[float] = []
        self.inputs: list[float] = []
        self.outputs: list[float] = []

    def answered(self, some: list[events.Answered]) -> None:
        """Gather the values of these answers."""
        self.seconds += [event.elapsed_s for event in some if event.elapsed_s]
        usages = [event.reply.usage for event in some if not event.reply.usage.unknown]
        self.inputs += [each.input_tokens + each.cache_read_tokens + each.cache_creation_tokens for each in usages]
        self.outputs += [each.output_tokens for each in usages]
        if len(self.outputs) > GATHERED_MAX:
            self.spreads()

    def spreads(self) -> list[HistogramSample]:
        """Count the gathered values and return the histograms that are not empty."""
        for values, into in (
            (self.seconds, self.duration), (self.inputs, self.tokens_in), (self.outputs, self.tokens_out)
        ):  # fmt: skip
            if values:
                into.add_all(values)
                values.clear()
        return [each for each in (self.duration, self.tokens_in, self.tokens_out) if any(each.counts)]


class JobMeter:
    """Job observer that measures one job. ``now_s``: Unix time. ``gone``: called when the channel ends."""

    def __init__(
        self, job: str, folder: str, now_s: Callable[[], float], gone: Callable[[JobMeter], None],
        sampled: Sampled = nobody,
    ) -> None:  # fmt: skip
        self.job = job
        root, _, shard = job.partition("~")
        self._own: Labels = ((JOB, job),)
        self._of_shard: Labels = ((JOB, root), (SHARD, shard))
        state = StateFolder(folder)
        self._journal_size, self._folder = JournalSize(state, job), place_of(state)
        self._now_s, self._gone, self._sampled = now_s, gone, sampled
        self._k: State | None = None
        self._terms: JobTerms | None = None
        self._routes: list[Labels] = []
        self._places: dict[int, int] | None = None
        """Index of the route, by attempt in flight; None in a job with one route."""
        self._ends: dict[tuple[int, str], _AttemptOutcomes] = {}
        self._phases: dict[str, HistogramSample] = {}
        self._lags: deque[tuple[float, float]] = deque()
        self._progressed_s = 0.0
        self._unsaved_s: Callable[[], float] = float

    # -- observation -----------------------------------------------------------------------------------------------

    def turn(self, seq: int, turn: events.Turn, out: list[commands.Command], k: State) -> None:
        """Count the events of a turn."""
        if k.terms is not self._terms:
            self._met(k)
        self._k = k
        progress = not self._progressed_s
        for batch in turn.batches:
            answered = [event for event in batch if type(event) is events.Answered]
            if answered:
                progress = True
                self._answered(answered, turn)
            if len(answered) < len(batch):
                for event in batch:
                    if type(event) is events.AttemptFailed:
                        self._broke(event, turn)
                    elif type(event) is events.GivenBack:
                        if self._places is not None:
                            self._place(event)
                    elif type(event) in _PROGRESS:
                        progress = True
        if progress:
            self._progressed_s = turn.wall_s
        if self._places is not None:
            for command in out:
                if type(command) is commands.Call:
                    self._places[flight_key(command.goal, command.attempt)] = command.route

    def turn_timed(self, took: TurnTimings) -> None:
        """Count the durations of a turn's parts."""
        for phase, seconds in (
            ("step", took.step_s), ("commit", took.commit_s), ("absorb", took.absorb_s), ("select", took.select_s),
        ):  # fmt: skip
            if seconds > 0:
                found = self._phases.get(phase)
                if found is None:
                    found = self._phases[phase] = spread(TURN, (*self._own, (PHASE, phase)))
                found.add(seconds)
        lags = self._lags
        while lags and lags[-1][1] <= took.waited_s:  # drop waits that a later, longer wait outlasts
            lags.pop()
        lags.append((took.at_s, took.waited_s))
        if lags[0][0] < took.at_s - LAG_S:
            lags.popleft()

    def timed_by(self, unsaved_s: Callable[[], float]) -> None:
        """Take the clock of events that are not on disk yet."""
        self._unsaved_s = unsaved_s

    def close(self) -> None:
        """Remove the job's series."""
        self._gone(self)

    # -- samples ---------------------------------------------------------------------------------------------------

    @property
    def began_s(self) -> float:
        """Start of the job's counters, Unix time; 0 before the first turn."""
        return self._k.began_at_s if self._k is not None else 0.0

    def points(self) -> Iterator[NumberSample]:
        """Yield the job's counters and gauges."""
        if self._k is None:
            return
        yield from of_job(self._k, self._own)
        yield NumberSample("cortex.job.progressed", self._own, self._progressed_s)
        if self._k.outcome and is_told(self.job):
            yield from end_of(self._k).points()
        recent_s = self._now_s() - self._k.ahead_s - LAG_S  # by the job's own time, as that of its turns
        lag_s = next((lag for at_s, lag in self._lags if at_s >= recent_s), 0.0)
        yield NumberSample("cortex.journal.lag", self._own, max(lag_s, self._unsaved_s()))
        if (room := self._journal_size.read()) is not None:
            size, free = room
            yield NumberSample("cortex.journal.size", self._own, size)
            if free is not None:
                yield NumberSample("cortex.disk.free", (*self._own, (FOLDER, self._folder)), free)

    def spreads(self) -> Iterator[HistogramSample]:
        """Yield the job's histograms."""
        for ends in self._ends.values():
            yield from ends.spreads()
        yield from self._phases.values()

    # -- parts -----------------------------------------------------------------------------------------------------

    def _met(self, k: State) -> None:
        """Take up the terms of the job: a new journal, or changed routes."""
        self._terms = k.terms
        if k.terms.shard and self._own is not self._of_shard:
            self._own = self._of_shard
            for phase, each in self._phases.items():
                each.labels = (*self._own, (PHASE, phase))
        self._routes = [labels_of(k.terms, place) for place in range(len(k.terms.routes))]
        if len(self._routes) == 1:
            self._places = None
        elif self._places is None:
            self._places = {key: flight.route for key, flight in k.flights.items()}

    def _answered(self, some: list[events.Answered], turn: events.Turn) -> None:
        if self._places is None:
            self._take(0, some, turn)
            return
        by_place: dict[int, list[events.Answered]] = {}
        for event in some:
            by_place.setdefault(self._place(event), []).append(event)
        for place, those in by_place.items():
            self._take(place, those, turn)

    def _take(self, place: int, some: list[events.Answered], turn: events.Turn) -> None:
        ends = self._of(place, "")
        ends.answered(some)
        self._show(ends.duration, some[-1], turn)
        if len(some) > 1:
            self._show(ends.duration, max(some, key=_elapsed_s), turn)

    def _broke(self, event: events.AttemptFailed, turn: events.Turn) -> None:
        place = 0 if self._places is None else self._place(event)
        if event.failure.sent and event.elapsed_s > 0:
            ends = self._of(place, str(event.failure.kind))
            ends.duration.add(event.elapsed_s)
            self._show(ends.duration, event, turn)

    def _of(self, place: int, kind: str) -> _AttemptOutcomes:
        found = self._ends.get((place, kind))
        if found is None:
            found = self._ends[place, kind] = _AttemptOutcomes((*self._own, *self._routes[place]), kind)
        return found

    def _place(self, event: Ended | events.GivenBack) -> int:
        assert self._places is not None
        place = self._places.pop(flight_key(event.goal, event.attempt), 0)
        return place if place < len(self._routes) else 0

    def _show(self, into: HistogramSample, event: Ended, turn: events.Turn) -> None:
        """Make this attempt the exemplar of its bucket, if its trace is kept and the last exemplar is ``EXEMPLAR_S``
        old, or the clock of the machine was set back since."""
        if self._sampled is nobody or not event.elapsed_s:
            return
        bucket, at_s = into.bucket(event.elapsed_s), turn.wall_s
        last = into.exemplars.get(bucket)
        if last is None or not last.at_s <= at_s < last.at_s + EXEMPLAR_S:
            assert self._k is not None
            kept = self._sampled(self._k, event)
            if kept is not None:
                into.exemplars[bucket] = Exemplar(event.elapsed_s, at_s, *kept)


_PROGRESS = frozenset({events.ReplyRecalled, events.Observed, events.ChildJobEnded, events.ResultsCollected})


def _elapsed_s(event: events.Answered) -> float:
    return event.elapsed_s


def labels_of(terms: JobTerms, place: int) -> Labels:
    """Return the labels of a route, with the names of the GenAI conventions."""
    route = terms.routes[place]
    found = [(OPERATION, CHAT), (PROVIDER, provider_of(route.endpoint)), (REQUEST_MODEL, route.model)]
    where = urlsplit(address_in(route.endpoint))
    if where.hostname:
        found.append((SERVER_ADDRESS, where.hostname))
        if where.port:
            found.append((SERVER_PORT, str(where.port)))
    return tuple(found)


__all__ = ["Ended", "JobMeter", "Sampled", "labels_of", "nobody"]
