"""A job of 100,000 calls below one goal: no trace is too large for a viewer, and none of its spans is lost."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from actors.observability.base.conventions import SpanText, describe_span, job_of
from actors.observability.traces.otlp_encoding import OtlpEncoder
from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.goals import Goal, Status
from cortex.state.state import State
from cortex.tracing.call_records import spread
from cortex.tracing.spans import Span, SpanIds, SpanKind
from cortex.tracing.tracer import Tracer
from cortex.values.limits import Limits
from policies.decisions.trace_sampling import TraceSampling, share
from tests.support.state_machine_harness import reply, terms

CALLS = 100_000
TOGETHER = 500
IDS = SpanIds.of("j", 1.0)
TEMPO_BYTES = 5_000_000


def spans_of(rule: TraceSampling, calls: int = CALLS, deep: bool = False) -> list[Span]:
    """One goal with so many below it, side by side or each below the one before: a call each, folded without a run."""
    opening = terms(Limits(), job="j")
    k: State = codec.open_job(opening)
    tracer = Tracer(rule, IDS)
    spans: list[Span] = []
    at_s = 1.0

    def turn(batch: tuple[events.Event, ...], made=(), ended=(), out=()) -> None:
        nonlocal at_s
        at_s += 1.0
        decided = commands.StepCommands()
        decided.made, decided.ended = list(made), list(ended)
        decided.extend(out)
        spans.extend(spread(tracer.turn(events.Turn(at_s, (batch,)), decided, k)))

    top = Goal("flow", id=1)
    k.goals[1] = top
    turn((events.Opened(opening, 1),), made=[top])
    above, alive = 1, []
    for first in range(2, calls + 2, TOGETHER):
        goals = [
            Goal("leaf", parent=above if not deep else at - 1, id=at, tries=1, question=b"q")
            for at in range(first, first + TOGETHER)
        ]
        for goal in goals:
            k.goals[goal.id] = goal
            goal.status = Status.ASKED
        asked = [commands.Call(goal.id, "0", 1, b"q", b"{}", 8, 100, 60.0) for goal in goals]
        turn((events.Ticked(),), made=goals, out=asked)
        for goal in goals:
            goal.status, goal.question = Status.RESOLVED, b""
        found = reply("x" * 50)
        came = tuple(events.Answered(goal.id, "0", 1, b"q", found, 0.5, 0.01, "branch:0") for goal in goals)
        turn(came, ended=goals if not deep else ())
        alive += goals if deep else []
        if not deep:
            for goal in goals:
                del k.goals[goal.id]
    for goal in alive:
        goal.status = Status.RESOLVED
    top.status = Status.RESOLVED
    turn((events.Ticked(),), ended=[*reversed(alive), top], out=[commands.FinishJob("complete", "")])
    return spans


def check(spans: list[Span]) -> dict[int, list[SpanText]]:
    job, encoder = job_of("j", IDS), OtlpEncoder([])
    traces: dict[int, list[SpanText]] = defaultdict(list)
    size: Counter[int] = Counter()
    for span in spans:
        one = describe_span(span, job)
        traces[one.trace_id].append(one)
        size[one.trace_id] += len(encoder.span(one))
    everywhere = {(one.trace_id, one.span_id) for some in traces.values() for one in some}
    for some in traces.values():
        assert len(some) <= 1_000
        ids = {one.span_id for one in some}
        assert len(ids) == len(some)
        assert [one.parent_id for one in some].count(0) == 1
        assert all(one.parent_id in ids for one in some if one.parent_id)
        assert all(link in everywhere for one in some for link in one.links)
    assert max(size.values()) < TEMPO_BYTES / 5
    return traces


@pytest.mark.long
def test_a_wide_tree_is_cut_into_linked_traces():
    spans = spans_of(share(1.0))
    kinds = Counter(span.what for span in spans)
    assert kinds[SpanKind.CALL] == kinds[SpanKind.ATTEMPT] == CALLS
    assert kinds[SpanKind.GOAL] == CALLS + 1
    traces = check(spans)
    assert 500 < len(traces) < 700
    parts = [span for span in spans if span.what is SpanKind.PART]
    top = next(span for span in spans if span.what is SpanKind.GOAL and span.facts["goal"] == 1)
    assert all(span.links == ((top.trace, top.key),) for span in parts)


def test_a_deep_tree_is_cut_into_linked_traces():
    spans = spans_of(share(1.0), 20_000, deep=True)
    assert Counter(span.what for span in spans)[SpanKind.CALL] == 20_000
    traces = check(spans)
    assert 100 < len(traces) < 200


def test_by_default_its_beginning_is_kept_and_a_share_of_the_rest():
    spans = spans_of(TraceSampling())
    check(spans)
    kept = Counter(span.what for span in spans)[SpanKind.CALL]
    assert 1_000 <= kept < 5_000
