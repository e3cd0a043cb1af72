"""Spans of one job on their way to the wire; those first that nearly all are: of a call that its first attempt
answered, and of the goal that it was made for.

Two such calls differ in ids, times, tokens and names of rows; what else is said of them is said again and again. So of
each form of call the rest is encoded once, from what ``actors.telemetry`` says of the first one seen, and all others
are put together around it: five spans in the time that two take by themselves. Tests compare both roads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from actors.observing.otlp import Encoder, attribute, field, link, varint
from actors.telemetry import (
    ATTEMPT,
    CACHE_CREATION_TOKENS,
    CACHE_READ_TOKENS,
    GOAL_ID,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    REQUEST_MAX_TOKENS,
    ROW_KEY,
    SAMPLE,
    VARYING,
    WAITED,
    Job,
    told,
)
from cortex.exchanges import Call, Exchange, Record, spread
from cortex.reply import Usage
from cortex.spans import ODD, Span, What, goal_of

FORMS_MAX = 1_000
"""Forms that are kept: a form is a model, a branch, and the like."""
SMALL_MAX = 4_096
"""Numbers below it are kept encoded, and what stands before a span of fewer bytes."""

_64_BITS = (1 << 64) - 1
_SPAN, _ABOVE = b"\x12\x08", b"\x22\x08"
_BEGIN, _END = 0x39, 0x41
_HEAD = "28s2s8sBQBQ"
"""Where a span stands, its id and its times."""
_head = Struct(f"<{_HEAD}").pack
_HEAD_BYTES = Struct(f"<{_HEAD}").size
_root = Struct("<18s2s8sBQBQ").pack
_double = Struct("<d").pack
_SELECT, _CALL, _ATTEMPT, _ABSORB = (
    ODD * int(what) for what in (What.SELECT, What.CALL, What.ATTEMPT, What.ABSORB)
)
_PLAIN = frozenset({"goal", "status", "row"})
"""What is known of a goal about which there is nothing special."""


class _Form(NamedTuple):
    """What the calls of one form share, encoded."""

    both: Callable[..., bytes]
    """Puts select and absorb together: nothing but ids and times differs in them."""
    before: bytes
    between: bytes
    after: bytes
    attempt: bytes
    call: bytes


class Wire:
    """Encodes what the fold lets out of one job."""

    def __init__(self, encoder: Encoder, job: Job) -> None:
        self._encoder = encoder
        self.job = job
        ids = job.ids
        self._low, self._span = ids.low, ids.span
        self._before_trace = b"\x0a\x10" + ids.high.to_bytes(8, "big")
        self._last = (-1, b"")
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._goals: dict[tuple[str, str], bytes] = {}
        self._links: dict[object, bytes] = {}
        self._goal = _Number(GOAL_ID)
        self._attempt = _Number(ATTEMPT)
        self._input, self._output = _Number(INPUT_TOKENS), _Number(OUTPUT_TOKENS)
        self._cache_read, self._cache_creation = _Number(CACHE_READ_TOKENS), _Number(CACHE_CREATION_TOKENS)
        self._max_tokens = _Number(REQUEST_MAX_TOKENS)
        self._sample, self._row = _Text(SAMPLE), _Text(ROW_KEY)
        self._waited = field(b"\x4a", attribute(WAITED, 0.0))[:-8]

    def spans(self, records: Iterable[Record]) -> list[bytes]:
        """Each as a field of a ``ScopeSpans``, or as several."""
        said: list[bytes] = []
        for each in records:
            if isinstance(each, Exchange):
                if each.failed or each.goals or each.reply or each.call.body:
                    said += [self._encoder.span(told(span, self.job)) for span in spread((each,))]
                else:
                    said.append(self._exchange(each))
            elif each.what is What.GOAL and not each.failed and _PLAIN.issuperset(each.facts):
                said.append(self._plain(each))
            else:
                said.append(self._encoder.span(told(each, self.job)))
        return said

    def _exchange(self, exchange: Exchange) -> bytes:
        call = exchange.call
        key = (
            call.constructor, call.route, call.model, call.endpoint, exchange.stop, exchange.model, exchange.by,
            exchange.probe,
        )  # fmt: skip
        form = self._forms.get(key) or self._formed(key, exchange)
        trace = self._trace(call.trace)
        first = self._span + (call.key - What.CALL) * ODD  # the ids of a call's spans are so many steps from each other
        call_id = _id(first + _CALL)
        below = trace + _ABOVE + _id(self._span + call.above * ODD)
        asked_ns, begin_ns, end_ns = int(call.asked_s * 1e9), int(exchange.begin_s * 1e9), int(exchange.end_s * 1e9)
        attempt = self._attempt(exchange.attempt)
        if exchange.by:
            attempt += self._waited + _double(round(exchange.waited_s, 6))
        attempt += form.attempt
        said = self._of_call(call, exchange.usage) + form.call
        return b"".join((
            form.both(
                form.before, below, _SPAN, _id(first + _SELECT), _BEGIN, int(call.open_s * 1e9), _END, asked_ns,
                form.between, below, _SPAN, _id(first + _ABSORB), _BEGIN, end_ns, _END, int(exchange.absorbed_s * 1e9),
                form.after,
            ),
            _begun(_HEAD_BYTES + len(attempt)),
            _head(trace + _ABOVE + call_id, _SPAN, _id(first + _ATTEMPT), _BEGIN, begin_ns, _END, end_ns),
            attempt,
            _begun(_HEAD_BYTES + len(said)),
            _head(below, _SPAN, call_id, _BEGIN, asked_ns, _END, end_ns),
            said,
        ))  # fmt: skip

    def _of_call(self, call: Call, usage: Usage) -> bytes:
        said = (
            self._goal(call.key >> 24) + self._sample(call.sample)
            + (self._max_tokens(call.output_tokens_max) if call.output_tokens_max else b"")
            + self._input(usage.input_tokens_billed) + self._output(usage.output_tokens)
        )  # fmt: skip
        if usage.cache_read_tokens:
            said += self._cache_read(usage.cache_read_tokens)
        if usage.cache_creation_tokens:
            said += self._cache_creation(usage.cache_creation_tokens)
        return said

    def _plain(self, span: Span) -> bytes:
        facts = span.facts
        key = (span.name, facts["status"])
        said = self._goal(facts["goal"])
        if "row" in facts:
            said += self._row(facts["row"])
        said += self._goals.get(key) or self._goal_formed(key, span)
        for one in span.links:
            said += self._links.get(one) or self._linked(*one)
        trace, own = self._trace(span.trace), _id(self._span + span.key * ODD)
        begin_ns, end_ns = int(span.begin_s * 1e9), int(span.end_s * 1e9)
        if span.above:
            above = _ABOVE + _id(self._span + span.above * ODD)
            head = _head(trace + above, _SPAN, own, _BEGIN, begin_ns, _END, end_ns)
        else:
            head = _root(trace, _SPAN, own, _BEGIN, begin_ns, _END, end_ns)
        return _begun(len(head) + len(said)) + head + said

    def _trace(self, trace: int) -> bytes:
        if trace == self._last[0]:  # a goal is told of after its calls
            return self._last[1]
        said = self._before_trace + (self._low + trace * ODD & _64_BITS).to_bytes(8, "big")
        self._last = (trace, said)
        return said

    def _linked(self, trace: int, span: int) -> bytes:
        said = link(self.job.trace_id(trace), self.job.ids.span_id(span))
        if not goal_of(trace):  # every first goal is linked to its job
            self._links = {(trace, span): said}
        return said

    # -- what is encoded once --------------------------------------------------------------------------------------

    def _formed(self, key: tuple[object, ...], exchange: Exchange) -> _Form:
        select, absorb, attempt, call = (self._same(span) for span in spread((exchange,)))
        before = _begun(_HEAD_BYTES + len(select))
        between = select + _begun(_HEAD_BYTES + len(absorb))
        both = Struct(f"<{len(before)}s{_HEAD}{len(between)}s{_HEAD}{len(absorb)}s").pack
        form = _Form(both, before, between, absorb, attempt, call)
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[key] = form
        return form

    def _goal_formed(self, key: tuple[str, str], span: Span) -> bytes:
        if len(self._goals) >= FORMS_MAX:
            self._goals.clear()
        said = self._goals[key] = self._same(span)
        return said

    def _same(self, span: Span) -> bytes:
        """What all spans of this form say."""
        one = told(span, self.job)
        return self._encoder.common(
            one._replace(attributes=[pair for pair in one.attributes if pair[0] not in VARYING])
        )


class _Number:
    """An attribute that is a number, of this name."""

    def __init__(self, name: str) -> None:
        said = [field(b"\x4a", attribute(name, (1 << 7 * size) - 1)) for size in range(1, 10)]
        self._before = [b"", *(each[:-size] for size, each in enumerate(said, 1))]
        self._known: dict[int, bytes] = {}

    def __call__(self, number: int) -> bytes:
        said = self._known.get(number)
        if said is None:
            digits = varint(number)
            said = self._before[len(digits)] + digits
            if number < SMALL_MAX:
                self._known[number] = said
        return said


class _Text:
    """An attribute that is a text, of this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before = [field(b"\x4a", attribute(name, "x" * size))[: -size or None] for size in range(65)]

    def __call__(self, text: str) -> bytes:
        said = text.encode(errors="replace")
        size = len(said)
        return self._before[size] + said if size <= 64 else field(b"\x4a", attribute(self._name, text))


_lengths = [b"\x12" + varint(length) for length in range(SMALL_MAX)]


def _begun(length: int) -> bytes:
    """What stands before a span of so many bytes."""
    return _lengths[length] if length < SMALL_MAX else b"\x12" + varint(length)


def _id(number: int) -> bytes:
    return (number & _64_BITS or _64_BITS).to_bytes(8, "big")
