"""Whoever looks on while channels work, and changes nothing: traces, metrics, logs.

A watch sees each turn once it is on disk: what happened, what was decided, and K as it is then. It is a fold over
turns, as K is; one that raises is let go, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from actors.journal.journal import Journal
from cortex.scheduler import protocol
from cortex.scheduler.state import SchedulerState
from cortex.state import commands, events
from cortex.state.state import State

TRACEPARENT = "traceparent"
"""Among a child job's places: the W3C header that names the span in its parent's traces below which it runs."""

_log = logging.getLogger("cortex.watching")


class TurnTimings:
    """How long the parts of one turn took, in seconds; when it was over, in seconds since 1970."""

    __slots__ = ("absorb_s", "at_s", "commit_s", "select_s", "step_s", "waited_s")

    def __init__(self) -> None:
        self.at_s = self.step_s = self.commit_s = 0.0
        self.absorb_s = 0.0
        """Of the step: what came was folded in; 0 where nothing came that could be."""
        self.select_s = 0.0
        """Of the step: the next calls were chosen and rendered."""
        self.waited_s = 0.0
        """From the moment at which its first event was there until all were on disk."""


class JobObserver(Protocol):
    """Looks on at one job."""

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """A turn was committed under this number; ``out`` is what it leads to. Nothing of it may be changed."""

    def close(self) -> None:
        """The channel ends, and perhaps goes on elsewhere. Not called in the event loop: it may wait for seconds."""


@runtime_checkable
class RestorableObserver(Protocol):
    """What a watch has, besides, that must go on where it was when its process was killed."""

    names_calls: bool
    """Whether calls go out with the names of their spans."""

    def begin(self, journal: Journal) -> None:
        """The channel comes to life. It will replay the turns after ``journal.replay_from()`` before there are others.
        Facts beside the journal may be read and written."""

    def again(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """A turn of an earlier incarnation is replayed."""

    def kept(self, seq: int) -> None:
        """A snapshot of K after this turn is about to be written: a later incarnation replays from here on."""

    def child_of(self, goal: int, attempt: int) -> str:
        """What a child job that was launched just now is told to hang below, as a W3C header; empty: nothing."""

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Calls of this turn, each with the name of its span where that is to travel to the provider."""


@runtime_checkable
class TimedObserver(Protocol):
    """What a watch has, besides, that wants to know how long turns take."""

    def turn_timed(self, took: TurnTimings) -> None:
        """How long the turn took that is told next."""


class ClusterObserver(Protocol):
    """Looks on at the cortex."""

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """An event was taken, and this is what it leads to."""


class Telemetry(Protocol):
    """What looks on in one process."""

    def watch(self, job: str, folder: str) -> JobObservers:
        """Those who look on at this job, whose channel comes to life here. ``folder``: where its state is."""

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """Somebody to look on at the cortex, which comes to life here; ``state`` is its own, and is only read."""

    def take(self, headers: bytes) -> None:
        """What a collector wants to see, as another process handed it over: before there is anything to send."""

    def readings(self) -> bytes:
        """What is known here in numbers (``observing.readings.Readings``); empty where nobody counts."""

    def close(self) -> None:
        """The process ends."""


class NullObserver:
    """Looks on at nothing."""

    def watch(self, job: str, folder: str) -> JobObservers:
        """Nobody."""
        return JobObservers([])

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """Nobody."""
        return ClusterObservers([])

    def take(self, headers: bytes) -> None:
        """There is no collector."""

    def readings(self) -> bytes:
        """Nothing."""
        return b""

    def close(self) -> None:
        """Nothing waits."""


class JobObservers:
    """Several as one. One that raises is let go."""

    def __init__(self, each: Sequence[JobObserver]) -> None:
        self._are(list(each))
        self._seen = False
        """Whether the turn that is carried out has been seen."""

    def _are(self, each: list[JobObserver]) -> None:
        # lists that are replaced, never changed: one that is let go may be one of those that are being told
        self._each = each
        self._rewatch = [watch for watch in each if isinstance(watch, RestorableObserver)]
        self._timed = [watch for watch in each if isinstance(watch, TimedObserver)]
        self._names = any(watch.names_calls for watch in self._rewatch)

    def before(self, took: TurnTimings, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """A turn is on disk, and nothing that it leads to has begun. It is seen now where calls, or child jobs, are to
        carry the names of their spans; else when they are on their way: they do not wait for whoever looks on."""
        self._seen = self._names or commands.LaunchChildJob in set(map(type, out))
        if self._seen:
            self.turn_timed(took)
            self.turn(seq, turn, out, k)

    def after(self, took: TurnTimings, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """All that it leads to has begun."""
        if not self._seen:
            self.turn_timed(took)
            self.turn(seq, turn, out, k)

    def turn_timed(self, took: TurnTimings) -> None:
        """Those that want to know hear it."""
        for watch in self._timed:
            try:
                watch.turn_timed(took)
            except Exception:
                self._let_go(watch)

    def begin(self, journal: Journal) -> None:
        """Those that must know hear of it."""
        self._remind(lambda watch: watch.begin(journal))

    @property
    def reminded(self) -> bool:
        """Whether anyone must see turns of an earlier incarnation."""
        return bool(self._rewatch)

    def again(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Those that must know see it again."""
        if self._rewatch:
            self._remind(lambda watch: watch.again(seq, turn, out, k))

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """All of them see it."""
        for watch in self._each:
            try:
                watch.turn(seq, turn, out, k)
            except Exception:  # whoever looks on must not take the job along
                self._let_go(watch)

    def kept(self, seq: int) -> None:
        """Those that must know hear of it."""
        self._remind(lambda watch: watch.kept(seq))

    async def close(self) -> None:
        """All of them."""
        if self._each:
            await asyncio.to_thread(self._close)

    def child_of(self, goal: int, attempt: int) -> str:
        """What a child job that was launched just now is told to hang below; empty where nobody tells of it."""
        found = (watch.child_of(goal, attempt) for watch in self._rewatch)
        return next(filter(None, found), "")

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """The calls as they go out."""
        for watch in self._rewatch:  # whether one is such is found out once: it takes 10 us each time
            calls = watch.marked(calls)
        return calls

    def _close(self) -> None:
        for watch in self._each:
            try:
                watch.close()
            except Exception:
                _log.exception("%s did not end well", type(watch).__name__)

    def _remind(self, of: Callable[[RestorableObserver], None]) -> None:
        for watch in self._rewatch:
            try:
                of(watch)
            except Exception:
                self._let_go(watch)

    def _let_go(self, watch: object) -> None:
        self._are([each for each in self._each if each is not watch])
        _log.exception("%s looks on no more", type(watch).__name__)


class ClusterObservers:
    """Several as one."""

    def __init__(self, each: list[ClusterObserver]) -> None:
        self._each = each

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """All of them see it."""
        for oversight in list(self._each):
            try:
                oversight.step(event, out)
            except Exception:  # whoever looks on must not take the cortex along
                self._each.remove(oversight)
                _log.exception("%s looks on no more", type(oversight).__name__)
