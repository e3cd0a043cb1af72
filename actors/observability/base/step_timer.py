"""Durations of the parts of a turn, measured from outside: the core reads no clock.

A step absorbs its events, then asks the program whether it is satisfied, and then asks for the next calls. Two readings
of the clock, at these two requests, therefore separate the parts of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from actors.ports.telemetry import TurnTimings
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State

_FOLDED = (events.Answered, events.ReplyRecalled, events.Observed, events.ChildJobEnded, events.AnswerGiven)


class StepTimer:
    """Timer of one channel's turns. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._program: Program | None = None
        self._timed: Program
        self._since_s = self._taken_since_s = self._began_s = self._stepped_s = 0.0
        self.asked_s = self.selected_s = 0.0
        self._waiting = False

    def arrived(self) -> None:
        """Record that an event waits for the next turn."""
        if not self._waiting:
            self._waiting, self._since_s = True, self._clock()

    def step(self, k: State, program: Program, turn: events.Turn, left: bool) -> commands.StepCommands:
        """Take the turn, timed. ``left``: whether events remain that this turn does not take."""
        if program is not self._program:
            self._program, self._timed = program, cast(Program, _TimedProgram(program, self, self._clock))
        self._began_s = now_s = self._clock()
        if not self._waiting:
            self._since_s = now_s
        self._taken_since_s, self._since_s, self._waiting = self._since_s, now_s, left
        self.asked_s = self.selected_s = 0.0
        out = step(k, self._timed, turn)
        self._stepped_s = self._clock()
        return out

    def unsaved_s(self) -> float:
        """Return for how many seconds the oldest event has waited that is not on disk yet; 0 if none waits.

        A commit that does not end has no duration: only this tells of it.
        """
        since_s = self._taken_since_s or (self._since_s if self._waiting else 0.0)
        return self._clock() - since_s if since_s else 0.0

    def over(self, turn: events.Turn) -> TurnTimings:
        """Return the durations of the turn; called when the turn is on disk."""
        now_s, took = self._clock(), TurnTimings()
        took.at_s = turn.at_s
        took.step_s, took.commit_s = self._stepped_s - self._began_s, now_s - self._stepped_s
        took.waited_s = now_s - self._taken_since_s
        self._taken_since_s = 0.0
        for batch in turn.batches:
            if batch and type(batch[0]) in _FOLDED:
                took.absorb_s = (self.asked_s or self._stepped_s) - self._began_s
                break
        if self.selected_s:
            took.select_s = self._stepped_s - self.selected_s
        return took


class _TimedProgram:
    """Proxy of a program that notes the time of its first ``satisfied`` and ``select`` in a step."""

    def __init__(self, program: Program, watch: StepTimer, clock: Callable[[], float]) -> None:
        self._program, self._watch, self._clock = program, watch, clock
        for name in vars(Program):  # bound once, since these are looked up in every turn
            if not name.startswith("_") and name not in ("select", "satisfied"):
                setattr(self, name, getattr(program, name))
        self._select, self._satisfied = program.select, program.satisfied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def satisfied(self, k: State) -> bool:
        """Note the time (the events are absorbed by now) and ask the program."""
        if not self._watch.asked_s:
            self._watch.asked_s = self._clock()
        return self._satisfied(k)

    def select(self, k: State) -> Any:
        """Note the time (the next calls are selected from now on) and ask the program."""
        if not self._watch.selected_s:
            self._watch.selected_s = self._clock()
        return self._select(k)
