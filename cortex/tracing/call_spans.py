"""The spans of calls, of the attempts at them, and of what else is done for a goal, from the events that tell of it."""

from __future__ import annotations

from typing import Any

from cortex.state import commands, events
from cortex.state.goals import ENDED, Goal, flight_key
from cortex.state.state import State
from cortex.tracing.call_records import CallRecord, ExchangeRecord, answered
from cortex.tracing.spans import Span, SpanIds, SpanKind, span_key
from cortex.tracing.trace_assignment import CALL_SPANS, Places
from cortex.tracing.trace_state import AttemptRecord, GoalRecord, RunRecord, TraceState
from policies.decisions.trace_sampling import TraceSampling
from policies.failures.failure import RULES, FailureKind

CHILD_SPANS = 20
"""Set aside for a child job: its own run, pauses and all, stands below the goal that launched it."""
_CALL = int(SpanKind.CALL)
_SAME_QUESTION = frozenset({"after", "backoff", "policy", "hold"})


class Calls(Places):
    """The half of the fold that looks at calls and runs. ``captures``: what was asked and answered is told too."""

    def __init__(self, rule: TraceSampling, ids: SpanIds, state: TraceState, captures: bool) -> None:
        super().__init__(rule, ids, state)
        self.captures = captures
        self._k: State
        self._out: commands.StepCommands
        self._guarded: frozenset[int] = frozenset()
        self._absorbed: dict[int, ExchangeRecord | Span] = {}
        self._just_ended: dict[int, Goal] | None = None

    def _find(self, goal_id: int) -> Goal | None:
        """A goal that can still be told of: it lives, or this turn has ended it, and perhaps taken it out of K."""
        if self._just_ended is None:
            self._just_ended = {goal.id: goal for goal in self._out.ended}
        goal = self._just_ended.get(goal_id)
        if goal is None and (goal := self._k.goals.get(goal_id)) is not None and goal.status in ENDED:
            return None
        return goal

    # -- calls -----------------------------------------------------------------------------------------------------

    def _asked(self, command: commands.Call, node: GoalRecord | None) -> None:
        goal = self._k.goals.get(command.goal)
        if node is None and command.goal in self.state.again:
            node = self.goes_on(command.goal, self._find)
        if node is None and command.route in self._guarded:
            node = self.rescue(command.goal, self._find)
        if node is None or goal is None:
            return
        call = node.call
        at_s = self._at_s
        if call is None or call.question != goal.question or call.sample != command.sample:
            if call is not None:
                self._close_call(node, at_s, call.failed, {})
            call = self._begin_call(node, command, goal, at_s)
            if call is None:
                return
            room = True
        else:
            call.attempts += 1
            room = self.room(call.trace)
        flight = self._k.flights.get(goal.id << 20 | command.attempt)
        call.route = command.route
        node.resamples = goal.resamples
        node.flights[command.attempt] = AttemptRecord(
            at_s, command.route, call.trace if room else 0, call.key,
            flight is not None and (flight.probe or command.route in self._guarded),
        )  # fmt: skip

    def _begin_call(self, node: GoalRecord, command: commands.Call, goal: Goal, at_s: float) -> CallRecord | None:
        if node.reserved:
            node.reserved = False
            trace, above = node.trace, node.key
        else:
            trace, above = self.way(node, CALL_SPANS)
        if not trace:
            node.call = None
            return None
        node.calls += 1
        if node.parent:
            self._counts(node.parent, calls=1)
        terms = self._k.terms
        route = terms.routes[command.route] if command.route else terms.route
        key, open_s = node.goal << 24 | (command.attempt & 0xFFFFF) << 4 | _CALL, node.open_s  # as ``span_key`` has it
        call = node.call = CallRecord(
            trace, key, above, open_s if open_s < at_s else at_s, at_s, command.sample, goal.question, command.route,
            goal.constructor, route.model, route.endpoint, command.output_tokens_max, 1, "",
            command.body if self.captures else b"", command.route,
        )  # fmt: skip
        return call

    def _answered(self, event: events.Answered, node: GoalRecord | None) -> None:
        if node is None:
            if (node := self._rescued(event)) is None:
                return
            flight: AttemptRecord | None = self._in_hindsight(event, node)
        else:
            flight = node.flights.pop(event.attempt, None)
        call, number = node.call, event.attempt
        if flight is not None:
            begin_s, end_s = self._times(event, node, flight)
            if call is not None and call.attempts == 1 and flight.call == call.key:
                self._exchanged(event, node, call, flight.probe, begin_s, end_s)
                return
            self._attempt(node, event.attempt, flight, begin_s, end_s, "", self._by(event))
            if call is None or flight.call != call.key:
                return  # it was answered already
        elif call is None or not self._taken(call, node):
            return
        else:
            end_s = self._at_s  # the attempt was given up for lost, and is told as that; its reply is welcome still
            number = max(number, _number(call))  # it may be of before this call, which has a number of its own
        reply = event.reply
        body = reply.body if self.captures else b""
        self._close_call(node, end_s, "", answered(reply.stop_reason, reply.model, reply.usage, body))
        self._absorb(node, call, number, end_s)

    def _exchanged(
        self, event: events.Answered, node: GoalRecord, call: CallRecord, probe: bool, begin_s: float, end_s: float
    ) -> None:
        """What nearly every call is: its first attempt was answered."""
        reply, at_s = event.reply, self._at_s
        node.call = None
        node.open_s = at_s
        exchange = ExchangeRecord(
            call, event.attempt, node.kind, begin_s, end_s, at_s, event.by, event.waited_s, reply.stop_reason,
            reply.model, reply.usage, probe, self._refused(node), 0, reply.body if self.captures else b"",
        )  # fmt: skip
        node.spans.append(exchange)
        self._absorbed[node.goal] = exchange

    def _taken(self, call: CallRecord, node: GoalRecord) -> bool:
        """Whether a call is asked no more."""
        goal = self._k.goals.get(node.goal)
        return goal is None or goal.question != call.question

    def _rescued(self, event: events.Answered | events.AttemptFailed) -> GoalRecord | None:
        """The goal of an attempt that is worth telling of, though nobody has told of it so far."""
        goal = self._find(event.goal)
        if goal is None or event.attempt > goal.tries or goal.id in self.state.again:
            return None
        return self.rescue(event.goal, self._find)

    def _times(
        self, event: events.Answered | events.AttemptFailed, node: GoalRecord, flight: AttemptRecord
    ) -> tuple[float, float]:
        """When an attempt began and ended: it waited from the moment at which it was asked."""
        at_s, begin_s, elapsed_s = self._at_s, flight.asked_s + event.waited_s, event.elapsed_s
        if begin_s > at_s:
            begin_s = at_s
        end_s = begin_s + elapsed_s
        return begin_s, end_s if elapsed_s and end_s < at_s else at_s

    def _in_hindsight(self, event: events.Answered | events.AttemptFailed, node: GoalRecord) -> AttemptRecord | None:
        """An attempt of which nobody took note as it began: it is reckoned back from when it came."""
        asked_s = max(node.begin_s, self._at_s - event.elapsed_s - event.waited_s)
        trace, above = self.way(node, CALL_SPANS)
        if not trace:
            return None
        key = span_key(SpanKind.CALL, node.goal, event.attempt)
        goal = self._k.goals.get(node.goal)
        question = goal.question if goal is not None else b""
        route = self._k.terms.route
        open_s = min(node.open_s, asked_s)
        node.call = CallRecord(
            trace, key, above, open_s, asked_s, event.sample, question, 0, "", route.model, route.endpoint, 0
        )
        return AttemptRecord(asked_s, 0, trace, key)

    def _by(self, event: events.Answered | events.AttemptFailed) -> dict[str, Any]:
        return {"by": event.by, "waited_s": event.waited_s}

    def _attempt(
        self, node: GoalRecord, attempt: int, flight: AttemptRecord, begin_s: float, end_s: float, failed: str,
        facts: dict[str, Any]
    ) -> None:  # fmt: skip
        if not flight.trace:
            return
        facts["attempt"], facts["route"] = attempt, flight.route
        if flight.probe:
            facts["probe"] = True
        key = span_key(SpanKind.ATTEMPT, node.goal, attempt)
        node.spans.append(Span(SpanKind.ATTEMPT, flight.trace, key, flight.call, "", begin_s, end_s, failed, facts))

    def _close_call(self, node: GoalRecord, end_s: float, failed: str, facts: dict[str, Any]) -> None:
        call, node.call = node.call, None
        assert call is not None
        node.spans += (call.select(), call.ended(end_s, failed, facts))

    def _absorb(self, node: GoalRecord, call: CallRecord, number: int, begin_s: float) -> None:
        key = span_key(SpanKind.ABSORB, node.goal, number)
        span = Span(
            SpanKind.ABSORB, call.trace, key, call.above, node.kind, begin_s, self._at_s, self._refused(node), {}
        )
        node.spans.append(span)
        node.open_s = self._at_s
        self._absorbed[node.goal] = span

    def _refused(self, node: GoalRecord) -> str:
        """How absorbing went: its program may have taken the reply for none."""
        goal = self._k.goals.get(node.goal)
        return FailureKind.MALFORMED if goal is not None and goal.resamples > node.resamples else ""

    # -- what else happens -----------------------------------------------------------------------------------------

    def _broke(self, event: events.AttemptFailed) -> None:
        node = self.known(event.goal)
        failure = event.failure
        if node is not None:
            flight = node.flights.pop(event.attempt, None)
        elif failure.kind == FailureKind.CANCELLED or (node := self._rescued(event)) is None:
            return
        else:
            flight = self._in_hindsight(event, node)
        if flight is None:
            return
        begin_s, end_s = self._times(event, node, flight)
        facts = self._by(event) | {"status": failure.status, "error": failure.error_type}
        if not failure.sent:
            facts["sent"] = False
        self._attempt(node, event.attempt, flight, begin_s, end_s, failure.kind, facts)
        call = node.call
        if call is not None and flight.call == call.key:
            call.failed = failure.kind
            if RULES[failure.kind].again not in _SAME_QUESTION:
                self._close_call(node, end_s, failure.kind, {})
                node.open_s = self._at_s

    def _recalled(self, event: events.ReplyRecalled) -> None:
        node = self.known(event.goal)
        if node is None or node.call is None:
            return
        for attempt in [each for each, flight in node.flights.items() if flight.call == node.call.key]:
            del node.flights[attempt]  # it was never made
        call = node.call
        facts: dict[str, Any] = {"reused": True}
        if event.reply is not None:
            facts |= {"stop": event.reply.stop_reason, "model": event.reply.model}
            if self.captures:
                facts["reply"] = event.reply.body
        self._close_call(node, self._at_s, "", facts)
        self._absorb(node, call, _number(call), self._at_s)

    def _rejoined(self, event: events.Rejoined) -> None:
        """The channel lives again: attempts that no branch holds are lost."""
        held = set(event.held)
        for node in self.state.nodes.values():
            for attempt in [each for each in node.flights if (node.goal, each) not in held]:
                if node.goal << 20 | attempt in self._k.flights:
                    continue  # it is with the provider, in a message batch
                flight = node.flights.pop(attempt)
                self._attempt(node, attempt, flight, flight.asked_s, self._at_s, FailureKind.LOST, {})
                if node.call is not None and node.call.key == flight.call:
                    node.call.failed = FailureKind.LOST

    def _runs(
        self, command: commands.StartToolRun | commands.LaunchChildJob, name: str, spans: int, run_id: str
    ) -> None:
        if flight_key(command.goal, command.attempt) not in self._k.errands:
            return  # it was to be joined again, and came back in this very turn
        node = self.known(command.goal)
        if node is None and command.goal in self.state.again:
            node = self.goes_on(command.goal, self._find)
        if node is None or command.attempt in node.runs:  # it is joined again by its name
            return
        trace, above = self.way(node, spans)
        if trace:
            if spans < CHILD_SPANS:
                node.tools += 1
                self._counts(node.parent, tools=1)
            node.runs[command.attempt] = RunRecord(self._at_s, trace, above, name, spans > 1, run_id)

    def _counts(self, parent_id: int, calls: int = 0, tools: int = 0) -> None:
        parent = self.state.nodes.get(parent_id)
        if parent is not None:
            parent.calls += calls
            parent.tools += tools

    def _settled(
        self, event: events.Observed | events.ChildJobEnded, child: bool
    ) -> tuple[GoalRecord, RunRecord] | None:
        """The run that has come back; None where K looks past the event too: it is late, or of the other kind."""
        node = self.state.nodes.get(event.goal)
        run = node.runs.get(event.attempt) if node is not None else None
        if node is None or run is None or run.child != child:
            return None
        del node.runs[event.attempt]
        return node, run

    def _observed(self, event: events.Observed) -> None:
        if (settled := self._settled(event, child=False)) is None:
            return
        node, run = settled
        failed = event.failure.kind if event.failure is not None else ""
        begin_s = max(run.begin_s, self._at_s - event.elapsed_s) if event.elapsed_s else run.begin_s
        self._close_run(node, event.attempt, run, begin_s, self._at_s, failed, {"by": event.by})

    def _returned(self, event: events.ChildJobEnded) -> None:
        if (settled := self._settled(event, child=True)) is None:
            return
        node, run = settled
        failed = event.failure.kind if event.failure is not None else ""
        self._close_run(node, event.attempt, run, run.begin_s, self._at_s, failed, {})

    def _close_run(
        self, node: GoalRecord, attempt: int, run: RunRecord, begin_s: float, end_s: float, failed: str,
        facts: dict[str, Any]
    ) -> None:  # fmt: skip
        what = SpanKind.CHILD if run.child else SpanKind.TOOL
        facts |= {"goal": node.goal, "attempt": attempt}
        if run.id:
            facts["id"] = run.id
        key = span_key(what, node.goal, attempt)
        node.spans.append(Span(what, run.trace, key, run.above, run.name, begin_s, end_s, failed, facts))
        node.open_s = self._at_s


def _number(call: CallRecord) -> int:
    """The attempt that it began with."""
    return (call.key >> 4) & 0xFFFFF
