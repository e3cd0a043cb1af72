"""Spans of any journal at all: every trace is a tree, bounded, the same however often it is told, and from any cut on."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict

import msgspec
import pytest

from cortex.journal import codec
from cortex.scheduler.pools import PoolMemo
from cortex.state import events
from cortex.state.program import Program
from cortex.tracing.call_records import spread
from cortex.tracing.spans import LINKS_MAX, TRACE_SPANS_MAX, Span, SpanIds, SpanKind
from cortex.tracing.trace_state import TraceState
from cortex.tracing.tracer import Tracer
from policies.decisions.trace_sampling import TraceSampling, share
from policies.failures.breaker import Breaker, BreakerState
from policies.failures.failure import FailureKind
from policies.limits.limit import LimitPolicy, PoolCaps, new
from tests.properties.test_fuzz import PROGRAMS, Fuzz
from tests.support.fault_injection import World
from tests.support.sample_flows import ALL
from tests.support.sample_programs import Elector, Nester, Planner, Voter, Watcher
from tests.support.state_machine_harness import Flat, Stage

IDS = SpanIds.of("j", 100.0)
ALL_KEPT = share(1.0)
SOME = TraceSampling(ratio=0.3, first_spans=0, rescues_at_once=20.0)
WORLDS: dict[str, Program] = {
    "planned": Planner(roots=("b", "h"), deep=9),
    "voted on": Elector(),
    "votes": Voter(questions=("p", "q"), kind="quorum"),
    "nested": Nester(roots=("r", "s")),
    "watching": Watcher(asks=6, trust_s=1.0),
    "tree": ALL["tree"],
    "races": ALL["races"],
    "flat": Flat(texts=tuple("abcdefghij")),
}


def fresh(program: Program) -> Program:
    made = copy.copy(program)
    getattr(made, "__dict__", {}).clear()
    return made


def told(
    turns: list[events.Turn], program: Program, rule: TraceSampling = ALL_KEPT, cut: int = -1, in_full: bool = False
) -> tuple[list[list[Span]], Tracer]:
    """The spans of each turn. At the cut the fold travels through bytes, as it does past a kill. ``in_full``: nothing
    is remembered in short from one turn to the next."""
    tracer = Tracer(rule, IDS)
    spans: list[list[Span]] = []

    def seen(turn, out, k) -> None:
        nonlocal tracer
        if len(spans) == cut:
            blob = msgspec.msgpack.encode(tracer.whole())
            tracer = Tracer(rule, IDS, msgspec.msgpack.decode(blob, type=TraceState))
        spans.append(list(spread(tracer.turn(turn, out, k))))
        if in_full:
            tracer.whole()

    codec.replay(None, turns, program, seen=seen)
    return spans, tracer


def flat(spans: list[list[Span]]) -> list[Span]:
    return [span for some in spans for span in some]


def well_formed(spans: list[Span], over: bool) -> None:
    """``over``: the job has ended, so nothing waits for its parent any more."""
    assert len({IDS.span_id(span.key) for span in spans}) == len(spans), Counter(
        span.key for span in spans
    ).most_common(3)
    traces: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
        assert span.begin_s <= span.end_s, span
        assert len(span.links) <= LINKS_MAX
    known = {(span.trace, span.key): span for span in spans}
    for trace, inside in traces.items():
        assert len(inside) <= TRACE_SPANS_MAX
        roots = [span for span in inside if not span.above]
        assert len(roots) == 1 if over else len(roots) <= 1, (trace, roots)
        for span in inside:
            above = known.get((trace, span.above))
            if span.above and over:
                assert above is not None, f"an orphan: {span}"
            if span.what is SpanKind.ATTEMPT:
                assert above is not None and above.what is SpanKind.CALL, span
    calls: dict[int, int] = Counter(span.above for span in spans if span.what is SpanKind.ATTEMPT)
    for span in spans:
        if span.what is SpanKind.CALL and span.facts["attempts"] and not span.facts.get("reused"):
            assert calls[span.key] <= span.facts["attempts"], span
        if over:
            for link in span.links:
                assert (link.trace, link.span) in known, f"a link to nowhere: {span}"


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_world_does_every_trace_is_a_tree(name, seed):
    world = World(WORLDS[name], seed, faults=0.3, late=True, together=3)
    world.run()
    spans = flat(told(world.stage.turns, fresh(WORLDS[name]))[0])
    well_formed(spans, over=True)
    asked = [call for call in world.stage.said if type(call).__name__ == "Call"]
    kinds = Counter(span.what for span in spans)
    assert kinds[SpanKind.JOB] == 1
    assert kinds[SpanKind.GOAL] == world.k.next_goal - 1, "a goal, a span"
    recalled = sum(
        isinstance(e, events.ReplyRecalled) for turn in world.stage.turns for batch in turn.batches for e in batch
    )
    assert kinds[SpanKind.ATTEMPT] + recalled >= len(asked) - recalled, "an attempt, a span"
    assert kinds[SpanKind.CALL] <= len(asked)


@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_happens_traces_stay_bounded_and_are_told_once(name):
    for seed in range(11):  # 0, 5 and 10 told something twice, each of another program
        fuzz = Fuzz(name, seed)
        for _ in range(80):
            fuzz.turn()
        program = fresh(PROGRAMS[name])
        well_formed(flat(told(fuzz.stage.turns, program)[0]), over=False)
        well_formed(flat(told(fuzz.stage.turns, fresh(PROGRAMS[name]), SOME)[0]), over=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_remembered_in_short_is_told_as_what_is_remembered_in_full(name):
    for seed in range(5):
        fuzz = Fuzz(name, seed)
        for _ in range(80):
            fuzz.turn()
        for rule in (ALL_KEPT, SOME, TraceSampling(ratio=0.0, first_spans=30, rescues_at_once=1_000.0)):
            short, tracer = told(fuzz.stage.turns, fresh(PROGRAMS[name]), rule)
            full, in_full = told(fuzz.stage.turns, fresh(PROGRAMS[name]), rule, in_full=True)
            for found, wanted in zip(short, full, strict=True):
                assert sorted(found, key=_by_key) == sorted(wanted, key=_by_key)
            left, wanted = msgspec.to_builtins(tracer.whole()), msgspec.to_builtins(in_full.whole())
            assert left == wanted


def _by_key(span: Span) -> int:
    return span.key


@pytest.mark.parametrize("name", ["planned", "tree", "voted on", "flat"])
def test_from_every_cut_on_the_same_is_told(name):
    world = World(WORLDS[name], 1, faults=0.2, together=2)
    world.run()
    for rule in (ALL_KEPT, SOME):
        whole, _ = told(world.stage.turns, fresh(WORLDS[name]), rule)
        for cut in range(1, len(whole), 3):
            again, _ = told(world.stage.turns, fresh(WORLDS[name]), rule, cut)
            assert again == whole, f"cut at {cut}"


def test_what_is_left_out_leaves_nothing_behind():
    world = World(WORLDS["planned"], 2, faults=0.2)
    world.run()
    for rule in (ALL_KEPT, SOME, share(0.0)):
        state = told(world.stage.turns, fresh(WORLDS["planned"]), rule)[1].state
        assert not (state.nodes or state.inside or state.traces or state.where or state.parts or state.again)


def test_without_a_share_failures_are_rescued_with_all_that_is_above_them():
    world = World(WORLDS["planned"], 3, faults=0.3)
    world.run()
    rule = TraceSampling(ratio=0.0, first_spans=0, rescues_at_once=1_000.0)
    spans = flat(told(world.stage.turns, fresh(WORLDS["planned"]), rule)[0])
    well_formed(spans, over=True)
    failed = {
        (event.goal, event.attempt)
        for turn in world.stage.turns
        for batch in turn.batches
        for event in batch
        if isinstance(event, events.AttemptFailed) and event.failure.kind != FailureKind.CANCELLED
    }
    shown = {(span.key >> 24, span.facts["attempt"]) for span in spans if span.what is SpanKind.ATTEMPT}
    assert failed and failed <= shown
    assert flat(told(world.stage.turns, fresh(WORLDS["planned"]), share(0.0))[0]) == [] or all(
        span.what in (SpanKind.JOB, SpanKind.EPISODE)
        for span in flat(told(world.stage.turns, fresh(WORLDS["planned"]), share(0.0))[0])
    )


RARE = TraceSampling(ratio=0.0, first_spans=0, rescues_at_once=100.0)


def test_under_a_breaker_everything_is_told_and_the_job_says_since_when():
    stage = Stage(Flat(texts=("a", "b", "c")), permits=1)
    stage.turn(events.PermitsGranted(0, again_s=5.0, why="open"))
    stage.answer()
    stage.turn(events.PermitsGranted(1, starts=1))
    stage.answer()
    stage.turn(events.PermitsGranted(1))
    stage.answer()
    spans = flat(told(stage.turns, Flat(texts=("a", "b", "c")), RARE)[0])
    well_formed(spans, over=True)
    (call,) = [span for span in spans if span.what is SpanKind.CALL]
    (attempt,) = [span for span in spans if span.what is SpanKind.ATTEMPT]
    assert call.facts["goal"] == 2 and attempt.facts["probe"]
    (period,) = [span for span in spans if span.what is SpanKind.EPISODE]
    assert (period.name, period.begin_s, period.end_s) == ("breaker", 102.0, 106.0)


def test_a_wait_that_the_provider_asks_for_is_told_as_no_breaker():
    stage = Stage(Flat(texts=("a", "b", "c")), permits=1)
    closed = PoolMemo((1, 1), 100.0, "c", new(LimitPolicy()), PoolCaps(), None)
    probed = msgspec.structs.replace(closed, breaker=Breaker(state=BreakerState.HALF_OPEN, generation=1))
    held = events.PermitsGranted(1, starts=0, why="the provider asks to wait", memo=msgspec.msgpack.encode(closed))
    for granted in (held, msgspec.structs.replace(held, starts=1, memo=msgspec.msgpack.encode(probed))):
        stage.turn(granted)
        stage.answer()
    stage.turn(events.PermitsGranted(1))
    stage.answer()
    periods = [span for span in flat(told(stage.turns, Flat(texts=("a", "b", "c")), RARE)[0])
               if span.what is SpanKind.EPISODE]  # fmt: skip
    assert [(period.name, period.begin_s, period.end_s) for period in periods] == [("breaker", 104.0, 106.0)]


def test_a_call_that_is_slow_beside_the_others_is_told():
    texts = tuple(f"t{n}" for n in range(200))
    stage = Stage(Flat(texts=texts), permits=1)
    for n in range(200):
        call = stage.call()
        took_s = 9.0 if n == 150 else 1.0
        stage.turn(
            msgspec.structs.replace(stage.answered(call), elapsed_s=took_s, by="branch:0"), at_s=stage.k.at_s + 10
        )
    spans = flat(told(stage.turns, Flat(texts=texts), RARE)[0])
    well_formed(spans, over=True)
    (attempt,) = [span for span in spans if span.what is SpanKind.ATTEMPT]
    assert round(attempt.end_s - attempt.begin_s, 6) == 9.0
    assert [span.facts["goal"] for span in spans if span.what is SpanKind.GOAL] == [151]


def test_what_is_rescued_stays_within_a_rate():
    texts = tuple(f"t{n}" for n in range(50))
    stage = Stage(Flat(texts=texts), permits=50)
    calls = list(stage.calls.values())
    stage.turn(*[stage.broke(call, "rejected", f"no {n}") for n, call in enumerate(calls)])
    rule = TraceSampling(ratio=0.0, first_spans=0, rescues_at_once=7.0)
    spans = flat(told(stage.turns, Flat(texts=texts), rule)[0])
    assert len([span for span in spans if span.what is SpanKind.ATTEMPT]) == 7
