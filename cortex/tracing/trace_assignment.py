"""In which trace the spans of a goal stand, and which traces are told of: settled when a goal is made, or asked.

A top goal begins a trace, and what serves it stands below it. A trace that is full takes no more goals and no more
calls: whoever would add one begins another, with a span of his own at its head that links back. So no trace has more
than ``TRACE_SPANS_MAX`` spans, and whoever is asked what he is part of can say so before anything is written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from cortex.state.goals import Goal
from cortex.tracing.call_records import Whole
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
from policies.decisions.trace_sampling import TraceSampling, may_rescue

CALL_SPANS = 4
"""Select, call, its first attempt, absorb."""
GOAL_SPANS = 1 + CALL_SPANS
"""Set aside for each goal as it is made."""
FULL_SPANS = 950
"""The rest is for second attempts and joins, of which nobody knows beforehand."""
Find = Callable[[int], Goal | None]
"""A goal by its id, if it can still be told of."""
TURNS_KNOWN = 20_000
"""Turns of which it is known when the goals were made that were made in them."""
_GOAL = int(SpanKind.GOAL)


class Places:
    """What both halves of the work stand on: the rule, the ids, and the state; and the turn that is being seen."""

    def __init__(self, rule: TraceSampling, ids: SpanIds, state: TraceState) -> None:
        self.follow(rule)
        self.ids = ids
        self.state = state
        self._at_s = 0.0
        self._done: list[Whole] = []
        self._job_link: tuple[int, tuple[SpanLink, ...]] = (0, ())

    def follow(self, rule: TraceSampling) -> None:
        """Decide by this rule from now on; what was decided stays."""
        self.rule = rule
        self._bound = rule.bound

    def known(self, goal_id: int) -> GoalRecord | None:
        """A goal that is told of, while it lives."""
        return self.state.nodes.get(goal_id)

    # -- which are kept --------------------------------------------------------------------------------------------

    def keeps(self, trace: int) -> bool:
        """Whether everything in this trace is told, decided as it begins."""
        return self.state.kept_spans < self.rule.first_spans or self.ids.low_bits(trace) < self._bound

    def rescue(self, goal_id: int, find: Find) -> GoalRecord | None:
        """A goal is worth telling of although its trace is not kept: as much as is known of it, and what comes."""
        if not may_rescue(self.rule, self.state.rescues, self._at_s):
            return None
        return self._shown(goal_id, find)

    def _shown(self, goal_id: int, find: Find) -> GoalRecord | None:
        state = self.state
        node = self.known(goal_id)
        goal = find(goal_id)
        if node is not None or goal is None:
            return node
        if goal_id in state.again:
            return self.goes_on(goal_id, find)
        own = state.inside.pop(goal_id, 0) or trace_key(goal_id)
        trace = state.traces.get(own)
        if trace is None:
            trace = state.traces[own] = TraceRecord(GOAL_SPANS, False, self.made_s(goal_id), live=1)
        above = 0
        if own != trace_key(goal_id):
            if part_of(own) and goal_of(own) == goal.parent:
                self._show_part(goal.parent, own)
            elif self._shown(goal.parent, find) is None:
                state.inside[goal_id] = own
                return None
            above = self._above(goal.parent, own)
        return self._node(goal, own, above, self.made_s(goal_id))

    def goes_on(self, goal_id: int, find: Find) -> GoalRecord | None:
        """A goal that was alive when the job stopped does something again: in another trace, linked to what was."""
        state = self.state
        part, *before = state.again.pop(goal_id)
        goal = find(goal_id)
        if goal is None:
            return None
        state.traces[part] = TraceRecord(1 + CALL_SPANS, True, self._at_s, live=1, shown=True)
        state.where[goal_id] = part
        node = state.nodes[goal_id] = GoalRecord(
            goal_id, goal.kind, 0, part, root_key(part), 0, self._at_s, self._at_s, goal.row, links=(SpanLink(*before),)
        )
        node.links += self._tops(node.trace, node.key)
        return node

    def made_s(self, goal_id: int) -> float:
        """When a goal was made."""
        at = bisect_right(self.state.made_from, goal_id) - 1
        return self.state.made_at_s[max(0, at)] if self.state.made_at_s else self._at_s

    # -- where they stand ------------------------------------------------------------------------------------------

    def made(self, goal: Goal) -> None:
        """A goal below another, or one that is certain to be told of."""
        state = self.state
        if not goal.parent:
            own = goal.id  # as ``trace_key`` has it
            state.traces[own] = TraceRecord(GOAL_SPANS, True, self._at_s, 1)
            state.kept_spans += GOAL_SPANS
            self._node(goal, own, 0, self._at_s)
            return
        self.known(goal.parent)
        own = self._own(goal.parent)
        trace = state.traces.get(own)
        if trace is None:  # its parent is a top goal that is not told of, or older than this telling
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
        self._node(goal, own, self._above(goal.parent, own), self._at_s)

    def _own(self, goal_id: int) -> int:
        """The trace to which what serves this goal belongs now."""
        state = self.state
        if (where := state.where.get(goal_id)) is not None:
            return where
        node = state.nodes.get(goal_id)
        return node.trace if node is not None else state.inside.get(goal_id) or trace_key(goal_id)

    def _above(self, parent: int, trace: int) -> int:
        """The span in this trace that stands for a goal to those that serve it."""
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
        """The first span of a top goal's trace: it and its job's are linked."""
        state = self.state
        if not state.run:
            return ()
        if len(state.tops) < LINKS_MAX:
            state.tops.append(SpanLink(trace, key))
        return self._job_linked(state.run)

    def _job_linked(self, run: int) -> tuple[SpanLink, ...]:
        if self._job_link[0] != run:
            job = trace_key(0, run)
            self._job_link = (run, (SpanLink(job, root_key(job)),))
        return self._job_link[1]

    def _serves(self, parent: GoalRecord, node: GoalRecord) -> None:
        if not parent.serving:
            parent.round_s, parent.rounded = self._at_s, 0
        parent.serving += 1
        parent.rounded += 1
        if len(parent.served) < LINKS_MAX:
            parent.served.append(SpanLink(node.trace, node.key))

    # -- traces that are full --------------------------------------------------------------------------------------

    def way(self, node: GoalRecord, spans: int) -> tuple[int, int]:
        """The trace for so many more spans of a goal, and the span above them; no trace where none is told of."""
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

    def room(self, trace: int) -> bool:
        """Whether one more span fits, of those that nobody knew of beforehand; takes it, if so."""
        found = self.state.traces.get(trace)
        if found is None or found.count >= TRACE_SPANS_MAX:
            return False
        found.count += 1
        return True

    def next_part(self, goal_id: int, now: int) -> int:
        """The goal goes on in another trace."""
        state = self.state
        node = state.nodes.get(goal_id)
        own = node.trace if node is not None else state.inside.get(goal_id) or trace_key(goal_id)
        part = trace_key(goal_id, part_of(now) + 1 if goal_of(now) == goal_id else 1)
        kept = self.keeps(part)
        first = SpanLink(own, node.key if node is not None else self._above(goal_id, own))
        state.traces[part] = TraceRecord(1, kept, self._at_s, first=first)
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
        """The first spans of a goal's later traces."""
        for part in self.state.parts.pop(goal_id, ()):
            trace = self.state.traces[part]
            links = (trace.first,) if trace.first is not None else ()
            facts = {"goal": goal_id, "part": part_of(part)}
            self._done.append(
                Span(SpanKind.PART, part, root_key(part), 0, kind, trace.begin_s, self._at_s, facts=facts, links=links)
            )

    def left(self, goal_id: int, own: int) -> None:
        """A goal has ended: its traces are forgotten once nobody is left in them."""
        traces, where = self.state.traces, self.state.where
        trace = traces.get(own)
        if trace is not None:
            trace.live -= 1
            if trace.live <= 0 and (own == goal_id or not part_of(own)):
                del traces[own]
        if where and (last := where.pop(goal_id, 0)):
            for part in range(1, part_of(last) + 1):
                traces.pop(trace_key(goal_id, part), None)
