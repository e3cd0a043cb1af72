"""A call that its first attempt answered, as one record: nearly all calls are that, and a record costs less than the
four spans that it stands for; and together with its goal, where that came to nothing else. Whoever wants the spans
takes them out with ``spread``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from cortex.state.events import Answered
from cortex.state.goals import Goal
from cortex.tracing.spans import Span, SpanKind, SpanLink, span_key
from cortex.values.reply import Usage

RESOLVED = "resolved"
"""Status of a goal, as spans name it."""


class CallRecord(msgspec.Struct, array_like=True, gc=False):
    """A logical call, from its first attempt on."""

    trace: int
    key: int
    above: int
    open_s: float
    """From when on its goal could be chosen."""
    asked_s: float
    sample: str
    question: bytes
    route: int
    """Of its latest attempt."""
    constructor: str
    model: str
    endpoint: str
    output_tokens_max: int
    attempts: int = 1
    failed: str = ""
    """How its last attempt failed."""
    body: bytes = b""
    """What was asked, where prompts may be told."""
    first_route: int = 0

    def select(self) -> Span:
        """The span of the choice that led to it."""
        goal, number = self.key >> 24, self.key >> 4
        return Span(
            SpanKind.SELECT, self.trace, span_key(SpanKind.SELECT, goal, number), self.above, self.constructor,
            self.open_s,
            self.asked_s, "", {"route": self.first_route},
        )  # fmt: skip

    def ended(self, end_s: float, failed: str, facts: dict[str, Any]) -> Span:
        """Its own span, once it is over. ``facts``: what came of it."""
        facts |= {
            "goal": self.key >> 24, "sample": self.sample, "attempts": self.attempts,
            "max_tokens": self.output_tokens_max, "endpoint": self.endpoint, "asked_model": self.model,
        }  # fmt: skip
        if self.body:
            facts["prompt"] = self.body
        return Span(SpanKind.CALL, self.trace, self.key, self.above, self.model, self.asked_s, end_s, failed, facts)


class ExchangeRecord(msgspec.Struct, array_like=True, gc=False, tag=1):
    """A call, the one attempt at it, which was answered, and what became of the reply."""

    call: CallRecord
    attempt: int
    kind: str
    """Of its goal."""
    begin_s: float
    """The attempt was sent."""
    end_s: float
    """The reply had come."""
    absorbed_s: float
    by: str
    """The branch."""
    waited_s: float
    stop: str
    model: str
    """As the reply names it."""
    usage: Usage
    probe: bool = False
    failed: str = ""
    """How absorbing it did."""
    goals: int = 0
    """That the reply made, where it was a plan."""
    reply: bytes = b""
    """What was answered, where replies may be told."""


class PendingSingleCall(msgspec.Struct, gc=False):
    """What is remembered of a ``SingleCall`` while its call is under way; the rest K knows."""

    begin_s: float
    """Its goal was made, and could be chosen at once."""
    asked_s: float
    sample: str
    question: bytes
    constructor: str
    model: str
    endpoint: str
    output_tokens_max: int


class SingleCall(msgspec.Struct, gc=False):
    """A top goal that came to one call, on the job's own route, whose first attempt was answered and ended it: what
    nearly every row of a batch is. To be used in the turn that ended it: the goal is K's own."""

    goal: Goal
    asked: PendingSingleCall
    event: Answered
    begin_s: float
    """The attempt was sent."""
    end_s: float
    """The reply had come."""
    absorbed_s: float
    links: tuple[SpanLink, ...]

    def apart(self) -> tuple[ExchangeRecord, Span]:
        """The same as what it was made of: the call with all below it, and the goal's own span."""
        goal, event, asked = self.goal, self.event, self.asked
        reply = event.reply
        exchange = ExchangeRecord(
            call_of(goal.id, asked), event.attempt, goal.kind, self.begin_s, self.end_s, self.absorbed_s, event.by,
            event.waited_s, reply.stop_reason, reply.model, reply.usage,
        )  # fmt: skip
        facts: dict[str, Any] = {"goal": goal.id, "status": RESOLVED}
        if goal.row:
            facts["row"] = goal.row
        key = span_key(SpanKind.GOAL, goal.id)
        span = Span(
            SpanKind.GOAL, goal.id, key, 0, goal.kind, asked.begin_s, self.absorbed_s, facts=facts, links=self.links
        )
        return exchange, span


def call_of(goal_id: int, asked: PendingSingleCall) -> CallRecord:
    """The first call of a top goal, from its first attempt on."""
    above = span_key(SpanKind.GOAL, goal_id)
    return CallRecord(
        goal_id, span_key(SpanKind.CALL, goal_id, 1), above, asked.begin_s, asked.asked_s, asked.sample, asked.question,
        0,
        asked.constructor, asked.model, asked.endpoint, asked.output_tokens_max,
    )  # fmt: skip


Record = Span | ExchangeRecord
"""What waits in a goal until that has ended."""
Whole = Record | SingleCall
"""What the fold lets out."""


def answered(stop: str, model: str, usage: Usage, reply: bytes) -> dict[str, Any]:
    """What a reply says of the call that it ends."""
    facts: dict[str, Any] = {
        "stop": stop, "model": model, "input": usage.input_tokens_billed, "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_creation_tokens,
    }  # fmt: skip
    if reply:
        facts["reply"] = reply
    return facts


def spread(records: Iterable[Whole]) -> Iterator[Span]:
    """Spans, each by itself."""
    for each in records:
        if isinstance(each, Span):
            yield each
        elif isinstance(each, ExchangeRecord):
            yield from _four(each)
        else:
            exchange, span = each.apart()
            yield from _four(exchange)
            yield span


_SPANS = {Span: 1, ExchangeRecord: 4, SingleCall: 5}


def count(records: Iterable[Whole]) -> int:
    """How many spans they are."""
    return sum([_SPANS[type(each)] for each in records])


def _four(record: ExchangeRecord) -> Iterator[Span]:
    """Select, absorb, the attempt, and the call."""
    call, attempt = record.call, record.attempt
    goal = call.key >> 24
    yield call.select()
    facts: dict[str, Any] = {"goals": record.goals} if record.goals else {}
    key = span_key(SpanKind.ABSORB, goal, attempt)
    yield Span(
        SpanKind.ABSORB, call.trace, key, call.above, record.kind, record.end_s, record.absorbed_s, record.failed, facts
    )
    facts = {"by": record.by, "waited_s": record.waited_s, "attempt": attempt, "route": call.route}
    if record.probe:
        facts["probe"] = True
    key = span_key(SpanKind.ATTEMPT, goal, attempt)
    yield Span(SpanKind.ATTEMPT, call.trace, key, call.key, "", record.begin_s, record.end_s, "", facts)
    yield call.ended(record.end_s, "", answered(record.stop, record.model, record.usage, record.reply))
