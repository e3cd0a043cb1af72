"""Top goals of which nothing but the usual is known so far: they are remembered in short, and told in one piece.

A goal that was made and whose one call is under way takes one small record, or none, in place of a node with all that
may become of it. As soon as anything else happens to it, it is known in full, as if it had been from the beginning; so
that both ways give the same spans.
"""

from __future__ import annotations

from cortex.state import commands, events
from cortex.state.goals import Goal, Status
from cortex.state.state import State
from cortex.tracing.call_records import PendingSingleCall, SingleCall, call_of
from cortex.tracing.call_spans import Calls
from cortex.tracing.spans import LINKS_MAX, SpanIds, SpanKind, SpanLink
from cortex.tracing.trace_assignment import GOAL_SPANS
from cortex.tracing.trace_state import AttemptRecord, GoalRecord, TraceRecord, TraceState
from policies.decisions.trace_sampling import TraceSampling

_GOAL = int(SpanKind.GOAL)
_RESOLVED = Status.RESOLVED


class Singles(Calls):
    """The part of the fold that looks at these."""

    def __init__(self, rule: TraceSampling, ids: SpanIds, state: TraceState, captures: bool) -> None:
        super().__init__(rule, ids, state, captures)
        self._singles: dict[int, float | PendingSingleCall] = {}
        """Since when they could be chosen; or their call. No part of the state: before that is kept they are written
        out in full."""
        self._replied: dict[int, events.Answered] = {}
        """Of those, the ones whose reply this turn brought."""
        self._last: State | None = None
        """K after the turn before."""

    def whole(self) -> TraceState:
        """The state, to be kept: nothing is left out of it."""
        self._write_out()
        return self.state

    def known(self, goal_id: int) -> GoalRecord | None:
        """A goal that is told of, while it lives; from now on in full."""
        node = self.state.nodes.get(goal_id)
        if node is None and goal_id in self._singles:
            node = self._in_full(goal_id)
        return node

    def _write_out(self) -> None:
        for goal_id in list(self._singles):
            self._in_full(goal_id)

    def _in_full(self, goal_id: int) -> GoalRecord | None:
        asked = self._singles.pop(goal_id)
        event = self._replied.pop(goal_id, None)
        goal = self._find(goal_id)
        if goal is None and self._last is not None:  # its job began anew
            goal = self._last.goals.get(goal_id)
        if goal is None:
            return None
        begin_s = asked.begin_s if isinstance(asked, PendingSingleCall) else asked
        state = self.state
        state.traces[goal_id] = TraceRecord(GOAL_SPANS, True, begin_s, 1)
        node = state.nodes[goal_id] = GoalRecord(
            goal_id, goal.kind, 0, goal_id, goal_id << 24 | _GOAL, 0, begin_s, begin_s, goal.row,
            links=self._job_linked(state.run),
        )  # fmt: skip
        if isinstance(asked, PendingSingleCall):
            node.reserved, node.calls = False, 1
            call = node.call = call_of(goal_id, asked)
            node.flights[1] = AttemptRecord(asked.asked_s, 0, goal_id, call.key)
        if event is not None:
            self._answered(event, node)
        return node

    # -- from the beginning to the end -----------------------------------------------------------------------------

    def _begins(self, goal: Goal) -> None:
        """A top goal was made that will be told of, and can be chosen at once."""
        state = self.state
        self._singles[goal.id] = self._at_s
        state.kept_spans += GOAL_SPANS
        if len(state.tops) < LINKS_MAX:
            state.tops.append(SpanLink(goal.id, goal.id << 24 | _GOAL))

    def _asks(self, command: commands.Call, usual: bool) -> None:
        """One of them is asked. ``usual``: as far as is known of all calls of this turn."""
        goal_id, begin_s = command.goal, self._singles[command.goal]
        goal = self._k.goals.get(goal_id)
        if not usual or goal is None or command.route or command.attempt != 1 or isinstance(begin_s, PendingSingleCall):
            self._asked(command, self.known(goal_id))
            return
        route = self._k.terms.route
        self._singles[goal_id] = PendingSingleCall(
            begin_s, self._at_s, command.sample, command.hash, goal.constructor, route.model, route.endpoint,
            command.output_tokens_max,
        )  # fmt: skip

    def _replies(self, event: events.Answered) -> None:
        """The reply to one of them has come."""
        goal_id = event.goal
        if self.captures or event.attempt != 1 or goal_id in self._replied or type(self._singles[goal_id]) is float:
            self._answered(event, self.known(goal_id))
        else:
            self._replied[goal_id] = event

    def _single(self, goal: Goal, made_below: set[int], links: tuple[SpanLink, ...]) -> bool:
        """One of them has ended. Whether it was told; else there is more to tell, and it is known in full."""
        goal_id, at_s = goal.id, self._at_s
        event = self._replied.get(goal_id)
        if event is None or goal.status != _RESOLVED or goal.resamples or goal_id in made_below:
            self.known(goal_id)
            return False
        del self._replied[goal_id]
        asked = self._singles.pop(goal_id)
        assert isinstance(asked, PendingSingleCall)
        elapsed_s = event.elapsed_s
        begin_s = asked.asked_s + event.waited_s  # as ``_times`` has it
        if begin_s > at_s:
            begin_s = at_s
        end_s = begin_s + elapsed_s
        if not elapsed_s or end_s > at_s:
            end_s = at_s
        self._done.append(SingleCall(goal, asked, event, begin_s, end_s, at_s, links))
        return True

    def _rejoined(self, event: events.Rejoined) -> None:
        held, flights = set(event.held), self._k.flights
        for goal_id, asked in list(self._singles.items()):
            if isinstance(asked, PendingSingleCall) and (goal_id, 1) not in held and goal_id << 20 | 1 not in flights:
                self.known(goal_id)
        super()._rejoined(event)
