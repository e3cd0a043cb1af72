"""Fast path of the tracer: top goals that come to one call, which the first attempt answers.

Nearly every row of a batch is such a goal. While its one call is under way, the goal has one short record, or a number,
in place of a ``GoalRecord``; when it ends, one ``SingleCall`` is written in place of five spans. As soon as anything
else happens to the goal, ``expand`` makes its full record, as if there had been one from the beginning.

Both ways write the same spans: ``tests/properties/test_traces.py`` folds the same turns with short records and with
full ones, and compares spans and state; ``tests/unit/cortex/tracing/test_spans.py`` does so case by case.
"""

from __future__ import annotations

from cortex.state import commands, events
from cortex.state.goals import Goal, Status
from cortex.tracing.call_records import PendingSingleCall, SingleCall, call_of
from cortex.tracing.call_spans import CallSpans
from cortex.tracing.spans import LINKS_MAX, SpanKind, SpanLink
from cortex.tracing.trace_assignment import GOAL_SPANS, TraceAssignment
from cortex.tracing.trace_state import AttemptRecord, GoalRecord, TraceRecord
from cortex.tracing.turn_context import TurnContext

_GOAL = int(SpanKind.GOAL)
_RESOLVED = Status.RESOLVED


class SingleCallGoals:
    """Goals of one job that have a short record. They are no part of the trace state: see ``expand_all``."""

    def __init__(self, traces: TraceAssignment, calls: CallSpans, now: TurnContext) -> None:
        self._traces = traces
        self._calls = calls
        self._now = now
        self.records = traces.short
        """By goal id: when the goal was made and could be chosen (seconds since 1970), then its call under way."""
        self.answered: dict[int, events.Answered] = {}
        """Reply that this turn has brought, by goal id. Empty between two turns."""

    def expand(self, goal_id: int) -> GoalRecord | None:
        """Replace the short record of a goal by a full one, and return that. None if the goal is not found."""
        now, record = self._now, self.records.pop(goal_id)
        event = self.answered.pop(goal_id, None)
        goal = now.goal(goal_id)
        if goal is None and now.previous_k is not None:  # its job began anew in this turn
            goal = now.previous_k.goals.get(goal_id)
        if goal is None:
            return None
        begin_s = record.begin_s if isinstance(record, PendingSingleCall) else record
        state = self._traces.state
        state.traces[goal_id] = TraceRecord(GOAL_SPANS, True, begin_s, 1)
        node = state.nodes[goal_id] = GoalRecord(
            goal_id, goal.kind, 0, goal_id, goal_id << 24 | _GOAL, 0, begin_s, begin_s, goal.row,
            links=self._traces.job_links(state.run),
        )  # fmt: skip
        if isinstance(record, PendingSingleCall):
            node.reserved, node.calls = False, 1
            call = node.call = call_of(goal_id, record)
            node.flights[1] = AttemptRecord(record.asked_s, 0, goal_id, call.key)
        if event is not None:
            self._calls.answered(event, node)
        return node

    def expand_all(self) -> None:
        """Replace all short records by full ones: before the trace state is kept, or the job stops."""
        for goal_id in list(self.records):
            self.expand(goal_id)

    def expand_answered(self) -> None:
        """Replace the short records of goals that were answered in this turn and have not ended with it."""
        for goal_id in list(self.answered):
            self.expand(goal_id)

    # -- from the beginning to the end -----------------------------------------------------------------------------

    def begin(self, goal: Goal) -> None:
        """Record a new top goal whose trace is kept and that can be chosen at once."""
        goal_id, state = goal.id, self._traces.state
        self.records[goal_id] = self._now.at_s
        state.kept_spans += GOAL_SPANS
        if len(state.tops) < LINKS_MAX:
            state.tops.append(SpanLink(goal_id, goal_id << 24 | _GOAL))

    def asked(self, command: commands.Call, usual: bool) -> None:
        """Take an attempt at a goal that has a short record.

        ``usual``: no route probes or is guarded in this turn, and no text is captured.
        """
        now, goal_id = self._now, command.goal
        begin_s = self.records[goal_id]
        goal = now.k.goals.get(goal_id)
        if not usual or goal is None or command.route or command.attempt != 1 or isinstance(begin_s, PendingSingleCall):
            self._calls.asked(command, self.expand(goal_id))
            return
        route = now.k.terms.route
        self.records[goal_id] = PendingSingleCall(
            begin_s, now.at_s, command.sample, command.hash, goal.constructor, route.model, route.endpoint,
            command.output_tokens_max, route.price,
        )  # fmt: skip

    def replied(self, event: events.Answered) -> None:
        """Take the reply to an attempt at a goal that has a short record."""
        goal_id = event.goal
        if (
            self._now.captures or event.attempt != 1 or goal_id in self.answered
            or type(self.records[goal_id]) is float
        ):  # fmt: skip
            self._calls.answered(event, self.expand(goal_id))
        else:
            self.answered[goal_id] = event

    def ended(self, goal: Goal, made_below: set[int], links: tuple[SpanLink, ...]) -> bool:
        """Write the record of a goal that has ended. Return False, with the goal expanded, if it needs more spans.

        ``made_below``: ids of the goals under which this turn has made goals. ``links``: links of the goal's span.
        """
        now, goal_id = self._now, goal.id
        event = self.answered.get(goal_id)
        if event is None or goal.status != _RESOLVED or goal.resamples or goal_id in made_below:
            self.expand(goal_id)
            return False
        del self.answered[goal_id]
        asked = self.records.pop(goal_id)
        assert isinstance(asked, PendingSingleCall)
        at_s, elapsed_s = now.at_s, event.elapsed_s
        begin_s = asked.asked_s + event.waited_s  # as ``CallSpans`` computes it in ``_times``
        if begin_s > at_s:
            begin_s = at_s
        end_s = begin_s + elapsed_s
        if not elapsed_s or end_s > at_s:
            end_s = at_s
        now.done.append(SingleCall(goal, asked, event, begin_s, end_s, at_s, links))
        return True

    def rejoined(self, event: events.Rejoined) -> None:
        """Expand the goals whose attempt no branch holds after a restart of the channel: that attempt is lost."""
        held, flights = set(event.held), self._now.k.flights
        for goal_id, asked in list(self.records.items()):
            if isinstance(asked, PendingSingleCall) and (goal_id, 1) not in held and goal_id << 20 | 1 not in flights:
                self.expand(goal_id)
