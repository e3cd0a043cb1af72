"""One job, as it is measured: what K does not keep, counted turn by turn; and K itself, read when somebody asks.

Histograms are folded from the events of each turn, a look into a short table each; nothing else is done for a call.
What fails here ends the watch, and never the job.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from actors.observing.instruments import JOB, PHASE
from actors.observing.job_readings import of_job
from actors.observing.readings import Exemplar, Labels, Point, Spread, spread
from actors.watching import Took
from cortex import commands, events
from cortex.limits import Terms
from cortex.state import State, flight_key

DURATION = "gen_ai.client.operation.duration"
USAGE = "gen_ai.client.token.usage"
TURN = "cortex.turn.duration"
LAG_S = 60.0
"""So long the longest wait is told."""
EXEMPLAR_S = 1.0
"""A bucket's exemplar is changed no more often: it shows one call of many, and looking for it costs."""

Sampled = Callable[[State, events.Answered | events.Broke], tuple[str, str] | None]
"""Trace and span id of a call's attempt, where its trace is kept."""


def _nobody(k: State, event: events.Answered | events.Broke) -> None:
    return None


class JobMeter:
    """A watch of one job. ``now_s``: seconds since 1970. ``gone``: told when it ends."""

    def __init__(
        self, job: str, folder: str, now_s: Callable[[], float], gone: Callable[[JobMeter], None],
        sampled: Sampled = _nobody,
    ) -> None:  # fmt: skip
        self.job = job
        self._journal = Path(folder) / "jobs" / f"{job}.sqlite"
        self._now_s, self._gone, self._sampled = now_s, gone, sampled
        self._k: State | None = None
        self._routes: list[Labels] = []
        self._terms: Terms | None = None
        self._places: dict[int, int] | None = None
        """By attempt: the route that it went to, in a job that has several."""
        self._ended: dict[tuple[int, str], Spread] = {}
        self._usage: dict[int, tuple[Spread, Spread]] = {}
        self._phases: dict[str, Spread] = {}
        self._lags: deque[tuple[float, float]] = deque()
        self._progressed_s = 0.0

    # -- what it sees ----------------------------------------------------------------------------------------------

    def turn(self, seq: int, turn: events.Turn, out: list[commands.Command], k: State) -> None:
        """Count what came."""
        if k.terms is not self._terms:
            self._met(k)
        self._k = k
        progress = False
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    progress = True
                    place = 0 if self._places is None else self._place(event)
                    usage = event.reply.usage
                    tokens_in, tokens_out = self._usage.get(place) or self._new_usage(place)
                    tokens_in.add(usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens)
                    tokens_out.add(usage.output_tokens)
                    if event.elapsed_s > 0:
                        self._count(place, "", event, turn.at_s)
                elif type(event) is events.Broke:
                    place = 0 if self._places is None else self._place(event)
                    if event.failure.sent and event.elapsed_s > 0:
                        self._count(place, str(event.failure.kind), event, turn.at_s)
                elif type(event) in _PROGRESS:
                    progress = True
        if progress or not self._progressed_s:
            self._progressed_s = turn.at_s
        if self._places is not None:
            for command in out:
                if type(command) is commands.Call:
                    self._places[flight_key(command.goal, command.attempt)] = command.route

    def took(self, took: Took) -> None:
        """How long the parts of a turn took."""
        for phase, seconds in (
            ("step", took.step_s), ("commit", took.commit_s), ("absorb", took.absorb_s), ("select", took.select_s),
        ):  # fmt: skip
            if seconds > 0:
                found = self._phases.get(phase)
                if found is None:
                    found = self._phases[phase] = spread(TURN, ((JOB, self.job), (PHASE, phase)))
                found.add(seconds)
        lags = self._lags
        while lags and lags[-1][1] <= took.waited_s:  # only what is longer than all that came after can be told yet
            lags.pop()
        lags.append((took.at_s, took.waited_s))

    def close(self) -> None:
        """Its series vanish."""
        self._gone(self)

    # -- what it tells ---------------------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        """Its counters and gauges."""
        k = self._k
        if k is None:
            return
        yield from of_job(k)
        own = ((JOB, self.job),)
        yield Point("cortex.job.progressed", own, self._progressed_s)
        yield Point("cortex.journal.lag", own, self._lag_s())
        size = _size(self._journal) + _size(self._journal.with_name(self._journal.name + "-wal"))
        yield Point("cortex.journal.size", own, size)
        try:
            yield Point("cortex.disk.free", own, shutil.disk_usage(self._journal.parent).free)
        except OSError:  # it stands in no file
            return

    def spreads(self) -> Iterator[Spread]:
        """Its histograms."""
        yield from self._ended.values()
        for pair in self._usage.values():
            yield from pair
        yield from self._phases.values()

    @property
    def over(self) -> bool:
        """Whether its job has ended: then only what is read before the channel goes is told of it."""
        return self._k is not None and bool(self._k.outcome)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _met(self, k: State) -> None:
        """Another journal, or other routes."""
        self._terms = k.terms
        self._routes = [labels_of(k.terms, place) for place in range(len(k.terms.routes))]
        if len(self._routes) == 1:
            self._places = None
        elif self._places is None:
            self._places = {key: flight.route for key, flight in k.flights.items()}

    def _place(self, event: events.Answered | events.Broke) -> int:
        assert self._places is not None
        place = self._places.pop(flight_key(event.goal, event.attempt), 0)
        return place if place < len(self._routes) else 0

    def _new_usage(self, place: int) -> tuple[Spread, Spread]:
        own = ((JOB, self.job), *self._routes[place])
        made = [spread(USAGE, (*own, ("gen_ai.token.type", which))) for which in ("input", "output")]
        pair = self._usage[place] = made[0], made[1]
        return pair

    def _count(self, place: int, kind: str, event: events.Answered | events.Broke, at_s: float) -> None:
        found = self._ended.get((place, kind))
        if found is None:
            error = (("error.type", kind),) if kind else ()
            found = self._ended[place, kind] = spread(DURATION, ((JOB, self.job), *self._routes[place], *error))
        bucket = found.add(event.elapsed_s)
        last = found.exemplars.get(bucket)
        if last is None or at_s >= last.at_s + EXEMPLAR_S:
            assert self._k is not None
            kept = self._sampled(self._k, event)
            if kept is not None:
                found.exemplars[bucket] = Exemplar(event.elapsed_s, at_s, *kept)

    def _lag_s(self) -> float:
        now_s = self._now_s()
        while self._lags and self._lags[0][0] < now_s - LAG_S:
            self._lags.popleft()
        return self._lags[0][1] if self._lags else 0.0


_PROGRESS = frozenset({events.Recalled, events.Observed, events.Returned, events.Collected})


def labels_of(terms: Terms, place: int) -> Labels:
    """A route in the words of the GenAI conventions."""
    route = terms.routes[place]
    found = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": route.model,
    }  # fmt: skip
    where = urlsplit(route.endpoint)
    if where.hostname:
        found["server.address"] = where.hostname
        if where.port:
            found["server.port"] = str(where.port)
    return tuple(found.items())


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


__all__ = ["JobMeter", "Sampled", "labels_of"]
