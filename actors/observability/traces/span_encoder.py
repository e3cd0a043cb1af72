"""Encoder of one job's spans, with a fast path for a call that its first attempt answered, and for its goal: nearly all
spans.

Two such calls differ in ids, times, tokens and names of rows; their other attributes recur. For each form of call the
constant rest is encoded once, from the attributes that ``actors.observability.base.conventions`` gives the first call
of the form, and the spans of all others are put together around it: five spans in the time that two take with the
general encoder. Tests compare the bytes of both encoders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple

from actors.observability.base.conventions import (
    ATTEMPT,
    COSTS,
    COUNTS,
    GOAL_ID,
    REQUEST_MAX_TOKENS,
    ROW_KEY,
    SAMPLE,
    VARYING,
    WAITED,
    JobAttributes,
    SpanText,
    describe_span,
    waited_s,
)
from actors.observability.traces.attribute_cache import FORMS_MAX, CostAttribute, NumberAttribute, TextAttribute, begun
from actors.observability.traces.otlp_encoding import OtlpEncoder, attribute, field, link
from actors.observability.traces.single_call_encoder import SingleCallEncoder
from cortex.tracing.call_records import UNKNOWN_COST, CallRecord, ExchangeRecord, SingleCall, Whole, spread
from cortex.tracing.spans import ODD, Span, SpanKind, goal_of
from cortex.values.reply import Usage

_log = logging.getLogger("cortex.traces")

_64_BITS = (1 << 64) - 1
_SPAN, _ABOVE = b"\x12\x08", b"\x22\x08"
_BEGIN, _END = 0x39, 0x41
_HEAD = "30s8sBQBQ"
"""Layout of a span's trace and parent, its id and its times."""
_head = Struct(f"<{_HEAD}").pack
_HEAD_BYTES = Struct(f"<{_HEAD}").size
_root = Struct("<18s2s8sBQBQ").pack
_ROOT_BYTES = Struct("<18s2s8sBQBQ").size
_SELECT, _ATTEMPT, _ABSORB = (
    ODD * (int(what) - int(SpanKind.CALL)) for what in (SpanKind.SELECT, SpanKind.ATTEMPT, SpanKind.ABSORB)
)
"""Differences between the ids of a call's spans and the id of the call's own span."""
_GOAL = SpanKind.GOAL
_LENGTH_BYTES = 3
"""Size of the tag and length of a span of 128 to 16,383 bytes."""
_ONE_BYTE = 0x80
"""Least number whose varint takes more than one byte."""
_UNPREFIXED = frozenset({"goal", "status", "row"})
"""Attributes of a goal that the fast path of goals can encode."""


class _Form(NamedTuple):
    """Encoded parts that the calls of one form share."""

    pack: Callable[..., bytes]
    """Packs all spans but the end of the call's span, in which only ids, times and two numbers differ."""
    select: bytes
    """Bytes before the trace id of the select span; likewise ``absorb`` and ``attempt``."""
    absorb: bytes
    attempt: bytes
    waited: bytes
    call: bytes
    end: bytes
    """Bytes at the end of the call's span."""


