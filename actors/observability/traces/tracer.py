"""Traces of the jobs whose channels live in this process: the fold of turns into spans, its state beside the
journal, and the export."""

from __future__ import annotations

import os
import socket
import time
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from actors.journal.journal import Journal, StateFolder
from actors.observability.base.conventions import Attributes, job_of
from actors.observability.base.settings import FILE, TelemetrySettings
from actors.observability.traces.export_queue import EncodedSpans, ExportQueue
from actors.observability.traces.exporters import SpanExporter, exporters, prepare
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.observability.traces.span_encoder import SpanEncoder
from actors.ports.telemetry import TRACEPARENT
from cortex import __version__
from cortex.scheduler.state import SchedulerState
from cortex.state import commands, events
from cortex.state.state import State
from cortex.tracing.call_records import Whole, count
from cortex.tracing.spans import SpanIds
from cortex.tracing.trace_state import TraceState
from cortex.tracing.tracer import Tracer
from policies.decisions.trace_sampling import TraceSampling, share

STATES = ("traced.0", "traced.1")
"""Keys of the journal's metadata with the tracer's state as of a snapshot. Written alternately, so that the previous
state stays whole."""
SENT_META = "traces_told"
"""Key of the journal's metadata: turn up to which all spans are exported."""
RULES = "traces_rules"
"""Key of the journal's metadata: samplers, each with the turn after which it applied. Not written while only the
default sampler was used."""
NOTED_S = 5.0
"""Least seconds between two writes of ``SENT_META``: each costs a commit."""

_state_decoder = msgspec.msgpack.Decoder(tuple[int, TraceState])
_rules_decoder = msgspec.msgpack.Decoder(list[tuple[int, TraceSampling]])


def sampling(settings: TelemetrySettings) -> TraceSampling | None:
    """Return the sampler in the settings; None if no trace is kept. Default: a share of all traces and those worth
    seeing (``TraceSampling``)."""
    kind = settings.sampler.removeprefix("parentbased_")
    if not kind:
        return TraceSampling()
    if kind == "always_off":
        return None
    return share(1.0 if kind == "always_on" else settings.ratio)


def resource(settings: TelemetrySettings, node: str = "") -> Attributes:
    """Return the resource attributes: this process, and the user's own attributes. ``node``: name of the cluster
    node, as in the logs."""
    parts: Attributes = [
        ("service.name", settings.service), ("service.version", __version__), ("telemetry.sdk.name", "opentelemetry"),
        ("telemetry.sdk.language", "python"), ("telemetry.sdk.version", _sdk_version()),
        ("host.name", socket.gethostname()), ("process.pid", os.getpid()),
        *([("cortex.node", node)] if node else []),
    ]  # fmt: skip
    own = dict(settings.resource)
    return [pair for pair in parts if pair[0] not in own] + list(settings.resource)


def _sdk_version() -> str:
    from opentelemetry.sdk.version import __version__ as found

    return found


class TraceTelemetry:
    """Part of a process's telemetry that records traces."""

    def __init__(self, settings: TelemetrySettings, node: str = "") -> None:
        self._settings = settings
        self._rule = sampling(settings)
        self._encoder = OtlpEncoder(resource(settings, node))
        self._outbox = ExportQueue(
            self._exporters, batch_spans=settings.batch_spans, queue_spans=settings.queue_spans,
            delay_s=settings.delay_s,
        )  # fmt: skip
        self._watches: WeakValueDictionary[str, TraceObserver] = WeakValueDictionary()

    def _exporters(self) -> list[SpanExporter]:
        return exporters(self._settings.traces, self._encoder)

    def take(self, settings: TelemetrySettings) -> None:
        """Replace the settings; the copy has headers."""
        self._settings = settings

    def watch(self, job: str, folder: str) -> TraceObserver | None:
        """Return an observer that traces this job; None if no trace is kept or exported."""
        if self._rule is None or not self._settings.traces.exporters:
            return None
        prepare(self._settings.traces)
        watch = TraceObserver(
            job, str(StateFolder(folder).path), self._rule, self._settings, self._outbox, self._encoder
        )
        self._watches[job] = watch
        return watch

    def sampled(self, k: State, event: events.Answered | events.AttemptFailed) -> tuple[str, str] | None:
        """Return trace id and span id of an attempt that has ended, if its trace will be exported. Call before the
        tracer sees the attempt's turn."""
        watch = self._watches.get(k.terms.job)
        return watch.sampled(event.goal, event.attempt) if watch is not None else None

    def observe_cluster(self, state: SchedulerState) -> None:
        """Return None: the scheduler sees no calls and has no spans."""

    def close(self) -> None:
        """Export the queued spans, in a bounded time."""
        self._outbox.close()


