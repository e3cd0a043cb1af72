"""What is put together of pieces that were encoded before says what each span by itself would say, to the last byte
that is read of it; and costs a fraction."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from actors.observability.base.conventions import JobAttributes, describe_span, job_of
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.observability.traces.span_encoder import SpanEncoder
from cortex.state.events import Answered
from cortex.state.goals import Goal
from cortex.tracing.call_records import (
    CallRecord,
    ExchangeRecord,
    PendingSingleCall,
    Record,
    SingleCall,
    Whole,
    count,
    spread,
)
from cortex.tracing.spans import Span as Told
from cortex.tracing.spans import SpanIds, SpanKind, SpanLink, root_key, span_key, trace_key
from cortex.values.reply import Reply, Usage
from tests.edge.support.in_process_job import PRICE

IDS = SpanIds.of("j", 100.0)
JOBS = (
    job_of("j", IDS),
    job_of("j~1", IDS, (("team", "ä" * 40),), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)
numbers = st.one_of(st.integers(1, 300), st.integers(1, (1 << 39) - 1))
counts = st.one_of(st.just(0), st.integers(1, 10_000), st.integers(0, 1 << 40))
few = st.sampled_from(["", "ä"])
"""Few enough that two calls often differ in one of these alone."""
texts = st.one_of(few, st.text(max_size=70), st.just("x" * 5_000))
moments = st.floats(1.0, 4e9)


@st.composite
def exchanges(draw: Any) -> ExchangeRecord:
    goal, attempt = draw(numbers), draw(st.integers(1, (1 << 20) - 1))
    trace = trace_key(draw(numbers), draw(st.integers(0, 3)))
    route = draw(st.integers(0, 1))
    call = CallRecord(
        trace, span_key(SpanKind.CALL, goal, attempt), root_key(trace), draw(moments), draw(moments), draw(texts), b"q",
        route, draw(few), draw(few), draw(st.sampled_from(["http://a.example:81", "sim:x"])), draw(counts),
        first_route=route, body=draw(st.sampled_from([b""] * 9 + [b'{"messages":[]}'])),
    )  # fmt: skip
    usage = Usage(*(draw(counts) for _ in range(4)))
    return ExchangeRecord(
        call, attempt, "row", draw(moments), draw(moments), draw(moments), draw(few), draw(st.floats(0, 1e3)),
        draw(few), draw(few), usage, draw(st.booleans()), draw(st.sampled_from([""] * 9 + ["malformed"])),
        draw(st.sampled_from([0] * 9 + [2])), cost_nusd=draw(st.one_of(st.just(-1), counts)),
    )  # fmt: skip


@st.composite
def goals(draw: Any) -> Told:
    goal = draw(numbers)
    trace = trace_key(draw(numbers), draw(st.integers(0, 2)))
    facts: dict[str, Any] = {"goal": goal, "status": draw(few)}
    facts |= draw(st.sampled_from([{}, {"row": "r1"}, {"row": "ü" * 40}, {"tools": 1}, {"part": 2}]))
    links = draw(st.lists(st.tuples(st.sampled_from([trace_key(0, 1), trace_key(0, 2), trace]), numbers), max_size=3))
    return Told(
        SpanKind.GOAL, trace, span_key(SpanKind.GOAL, goal), draw(st.sampled_from([0, root_key(trace)])), draw(few),
        draw(moments), draw(moments), draw(st.sampled_from(["", "", "rejected"])), facts,
        tuple(SpanLink(*one) for one in links),
    )  # fmt: skip


@st.composite
def singles(draw: Any) -> SingleCall:
    asked = PendingSingleCall(
        draw(moments), draw(moments), draw(texts), b"q", draw(few), draw(few),
        draw(st.sampled_from(["http://a.example:81", "sim:x"])), draw(counts), draw(st.sampled_from([None, PRICE])),
    )  # fmt: skip
    caches = (draw(st.sampled_from([0, 0, 7])) for _ in range(2))
    usage = Usage(*(draw(counts) for _ in range(2)), *caches, unknown=draw(st.sampled_from([False, False, True])))
    event = Answered(
        draw(numbers), asked.sample, 1, b"q", Reply(b"{}", draw(few), draw(few), usage), 0.5, draw(st.floats(0, 1e3)),
        draw(st.sampled_from(["branch:0", "branch:1", ""])),
    )  # fmt: skip
    goal = Goal(draw(few), id=event.goal, row=draw(st.sampled_from(["", "r1", "ü" * 40])))
    links = draw(st.sampled_from([(), (SpanLink(trace_key(0, 1), 7),), (SpanLink(trace_key(0, 2), 8), SpanLink(3, 4))]))
    return SingleCall(goal, asked, event, draw(moments), draw(moments), draw(moments), links)


WIRES = [SpanEncoder(OtlpEncoder([]), job) for job in JOBS]
"""What one has kept of all it has seen must be right for the next."""


def read(blobs: list[bytes]) -> list[Span]:
    return list(ScopeSpans.FromString(b"".join(blobs)).spans)


def one_by_one(records: list[Whole], job: JobAttributes) -> list[Span]:
    encoder = OtlpEncoder([])
    return read([encoder.span(describe_span(span, job)) for span in spread(records)])


@settings(max_examples=300)
@given(st.lists(st.one_of(exchanges(), goals(), singles()), min_size=1, max_size=20), st.sampled_from(WIRES))
def test_both_roads_say_the_same(records, wire):
    found, wanted = read(wire.spans(records)), one_by_one(records, wire.job)
    assert len(found) == count(records)
    assert found == wanted


@settings(max_examples=300)
@given(st.lists(singles(), min_size=1, max_size=20), st.sampled_from(WIRES))
def test_of_goals_that_came_to_one_call_too(records, wire):
    assert read(wire.spans(records)) == one_by_one(records, wire.job)


@given(exchanges())
def test_what_waits_in_a_goal_outlives_a_kill(exchange):
    blob = msgspec.msgpack.encode([exchange])
    again = msgspec.msgpack.decode(blob, type=list[Record])
    assert again == [exchange] and list(spread(again)) == list(spread([exchange]))
