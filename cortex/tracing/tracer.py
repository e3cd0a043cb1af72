"""What a job did, as spans: a fold over its turns, beside K.

It sees each turn with what it led to, and gives the spans of goals that have ended. The same turns give the same spans,
with the same ids: so whoever was killed while he told of them tells them again, and nothing is told twice as another.
Nothing that a prompt or a reply says is in them unless that was asked for, and no message of a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortex.scheduler.pools import breaker_in
from cortex.state import commands, events
from cortex.state.goals import ENDED, Goal, Status
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.tracing.call_records import ExchangeRecord, PendingSingleCall, Whole
from cortex.tracing.call_spans import CHILD_SPANS
from cortex.tracing.single_call_goals import Singles
from cortex.tracing.spans import ODD, Span, SpanIds, SpanKind, goal_of, part_of, root_key, span_key, trace_key
from cortex.tracing.trace_assignment import FULL_SPANS, GOAL_SPANS, TURNS_KNOWN
from cortex.tracing.trace_state import GoalRecord, StallEpisode, TraceState
from policies.decisions.trace_sampling import INFINITE, TraceSampling, look_at_pace
from policies.failures.breaker import BreakerState

EPISODES_MAX = CHILD_SPANS - 2
_ENDED_AS = {status: status.name.lower() for status in Status}
_64_BITS = (1 << 64) - 1
_GOAL, _FAILED = SpanKind.GOAL, Status.FAILED
_NOTHING = commands.StepCommands()
_NOBODY: frozenset[int] = frozenset()


class Tracer(Singles):
    """The fold. ``captures``: what was asked and answered is told too."""

    def __init__(
        self, rule: TraceSampling, ids: SpanIds, state: TraceState | None = None, *, captures: bool = False
    ) -> None:
        super().__init__(rule, ids, state or TraceState(), captures)

    def turn(self, turn: events.Turn, out: commands.StepCommands, k: State) -> list[Whole]:
        """One turn, what it led to, and K after it: the spans that are whole now."""
        self._k, self._out, self._at_s = k, out, max(self._at_s, float(turn.at_s))
        done: list[Whole] = []
        self._done = done
        self._come(turn)
        self._gone(out)
        if out.made:
            self._all_made(out.made)
        self._told_to(out)
        state = self.state
        if state.run and (k.paused is not None or "paused" in state.episodes):
            self._paused()
        self._absorbed.clear()
        self._just_ended, self._last = None, k
        self._out, self._done = _NOTHING, []  # what leaves is let go while it is at hand, and not a turn later
        return done

    def _come(self, turn: events.Turn) -> None:
        """What happened."""
        nodes, singles, rescues = self.state.nodes, self._singles, self.state.rescues
        slow_s = rescues.slow_s if self.rule.rescues_at_once else INFINITE
        seen, sum_s, answered = 0, 0.0, events.Answered
        for batch in turn.batches:
            for event in batch:
                if type(event) is answered:  # nearly every event is one
                    goal_id, elapsed_s = event.goal, event.elapsed_s
                    seen += 1
                    sum_s += elapsed_s
                    if goal_id in singles:
                        self._replies(event)
                    elif elapsed_s > slow_s or goal_id in nodes:
                        self._answered(event, nodes.get(goal_id))
                else:
                    take = _TAKE.get(type(event))
                    if take is not None:
                        take(self, event)
        if seen:
            look_at_pace(rescues, seen, sum_s)

    def _gone(self, out: commands.StepCommands) -> None:
        """Goals that have ended."""
        nodes, singles = self.state.nodes, self._singles
        made_below: set[int] | None = None
        links = self._job_linked(self.state.run)
        for goal in out.ended:
            goal_id = goal.id
            if goal_id in singles:
                if made_below is None:
                    made_below = {each.parent for each in out.made}
                if not self._single(goal, made_below, links):
                    self._ended(goal)
            elif goal_id in nodes or goal.parent or goal.children:
                self._ended(goal)
        for goal_id in list(self._replied):  # they go on
            self.known(goal_id)

    def _told_to(self, out: commands.StepCommands) -> None:
        """What is to be done now."""
        nodes, singles, again = self.state.nodes, self._singles, self.state.again
        guarded = self._guards()
        usual = not (guarded or self.captures)
        for share in self._k.shares:  # in each turn, so without a generator
            if share.probing:
                usual = False
        any_call, call, emit = bool(again or guarded), commands.Call, commands.EmitResult
        for command in out:
            kind = type(command)
            if kind is call:
                goal_id = command.goal  # type: ignore[union-attr]
                if goal_id in singles:
                    self._asks(command, usual)  # type: ignore[arg-type]
                elif goal_id in nodes or any_call:
                    self._asked(command, nodes.get(goal_id))  # type: ignore[arg-type]
            elif kind is not emit:
                self._ordered(command)

    def context(self, goal: int, attempt: int, child: bool = False) -> tuple[int, int, bool]:
        """Where an attempt, or a child job, will be told: the trace, the span, and whether it will be told at all."""
        node = self.state.nodes.get(goal)
        what = SpanKind.CHILD if child else SpanKind.ATTEMPT
        if node is not None:
            found = node.runs.get(attempt) if child else node.flights.get(attempt)
            if found is not None and found.trace:
                return found.trace, span_key(what, goal, attempt), True
        elif attempt == 1 and not child and type(self._singles.get(goal)) is PendingSingleCall:
            return goal, span_key(what, goal, 1), True
        return self._own(goal), span_key(what, goal, attempt), False

    def _ordered(self, command: commands.Command) -> None:
        if isinstance(command, commands.StartToolRun):
            self._runs(command, command.tool, 1, command.key)
        elif isinstance(command, commands.LaunchChildJob):
            self._runs(command, command.program, CHILD_SPANS, "")
        elif isinstance(command, commands.FinishJob):
            self._finished(command)

    # -- goals -----------------------------------------------------------------------------------------------------

    def _all_made(self, made: list[Goal]) -> None:
        state = self.state
        state.made_from.append(made[0].id)
        state.made_at_s.append(self._at_s)
        if len(state.made_from) > TURNS_KNOWN:
            del state.made_from[: TURNS_KNOWN // 2], state.made_at_s[: TURNS_KNOWN // 2]
        rule, at_s = self.rule, self._at_s
        low, bound, first_spans = self.ids.low, self._bound, rule.first_spans
        everything = bound > _64_BITS
        short = state.run and not self.captures
        traces, inside, absorbed = state.traces, state.inside, self._absorbed
        parent = own = 0
        if not everything and state.kept_spans >= first_spans:  # the ids alone decide
            made = [goal for goal in made if goal.parent or (low + goal.id * ODD & _64_BITS) < bound]
            everything = True
        for goal in made:
            if own and goal.parent == parent and goal.status not in ENDED:  # as the one before, which is not told of
                trace = traces[own]
                if trace.count + GOAL_SPANS <= FULL_SPANS:
                    trace.count += GOAL_SPANS
                    trace.live += 1
                    inside[goal.id] = own
                    continue
            if everything or state.kept_spans < first_spans or (low + goal.id * ODD & _64_BITS) < bound or goal.parent:
                if short and not goal.parent and goal.due_at_s <= at_s and goal.status not in ENDED:
                    self._begins(goal)
                else:
                    self._made(goal)
                    parent = goal.parent
                    own = inside.get(goal.id, 0) if parent not in absorbed else 0

    def _made(self, goal: Goal) -> None:
        if goal.parent in self.state.again:
            self.goes_on(goal.parent, self._find)
        self.made(goal)
        if (absorbed := self._absorbed.get(goal.parent)) is not None:
            self._planned(absorbed)
        if goal.status in ENDED:
            self._ended(goal)

    def _planned(self, absorbed: ExchangeRecord | Span) -> None:
        """What was absorbed in this turn made a goal."""
        if isinstance(absorbed, ExchangeRecord):
            absorbed.goals += 1
        else:
            absorbed.facts["goals"] = absorbed.facts.get("goals", 0) + 1

    def _ended(self, goal: Goal) -> None:
        state = self.state
        goal_id = goal.id
        if state.again:
            state.again.pop(goal_id, None)
        if goal_id in state.parts:
            self.close_parts(goal_id, goal.kind)
        node = state.nodes.pop(goal_id, None)
        if node is None:
            own = state.inside.pop(goal_id, 0) or trace_key(goal_id)
            if own in state.traces:
                self.left(goal_id, own)
            return
        failure = goal.failure if goal.status == _FAILED else None
        self._close_node(node, _ENDED_AS[goal.status], failure.kind if failure is not None else "")
        self.left(goal_id, node.trace)

    def _close_node(self, node: GoalRecord, status: str, failed: str) -> None:
        """All that was done for a goal leaves now."""
        at_s = self._at_s
        if node.flights or node.runs or node.call is not None:
            self._abandoned(node, failed)
        if node.serving:
            self._joined(node)
        parent = self.state.nodes.get(node.parent) if node.parent else None
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
        self._done += node.spans
        self._done.append(
            Span(_GOAL, node.trace, node.key, node.above, node.kind, node.begin_s, at_s, failed, facts, node.links)
        )

    def _abandoned(self, node: GoalRecord, failed: str) -> None:
        """What is still under way for a goal that has ended: nobody awaits it any more."""
        at_s = self._at_s
        for attempt, flight in node.flights.items():
            self._attempt(node, attempt, flight, flight.asked_s, at_s, "", {"abandoned": True})
        if node.call is not None:
            self._close_call(node, at_s, node.call.failed or failed, {})
        for attempt, run in node.runs.items():
            self._close_run(node, attempt, run, at_s, at_s, "", {"abandoned": True})

    def _joined(self, node: GoalRecord) -> None:
        """All that served a goal have ended; where they were several that is told, with a link to each."""
        if node.rounded > 1 and self.room(node.trace):
            key = span_key(SpanKind.JOIN, node.served[0].span >> 24)  # no goal is the first of two rounds
            facts = {"goal": node.goal, "goals": node.rounded}
            node.spans.append(
                Span(
                    SpanKind.JOIN, node.trace, key, node.key, node.kind, node.round_s, self._at_s, "", facts,
                    tuple(node.served),
                )
            )  # fmt: skip
        node.serving = 0
        node.served = []
        node.open_s = self._at_s

    # -- the job ---------------------------------------------------------------------------------------------------

    def _opened(self, event: events.Opened) -> None:
        """A job begins; or anew, and then nothing of what was goes on."""
        self._stop("abandoned", resumable=False)
        state = self.state
        state.again.clear()
        state.inside.clear()
        state.traces.clear()
        state.where.clear()
        state.run = 0
        self._begin_run(event.epoch)

    def _resumed(self, event: events.Resumed) -> None:
        if not self.state.run:
            self._begin_run(self._k.epoch)

    def _rejoined(self, event: events.Rejoined) -> None:
        super()._rejoined(event)
        if not self.state.run and not self._k.outcome:  # nobody had told of it before
            self._begin_run(self._k.epoch)

    def _begin_run(self, epoch: int) -> None:
        state = self.state
        state.run = state.runs = max(epoch, state.runs + 1)
        state.run_began_s = self._at_s
        state.tops, state.past = [], []
        state.episodes.clear()

    def _finished(self, command: commands.FinishJob) -> None:
        self._stop("open", resumable=command.outcome == "partial")
        state, k = self.state, self._k
        for name in list(state.episodes):
            self._episode_ends(name)
        if not state.run:
            return
        own = trace_key(0, state.run)
        ledger = k.ledger
        facts = {
            "outcome": command.outcome, "why": command.why.partition(":")[0] if ":" in command.why else "",
            "program": k.terms.program, "calls": k.tally.calls, "attempts": ledger.attempts,
            "input": ledger.input_tokens + ledger.cache_read_tokens + ledger.cache_creation_tokens,
            "output": ledger.output_tokens, "cost_nusd": ledger.known_nusd, "assumed_nusd": ledger.assumed_nusd,
            "succeeded": k.tally.succeeded, "rows_failed": k.tally.failed, "run": state.run,
        }  # fmt: skip
        failed = command.outcome if command.outcome == "failed" else ""
        self._done += state.past
        self._done.append(
            Span(
                SpanKind.JOB, own, root_key(own), 0, k.terms.program, state.run_began_s, self._at_s, failed, facts,
                tuple(state.tops),
            )
        )  # fmt: skip
        state.run = 0
        state.tops, state.past = [], []

    def _stop(self, status: str, resumable: bool) -> None:
        """The job stops: what lives is told as far as it came, and would go on in another trace."""
        state = self.state
        self._write_out()
        for node in list(state.nodes.values()):
            self._close_node(node, status, "")
            if resumable:
                last = state.where.get(node.goal, node.trace)
                part = part_of(last) + 1 if goal_of(last) == node.goal else 1
                state.again[node.goal] = (trace_key(node.goal, part), node.trace, node.key)
        state.nodes.clear()
        for goal_id in list(state.parts):
            goal = self._k.goals.get(goal_id)
            self.close_parts(goal_id, goal.kind if goal is not None else "")

    def _guards(self) -> bool:
        """Whether a breaker lets only some calls out; of which routes, and since when."""
        shares = self._k.shares
        may = bool(self.state.episodes)
        for share in shares:
            if share.starts >= 0 or share.again_at_s:
                may = True
        if not may:
            self._guarded = _NOBODY
            return False
        guarded = [at for at, share in enumerate(shares) if _is_guarded(share)]
        self._guarded = frozenset(guarded)
        for at in guarded:
            self._episode_begins(f"breaker {at}")
        for name in [name for name in self.state.episodes if name.startswith("breaker ")]:
            if int(name.removeprefix("breaker ")) not in self._guarded:
                self._episode_ends(name)
        return bool(guarded)

    def _paused(self) -> None:
        if self._k.paused is None:
            self._episode_ends("paused")
        else:
            self._episode_begins("paused", self._k.paused.kind)

    def _episode_begins(self, name: str, why: str = "") -> None:
        if self.state.run and name not in self.state.episodes:
            self.state.episodes[name] = StallEpisode(why or name, self._at_s)

    def _episode_ends(self, name: str) -> None:
        state = self.state
        episode = state.episodes.pop(name, None)
        if episode is None or len(state.past) >= EPISODES_MAX or not state.run:
            return
        own = trace_key(0, state.run)
        key = span_key(SpanKind.EPISODE, state.run, len(state.past))
        facts = {"why": episode.name} if episode.name != name else {"route": int(name.removeprefix("breaker "))}
        state.past.append(
            Span(SpanKind.EPISODE, own, key, root_key(own), name.split()[0], episode.begin_s, self._at_s, "", facts)
        )


def _is_guarded(share: RouteShare) -> bool:
    """Whether a breaker lets only some calls out here, or none. So few may be begun, too, where the provider only said
    to wait, which is no failure: the memo of the grant tells."""
    if share.starts < 0 and not share.again_at_s:
        return False
    return breaker_in(share.memo) is not BreakerState.CLOSED


_TAKE: dict[type, Callable[[Tracer, Any], None]] = {
    events.AttemptFailed: Tracer._broke,
    events.ReplyRecalled: Tracer._recalled,
    events.Rejoined: Tracer._rejoined,
    events.Observed: Tracer._observed,
    events.ChildJobEnded: Tracer._returned,
    events.Opened: Tracer._opened,
    events.Resumed: Tracer._resumed,
}
