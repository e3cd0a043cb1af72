"""Export of every attempt of a job in the Trace Event Format, for trace viewers.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, JSON Object Format: read by Perfetto
(ui.perfetto.dev, which opens a file without sending it anywhere) and by ``chrome://tracing``. The trace is complete. It
is written while the journal is read, in memory that does not grow with the job.

A job is a process of the trace; a branch has as many threads as concurrent calls, since slices of one thread must not
overlap. Times are microseconds since the beginning of the job.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import msgspec

from actors.history.annotated_turns import AnnotatedTurn, JournalReader, SettledAttempt
from actors.jobs.wait_reasons import named
from actors.report.labels import LABELLED_EVENTS, breaker_of, event_label, name_of
from cortex.state import events
from cortex.values.display import clipped
from policies.estimates.price import usd

_encode = msgspec.json.Encoder(order="deterministic").encode
_US = 1_000_000
_JOB_THREAD, _ROUTE_THREADS, _FIRST_LANE = 1, 2, 100
MESSAGE_CHARACTERS = 200

Mark = dict[str, Any]


def trace(readings: list[JournalReader], text: bool = True) -> Iterator[bytes]:
    """Yield the file in pieces. ``text``: include messages of failures and names of goals."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    first = True
    begin_s = min(reading.begin_s for reading in readings)
    for number, reading in enumerate(readings, start=1):
        for mark in _JournalMarks(number, reading, begin_s, text).marks():
            yield (b"" if first else b",\n") + _encode(mark)
            first = False
    facts = {"job": readings[0].name, "begin_s": begin_s, "program_replayed": not readings[0].changed}
    yield b'\n],"otherData":' + _encode(facts) + b"}\n"


