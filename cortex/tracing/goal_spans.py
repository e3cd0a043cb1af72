"""Spans of goals that have a full record: the goal itself, and the joins of the goals that served it."""

from __future__ import annotations

from typing import Any

from cortex.state.goals import ENDED, Goal, Status
from cortex.tracing.call_records import ExchangeRecord
from cortex.tracing.call_spans import CallSpans
from cortex.tracing.content import as_json
from cortex.tracing.spans import Span, SpanKind, goal_of, part_of, span_key, trace_key
from cortex.tracing.trace_assignment import TraceAssignment
from cortex.tracing.trace_state import GoalRecord
from cortex.tracing.turn_context import TurnContext

_ENDED_AS = {status: status.name.lower() for status in Status}
_GOAL, _FAILED = SpanKind.GOAL, Status.FAILED


class GoalSpans:
    """Goals of one job, from the turn that made them to the turn that ended them."""

    def __init__(self, traces: TraceAssignment, calls: CallSpans, now: TurnContext) -> None:
        self._traces = traces
        self._calls = calls
        self._now = now

    def made(self, goal: Goal) -> None:
        """Take a new goal, whose trace may be kept or not."""
        if goal.parent in self._traces.state.again:
            self._traces.resume_goal(goal.parent)
        self._traces.add_goal(goal)
        if (absorbed := self._now.absorbed.get(goal.parent)) is not None:  # a reply of this turn made the goal
            if isinstance(absorbed, ExchangeRecord):
                absorbed.goals += 1
            else:
                absorbed.facts["goals"] = absorbed.facts.get("goals", 0) + 1
        if goal.status in ENDED:
            self.ended(goal)

    def ended(self, goal: Goal) -> None:
        """Take a goal that has ended: write its spans if it is traced, and forget its traces."""
        traces, goal_id = self._traces, goal.id
        state = traces.state
        if state.again:
            state.again.pop(goal_id, None)
        if goal_id in state.parts:
            traces.close_parts(goal_id, goal.kind)
        node = state.nodes.pop(goal_id, None)
        if node is None:
            own = state.inside.pop(goal_id, 0) or trace_key(goal_id)
            if own in state.traces:
                traces.remove_goal(goal_id, own)
            return
        failure = goal.failure if goal.status == _FAILED else None
        self.close(node, _ENDED_AS[goal.status], failure.kind if failure is not None else "", goal)
        traces.remove_goal(goal_id, node.trace)

    def close(self, node: GoalRecord, status: str, failed: str, goal: Goal | None = None) -> None:
        """Write the goal's own span and all that was collected for the goal. ``failed``: the kind of its failure.
        ``goal``: the goal, if it has ended."""
        now = self._now
        if node.flights or node.runs or node.call is not None:
            self._abandoned(node, failed)
        if node.serving:
            self._joined(node)
        parent = self._traces.state.nodes.get(node.parent) if node.parent else None
        if parent is not None and parent.serving:
            parent.serving -= 1
            if not parent.serving:
                self._joined(parent)
        facts: dict[str, Any] = {"goal": node.goal, "status": status}
        if node.row:
            facts["row"] = node.row
        if node.tools and node.calls:
            facts["tools"] = node.tools
        if node.trace != node.goal and goal_of(node.trace) == node.goal:
            facts["part"] = part_of(node.trace)
        if now.captures:
            facts |= self._content(node, goal or now.k.goals.get(node.goal))
        now.done += node.spans
        now.done.append(
            Span(_GOAL, node.trace, node.key, node.above, node.kind, node.begin_s, now.at_s, failed, facts, node.links)
        )

    def _content(self, node: GoalRecord, goal: Goal | None) -> dict[str, bytes]:
        """Return the texts of a goal: its first request and its latest reply, or its value and its answer if it made
        no call of its own."""
        if node.prompt or goal is None:
            found = {"prompt": node.prompt, "reply": node.reply}
        else:
            found = {"input_json": as_json(goal.value), "output_json": as_json(goal.answer)}
        return {name: text for name, text in found.items() if text}

    def _abandoned(self, node: GoalRecord, failed: str) -> None:
        """Close the attempts, the call and the runs that are still under way for a goal that has ended."""
        at_s, calls = self._now.at_s, self._calls
        for attempt, flight in node.flights.items():
            calls.attempt_ended(node, attempt, flight, flight.asked_s, at_s, "", {"abandoned": True})
        if node.call is not None:
            calls.close_call(node, at_s, node.call.failed or failed, {})
        for attempt, run in node.runs.items():
            calls.close_run(node, attempt, run, at_s, at_s, "", {"abandoned": True})

    def _joined(self, node: GoalRecord) -> None:
        """End a round of goals that served this one. A round of several has a span, with a link to each of them."""
        at_s = self._now.at_s
        if node.rounded > 1 and self._traces.take_room(node.trace):
            key = span_key(SpanKind.JOIN, node.served[0].span >> 24)  # no goal is the first of two rounds
            facts, links = {"goal": node.goal, "goals": node.rounded}, tuple(node.served)
            node.spans.append(
                Span(SpanKind.JOIN, node.trace, key, node.key, node.kind, node.round_s, at_s, "", facts, links)
            )
        node.serving = 0
        node.served = []
        node.open_s = at_s
