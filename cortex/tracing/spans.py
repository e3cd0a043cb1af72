"""Span records: an activity for a goal, its times, and the span that it is part of.

Names for viewers are in ``actors.observability.base.conventions``. Goals, calls and attempts have numbers, and so have
traces and spans: the id of a span follows from its number, before the span is written.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

TRACE_SPANS_MAX = 1_000
"""Spans of one trace at most: viewers become slow from about there on, and some refuse a trace of 5 MB."""
LINKS_MAX = 128
"""Links of one span at most, the default limit of OpenTelemetry."""

ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: multiples of it are spread evenly, and those of two numbers below 2^64 differ."""
_64_BITS = (1 << 64) - 1
_GOAL_BITS = 44
_GOAL = (1 << _GOAL_BITS) - 1


class SpanKind(enum.IntEnum):
    """Kinds of spans."""

    GOAL = 0
    """Goal, from the turn that made it to the turn that ended it."""
    PART = 1
    """Goal as the root of a further trace, because its first trace would have become too large."""
    SELECT = 2
    """Time from which a goal could be chosen, until its call went out."""
    CALL = 3
    """Logical call, over all its attempts."""
    ATTEMPT = 4
    ABSORB = 5
    """Absorbing of a reply: from its arrival until K had taken it in."""
    TOOL = 6
    CHILD = 7
    """Child job, as its parent sees it."""
    JOIN = 8
    """Round of several goals that serve one goal; linked to each of them."""
    EPISODE = 9
    """Episode of a job: a pause, or an open breaker."""
    JOB = 10
    """Run of the job. It has a trace of its own, of goal 0 and numbered by the run."""


class SpanLink(NamedTuple):
    """Link to another span: the number of its trace, and its key."""

    trace: int
    span: int


class Span(msgspec.Struct, array_like=True, gc=False, tag=0):
    """Span. Times are seconds since 1970, as turns have them; durations within an attempt are measured."""

    what: SpanKind
    trace: int
    key: int
    above: int
    """Key of the span that this one is part of; 0 for the first span of a trace."""
    name: str
    begin_s: float
    end_s: float
    failed: str = ""
    """Failure kind; empty if it did not fail."""
    facts: dict[str, Any] = {}
    links: tuple[SpanLink, ...] = ()


def trace_key(goal: int, part: int = 0) -> int:
    """Return the number of the trace that a goal begins, or of a later part if one trace is not enough."""
    return part << _GOAL_BITS | goal


def goal_of(trace: int) -> int:
    """Return the id of the goal that began a trace."""
    return trace & _GOAL


def part_of(trace: int) -> int:
    """Return which part of its goal's traces a trace is, from 0."""
    return trace >> _GOAL_BITS


def span_key(what: SpanKind, goal: int, number: int = 0) -> int:
    """Return the key of a span. ``number``: the attempt that it begins with, or a count within its goal, below 2^20."""
    return goal << 24 | (number & 0xFFFFF) << 4 | what


def root_key(trace: int) -> int:
    """Return the key of a trace's first span."""
    goal, part = goal_of(trace), part_of(trace)
    return span_key(SpanKind.PART, goal, part) if part else span_key(SpanKind.GOAL, goal)


class SpanIds(msgspec.Struct, frozen=True):
    """Mapping from numbers to ids, different for each job and for each time that a job of its name began anew."""

    high: int
    low: int
    span: int

    @classmethod
    def of(cls, job: str, began_at_s: float) -> SpanIds:
        """Return the mapping of a job. ``began_at_s``: time of the first turn in its journal."""
        digest = blake2b(f"{job}\0{began_at_s!r}".encode(), digest_size=24).digest()
        high, low, span = (int.from_bytes(digest[at : at + 8], "big") for at in (0, 8, 16))
        return cls(high | 1, low, span)  # an id of zeros is not valid

    def low_bits(self, trace: int) -> int:
        """Return the lower half of a trace's id, which decides about sampling."""
        return self.low + trace * ODD & _64_BITS

    def trace_id(self, trace: int) -> int:
        """Return the id of a trace, 128 bits."""
        return self.high << 64 | self.low_bits(trace)

    def span_id(self, key: int) -> int:
        """Return the id of a span, 64 bits that are not all 0."""
        return self.span + key * ODD & _64_BITS or _64_BITS

    def traceparent(self, trace: int, key: int, kept: bool) -> str:
        """Return the W3C header that names a span: https://www.w3.org/TR/trace-context/#traceparent-header."""
        return f"00-{self.trace_id(trace):032x}-{self.span_id(key):016x}-{'01' if kept else '00'}"
