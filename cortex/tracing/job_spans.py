"""Spans of the job itself: one for each run, and one for each episode in which the run was held up."""

from __future__ import annotations

from cortex.scheduler.pools import breaker_in
from cortex.state import commands
from cortex.state.route_share import RouteShare
from cortex.tracing.call_spans import CHILD_SPANS
from cortex.tracing.spans import Span, SpanKind, root_key, span_key, trace_key
from cortex.tracing.trace_state import StallEpisode, TraceState
from cortex.tracing.turn_context import NO_ROUTES, TurnContext
from cortex.values.ledger import earlier_of
from policies.failures.breaker import BreakerState

EPISODES_MAX = CHILD_SPANS - 2
"""Episodes of one run that have a span. A parent job reserves ``CHILD_SPANS`` for a child job; two are for others."""


class JobSpans:
    """Runs of one job, and the episodes of the run under way: a pause, or a breaker that limits calls."""

    def __init__(self, state: TraceState, now: TurnContext) -> None:
        self._state = state
        self._now = now

    def begin_run(self, epoch: int) -> None:
        """Begin a run, numbered by the epoch of its journal or by the runs before, whichever is larger."""
        state = self._state
        state.run = state.runs = max(epoch, state.runs + 1)
        state.run_began_s = self._now.at_s
        state.tops, state.past = [], []
        state.episodes.clear()

    def finish(self, command: commands.FinishJob) -> None:
        """Write the spans of the run that ends, and of its episodes."""
        state, now = self._state, self._now
        for name in list(state.episodes):
            self._episode_ends(name)
        if not state.run:
            return
        k, ledger = now.k, now.k.ledger
        own = trace_key(0, state.run)
        facts = {
            "outcome": command.outcome, "why": command.why.partition(":")[0] if ":" in command.why else "",
            "program": k.terms.program, "calls": k.tally.calls + earlier_of(k.terms.places).calls,
            "attempts": ledger.attempts,
            "input": ledger.input_tokens + ledger.cache_read_tokens + ledger.cache_creation_tokens,
            "output": ledger.output_tokens, "cost_nusd": ledger.known_nusd, "assumed_nusd": ledger.assumed_nusd,
            "succeeded": k.tally.succeeded, "rows_failed": k.tally.failed, "run": state.run,
        }  # fmt: skip
        failed = command.outcome if command.outcome == "failed" else ""
        now.done += state.past
        now.done.append(
            Span(
                SpanKind.JOB, own, root_key(own), 0, k.terms.program, state.run_began_s, now.at_s, failed, facts,
                tuple(state.tops),
            )
        )  # fmt: skip
        state.run = 0
        state.tops, state.past = [], []

    def look_at_routes(self) -> bool:
        """Note the routes on which a breaker limits calls, and begin or end their episodes. True if there is any."""
        now = self._now
        shares = now.k.shares
        may = bool(self._state.episodes)
        for share in shares:
            if share.starts >= 0 or share.again_at_s:
                may = True
        if not may:
            now.guarded = NO_ROUTES
            return False
        guarded = [at for at, share in enumerate(shares) if _is_guarded(share)]
        now.guarded = frozenset(guarded)
        for at in guarded:
            self._episode_begins(f"breaker {at}")
        for name in [name for name in self._state.episodes if name.startswith("breaker ")]:
            if int(name.removeprefix("breaker ")) not in now.guarded:
                self._episode_ends(name)
        return bool(guarded)

    def look_at_pause(self) -> None:
        """Begin or end the episode of a paused job."""
        paused = self._now.k.paused
        if paused is None:
            self._episode_ends("paused")
        else:
            self._episode_begins("paused", paused.kind)

    def _episode_begins(self, name: str, why: str = "") -> None:
        if self._state.run and name not in self._state.episodes:
            self._state.episodes[name] = StallEpisode(why or name, self._now.at_s)

    def _episode_ends(self, name: str) -> None:
        state = self._state
        episode = state.episodes.pop(name, None)
        if episode is None or len(state.past) >= EPISODES_MAX or not state.run:
            return
        own, at_s = trace_key(0, state.run), self._now.at_s
        key = span_key(SpanKind.EPISODE, state.run, len(state.past))
        facts = {"why": episode.name} if episode.name != name else {"route": int(name.removeprefix("breaker "))}
        state.past.append(
            Span(SpanKind.EPISODE, own, key, root_key(own), name.split()[0], episode.begin_s, at_s, "", facts)
        )


def _is_guarded(share: RouteShare) -> bool:
    """Return whether a breaker limits calls on this route, or forbids them.

    Calls are also limited where the provider only said to wait, which is no failure: the memo of the grant has the
    state of the breaker.
    """
    if share.starts < 0 and not share.again_at_s:
        return False
    return breaker_in(share.memo) is not BreakerState.CLOSED
