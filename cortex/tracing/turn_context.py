"""Turn that a tracer folds, as all parts of the tracer see it."""

from __future__ import annotations

from cortex.state import commands, events
from cortex.state.goals import ENDED, Goal
from cortex.state.state import State
from cortex.tracing.call_records import ExchangeRecord, Whole
from cortex.tracing.spans import Span

NO_COMMANDS = commands.StepCommands()
NO_ROUTES: frozenset[int] = frozenset()


class TurnContext:
    """Turn with its commands, the job's state after it, and the records that are complete because of it."""

    __slots__ = ("_ended", "absorbed", "at_s", "captures", "done", "guarded", "k", "out", "previous_k")

    def __init__(self) -> None:
        self.k: State
        """The job's state after the turn; unset before the first turn."""
        self.previous_k: State | None = None
        """The job's state after the turn before."""
        self.out = NO_COMMANDS
        self.at_s = 0.0
        """Time of the turn in seconds since 1970; never earlier than that of the turn before."""
        self.captures = False
        """True if spans hold the text of prompts and replies."""
        self.done: list[Whole] = []
        """Records that are complete now."""
        self.guarded = NO_ROUTES
        """Places of the routes on which a breaker limits calls."""
        self.absorbed: dict[int, ExchangeRecord | Span] = {}
        """Record of the reply that each goal has absorbed in this turn, by goal id."""
        self._ended: dict[int, Goal] | None = None

    def begin(self, turn: events.Turn, out: commands.StepCommands, k: State, captures: bool) -> list[Whole]:
        """Take the next turn. Return the list that will hold its records."""
        self.k, self.out, self.captures, self._ended = k, out, captures, None
        at_s = float(turn.at_s)
        if at_s > self.at_s:
            self.at_s = at_s
        done: list[Whole] = []
        self.done = done
        return done

    def end(self) -> None:
        """Drop all references to the turn."""
        self.absorbed.clear()
        self._ended, self.previous_k = None, self.k
        self.out, self.done = NO_COMMANDS, []

    def goal(self, goal_id: int) -> Goal | None:
        """Return a goal that lives, or that this turn has ended (which may have removed it from the state).

        None if an earlier turn ended the goal, or if there is none with this id.
        """
        ended = self._ended
        if ended is None:
            ended = self._ended = {goal.id: goal for goal in self.out.ended}
        goal = ended.get(goal_id)
        if goal is None and (goal := self.k.goals.get(goal_id)) is not None and goal.status in ENDED:
            return None
        return goal
