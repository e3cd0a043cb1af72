"""Tracer: a fold over the turns of a job, beside its state, that makes spans.

The tracer sees each turn with its commands, and returns the spans of goals that have ended. The same turns give the
same spans with the same ids: a channel that is killed while it sends spans sends them again after its restart, and a
backend can tell that they are the same. Spans hold nothing of a prompt or a reply unless that was asked for
(``captures``), and no message of a failure.

The parts of a tracer: ``TraceAssignment`` decides in which trace a goal stands and whether the trace is kept,
``GoalSpans``, ``CallSpans`` and ``JobSpans`` write the spans, and ``SingleCallGoals`` is the fast path for goals of one
call. All of them read the turn from one ``TurnContext``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortex.state import commands, events
from cortex.state.goals import ENDED, Goal
from cortex.state.state import State
from cortex.tracing.call_records import PendingSingleCall, Whole
from cortex.tracing.call_spans import CHILD_SPANS, CallSpans
from cortex.tracing.goal_spans import GoalSpans
from cortex.tracing.job_spans import JobSpans
from cortex.tracing.single_call_goals import SingleCallGoals
from cortex.tracing.spans import ODD, SpanIds, SpanKind, goal_of, part_of, span_key, trace_key
from cortex.tracing.trace_assignment import FULL_SPANS, GOAL_SPANS, TURNS_KNOWN, TraceAssignment
from cortex.tracing.trace_state import GoalRecord, TraceState
from cortex.tracing.turn_context import TurnContext
from policies.decisions.trace_sampling import INFINITE, TraceSampling, look_at_pace

_64_BITS = (1 << 64) - 1


class Tracer:
    """Tracer of one job. ``captures``: spans hold the text of prompts and replies."""

    def __init__(
        self, rule: TraceSampling, ids: SpanIds, state: TraceState | None = None, *, captures: bool = False
    ) -> None:
        self.captures = captures
        self.ids = ids
        self._now = now = TurnContext()
        self.state = state = state or TraceState()
        self.traces = TraceAssignment(rule, ids, state, now, self._expanded)
        self._calls = CallSpans(self.traces, now)
        self._goals = GoalSpans(self.traces, self._calls, now)
        self._short = SingleCallGoals(self.traces, self._calls, now)
        self._job = JobSpans(state, now)
        self._take: dict[type, Callable[[Any], None]] = {
            events.AttemptFailed: self._calls.failed,
            events.GivenBack: self._calls.given_back,
            events.ReplyRecalled: self._calls.recalled,
            events.Rejoined: self._rejoined,
            events.Observed: self._calls.observed,
            events.ChildJobEnded: self._calls.child_ended,
            events.Opened: self._opened,
            events.Resumed: self._resumed,
        }

    def whole(self) -> TraceState:
        """Return the state of the tracer, to be kept: all goals that are traced have a full record in it."""
        self._short.expand_all()
        return self.state

    def turn(self, turn: events.Turn, out: commands.StepCommands, k: State) -> list[Whole]:
        """Fold one turn, with its commands and the job's state after it. Return the records that are complete now."""
        now, state = self._now, self.state
        done = now.begin(turn, out, k, self.captures)
        self._take_events(turn)
        self._take_ended(out)
        if out.made:
            self._take_made(out.made)
        self._take_commands(out)
        if state.run and (k.paused is not None or "paused" in state.episodes):
            self._job.look_at_pause()
        now.end()
        return done

    def context(self, goal: int, attempt: int, child: bool = False) -> tuple[int, int, bool]:
        """Return the trace and the span of an attempt or a child job, and whether the span will be written."""
        node = self.state.nodes.get(goal)
        what = SpanKind.CHILD if child else SpanKind.ATTEMPT
        if node is not None:
            found = node.runs.get(attempt) if child else node.flights.get(attempt)
            if found is not None and found.trace:
                return found.trace, span_key(what, goal, attempt), True
        elif attempt == 1 and not child and type(self._short.records.get(goal)) is PendingSingleCall:
            return goal, span_key(what, goal, 1), True
        return self.traces.trace_of(goal), span_key(what, goal, attempt), False

    def _expanded(self, goal_id: int) -> GoalRecord | None:
        return self._short.expand(goal_id)

    # -- parts of a turn -------------------------------------------------------------------------------------------

    def _take_events(self, turn: events.Turn) -> None:
        nodes, short, rescues = self.state.nodes, self._short.records, self.state.rescues
        slow_s = rescues.slow_s if self.traces.rule.rescues_at_once else INFINITE
        seen, sum_s, answered = 0, 0.0, events.Answered
        for batch in turn.batches:
            for event in batch:
                if type(event) is answered:  # nearly every event
                    goal_id, elapsed_s = event.goal, event.elapsed_s
                    seen += 1
                    sum_s += elapsed_s
                    if goal_id in short:
                        self._short.replied(event)
                    elif elapsed_s > slow_s or goal_id in nodes:
                        self._calls.answered(event, nodes.get(goal_id))
                else:
                    take = self._take.get(type(event))
                    if take is not None:
                        take(event)
        if seen:
            look_at_pace(rescues, seen, sum_s)

    def _take_ended(self, out: commands.StepCommands) -> None:
        nodes, short = self.state.nodes, self._short.records
        made_below: set[int] | None = None
        links = self.traces.job_links(self.state.run)
        for goal in out.ended:
            goal_id = goal.id
            if goal_id in short:
                if made_below is None:
                    made_below = {each.parent for each in out.made}
                if not self._short.ended(goal, made_below, links):
                    self._goals.ended(goal)
            elif goal_id in nodes or goal.parent or goal.children:
                self._goals.ended(goal)
        if self._short.answered:
            self._short.expand_answered()

    def _take_made(self, made: list[Goal]) -> None:
        """Take new goals. In a turn of many, goals below the same untraced parent are counted without a call each."""
        state, now, traces_of = self.state, self._now, self.traces
        state.made_from.append(made[0].id)
        state.made_at_s.append(now.at_s)
        if len(state.made_from) > TURNS_KNOWN:
            del state.made_from[: TURNS_KNOWN // 2], state.made_at_s[: TURNS_KNOWN // 2]
        at_s = now.at_s
        low, bound, first_spans = self.ids.low, traces_of.bound, traces_of.rule.first_spans
        everything = bound > _64_BITS
        in_short = state.run and not self.captures
        traces, inside, absorbed = state.traces, state.inside, now.absorbed
        parent = own = 0
        if not everything and state.kept_spans >= first_spans:  # the ids alone decide
            made = [goal for goal in made if goal.parent or (low + goal.id * ODD & _64_BITS) < bound]
            everything = True
        for goal in made:
            if own and goal.parent == parent and goal.status not in ENDED:  # as the goal before, which is not traced
                trace = traces[own]
                if trace.count + GOAL_SPANS <= FULL_SPANS:
                    trace.count += GOAL_SPANS
                    trace.live += 1
                    inside[goal.id] = own
                    continue
            if everything or state.kept_spans < first_spans or (low + goal.id * ODD & _64_BITS) < bound or goal.parent:
                if in_short and not goal.parent and goal.due_at_s <= at_s and goal.status not in ENDED:
                    self._short.begin(goal)
                else:
                    self._goals.made(goal)
                    parent = goal.parent
                    own = inside.get(goal.id, 0) if parent not in absorbed else 0

    def _take_commands(self, out: commands.StepCommands) -> None:
        nodes, short, again = self.state.nodes, self._short.records, self.state.again
        guarded = self._job.look_at_routes()
        usual = not (guarded or self.captures)
        for share in self._now.k.shares:  # a loop, since a generator would cost each turn more
            if share.probing:
                usual = False
        any_call, call, emit = bool(again or guarded), commands.Call, commands.EmitResult
        for command in out:
            kind = type(command)
            if kind is call:
                goal_id = command.goal  # type: ignore[union-attr]
                if goal_id in short:
                    self._short.asked(command, usual)  # type: ignore[arg-type]
                elif goal_id in nodes or any_call:
                    self._calls.asked(command, nodes.get(goal_id))  # type: ignore[arg-type]
            elif kind is not emit:
                self._take_command(command)

    def _take_command(self, command: commands.Command) -> None:
        if isinstance(command, commands.StartToolRun):
            self._calls.run_started(command, command.tool, 1, command.key)
        elif isinstance(command, commands.LaunchChildJob):
            self._calls.run_started(command, command.program, CHILD_SPANS, "")
        elif isinstance(command, commands.FinishJob):
            self._stop("open", resumable=command.outcome == "partial")
            self._job.finish(command)

    # -- beginning and end of a run --------------------------------------------------------------------------------

    def _opened(self, event: events.Opened) -> None:
        """Begin a job, or restart it from nothing: then no goal of the earlier job goes on."""
        self._stop("abandoned", resumable=False)
        state = self.state
        state.again.clear()
        state.inside.clear()
        state.traces.clear()
        state.where.clear()
        state.run = 0
        self._job.begin_run(event.epoch)

    def _resumed(self, event: events.Resumed) -> None:
        if not self.state.run:
            self._job.begin_run(self._now.k.epoch)

    def _rejoined(self, event: events.Rejoined) -> None:
        self._short.rejoined(event)
        self._calls.rejoined(event)
        if not self.state.run and not self._now.k.outcome:  # no earlier turn began a run
            self._job.begin_run(self._now.k.epoch)

    def _stop(self, status: str, resumable: bool) -> None:
        """Write the spans of all goals that live, as far as they came. ``resumable``: they may go on in a later run."""
        state = self.state
        self._short.expand_all()
        for node in list(state.nodes.values()):
            self._goals.close(node, status, "")
            if resumable:
                last = state.where.get(node.goal, node.trace)
                part = part_of(last) + 1 if goal_of(last) == node.goal else 1
                state.again[node.goal] = (trace_key(node.goal, part), node.trace, node.key)
        state.nodes.clear()
        for goal_id in list(state.parts):
            goal = self._now.k.goals.get(goal_id)
            self.traces.close_parts(goal_id, goal.kind if goal is not None else "")
