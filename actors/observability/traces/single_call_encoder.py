"""Fast encoder of goals with one call whose first attempt answered it: five spans in one piece of bytes.

Nearly all exported spans are of this kind. The constant parts of each form are encoded once, from the attributes that
``actors.observability.base.conventions`` gives the first goal of the form; the rest are ids, times and a few numbers.
Tests compare the bytes with those of the general encoder (``otlp_encoding``).
"""

from __future__ import annotations

from collections.abc import Callable
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
    describe_span,
)
from actors.observability.traces.attribute_cache import FORMS_MAX, CostAttribute, NumberAttribute, TextAttribute, begun
from actors.observability.traces.otlp_encoding import OtlpEncoder, attribute, field, link, varint
from cortex.tracing.call_records import PendingSingleCall, SingleCall, spread
from cortex.tracing.spans import ODD, Span, SpanKind, SpanLink
from policies.estimates.price import cost_nusd

_64_BITS = (1 << 64) - 1
_ABOVE, _SPAN = 0x2208, 0x1208
_BEGIN, _END = 0x39, 0x41
_place = Struct(">QHQH").pack
"""Packs the lower half of a trace's id, the parent's id, and the tags between them and the span's own id."""
_times = Struct("<BQBQ").pack
_moment = Struct("<BQ").pack
_root = Struct(">10sQHQ18s").pack
_PLACE_BYTES, _ROOT_BYTES, _TIMES_BYTES = 20, 46, 18
_HEAD_BYTES = 10 + _PLACE_BYTES + 8 + _TIMES_BYTES
"""Size of a span's fields of trace id, parent id, span id and times."""
_LENGTH_BYTES = 3
"""Size of the tag and length of a span of 128 to 16,383 bytes."""
_GOAL_STEP = ODD << 24 & _64_BITS
"""Difference between the span ids of two consecutive goals."""
_SELECT, _ABSORB, _ATTEMPT, _CALL = (
    ODD * (1 << 4 | int(what)) & _64_BITS
    for what in (SpanKind.SELECT, SpanKind.ABSORB, SpanKind.ATTEMPT, SpanKind.CALL)
)
"""Differences between the span ids of a goal's first attempt and the goal's own span id."""
_LOW = [bytes((low | 0x80,)) for low in range(0x80)]
"""Lowest seven bits of a varint of two bytes or more, encoded."""


class _Form(NamedTuple):
    """Encoded parts that the goals of one form share."""

    pack: Callable[..., bytes]
    """Packs everything before the attributes of the call's span."""
    select: bytes
    """Bytes before the parent id of the select span; likewise ``absorb``, ``attempt`` and ``call``."""
    absorb: bytes
    attempt: bytes
    call: bytes
    most: bytes
    """Attribute of the call's span: most output tokens."""
    end: bytes
    """End of the call's span."""
    goal: bytes
    """Constant attributes of the goal's span."""


class _Goals(dict[int, tuple[bytes, bytes]]):
    """Cache of the encoded goal id attribute: the bytes before and after the lowest seven bits, by the number's
    higher bits. For goals of 128 or more; shared by 128 consecutive goals."""

    def __init__(self) -> None:
        super().__init__()
        parts = [field(b"\x4a", attribute(GOAL_ID, (1 << 7 * size) - 1)) for size in range(1, 10)]
        self._before = [b"", *(each[:-size] for size, each in enumerate(parts, 1))]

    def __missing__(self, high: int) -> tuple[bytes, bytes]:
        if len(self) >= FORMS_MAX:
            self.clear()
        digits = varint(high)
        parts = self[high] = (self._before[1 + len(digits)], digits)
        return parts


