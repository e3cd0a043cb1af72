"""Spans of calls, attempts, tool runs and child jobs, made from the events of a turn."""

from __future__ import annotations

from typing import Any

from cortex.state import commands, events
from cortex.state.goals import Goal, flight_key
from cortex.tracing.call_records import CallRecord, ExchangeRecord, answered, cost_of
from cortex.tracing.content import as_json
from cortex.tracing.spans import Span, SpanKind, span_key
from cortex.tracing.trace_assignment import CALL_SPANS, TraceAssignment
from cortex.tracing.trace_state import AttemptRecord, GoalRecord, RunRecord
from cortex.tracing.turn_context import TurnContext
from cortex.values.limits import Route
from cortex.values.reply import Reply
from policies.failures.failure import RULES, FailureKind

CHILD_SPANS = 20
"""Spans reserved for a child job: its own run, with its pauses, stands below the goal that launched it."""
_CALL = int(SpanKind.CALL)
_SAME_QUESTION = frozenset({"after", "backoff", "policy", "hold"})


class CallSpans:
    """Calls, attempts, tool runs and child jobs of the goals that are traced with a full record."""

    def __init__(self, traces: TraceAssignment, now: TurnContext) -> None:
        self._traces = traces
        self._now = now

    # -- calls -----------------------------------------------------------------------------------------------------

    def asked(self, command: commands.Call, node: GoalRecord | None) -> None:
        """Take an attempt that is sent now. ``node``: the full record of its goal, if there is one."""
        now, traces = self._now, self._traces
        goal = now.k.goals.get(command.goal)
        if node is None and command.goal in traces.state.again:
            node = traces.resume_goal(command.goal)
        if node is None and command.route in now.guarded:
            node = traces.rescue(command.goal)
        if node is None or goal is None:
            return
        call = node.call
        at_s = now.at_s
        if call is None or call.question != goal.question or call.sample != command.sample:
            if call is not None:
                self.close_call(node, at_s, call.failed, {})
            call = self._begin_call(node, command, goal, at_s)
            if call is None:
                return
            room = True
        else:
            call.attempts += 1
            room = traces.take_room(call.trace)
        flight = now.k.flights.get(goal.id << 20 | command.attempt)
        call.route = command.route
        node.resamples = goal.resamples
        node.flights[command.attempt] = AttemptRecord(
            at_s, command.route, call.trace if room else 0, call.key,
            flight is not None and (flight.probe or command.route in now.guarded),
        )  # fmt: skip

    def _begin_call(self, node: GoalRecord, command: commands.Call, goal: Goal, at_s: float) -> CallRecord | None:
        if node.reserved:
            node.reserved = False
            trace, above = node.trace, node.key
        else:
            trace, above = self._traces.place(node, CALL_SPANS)
        if not trace:
            node.call = None
            return None
        node.calls += 1
        if node.parent:
            self._counts(node.parent, calls=1)
        terms = self._now.k.terms
        route = terms.routes[command.route] if command.route else terms.route
        key, open_s = node.goal << 24 | (command.attempt & 0xFFFFF) << 4 | _CALL, node.open_s  # as ``span_key`` has it
        call = node.call = CallRecord(
            trace, key, above, open_s if open_s < at_s else at_s, at_s, command.sample, goal.question, command.route,
            goal.constructor, route.model, route.endpoint, command.output_tokens_max, 1, "",
            command.body if self._now.captures else b"", command.route,
        )  # fmt: skip
        node.prompt = node.prompt or call.body
        return call

    def answered(self, event: events.Answered, node: GoalRecord | None) -> None:
        """Take the reply to an attempt. ``node``: the full record of its goal, if there is one."""
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
            self.attempt_ended(node, event.attempt, flight, begin_s, end_s, "", self._by(event))
            if call is None or flight.call != call.key:
                return  # it was answered already
        elif call is None or not self._taken(call, node):
            return
        else:
            end_s = self._now.at_s  # the attempt was declared lost, and has its span as that; its reply still counts
            number = max(number, _number(call))  # the attempt may be older than this call, which has its own number
        reply = event.reply
        body = self._body(reply, node)
        cost = cost_of(self._route(call).price, reply.usage)
        self.close_call(node, end_s, "", answered(reply.stop_reason, reply.model, reply.usage, cost, body))
        self._absorb(node, call, number, end_s)

    def _exchanged(
        self, event: events.Answered, node: GoalRecord, call: CallRecord, probe: bool, begin_s: float, end_s: float
    ) -> None:
        """Write the one record of a call that its first attempt has answered, as nearly every call is."""
        now = self._now
        reply, at_s = event.reply, now.at_s
        node.call = None
        node.open_s = at_s
        exchange = ExchangeRecord(
            call, event.attempt, node.kind, begin_s, end_s, at_s, event.by, event.waited_s, reply.stop_reason,
            reply.model, reply.usage, probe, self._refused(node), 0, self._body(reply, node),
            cost_of(self._route(call).price, reply.usage),
        )  # fmt: skip
        node.spans.append(exchange)
        now.absorbed[node.goal] = exchange

    def _route(self, call: CallRecord) -> Route:
        """Return the route of a call's latest attempt."""
        terms = self._now.k.terms
        return terms.routes[call.route] if call.route else terms.route

    def _body(self, reply: Reply, node: GoalRecord) -> bytes:
        """Return a reply to a goal as spans hold it: empty unless they hold texts."""
        if not self._now.captures:
            return b""
        node.reply = reply.body
        return reply.body

    def _taken(self, call: CallRecord, node: GoalRecord) -> bool:
        """Return whether the goal of a call has taken a reply, or asks something else now."""
        goal = self._now.k.goals.get(node.goal)
        return goal is None or goal.question != call.question

    def _rescued(self, event: events.Answered | events.AttemptFailed) -> GoalRecord | None:
        """Return a new record for the goal of an attempt that was slow or failed, if the rule rescues it."""
        goal = self._now.goal(event.goal)
        if goal is None or event.attempt > goal.tries or goal.id in self._traces.state.again:
            return None
        return self._traces.rescue(event.goal)

    def _times(
        self, event: events.Answered | events.AttemptFailed, node: GoalRecord, flight: AttemptRecord
    ) -> tuple[float, float]:
        """Return when an attempt began and ended. Its wait at the branch counts from the turn that sent it."""
        at_s, begin_s, elapsed_s = self._now.at_s, flight.asked_s + event.waited_s, event.elapsed_s
        if begin_s > at_s:
            begin_s = at_s
        end_s = begin_s + elapsed_s
        return begin_s, end_s if elapsed_s and end_s < at_s else at_s

    def _in_hindsight(self, event: events.Answered | events.AttemptFailed, node: GoalRecord) -> AttemptRecord | None:
        """Return the record of an attempt that was not traced when it was sent; its times are computed from its end."""
        asked_s = max(node.begin_s, self._now.at_s - event.elapsed_s - event.waited_s)
        trace, above = self._traces.place(node, CALL_SPANS)
        if not trace:
            return None
        key = span_key(SpanKind.CALL, node.goal, event.attempt)
        goal = self._now.k.goals.get(node.goal)
        question = goal.question if goal is not None else b""
        route = self._now.k.terms.route
        open_s = min(node.open_s, asked_s)
        node.call = CallRecord(
            trace, key, above, open_s, asked_s, event.sample, question, 0, "", route.model, route.endpoint, 0
        )
        return AttemptRecord(asked_s, 0, trace, key)

    def _by(self, event: events.Answered | events.AttemptFailed) -> dict[str, Any]:
        return {"by": event.by, "waited_s": event.waited_s}

    def attempt_ended(
        self, node: GoalRecord, attempt: int, flight: AttemptRecord, begin_s: float, end_s: float, failed: str,
        facts: dict[str, Any]
    ) -> None:  # fmt: skip
        """Write the span of an attempt; none if its trace had no room. ``failed``: the kind of its failure."""
        if not flight.trace:
            return
        facts["attempt"], facts["route"] = attempt, flight.route
        if flight.probe:
            facts["probe"] = True
        key = span_key(SpanKind.ATTEMPT, node.goal, attempt)
        node.spans.append(Span(SpanKind.ATTEMPT, flight.trace, key, flight.call, "", begin_s, end_s, failed, facts))

    def close_call(self, node: GoalRecord, end_s: float, failed: str, facts: dict[str, Any]) -> None:
        """Write the spans of a goal's open call and of the selection before it."""
        call, node.call = node.call, None
        assert call is not None
        node.spans += (call.select(), call.ended(end_s, failed, facts))

    def _absorb(self, node: GoalRecord, call: CallRecord, number: int, begin_s: float) -> None:
        key = span_key(SpanKind.ABSORB, node.goal, number)
        at_s = self._now.at_s
        span = Span(SpanKind.ABSORB, call.trace, key, call.above, node.kind, begin_s, at_s, self._refused(node), {})
        node.spans.append(span)
        node.open_s = at_s
        self._now.absorbed[node.goal] = span

    def _refused(self, node: GoalRecord) -> str:
        """Return the failure kind of absorbing: ``malformed`` if the program refused the reply, else empty."""
        goal = self._now.k.goals.get(node.goal)
        return FailureKind.MALFORMED if goal is not None and goal.resamples > node.resamples else ""

    # -- other ends of an attempt ----------------------------------------------------------------------------------

    def failed(self, event: events.AttemptFailed) -> None:
        """Take the failure of an attempt."""
        node = self._traces.known(event.goal)
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
        self.attempt_ended(node, event.attempt, flight, begin_s, end_s, failure.kind, facts)
        call = node.call
        if call is not None and flight.call == call.key:
            call.failed = failure.kind
            if RULES[failure.kind].again not in _SAME_QUESTION:
                self.close_call(node, end_s, failure.kind, {})
                node.open_s = self._now.at_s

    def given_back(self, event: events.GivenBack) -> None:
        """Take a call that met an open breaker: it was never sent, so that it has no span."""
        node = self._traces.known(event.goal)
        flight = node.flights.pop(event.attempt, None) if node is not None else None
        if flight is not None and node is not None and node.call is not None and node.call.key == flight.call:
            node.call.attempts -= 1

    def recalled(self, event: events.ReplyRecalled) -> None:
        """Take a reply out of the reply cache: the call was never sent."""
        node = self._traces.known(event.goal)
        if node is None or node.call is None:
            return
        for attempt in [each for each, flight in node.flights.items() if flight.call == node.call.key]:
            del node.flights[attempt]  # it was never sent
        call = node.call
        facts: dict[str, Any] = {"reused": True}
        if event.reply is not None:
            facts |= {"stop": event.reply.stop_reason, "model": event.reply.model}
            if body := self._body(event.reply, node):
                facts["reply"] = body
        self.close_call(node, self._now.at_s, "", facts)
        self._absorb(node, call, _number(call), self._now.at_s)

    def rejoined(self, event: events.Rejoined) -> None:
        """Take the restart of the channel: attempts that no branch holds are lost."""
        held, at_s = set(event.held), self._now.at_s
        for node in self._traces.state.nodes.values():
            for attempt in [each for each in node.flights if (node.goal, each) not in held]:
                if node.goal << 20 | attempt in self._now.k.flights:
                    continue  # it is with the provider, in a message batch
                flight = node.flights.pop(attempt)
                self.attempt_ended(node, attempt, flight, flight.asked_s, at_s, FailureKind.LOST, {})
                if node.call is not None and node.call.key == flight.call:
                    node.call.failed = FailureKind.LOST

    # -- tool runs and child jobs ----------------------------------------------------------------------------------

    def run_started(
        self, command: commands.StartToolRun | commands.LaunchChildJob, name: str, spans: int, run_id: str
    ) -> None:  # fmt: skip
        """Take a tool run or a child job that begins now. ``spans`` are reserved for it; ``run_id`` is its key."""
        if flight_key(command.goal, command.attempt) not in self._now.k.errands:
            return  # it was to be joined again, and has returned in this same turn
        traces = self._traces
        node = traces.known(command.goal)
        if node is None and command.goal in traces.state.again:
            node = traces.resume_goal(command.goal)
        if node is None or command.attempt in node.runs:  # a child job that is joined again by its name
            return
        trace, above = traces.place(node, spans)
        if trace:
            if spans < CHILD_SPANS:
                node.tools += 1
                self._counts(node.parent, tools=1)
            sent = _input(command) if self._now.captures else b""
            node.runs[command.attempt] = RunRecord(self._now.at_s, trace, above, name, spans > 1, run_id, sent)

    def _counts(self, parent_id: int, calls: int = 0, tools: int = 0) -> None:
        parent = self._traces.state.nodes.get(parent_id)
        if parent is not None:
            parent.calls += calls
            parent.tools += tools

    def _settled(
        self, event: events.Observed | events.ChildJobEnded, child: bool
    ) -> tuple[GoalRecord, RunRecord] | None:
        """Remove and return the run that has returned. None for a late event, or one of the other kind of run."""
        node = self._traces.state.nodes.get(event.goal)
        run = node.runs.get(event.attempt) if node is not None else None
        if node is None or run is None or run.child != child:
            return None
        del node.runs[event.attempt]
        return node, run

    def observed(self, event: events.Observed) -> None:
        """Take the result of a tool run."""
        if (settled := self._settled(event, child=False)) is None:
            return
        node, run = settled
        failed = event.failure.kind if event.failure is not None else ""
        at_s = self._now.at_s
        begin_s = max(run.begin_s, at_s - event.elapsed_s) if event.elapsed_s else run.begin_s
        facts: dict[str, Any] = {"by": event.by}
        if self._now.captures and not failed:
            facts["output_json"] = as_json(event.value)
        self.close_run(node, event.attempt, run, begin_s, at_s, failed, facts)

    def child_ended(self, event: events.ChildJobEnded) -> None:
        """Take the end of a child job."""
        if (settled := self._settled(event, child=True)) is None:
            return
        node, run = settled
        failed = event.failure.kind if event.failure is not None else ""
        facts = {"output_json": as_json(event.answer)} if self._now.captures and not failed else {}
        self.close_run(node, event.attempt, run, run.begin_s, self._now.at_s, failed, facts)

    def close_run(
        self, node: GoalRecord, attempt: int, run: RunRecord, begin_s: float, end_s: float, failed: str,
        facts: dict[str, Any]
    ) -> None:  # fmt: skip
        """Write the span of a tool run or child job. ``failed``: the kind of its failure."""
        what = SpanKind.CHILD if run.child else SpanKind.TOOL
        facts |= {"goal": node.goal, "attempt": attempt}
        if run.id:
            facts["id"] = run.id
        if run.input:
            facts["input_json"] = run.input
        key = span_key(what, node.goal, attempt)
        node.spans.append(Span(what, run.trace, key, run.above, run.name, begin_s, end_s, failed, facts))
        node.open_s = self._now.at_s


def _input(command: commands.StartToolRun | commands.LaunchChildJob) -> bytes:
    """Return the arguments of a tool run, or the parameters of a child job, as JSON."""
    return command.params_json if isinstance(command, commands.LaunchChildJob) else as_json(command.arguments)


def _number(call: CallRecord) -> int:
    """Return the number of the attempt that the call began with."""
    return (call.key >> 4) & 0xFFFFF
