"""State of the tracer between two turns, as plain records that are kept with the journal."""

from __future__ import annotations

import msgspec

from cortex.tracing.call_records import CallRecord, Record
from cortex.tracing.spans import Span, SpanLink
from policies.decisions.trace_sampling import SpanRescue


class TraceRecord(msgspec.Struct, array_like=True, gc=False):
    """Trace with goals that have not ended."""

    count: int
    """Spans of the trace, written or reserved for its goals."""
    kept: bool
    begin_s: float
    live: int = 0
    """Number of its goals that have not ended."""
    first: SpanLink | None = None
    """Link of a later part to its goal's own span, in the part before."""
    shown: bool = False
    """True if its first span will be written: the trace is kept, or a goal in it was rescued."""


class AttemptRecord(msgspec.Struct, array_like=True, gc=False):
    """Attempt under way. ``trace`` is 0 if its trace has no room for it."""

    asked_s: float
    route: int
    trace: int
    call: int
    probe: bool = False


class RunRecord(msgspec.Struct, array_like=True):
    """Tool run or child job under way."""

    begin_s: float
    trace: int
    above: int
    name: str
    child: bool = False
    id: str = ""
    input: bytes = b""
    """Arguments as JSON, if spans hold texts."""


class GoalRecord(msgspec.Struct, array_like=True):
    """Full record of a goal that is traced and has not ended. All its spans are written when it ends."""

    goal: int
    kind: str
    parent: int
    trace: int
    key: int
    above: int
    begin_s: float
    open_s: float
    """Time from which the goal could be chosen, in seconds since 1970."""
    row: str = ""
    reserved: bool = True
    """True while the spans reserved for its first call are unused."""
    resamples: int = 0
    call: CallRecord | None = None
    flights: dict[int, AttemptRecord] = msgspec.field(default_factory=dict)
    runs: dict[int, RunRecord] = msgspec.field(default_factory=dict)
    spans: list[Record] = msgspec.field(default_factory=list)
    links: tuple[SpanLink, ...] = ()
    calls: int = 0
    tools: int = 0
    """Tool runs of the goal and of those that serve it directly; ``calls`` counts in the same way."""
    serving: int = 0
    """Number of goals that serve it now."""
    round_s: float = 0.0
    """Time at which the present round of these began."""
    served: list[SpanLink] = msgspec.field(default_factory=list)
    """Links to the goals of this round, ``LINKS_MAX`` at most."""
    rounded: int = 0
    """Number of the goals of this round."""
    prompt: bytes = b""
    """First request for the goal, if spans hold texts."""
    reply: bytes = b""
    """Latest reply to it, likewise."""


class StallEpisode(msgspec.Struct, array_like=True):
    """Episode in which the job was held up: its reason, and its begin in seconds since 1970."""

    name: str
    begin_s: float


class TraceState(msgspec.Struct):
    """State of the tracer of one job."""

    nodes: dict[int, GoalRecord] = msgspec.field(default_factory=dict)
    traces: dict[int, TraceRecord] = msgspec.field(default_factory=dict)
    inside: dict[int, int] = msgspec.field(default_factory=dict)
    """Trace of each goal that serves another and has no record of its own."""
    where: dict[int, int] = msgspec.field(default_factory=dict)
    """Part in which a goal continues whose own trace is full."""
    parts: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Parts of a goal whose first span is still to be written."""
    again: dict[int, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    """Goals that lived when the job stopped: the part in which each would continue, and the trace and key of the span
    that was written for it."""
    rescues: SpanRescue = msgspec.field(default_factory=SpanRescue)
    kept_spans: int = 0
    next_goal: int = 1
    made_from: list[int] = msgspec.field(default_factory=list)
    """First goals of the latest turns that made goals; ``made_at_s`` has the times of these turns."""
    made_at_s: list[float] = msgspec.field(default_factory=list)
    run: int = 0
    """Number of the run under way; 0 if there is none."""
    runs: int = 0
    run_began_s: float = 0.0
    tops: list[SpanLink] = msgspec.field(default_factory=list)
    """Links to the first traces of the run."""
    episodes: dict[str, StallEpisode] = msgspec.field(default_factory=dict)
    """Episodes under way, by name."""
    past: list[Span] = msgspec.field(default_factory=list)
    """Spans of the episodes of this run that are over."""