class SingleCallEncoder:
    """Encoder of the single-call goals of one job."""

    def __init__(self, encoder: OtlpEncoder, job: JobAttributes) -> None:
        self._encoder, self._job = encoder, job
        self._low, self._span = job.ids.low, job.ids.span
        self._trace = b"\x0a\x10" + job.ids.high.to_bytes(8, "big")
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._goals, self._goal = _Goals(), NumberAttribute(GOAL_ID)
        self._input, self._output, self._total = (NumberAttribute(*names) for names in COUNTS[:3])
        self._cache_read, self._cache_creation = (NumberAttribute(*names, optional=True) for names in COUNTS[3:])
        self._cost = CostAttribute(COSTS)
        self._max_tokens = NumberAttribute(REQUEST_MAX_TOKENS, optional=True)
        self._sample, self._row = TextAttribute(SAMPLE), TextAttribute(ROW_KEY)
        self._before_waited = NumberAttribute(ATTEMPT)[1] + field(b"\x4a", attribute(WAITED, 0.0))[:-8]
        self._attempt = Struct(f"<BQBQ{len(self._before_waited)}sd").pack
        self._moments = (0.0, 0.0, 0.0)
        self._encoded_moments = (b"", b"", b"", b"")
        self._links: tuple[tuple[SpanLink, ...], bytes] = ((), b"")

    def encode(self, single: SingleCall) -> bytes:
        """Return five fields of a ``ScopeSpans``; empty if the goal's attributes do not fit its form."""
        goal, asked, event = single.goal, single.asked, single.event
        reply, by = event.reply, event.by
        usage, goal_id = reply.usage, goal.id
        if not by:
            return b""
        key = (
            goal.kind, asked.constructor, asked.model, asked.endpoint, asked.output_tokens_max, by, reply.stop_reason,
            reply.model,
        )  # fmt: skip
        pack, select, absorb, attempt, call, most, end, around = self._forms.get(key) or self._formed(key, single)
        if goal_id < 0x80:
            number = self._goal[goal_id]
        else:
            before, behind = self._goals[goal_id >> 7]
            number = before + _LOW[goal_id & 0x7F] + behind
        cached, made, written = usage.cache_read_tokens, usage.cache_creation_tokens, usage.output_tokens
        prompt, price = usage.input_tokens + cached + made, asked.price
        data = b"".join((
            number, self._sample(asked.sample), most, self._input[prompt], self._output[written],
            self._total[prompt + written], self._caches(cached, made) if cached or made else b"",
            b"" if price is None or usage.unknown else self._cost(cost_nusd(price, usage)), end,
        ))  # fmt: skip
        length = begun[_HEAD_BYTES + len(data)]
        if len(length) != _LENGTH_BYTES:
            return b""
        at_s, end_s = single.absorbed_s, single.end_s
        if self._moments != (asked.begin_s, asked.asked_s, at_s):
            self._new_moments(asked, at_s)
        choosing, asking, absorbing, living = self._encoded_moments
        if single.links is not self._links[0]:
            self._new_links(single.links)
        rest = number + (self._row(goal.row) if goal.row else b"") + around + self._links[1]
        trace, low, own = self._trace, self._low + goal_id * ODD & _64_BITS, self._span + goal_id * _GOAL_STEP
        own_id, call_id = own & _64_BITS or _64_BITS, own + _CALL & _64_BITS or _64_BITS
        place = _place(low, _ABOVE, own_id, _SPAN)
        sent = self._attempt(
            _BEGIN, int(single.begin_s * 1e9), _END, int(end_s * 1e9), self._before_waited,
            int(event.waited_s * 1e6 + 0.5) / 1e6,  # equal to ``waited_s``, inlined
        )  # fmt: skip
        return b"".join((
            pack(
                select, place, own + _SELECT & _64_BITS or _64_BITS, choosing,
                absorb, place, own + _ABSORB & _64_BITS or _64_BITS, absorbing, sent[10:18],
                attempt, _place(low, _ABOVE, call_id, _SPAN), own + _ATTEMPT & _64_BITS or _64_BITS, sent,
                call, length, trace, place, call_id, asking, sent[9:18],
            ),
            data, begun[_ROOT_BYTES + len(rest)], _root(trace, low, _SPAN, own_id, living), rest,
        ))  # fmt: skip

    def _caches(self, cached: int, made: int) -> bytes:
        return self._cache_read[cached] + self._cache_creation[made]

    # -- shared parts ----------------------------------------------------------------------------------------------

    def _new_moments(self, asked: PendingSingleCall, at_s: float) -> None:
        """Encode the times that goals share which were asked in one turn and answered in one turn."""
        self._moments = (asked.begin_s, asked.asked_s, at_s)
        begin_ns, asked_ns, at_ns = int(asked.begin_s * 1e9), int(asked.asked_s * 1e9), int(at_s * 1e9)
        self._encoded_moments = (
            _times(_BEGIN, begin_ns, _END, asked_ns), _moment(_BEGIN, asked_ns),
            _moment(_END, at_ns) + bytes((_BEGIN,)), _times(_BEGIN, begin_ns, _END, at_ns),
        )  # fmt: skip

    def _new_links(self, links: tuple[SpanLink, ...]) -> None:
        ids = self._job.ids
        self._links = (links, b"".join([link(self._job.trace_id(trace), ids.span_id(key)) for trace, key in links]))

    def _formed(self, key: tuple[object, ...], single: SingleCall) -> _Form:
        select, absorb, attempt, call, goal = (self._same(span) for span in spread((single,)))
        sent = _TIMES_BYTES + len(self._before_waited) + 8
        parts = (
            begun[_HEAD_BYTES + len(select)] + self._trace,
            select + begun[_HEAD_BYTES + len(absorb)] + self._trace,
            absorb + begun[_HEAD_BYTES - _TIMES_BYTES + sent + len(attempt)] + self._trace,
            attempt,
        )
        first, second, third, fourth = (len(part) for part in parts)
        head = f"{_PLACE_BYTES}sQ"
        pack = Struct(
            f">{first}s{head}{_TIMES_BYTES}s{second}s{head}10s8s{third}s{head}{sent}s"
            f"{fourth}s{_LENGTH_BYTES}s{len(self._trace)}s{head}9s9s"
        ).pack
        form = _Form(pack, *parts, self._max_tokens[single.asked.output_tokens_max], call, goal)
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[key] = form
        return form

    def _same(self, span: Span) -> bytes:
        """Return the encoded attributes that all spans of this form share."""
        one = describe_span(span, self._job)
        parts = [pair for pair in one.attributes if pair[0] not in VARYING]
        return self._encoder.common(one._replace(attributes=parts))
