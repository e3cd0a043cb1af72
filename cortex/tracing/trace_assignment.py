"""Assignment of goals to traces, and the choice of the traces that are kept.

A top goal begins a trace, and the goals that serve it belong to that trace. A trace that is full takes no more goals
and no more calls: the next one begins another part, whose first span links back. So no trace has more than
``TRACE_SPANS_MAX`` spans. The trace of a span is decided when its goal is made or its call is sent, so that the id of
the span is known before the span is written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from cortex.state.goals import Goal
from cortex.tracing.call_records import PendingSingleCall
from cortex.tracing.spans import (
    LINKS_MAX,
    TRACE_SPANS_MAX,
    Span,
    SpanIds,
    SpanKind,
    SpanLink,
    goal_of,
    part_of,
    root_key,
    span_key,
    trace_key,
)
from cortex.tracing.trace_state import GoalRecord, TraceRecord, TraceState
from cortex.tracing.turn_context import TurnContext
from policies.decisions.trace_sampling import TraceSampling, may_rescue

CALL_SPANS = 4
"""Spans of a call: selection, the call, its first attempt, absorbing."""
GOAL_SPANS = 1 + CALL_SPANS
"""Spans that are reserved for each goal when it is made."""
FULL_SPANS = 950
"""Reserved spans at which a trace is full. The rest is for second attempts and joins, which cannot be reserved."""
TURNS_KNOWN = 20_000
"""Turns whose time is remembered, to know when a goal of them was made."""
_GOAL = int(SpanKind.GOAL)


class TraceAssignment:
    """Traces of one job's goals. ``expand`` makes the full record of a goal that has a short one."""

    def __init__(
        self, rule: TraceSampling, ids: SpanIds, state: TraceState, now: TurnContext,
        expand: Callable[[int], GoalRecord | None],
    ) -> None:  # fmt: skip
        self.follow(rule)
        self.ids = ids
        self.state = state
        self._now = now
        self._expand = expand
        self.short: dict[int, float | PendingSingleCall] = {}
        """Short records by goal id (see ``cortex.tracing.single_call_goals``)."""
        self._job_link: tuple[int, tuple[SpanLink, ...]] = (0, ())

    def follow(self, rule: TraceSampling) -> None:
        """Decide by this rule from now on. Earlier decisions stay."""
        self.rule = rule
        self.bound = rule.bound

    def known(self, goal_id: int) -> GoalRecord | None:
        """Return the full record of a goal that is traced and has not ended."""
        node = self.state.nodes.get(goal_id)
        if node is None and goal_id in self.short:
            node = self._expand(goal_id)
        return node

    # -- which are kept --------------------------------------------------------------------------------------------

    def keeps(self, trace: int) -> bool:
        """Return whether all spans of this trace are kept. Decided when the trace begins."""
        return self.state.kept_spans < self.rule.first_spans or self.ids.low_bits(trace) < self.bound

    def rescue(self, goal_id: int) -> GoalRecord | None:
        """Trace a goal whose trace is not kept, from now on, because something went wrong or took long.

        None if the goal has ended, or if the rule rescues no more goals now.
        """
        if not may_rescue(self.rule, self.state.rescues, self._now.at_s):
            return None
        return self._shown(goal_id)

    def _shown(self, goal_id: int) -> GoalRecord | None:
        state = self.state
        node = self.known(goal_id)
        goal = self._now.goal(goal_id)
        if node is not None or goal is None:
            return node
        if goal_id in state.again:
            return self.resume_goal(goal_id)
        own = state.inside.pop(goal_id, 0) or trace_key(goal_id)
        trace = state.traces.get(own)
        if trace is None:
            trace = state.traces[own] = TraceRecord(GOAL_SPANS, False, self.made_s(goal_id), live=1)
        above = 0
        if own != trace_key(goal_id):
            if part_of(own) and goal_of(own) == goal.parent:
                self._show_part(goal.parent, own)
            elif self._shown(goal.parent) is None:
                state.inside[goal_id] = own
                return None
            above = self._above(goal.parent, own)
        return self._node(goal, own, above, self.made_s(goal_id))

    def resume_goal(self, goal_id: int) -> GoalRecord | None:
        """Trace a goal again that lived when the job stopped: in a part of its own, linked to the earlier span."""
        state, at_s = self.state, self._now.at_s
        part, *before = state.again.pop(goal_id)
        goal = self._now.goal(goal_id)
        if goal is None:
            return None
        state.traces[part] = TraceRecord(1 + CALL_SPANS, True, at_s, live=1, shown=True)
        state.where[goal_id] = part
        node = state.nodes[goal_id] = GoalRecord(
            goal_id, goal.kind, 0, part, root_key(part), 0, at_s, at_s, goal.row, links=(SpanLink(*before),)
        )
        node.links += self._tops(node.trace, node.key)
        return node

    def made_s(self, goal_id: int) -> float:
        """Return when a goal was made, in seconds since 1970; of an old goal the earliest time that is remembered."""
        at = bisect_right(self.state.made_from, goal_id) - 1
        return self.state.made_at_s[max(0, at)] if self.state.made_at_s else self._now.at_s

    # -- placement ------------------------------------------------------------------------------------------

    def add_goal(self, goal: Goal) -> None:
        """Place a new goal: one that serves another, or a top goal whose trace is kept."""
        state, at_s = self.state, self._now.at_s
        if not goal.parent:
            own = goal.id  # as ``trace_key`` computes it
            state.traces[own] = TraceRecord(GOAL_SPANS, True, at_s, 1)
            state.kept_spans += GOAL_SPANS
            self._node(goal, own, 0, at_s)
            return
        self.known(goal.parent)
        own = self.trace_of(goal.parent)
        trace = state.traces.get(own)
        if trace is None:  # its parent is a top goal that is not traced, or is older than this tracer
            trace = state.traces[own] = TraceRecord(GOAL_SPANS, False, self.made_s(goal.parent), live=1)
        if trace.count + GOAL_SPANS > FULL_SPANS:
            own = self.next_part(goal.parent, own)
        trace = state.traces[own]
        trace.count += GOAL_SPANS
        trace.live += 1
        if not trace.kept:
            state.inside[goal.id] = own
            return
        state.kept_spans += GOAL_SPANS
        self._node(goal, own, self._above(goal.parent, own), at_s)

    def trace_of(self, goal_id: int) -> int:
        """Return the trace in which the next span below this goal belongs."""
        state = self.state
        if (where := state.where.get(goal_id)) is not None:
            return where
        node = state.nodes.get(goal_id)
        return node.trace if node is not None else state.inside.get(goal_id) or trace_key(goal_id)

    def _above(self, parent: int, trace: int) -> int:
        """Return the key of the span, in this trace, that goals which serve ``parent`` stand below."""
        if goal_of(trace) == parent:
            return root_key(trace)
        return span_key(SpanKind.GOAL, parent)

    def _node(self, goal: Goal, trace: int, above: int, begin_s: float) -> GoalRecord:
        state, goal_id, open_s = self.state, goal.id, goal.due_at_s
        node = state.nodes[goal_id] = GoalRecord(
            goal_id, goal.kind, goal.parent, trace, goal_id << 24 | _GOAL, above, begin_s,
            open_s if open_s > begin_s else begin_s, goal.row,
        )  # fmt: skip
        if not above:
            node.links = self._tops(node.trace, node.key)
        parent = state.nodes.get(goal.parent) if goal.parent else None
        if parent is not None:
            self._serves(parent, node)
        return node

    def _tops(self, trace: int, key: int) -> tuple[SpanLink, ...]:
        """Link the first span of a trace to the span of its job, and the other way round (``LINKS_MAX`` at most)."""
        state = self.state
        if not state.run:
            return ()
        if len(state.tops) < LINKS_MAX:
            state.tops.append(SpanLink(trace, key))
        return self.job_links(state.run)

    def job_links(self, run: int) -> tuple[SpanLink, ...]:
        """Return the link to the span of this run of the job."""
        if self._job_link[0] != run:
            job = trace_key(0, run)
            self._job_link = (run, (SpanLink(job, root_key(job)),))
        return self._job_link[1]

    def _serves(self, parent: GoalRecord, node: GoalRecord) -> None:
        if not parent.serving:
            parent.round_s, parent.rounded = self._now.at_s, 0
        parent.serving += 1
        parent.rounded += 1
        if len(parent.served) < LINKS_MAX:
            parent.served.append(SpanLink(node.trace, node.key))

    # -- full traces --------------------------------------------------------------------------------------

    def place(self, node: GoalRecord, spans: int) -> tuple[int, int]:
        """Reserve this many more spans of a goal. Return their trace, 0 if it is not kept, and the span above them."""
        state = self.state
        if node.reserved and spans == CALL_SPANS:
            node.reserved = False
            return node.trace, node.key
        own = state.where.get(node.goal, node.trace)
        if state.traces[own].count + spans > FULL_SPANS:
            own = self.next_part(node.goal, own)
        trace = state.traces[own]
        trace.count += spans
        if own == node.trace:
            return own, node.key
        return (own if trace.kept or trace.shown else 0), root_key(own)

    def take_room(self, trace: int) -> bool:
        """Reserve a span beyond those reserved when its goal was made. Return False if the trace is full."""
        found = self.state.traces.get(trace)
        if found is None or found.count >= TRACE_SPANS_MAX:
            return False
        found.count += 1
        return True

    def next_part(self, goal_id: int, full: int) -> int:
        """Begin the part of a goal's trace that follows ``full``. Return its number."""
        state = self.state
        node = state.nodes.get(goal_id)
        own = node.trace if node is not None else state.inside.get(goal_id) or trace_key(goal_id)
        part = trace_key(goal_id, part_of(full) + 1 if goal_of(full) == goal_id else 1)
        kept = self.keeps(part)
        first = SpanLink(own, node.key if node is not None else self._above(goal_id, own))
        state.traces[part] = TraceRecord(1, kept, self._now.at_s, first=first)
        state.where[goal_id] = part
        if kept:
            state.kept_spans += 1
            self._show_part(goal_id, part)
        return part

    def _show_part(self, goal_id: int, part: int) -> None:
        trace = self.state.traces[part]
        if not trace.shown:
            trace.shown = True
            self.state.parts.setdefault(goal_id, []).append(part)

    def close_parts(self, goal_id: int, kind: str) -> None:
        """Write the first spans of the later parts of a goal's trace."""
        for part in self.state.parts.pop(goal_id, ()):
            trace = self.state.traces[part]
            links = (trace.first,) if trace.first is not None else ()
            facts = {"goal": goal_id, "part": part_of(part)}
            begin_s, at_s = trace.begin_s, self._now.at_s
            self._now.done.append(
                Span(SpanKind.PART, part, root_key(part), 0, kind, begin_s, at_s, facts=facts, links=links)
            )

    def remove_goal(self, goal_id: int, own: int) -> None:
        """Forget a goal that has ended, and its traces once no goal is left in them."""
        traces, where = self.state.traces, self.state.where
        trace = traces.get(own)
        if trace is not None:
            trace.live -= 1
            if trace.live <= 0 and (own == goal_id or not part_of(own)):
                del traces[own]
        if where and (last := where.pop(goal_id, 0)):
            for part in range(1, part_of(last) + 1):
                traces.pop(trace_key(goal_id, part), None)
