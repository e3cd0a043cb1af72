"""Spans as the core tells them: what was done for a goal, from when to when, below what.

Their names in a viewer are the business of ``actors.observability.base.conventions``. Goals, calls and attempts have
numbers already, so a trace and a span have one too: whoever knows a number knows the id, before anybody has written the
span.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

TRACE_SPANS_MAX = 1_000
"""Spans of one trace: viewers slow down from about there on, and some refuse a trace of 5 MB."""
LINKS_MAX = 128
"""Links of one span, as OpenTelemetry bounds them by default."""

ODD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it spread evenly, and no two numbers below 2^64 share one."""
_64_BITS = (1 << 64) - 1
_GOAL_BITS = 44
_GOAL = (1 << _GOAL_BITS) - 1


class SpanKind(enum.IntEnum):
    """Kinds of spans."""

    GOAL = 0
    """A goal, from the turn that made it to the one that ended it."""
    PART = 1
    """A goal once more, as the root of another trace: the first would have become too large."""
    SELECT = 2
    """From the moment at which a goal could be chosen until its call went out."""
    CALL = 3
    """One logical call, over all attempts at it."""
    ATTEMPT = 4
    ABSORB = 5
    """From the reply's arrival until K had taken it in."""
    TOOL = 6
    CHILD = 7
    """A child job, as its parent sees it."""
    JOIN = 8
    """While several goals served one; linked to each."""
    EPISODE = 9
    """Of a job: a pause, an open breaker."""
    JOB = 10
    """A run of the job: its own trace, of goal 0 and numbered by the run."""


class SpanLink(NamedTuple):
    """Another span: the number of its trace, and its own."""

    trace: int
    span: int


class Span(msgspec.Struct, array_like=True, gc=False, tag=0):
    """One span. Times are seconds since 1970, as turns have them; durations within an attempt are as measured."""

    what: SpanKind
    trace: int
    key: int
    above: int
    """The span that it is part of; 0: the trace's first."""
    name: str
    begin_s: float
    end_s: float
    failed: str = ""
    """The kind of its failure."""
    facts: dict[str, Any] = {}
    links: tuple[SpanLink, ...] = ()


def trace_key(goal: int, part: int = 0) -> int:
    """Number of the trace that a goal begins; of its later parts, where one is not enough."""
    return part << _GOAL_BITS | goal


def goal_of(trace: int) -> int:
    """The goal that began a trace."""
    return trace & _GOAL


def part_of(trace: int) -> int:
    """Which of its goal's traces it is, from 0."""
    return trace >> _GOAL_BITS


def span_key(what: SpanKind, goal: int, number: int = 0) -> int:
    """Number of a span: the attempt that it begins with, or which of its goal's it is, below 2^20."""
    return goal << 24 | (number & 0xFFFFF) << 4 | what


def root_key(trace: int) -> int:
    """Number of a trace's first span."""
    goal, part = goal_of(trace), part_of(trace)
    return span_key(SpanKind.PART, goal, part) if part else span_key(SpanKind.GOAL, goal)


class SpanIds(msgspec.Struct, frozen=True):
    """From numbers to ids. Different for each job, and for each time that a job of this name began from nothing."""

    high: int
    low: int
    span: int

    @classmethod
    def of(cls, job: str, began_at_s: float) -> SpanIds:
        """``began_at_s``: the time of the first turn in the job's journal."""
        digest = blake2b(f"{job}\0{began_at_s!r}".encode(), digest_size=24).digest()
        high, low, span = (int.from_bytes(digest[at : at + 8], "big") for at in (0, 8, 16))
        return cls(high | 1, low, span)  # an id of zeros is none

    def low_bits(self, trace: int) -> int:
        """The lower half of a trace's id, by which it is sampled."""
        return self.low + trace * ODD & _64_BITS

    def trace_id(self, trace: int) -> int:
        """128 bits."""
        return self.high << 64 | self.low_bits(trace)

    def span_id(self, key: int) -> int:
        """64 bits, not all of them 0."""
        return self.span + key * ODD & _64_BITS or _64_BITS

    def traceparent(self, trace: int, key: int, kept: bool) -> str:
        """The W3C header that names a span: https://www.w3.org/TR/trace-context/#traceparent-header."""
        return f"00-{self.trace_id(trace):032x}-{self.span_id(key):016x}-{'01' if kept else '00'}"
