"""Interfaces of observers of running jobs: traces, metrics, logs. Observers change nothing.

An observer sees each turn once it is on disk: events, decisions, and the resulting K. It is a fold over turns, like K.
An observer that raises is removed, and the job goes on.
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
"""Key among a child job's places: the W3C header of the parent's span below which the child's spans belong."""

_log = logging.getLogger("cortex.watching")


class TurnTimings:
    """Durations of the parts of one turn, in seconds, and its end (``at_s``), in seconds since 1970."""

    __slots__ = ("absorb_s", "at_s", "commit_s", "select_s", "step_s", "waited_s")

    def __init__(self) -> None:
        self.at_s = self.step_s = self.commit_s = 0.0
        self.absorb_s = 0.0
        """Seconds of the step spent on folding in events; 0 without events."""
        self.select_s = 0.0
        """Seconds of the step spent on choosing and rendering the next calls."""
        self.waited_s = 0.0
        """Seconds from the arrival of the turn's first event until all events were on disk."""


class JobObserver(Protocol):
    """Observer of one job."""

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Observe a committed turn; ``out`` are its commands. The arguments must not be changed."""

    def close(self) -> None:
        """Close: the channel ends, and perhaps continues elsewhere. Not called in the event loop, so it may take
        seconds.
        """


@runtime_checkable
class RestorableObserver(Protocol):
    """Further methods of an observer that continues its state after its process was killed."""

    names_calls: bool
    """True if calls carry the names of their spans."""

    def begin(self, journal: Journal) -> None:
        """Begin with the channel. The turns after ``journal.replay_from()`` are replayed before new ones are made.

        Facts of the journal may be read and written.
        """

    def again(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Observe a replayed turn of an earlier incarnation."""

    def kept(self, seq: int) -> None:
        """Note that a snapshot of K after this turn is about to be written: a later incarnation replays from there."""

    def child_of(self, goal: int, attempt: int) -> str:
        """Return the W3C header of the parent span for a child job that was just launched; empty: none."""

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Return the calls of this turn, with the names of their spans where they are sent to the provider."""


@runtime_checkable
class TimedObserver(Protocol):
    """Further methods of an observer that needs durations of turns."""

    def turn_timed(self, took: TurnTimings) -> None:
        """Note the durations of the turn that is observed next."""

    def timed_by(self, unsaved_s: Callable[[], float]) -> None:
        """Take the function that returns for how many seconds the oldest unsaved event has waited; 0: none waits."""


class ClusterObserver(Protocol):
    """Observer of the cortex."""

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """Observe an event that was processed, and its commands."""


class Telemetry(Protocol):
    """Observers of one process."""

    def watch(self, job: str, folder: str) -> JobObservers:
        """Return the observers of a job whose channel begins in this process. ``folder``: address of its state folder.
        """

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """Return the observer of the cortex, which begins in this process; its ``state`` is only read."""

    def take(self, headers: bytes) -> None:
        """Accept headers for the collector from another process, before anything is sent."""

    def readings(self) -> bytes:
        """Return the measurements of this process (``observability.metrics``); empty without metrics."""

    def keep_end(self, blob: bytes) -> None:
        """Keep the end of a job (``observability.metrics.job_ends``), to tell of it after its channel is gone."""

    def close(self) -> None:
        """Close: the process ends."""


class NullObserver:
    """Telemetry without observers."""

    def watch(self, job: str, folder: str) -> JobObservers:
        """Return no observers."""
        return JobObservers([])

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """Return no observers."""
        return ClusterObservers([])

    def take(self, headers: bytes) -> None:
        """Ignore the headers: there is no collector."""

    def readings(self) -> bytes:
        """Return no measurements."""
        return b""

    def keep_end(self, blob: bytes) -> None:
        """Keep nothing: nobody asks."""

    def close(self) -> None:
        """Do nothing."""


class JobObservers:
    """Several observers of a job as one. An observer that raises is removed."""

    def __init__(self, each: Sequence[JobObserver]) -> None:
        self._are(list(each))
        self._seen = False
        """True if the current turn has been observed."""

    def _are(self, each: list[JobObserver]) -> None:
        # lists are replaced, never changed: an observer may be removed during iteration
        self._each = each
        self._rewatch = [watch for watch in each if isinstance(watch, RestorableObserver)]
        self._timed = [watch for watch in each if isinstance(watch, TimedObserver)]
        self._names = any(watch.names_calls for watch in self._rewatch)

    def before(self, took: TurnTimings, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Observe a turn that is on disk, before its commands are carried out, if calls or child jobs carry span names.

        Otherwise the turn is observed in ``after``, so that calls do not wait for observers.
        """
        self._seen = self._names or commands.LaunchChildJob in set(map(type, out))
        if self._seen:
            self.turn_timed(took)
            self.turn(seq, turn, out, k)

    def after(self, took: TurnTimings, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Observe the turn after its commands were begun, unless ``before`` did."""
        if not self._seen:
            self.turn_timed(took)
            self.turn(seq, turn, out, k)

    def turn_timed(self, took: TurnTimings) -> None:
        """Pass durations to the observers that need them."""
        for watch in self._timed:
            try:
                watch.turn_timed(took)
            except Exception:
                self._let_go(watch)

    def timed_by(self, unsaved_s: Callable[[], float]) -> None:
        """Pass the clock of unsaved events to the observers that need it."""
        for watch in self._timed:
            watch.timed_by(unsaved_s)

    def begin(self, journal: Journal) -> None:
        """Begin all restorable observers."""
        self._remind(lambda watch: watch.begin(journal))

    @property
    def reminded(self) -> bool:
        """True if an observer needs turns of an earlier incarnation."""
        return bool(self._rewatch)

    def again(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Pass a replayed turn to the restorable observers."""
        if self._rewatch:
            self._remind(lambda watch: watch.again(seq, turn, out, k))

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Pass a turn to all observers."""
        for watch in self._each:
            try:
                watch.turn(seq, turn, out, k)
            except Exception:  # an observer's error must not end the job
                self._let_go(watch)

    def kept(self, seq: int) -> None:
        """Pass the number of a snapshot's turn to the restorable observers."""
        self._remind(lambda watch: watch.kept(seq))

    async def close(self) -> None:
        """Close all observers."""
        if self._each:
            await asyncio.to_thread(self._close)

    def child_of(self, goal: int, attempt: int) -> str:
        """Return the W3C header of the parent span for a child job that was just launched; empty: none."""
        found = (watch.child_of(goal, attempt) for watch in self._rewatch)
        return next(filter(None, found), "")

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Return the calls with the names of their spans."""
        for watch in self._rewatch:  # isinstance of a protocol takes 10 us, so it is not done here
            calls = watch.marked(calls)
        return calls

    def _close(self) -> None:
        for watch in self._each:
            try:
                watch.close()
            except Exception:
                _log.exception("observer %s raised at its close", type(watch).__name__)

    def _remind(self, of: Callable[[RestorableObserver], None]) -> None:
        for watch in self._rewatch:
            try:
                of(watch)
            except Exception:
                self._let_go(watch)

    def _let_go(self, watch: object) -> None:
        self._are([each for each in self._each if each is not watch])
        _log.exception("observer %s was removed: it raised", type(watch).__name__)


class ClusterObservers:
    """Several observers of the cortex as one. An observer that raises is removed."""

    def __init__(self, each: list[ClusterObserver]) -> None:
        self._each = each

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """Pass an event to all observers."""
        for oversight in list(self._each):
            try:
                oversight.step(event, out)
            except Exception:  # an observer's error must not end the cortex
                self._each.remove(oversight)
                _log.exception("observer %s was removed: it raised", type(oversight).__name__)