class _Lanes:
    """Threads of one branch: the ends of the last slices, sorted."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []

    def place(self, from_us: int, to_us: int) -> tuple[int, bool]:
        """Return a lane that is free from ``from_us`` on, and whether it is new. Call in the order of the slices'
        ends."""
        at = bisect_right(self._ends, (from_us, 1 << 60)) - 1
        new = at < 0
        lane = len(self._ends) if new else self._ends.pop(at)[1]
        self._ends.insert(bisect_right(self._ends, (to_us, lane)), (to_us, lane))
        return lane, new


class _JournalMarks:
    """Trace events of one journal."""

    def __init__(self, number: int, reading: JournalReader, begin_s: float, text: bool) -> None:
        self._pid, self._reading, self._begin_s, self._text = number, reading, begin_s, text
        self._lanes: dict[str, _Lanes] = {}
        self._next = _FIRST_LANE
        self._threads: dict[tuple[str, int], int] = {}
        self._open: dict[int, tuple[int, str, str]] = {}
        self._level = (-1, -1)

    def marks(self) -> Iterator[Mark]:
        """Yield all events."""
        yield self._meta("process_name", 0, name=f"job {self._reading.name}")
        yield self._meta("process_sort_index", 0, sort_index=self._pid)
        yield self._meta("thread_name", _JOB_THREAD, name="job")
        for each in self._reading.steps():
            yield from self._turn(each)
        end_us = self._us(self._reading.end_s)
        for place in [*self._open]:
            yield self._closed(place, end_us)

    def _us(self, at_s: float) -> int:
        return max(0, round((at_s - self._begin_s) * _US))

    def _meta(self, what: str, tid: int, **facts: Any) -> Mark:
        return {"ph": "M", "pid": self._pid, "tid": tid, "name": what, "args": facts}

    def _turn(self, each: AnnotatedTurn) -> Iterator[Mark]:
        at_us = self._us(each.turn.at_s)
        for one in each.settled:
            yield from self._attempt(one)
        for batch in each.turn.batches:
            for event in batch:
                if isinstance(event, events.PermitsGranted):
                    yield from self._granted(event, at_us)
                elif isinstance(event, LABELLED_EVENTS):
                    yield {
                        "ph": "i", "s": "p", "pid": self._pid, "tid": _JOB_THREAD, "ts": at_us, "cat": "job",
                        "name": event_label(event) if self._text
                        else str(type(event).__struct_config__.tag).replace("_", ""),
                    }  # fmt: skip
        k = self._reading.k
        if k is not None and (level := (len(k.flights), k.permits)) != self._level:
            self._level = level
            counted = {"in flight": level[0], "permits": level[1]}
            yield {"ph": "C", "pid": self._pid, "tid": 0, "ts": at_us, "name": "calls", "args": counted}

    def _attempt(self, one: SettledAttempt) -> Iterator[Mark]:
        event = one.event
        at_us = self._us(one.at_s)
        if isinstance(event, events.ReplyRecalled):
            facts = {"goal": event.goal, "sample": event.sample}
            yield {
                "ph": "i", "s": "t", "pid": self._pid, "tid": _JOB_THREAD, "ts": at_us, "cat": "remembered",
                "name": "answered from memory", "args": facts,
            }  # fmt: skip
            return
        begun_us = self._us(one.begun_s)
        by = one.by or "no branch"
        lane, new = self._lanes.setdefault(by, _Lanes()).place(begun_us, at_us)
        if new:
            tid = self._threads[by, lane] = self._next
            self._next += 1
            yield self._meta("thread_name", tid, name=f"{by} {lane + 1}")
            yield self._meta("thread_sort_index", tid, sort_index=tid)
        mark = {
            "ph": "X", "pid": self._pid, "tid": self._threads[by, lane], "ts": begun_us, "dur": at_us - begun_us,
            "name": self._name(one), "cat": "answered" if isinstance(event, events.Answered) else "failed",
            "args": self._attempt_args(one),
        }  # fmt: skip
        if isinstance(event, events.AttemptFailed):
            mark["cname"] = "terrible"
        yield mark

    def _name(self, one: SettledAttempt) -> str:
        if isinstance(one.event, events.AttemptFailed):
            return str(one.event.failure.kind)
        return one.goal.kind if one.goal is not None else "call"

    def _attempt_args(self, one: SettledAttempt) -> Mark:
        event, routes = one.event, self._reading.terms.routes
        assert not isinstance(event, events.ReplyRecalled)
        facts: Mark = {
            "job": self._reading.name, "goal": event.goal, "sample": event.sample, "attempt": event.attempt,
            "waited_s": round(one.waited_s, 6),
        }  # fmt: skip
        if one.place < len(routes):
            facts["route"] = named(routes[one.place])
        if self._text and one.goal is not None:
            facts["name"] = name_of(one.goal, event.sample)
        if isinstance(event, events.AttemptFailed):
            facts["status"] = event.failure.status
            if self._text:
                facts["message"] = clipped(event.failure.message, MESSAGE_CHARACTERS)
        else:
            usage = event.reply.usage
            if not usage.unknown:
                facts |= {"input_tokens": usage.input_tokens_billed, "output_tokens": usage.output_tokens}
            facts |= {"cost_usd": usd(one.known_nusd), "stop_reason": event.reply.stop_reason}
        return facts

    def _granted(self, event: events.PermitsGranted, at_us: int) -> Iterator[Mark]:
        state = breaker_of(event)
        before = self._open.get(event.route)
        if before is not None and before[1] == state:
            return
        if before is not None:
            yield self._closed(event.route, at_us)
        if state:
            if before is None:
                routes = self._reading.terms.routes
                name = named(routes[event.route]) if event.route < len(routes) else f"route {event.route}"
                yield self._meta("thread_name", _ROUTE_THREADS + event.route, name=name)
            self._open[event.route] = (at_us, state, event.why)

    def _closed(self, place: int, to_us: int) -> Mark:
        from_us, state, why = self._open.pop(place)
        return {
            "ph": "X", "pid": self._pid, "tid": _ROUTE_THREADS + place, "ts": from_us, "dur": max(0, to_us - from_us),
            "name": state, "cat": "breaker", "args": {"why": why},
        }  # fmt: skip
