"""What is remembered of the traces of a job between two turns: plain records, so that they outlive a channel."""

from __future__ import annotations

import msgspec

from cortex.tracing.call_records import CallRecord, Record
from cortex.tracing.spans import Span, SpanLink
from policies.decisions.trace_sampling import SpanRescue


class TraceRecord(msgspec.Struct, array_like=True, gc=False):
    """One trace whose goals still live."""

    count: int
    """Spans that it has, or that were set aside for its goals."""
    kept: bool
    begin_s: float
    live: int = 0
    """Goals in it that have not ended."""
    first: SpanLink | None = None
    """Of a later part: its goal's own span, in the trace before."""
    shown: bool = False
    """Its first span will be written: it is kept, or something in it was worth it."""


class AttemptRecord(msgspec.Struct, array_like=True, gc=False):
    """An attempt under way. ``trace`` is 0 where its trace has no room for it."""

    asked_s: float
    route: int
    trace: int
    call: int
    probe: bool = False


class RunRecord(msgspec.Struct, array_like=True):
    """A tool run or child job under way."""

    begin_s: float
    trace: int
    above: int
    name: str
    child: bool = False
    id: str = ""


class GoalRecord(msgspec.Struct, array_like=True):
    """A goal that is told of, while it lives. What was done for it leaves together with it."""

    goal: int
    kind: str
    parent: int
    trace: int
    key: int
    above: int
    begin_s: float
    open_s: float
    """Since when it could be chosen."""
    row: str = ""
    reserved: bool = True
    """Room for its first call was set aside with it."""
    resamples: int = 0
    call: CallRecord | None = None
    flights: dict[int, AttemptRecord] = msgspec.field(default_factory=dict)
    runs: dict[int, RunRecord] = msgspec.field(default_factory=dict)
    spans: list[Record] = msgspec.field(default_factory=list)
    links: tuple[SpanLink, ...] = ()
    calls: int = 0
    tools: int = 0
    """Of its own and of those that serve it directly."""
    serving: int = 0
    """Goals that serve it now."""
    round_s: float = 0.0
    """Since when any did."""
    served: list[SpanLink] = msgspec.field(default_factory=list)
    """Those of this round."""
    rounded: int = 0
    """How many they were, of which not all may be linked."""


class StallEpisode(msgspec.Struct, array_like=True):
    """A time in which the job could not do as it would: why, and since when."""

    name: str
    begin_s: float


class TraceState(msgspec.Struct):
    """All of it."""

    nodes: dict[int, GoalRecord] = msgspec.field(default_factory=dict)
    traces: dict[int, TraceRecord] = msgspec.field(default_factory=dict)
    inside: dict[int, int] = msgspec.field(default_factory=dict)
    """The trace of goals below others that are not told of."""
    where: dict[int, int] = msgspec.field(default_factory=dict)
    """Goals whose own trace is full: the one in which they go on."""
    parts: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Of these, the ones whose first span is still to be written."""
    again: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    """Goals that were alive when the job stopped: the trace in which they would go on; trace and number of the span
    that was written of them then."""
    rescues: SpanRescue = msgspec.field(default_factory=SpanRescue)
    kept_spans: int = 0
    next_goal: int = 1
    made_from: list[int] = msgspec.field(default_factory=list)
    """First goals of turns that made some, and when: of the latest turns."""
    made_at_s: list[float] = msgspec.field(default_factory=list)
    run: int = 0
    """Number of the run under way; 0: none is."""
    runs: int = 0
    run_began_s: float = 0.0
    tops: list[SpanLink] = msgspec.field(default_factory=list)
    """The run's first traces."""
    episodes: dict[str, StallEpisode] = msgspec.field(default_factory=dict)
    """Under way."""
    past: list[Span] = msgspec.field(default_factory=list)
    """Those of this run that are over."""