class SpanEncoder:
    """Encoder of the records that the tracer lets out for one job."""

    def __init__(self, encoder: OtlpEncoder, job: JobAttributes) -> None:
        self._encoder = encoder
        self.job = job
        ids = job.ids
        self._low, self._span = ids.low, ids.span
        self._before_trace = b"\x0a\x10" + ids.high.to_bytes(8, "big")
        self._last = (-1, b"")
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._goals: dict[tuple[str, str], bytes] = {}
        self._links: dict[object, bytes] = {}
        self._goal = NumberAttribute(GOAL_ID)
        self._input, self._output, self._total = (NumberAttribute(*names) for names in COUNTS[:3])
        self._cache_read, self._cache_creation = (NumberAttribute(*names, optional=True) for names in COUNTS[3:])
        self._cost = CostAttribute(COSTS)
        self._max_tokens = NumberAttribute(REQUEST_MAX_TOKENS, optional=True)
        self._sample, self._row = TextAttribute(SAMPLE), TextAttribute(ROW_KEY)
        self._one = NumberAttribute(ATTEMPT)[1][:-1]
        self._waited = field(b"\x4a", attribute(WAITED, 0.0))[:-8]
        self._singles = SingleCallEncoder(encoder, job)
        self.dropped: set[tuple[int, int]] = set()
        """Traces and keys of spans that could not be described, and are in no output; the caller counts them."""
        self._warned = False

    def spans(self, records: Iterable[Whole]) -> list[bytes]:
        """Return each record as one or several fields of a ``ScopeSpans``. A span that cannot be described is left out
        alone: spans hold what users, providers and tools wrote, and none may end the tracing of its job."""
        parts: list[bytes] = []
        single = self._singles.encode
        for each in records:
            try:
                if isinstance(each, SingleCall):
                    parts.append(single(each) or self._apart(each))
                elif isinstance(each, ExchangeRecord):
                    parts.append(self._exchange(each))
                elif each.what is _GOAL and not each.failed and _UNPREFIXED.issuperset(each.facts):
                    parts.append(self._encode_general(each))
                else:
                    parts.append(self._encoder.span(describe_span(each, self.job)))
            except Exception:
                parts += self._described((each,), self._encoder.span)
        return parts

    def lines(self, records: Iterable[Whole]) -> list[bytes]:
        """Return each span of the records in OTLP's JSON, without those that cannot be described."""
        return self._described(records, self._encoder.json)

    def _described(self, records: Iterable[Whole], encode: Callable[[SpanText], bytes]) -> list[bytes]:
        """Return the spans of records, encoded one by one, without those that cannot be described."""
        parts: list[bytes] = []
        for span in spread(records):
            try:
                parts.append(encode(describe_span(span, self.job)))
            except Exception as error:
                self.dropped.add((span.trace, span.key))
                if not self._warned:  # the text of the error may quote a row
                    self._warned = True
                    name = type(error).__name__
                    _log.warning("a span of kind %s was dropped: %s while describing it", span.what.name, name)
        return parts

    def _apart(self, single: SingleCall) -> bytes:
        """Return a single-call goal that does not fit its form, encoded as an exchange and a goal."""
        exchange, goal = single.apart()
        return self._exchange(exchange) + self._encode_general(goal)

    def _exchange(self, exchange: ExchangeRecord) -> bytes:
        call, by, number = exchange.call, exchange.by, exchange.attempt
        if exchange.failed or exchange.goals or exchange.reply or call.body or not by or number >= _ONE_BYTE:
            return self._spread(exchange)
        key = (
            call.constructor, call.route, call.model, call.endpoint, exchange.stop, exchange.model, by,
            exchange.probe,
        )  # fmt: skip
        pack, select, absorb, attempt, waited, around, end = self._forms.get(key) or self._formed(key, exchange)
        data = self._of_call(call, exchange.usage, exchange.cost_nusd, end)
        length = begun[_HEAD_BYTES + len(data)]
        if len(length) != _LENGTH_BYTES:
            return self._spread(exchange)
        trace, span = self._trace(call.trace), self._span
        own = span + call.key * ODD
        own_id = (own & _64_BITS or _64_BITS).to_bytes(8, "big")
        below = trace + _ABOVE + (span + call.above * ODD & _64_BITS or _64_BITS).to_bytes(8, "big") + _SPAN
        asked_ns, end_ns = int(call.asked_s * 1e9), int(exchange.end_s * 1e9)
        return pack(
            select, below, (own + _SELECT & _64_BITS or _64_BITS).to_bytes(8, "big"),
            _BEGIN, int(call.open_s * 1e9), _END, asked_ns,
            absorb, below, (own + _ABSORB & _64_BITS or _64_BITS).to_bytes(8, "big"),
            _BEGIN, end_ns, _END, int(exchange.absorbed_s * 1e9),
            attempt, trace + _ABOVE + own_id + _SPAN, (own + _ATTEMPT & _64_BITS or _64_BITS).to_bytes(8, "big"),
            _BEGIN, int(exchange.begin_s * 1e9), _END, end_ns,
            self._one, number, waited, waited_s(exchange.waited_s),
            around, length, below, own_id, _BEGIN, asked_ns, _END, end_ns,
        ) + data  # fmt: skip

    def _spread(self, exchange: ExchangeRecord) -> bytes:
        """Return an exchange that does not fit its form, span by span."""
        return b"".join([self._encoder.span(describe_span(span, self.job)) for span in spread((exchange,))])

    def _of_call(self, call: CallRecord, usage: Usage, cost_nusd: int, end: bytes) -> bytes:
        """Return the bytes after the times of the call's span."""
        cached, made, reply = usage.cache_read_tokens, usage.cache_creation_tokens, usage.output_tokens
        prompt = usage.input_tokens + cached + made
        return b"".join((
            self._goal[call.key >> 24], self._sample(call.sample), self._max_tokens[call.output_tokens_max],
            self._input[prompt], self._output[reply], self._total[prompt + reply],
            self._cache_read[cached], self._cache_creation[made],
            self._cost(cost_nusd) if cost_nusd != UNKNOWN_COST else b"", end,
        ))  # fmt: skip

    def _encode_general(self, span: Span) -> bytes:
        facts = span.facts
        key = (span.name, facts["status"])
        parts = [self._goal[facts["goal"]], self._goals.get(key) or self._goal_formed(key, span)]
        if "row" in facts:
            parts.insert(1, self._row(facts["row"]))
        for one in span.links:
            parts.append(self._links.get(one) or self._linked(*one))
        rest = b"".join(parts)
        trace, own = self._trace(span.trace), _id(self._span + span.key * ODD)
        begin_ns, end_ns = int(span.begin_s * 1e9), int(span.end_s * 1e9)
        if span.above:
            above = _ABOVE + _id(self._span + span.above * ODD) + _SPAN
            return begun[_HEAD_BYTES + len(rest)] + _head(trace + above, own, _BEGIN, begin_ns, _END, end_ns) + rest
        return begun[_ROOT_BYTES + len(rest)] + _root(trace, _SPAN, own, _BEGIN, begin_ns, _END, end_ns) + rest

    def _trace(self, trace: int) -> bytes:
        if trace == self._last[0]:  # a goal's span follows the spans of its calls
            return self._last[1]
        data = self._before_trace + (self._low + trace * ODD & _64_BITS).to_bytes(8, "big")
        self._last = (trace, data)
        return data

    def _linked(self, trace: int, span: int) -> bytes:
        data = link(self.job.trace_id(trace), self.job.ids.span_id(span))
        if not goal_of(trace):  # links to the job recur: keep the latest alone
            self._links = {(trace, span): data}
        return data

    # -- parts encoded once ----------------------------------------------------------------------------------------

    def _formed(self, key: tuple[object, ...], exchange: ExchangeRecord) -> _Form:
        select, absorb, attempt, call = (self._same(span) for span in spread((exchange,)))
        size = len(self._one) + 1 + len(self._waited) + 8 + len(attempt)
        parts = (
            begun[_HEAD_BYTES + len(select)], select + begun[_HEAD_BYTES + len(absorb)],
            absorb + begun[_HEAD_BYTES + size], self._waited, attempt, call,
        )  # fmt: skip
        first, second, third, fourth, fifth, _ = (f"{len(part)}s" for part in parts)
        own = f"{len(self._one)}sB{fourth}d{fifth}"
        pack = Struct(f"<{first}{_HEAD}{second}{_HEAD}{third}{_HEAD}{own}{_LENGTH_BYTES}s{_HEAD}").pack
        form = _Form(pack, *parts)
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[key] = form
        return form

    def _goal_formed(self, key: tuple[str, str], span: Span) -> bytes:
        if len(self._goals) >= FORMS_MAX:
            self._goals.clear()
        data = self._goals[key] = self._same(span)
        return data

    def _same(self, span: Span) -> bytes:
        """Return the encoded attributes that all spans of this form share."""
        one = describe_span(span, self.job)
        return self._encoder.common(
            one._replace(attributes=[pair for pair in one.attributes if pair[0] not in VARYING])
        )


def _id(number: int) -> bytes:
    return (number & _64_BITS or _64_BITS).to_bytes(8, "big")
