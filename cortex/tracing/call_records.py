"""Compact records of calls: one record in place of four or five spans.

Nearly all calls are answered by their first attempt. Such a call is one ``ExchangeRecord``, which costs less than the
four spans that it stands for; and one ``SingleCall`` together with its goal, if the goal came to nothing else.
``spread`` makes the spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from cortex.state.events import Answered
from cortex.state.goals import Goal
from cortex.tracing.spans import Span, SpanKind, SpanLink, span_key
from cortex.values.reply import Usage
from policies.estimates.price import Price, cost_nusd

RESOLVED = "resolved"
"""Status of a goal, as spans name it."""
UNKNOWN_COST = -1
"""Cost of a reply whose price or usage is not known."""


class CallRecord(msgspec.Struct, array_like=True, gc=False):
    """Logical call, from its first attempt on."""

    trace: int
    key: int
    above: int
    open_s: float
    """Time from which its goal could be chosen, in seconds since 1970."""
    asked_s: float
    sample: str
    question: bytes
    route: int
    """Position of the route of its latest attempt."""
    constructor: str
    model: str
    endpoint: str
    output_tokens_max: int
    attempts: int = 1
    failed: str = ""
    """Failure kind of its last attempt; empty if none failed."""
    body: bytes = b""
    """Request, if spans hold prompts."""
    first_route: int = 0

    def select(self) -> Span:
        """Return the span of the choice that led to the call."""
        goal, number = self.key >> 24, self.key >> 4
        return Span(
            SpanKind.SELECT, self.trace, span_key(SpanKind.SELECT, goal, number), self.above, self.constructor,
            self.open_s,
            self.asked_s, "", {"route": self.first_route},
        )  # fmt: skip

    def ended(self, end_s: float, failed: str, facts: dict[str, Any]) -> Span:
        """Return the span of the call, once it is over. ``facts``: attributes of its outcome."""
        facts |= {
            "goal": self.key >> 24, "sample": self.sample, "attempts": self.attempts,
            "max_tokens": self.output_tokens_max, "endpoint": self.endpoint, "asked_model": self.model,
        }  # fmt: skip
        if self.body:
            facts["prompt"] = self.body
        return Span(SpanKind.CALL, self.trace, self.key, self.above, self.model, self.asked_s, end_s, failed, facts)


class ExchangeRecord(msgspec.Struct, array_like=True, gc=False, tag=1):
    """Call with its only attempt, which was answered, and the absorbing of the reply."""

    call: CallRecord
    attempt: int
    kind: str
    """Kind of its goal."""
    begin_s: float
    """Time at which the attempt was sent."""
    end_s: float
    """Time at which the reply had arrived."""
    absorbed_s: float
    by: str
    """Name of the branch."""
    waited_s: float
    stop: str
    model: str
    """Model as the reply names it."""
    usage: Usage
    probe: bool = False
    failed: str = ""
    """Failure kind of absorbing; empty if it went well."""
    goals: int = 0
    """Goals that the reply made, if it was a plan."""
    reply: bytes = b""
    """Reply, if spans hold replies."""
    cost_nusd: int = UNKNOWN_COST
    """Cost of the reply in 1e-9 USD."""


class PendingSingleCall(msgspec.Struct, gc=False):
    """Short record of a goal whose one call is under way. The rest is in K."""

    begin_s: float
    """Time at which its goal was made and could be chosen."""
    asked_s: float
    sample: str
    question: bytes
    constructor: str
    model: str
    endpoint: str
    output_tokens_max: int
    price: Price | None = None
    """Price of the job's own route."""


class SingleCall(msgspec.Struct, gc=False):
    """Top goal that came to one call on the job's own route, which its first attempt answered, and which ended the
    goal.

    Nearly every row of a batch is such a goal. Valid only in the turn that ended it: the goal is K's own object.
    """

    goal: Goal
    asked: PendingSingleCall
    event: Answered
    begin_s: float
    """Time at which the attempt was sent."""
    end_s: float
    """Time at which the reply had arrived."""
    absorbed_s: float
    links: tuple[SpanLink, ...]

    def apart(self) -> tuple[ExchangeRecord, Span]:
        """Return its two parts: the call with all below it, and the goal's own span."""
        goal, event, asked = self.goal, self.event, self.asked
        reply = event.reply
        exchange = ExchangeRecord(
            call_of(goal.id, asked), event.attempt, goal.kind, self.begin_s, self.end_s, self.absorbed_s, event.by,
            event.waited_s, reply.stop_reason, reply.model, reply.usage, cost_nusd=cost_of(asked.price, reply.usage),
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
    """Return the first call of a top goal, from its first attempt on."""
    above = span_key(SpanKind.GOAL, goal_id)
    return CallRecord(
        goal_id, span_key(SpanKind.CALL, goal_id, 1), above, asked.begin_s, asked.asked_s, asked.sample, asked.question,
        0,
        asked.constructor, asked.model, asked.endpoint, asked.output_tokens_max,
    )  # fmt: skip


Record = Span | ExchangeRecord
"""Record that waits in a goal until the goal has ended."""
Whole = Record | SingleCall
"""Record that the tracer returns."""


def cost_of(price: Price | None, usage: Usage) -> int:
    """Return the cost of a reply in 1e-9 USD, or ``UNKNOWN_COST``."""
    return UNKNOWN_COST if price is None or usage.unknown else cost_nusd(price, usage)


def answered(stop: str, model: str, usage: Usage, cost: int, reply: bytes) -> dict[str, Any]:
    """Return the attributes of a reply, for the span of the call that it ends. ``cost``: in 1e-9 USD."""
    facts: dict[str, Any] = {
        "stop": stop, "model": model, "input": usage.input_tokens_billed, "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_creation_tokens,
    }  # fmt: skip
    if cost != UNKNOWN_COST:
        facts["cost_nusd"] = cost
    if reply:
        facts["reply"] = reply
    return facts


def spread(records: Iterable[Whole]) -> Iterator[Span]:
    """Yield the spans of records, one by one."""
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
    """Return the number of spans that records stand for."""
    return sum([_SPANS[type(each)] for each in records])


def _four(record: ExchangeRecord) -> Iterator[Span]:
    """Yield the spans of selection, absorbing, attempt and call."""
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
    facts = answered(record.stop, record.model, record.usage, record.cost_nusd, record.reply)
    yield call.ended(record.end_s, "", facts)