class TraceObserver:
    """Job observer that traces one job. Its state is kept beside the journal, so that a restarted channel goes on."""

    def __init__(
        self, job: str, folder: str, rule: TraceSampling, settings: TelemetrySettings, outbox: ExportQueue,
        encoder: OtlpEncoder
    ) -> None:  # fmt: skip
        self._job, self._folder = job, folder
        self._rule, self._captures, self._chars_max = rule, settings.captures, settings.chars_max
        self._rules = [(0, rule)]
        """Samplers, each with the turn after which it applied. A replayed turn is sampled by the sampler that was
        used before."""
        self._outbox, self._encoder = outbox, encoder
        self.names_calls = "tracecontext" in settings.propagators
        self._sends = "otlp" in settings.traces.exporters
        self._writes = bool({FILE, "console"}.intersection(settings.traces.exporters))
        self._journal: Journal | None = None
        self._tracer: Tracer | None = None
        self._wire: SpanEncoder
        self._sent = 0
        """Turn up to which all spans were exported when the observer began."""
        self._seq = 0
        self._put_last = self._out_last = 0
        """Turns whose spans were last put into the queue, and last exported. Spans are exported in order."""
        self._noted = (0, 0.0)
        self._kept = 0

    # -- calls by the channel ----------------------------------------------------------------------------------------

    def begin(self, journal: Journal) -> None:
        """Load the state of the tracer; the channel then replays the turns after the last snapshot."""
        self._journal = journal
        after = journal.replay_from()
        noted = journal.meta(SENT_META)
        if noted is None:  # the job was not traced before: its past turns are not exported in hindsight
            noted = b"%d" % journal.seq
            journal.set_meta(SENT_META, noted)
        self._sent = int(noted)
        self._noted = (self._sent, time.monotonic())
        self._follow(journal, after)
        first_at_s = journal.first_at_s()
        if not first_at_s:
            return
        state = next((found for seq, found in self._states(journal) if seq == after), None)
        self._take_up(first_at_s, state)

    def _states(self, journal: Journal) -> list[tuple[int, TraceState]]:
        found: list[tuple[int, TraceState]] = []
        for name in STATES:
            blob = journal.meta(name)
            if blob:
                try:
                    found.append(_state_decoder.decode(blob))
                except msgspec.DecodeError:
                    continue  # written by another release: spans that began earlier are lost
        return found

    def _follow(self, journal: Journal, after: int) -> None:
        """Load the samplers that apply after turn ``after``, and add the current one if it differs."""
        blob = journal.meta(RULES)
        try:
            rules = _rules_decoder.decode(blob) if blob else [(0, TraceSampling())]
        except msgspec.DecodeError:  # written by another release
            rules = [(0, TraceSampling())]
        if rules[-1][1] != self._rule:
            ends = [begin for begin, _ in rules[1:]] + [journal.seq]
            rules = [each for each, end in zip(rules, ends, strict=True) if end > max(after, each[0])]
            rules.append((journal.seq, self._rule))
            journal.set_meta(RULES, msgspec.msgpack.encode(rules))
        self._rules = rules

    def _take_up(self, began_at_s: float, state: TraceState | None = None) -> Tracer:
        self._tracer = Tracer(self._rule, SpanIds.of(self._job, began_at_s), state, captures=self._captures)
        return self._tracer

    def again(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Trace a replayed turn. Its spans are exported again, unless they are known to be out."""
        rule = next((rule for after, rule in reversed(self._rules) if seq > after), self._rules[0][1])
        self._look(seq, turn, out, k, rule, tell=seq > self._sent)

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """Trace a committed turn."""
        self._look(seq, turn, out, k, self._rule, tell=True)
        if time.monotonic() - self._noted[1] >= NOTED_S:
            self._note()

    def kept(self, seq: int) -> None:
        """Write the tracer's state. Called when a snapshot of K is about to be written."""
        if self._tracer is not None and self._journal is not None:
            self._kept += 1
            self._journal.set_meta(STATES[self._kept % 2], msgspec.msgpack.encode((seq, self._tracer.whole())))

    def child_of(self, goal: int, attempt: int) -> str:
        """Return the ``traceparent`` header for a child job; empty if the parent's trace is not kept."""
        if self._tracer is None:
            return ""
        trace, key, kept = self._tracer.context(goal, attempt, child=True)
        return self._tracer.ids.traceparent(trace, key, kept) if kept else ""

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Return the calls, with their ``traceparent`` if the settings ask for propagation."""
        tracer = self._tracer
        if not self.names_calls or tracer is None:
            return calls
        ids, context = tracer.ids, tracer.context
        return [replace(call, trace=ids.traceparent(*context(call.goal, call.attempt))) for call in calls]

    def sampled(self, goal: int, attempt: int) -> tuple[str, str] | None:
        """Return trace id and span id of an attempt whose turn is not traced yet, if its trace is kept."""
        if self._tracer is None:
            return None
        trace, span, kept = self._tracer.context(goal, attempt)
        ids = self._tracer.ids
        return (f"{ids.trace_id(trace):032x}", f"{ids.span_id(span):016x}") if kept else None

    def close(self) -> None:
        """Flush the queue and note how far the export went. Called when the channel ends."""
        self._outbox.flush()
        self._note()

    # -- export ----------------------------------------------------------------------------------------------------

    def _look(
        self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State, rule: TraceSampling, tell: bool
    ) -> None:  # fmt: skip
        tracer = self._tracer or self._take_up(turn.at_s)
        if tracer.traces.rule is not rule:
            tracer.traces.follow(rule)
        tracer.captures = self._captures and k.terms.keeps_text
        records = tracer.turn(turn, out, k)
        self._seq = seq
        if records and tell:
            self._put(records, k)

    def _put(self, records: list[Whole], k: State) -> None:
        if not hasattr(self, "_wire"):
            assert self._tracer is not None
            labels = tuple(k.terms.labels.items())
            about = job_of(self._job, self._tracer.ids, labels, k.terms.places.get(TRACEPARENT, ""), self._chars_max)
            self._wire = SpanEncoder(self._encoder, about)
        spans = count(records)
        if self._outbox.full:
            self._outbox.lose(spans)
            return
        wire = self._wire.spans(records) if self._sends else []
        lines = self._wire.lines(records) if self._writes else []
        if dropped := self._wire.dropped:
            spans -= len(dropped)
            self._outbox.lose(len(dropped))
            dropped.clear()
        seq, size = self._seq, sum(map(len, wire)) + sum(map(len, lines))
        payload = EncodedSpans(self._job, self._folder, spans, wire, lines, size, lambda: self._out(seq))
        if self._outbox.put(payload):
            self._put_last = seq

    def _out(self, seq: int) -> None:
        self._out_last = seq

    def _note(self) -> None:
        """Write the turn up to which all spans are out, so that a restarted channel need not export them again."""
        number = self._seq if self._put_last == self._out_last else self._out_last - 1
        if self._journal is not None and number > self._noted[0]:
            self._journal.set_meta(SENT_META, b"%d" % number)
            self._noted = (number, time.monotonic())
        else:
            self._noted = (self._noted[0], time.monotonic())
