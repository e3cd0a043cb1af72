"""Traces of the jobs whose channels live in this process: the fold, what outlives a kill, and the way out."""

from __future__ import annotations

import os
import socket
import time
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from actors.journal.journal import Journal, StateFolder
from actors.observability.base.conventions import Attributes, describe_span, job_of
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
from cortex.tracing.call_records import Whole, count, spread
from cortex.tracing.spans import SpanIds
from cortex.tracing.trace_state import TraceState
from cortex.tracing.tracer import Tracer
from policies.decisions.trace_sampling import TraceSampling, share

STATES = ("traced.0", "traced.1")
"""Facts beside a journal that hold the fold as it was at a snapshot: in turn, so that the one before is whole."""
SENT_META = "traces_told"
"""Fact beside a journal: the turn up to which all spans are out."""
RULES = "traces_rules"
"""Fact beside a journal: after which turn which sampler decided. Not written while nobody has chosen one."""
NOTED_S = 5.0
"""How often that is written down, at most: it costs a commit."""

_state_decoder = msgspec.msgpack.Decoder(tuple[int, TraceState])
_rules_decoder = msgspec.msgpack.Decoder(list[tuple[int, TraceSampling]])


def sampling(settings: TelemetrySettings) -> TraceSampling | None:
    """What is kept; None where nothing is. Where nobody chose a sampler, a share and what is worth seeing."""
    kind = settings.sampler.removeprefix("parentbased_")
    if not kind:
        return TraceSampling()
    if kind == "always_off":
        return None
    return share(1.0 if kind == "always_on" else settings.ratio)


def resource(settings: TelemetrySettings, node: str = "") -> Attributes:
    """Who tells: this process, and what its user says of it. ``node``: where it is, as its logs say too."""
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
    """The part of a process's telemetry that tells of traces."""

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
        """The same settings, with headers."""
        self._settings = settings

    def watch(self, job: str, folder: str) -> TraceObserver | None:
        """Looks on at a job; None where nothing is kept."""
        if self._rule is None or not self._settings.traces.exporters:
            return None
        prepare(self._settings.traces)
        watch = TraceObserver(
            job, str(StateFolder(folder).path), self._rule, self._settings, self._outbox, self._encoder
        )
        self._watches[job] = watch
        return watch

    def sampled(self, k: State, event: events.Answered | events.AttemptFailed) -> tuple[str, str] | None:
        """Trace and span id of an attempt that has ended, where it will be told; asked before its turn is seen here."""
        watch = self._watches.get(k.terms.job)
        return watch.sampled(event.goal, event.attempt) if watch is not None else None

    def observe_cluster(self, state: SchedulerState) -> None:
        """The cortex sees no call: it has no spans."""

    def close(self) -> None:
        """Let out what waits."""
        self._outbox.close()


class TraceObserver:
    """Looks on at one job, and remembers beside its journal what it must know to go on after a kill."""

    def __init__(
        self, job: str, folder: str, rule: TraceSampling, settings: TelemetrySettings, outbox: ExportQueue,
        encoder: OtlpEncoder
    ) -> None:  # fmt: skip
        self._job, self._folder = job, folder
        self._rule, self._captures = rule, settings.captures
        self._rules = [(0, rule)]
        """After which turn which rule decided: what is told again is told by the one that it was told by."""
        self._outbox, self._encoder = outbox, encoder
        self.names_calls = "tracecontext" in settings.propagators
        self._sends = "otlp" in settings.traces.exporters
        self._writes = bool({FILE, "console"}.intersection(settings.traces.exporters))
        self._journal: Journal | None = None
        self._tracer: Tracer | None = None
        self._wire: SpanEncoder
        self._sent = 0
        """Up to this turn all spans were out when the job was taken up."""
        self._seq = 0
        self._put_last = self._out_last = 0
        """Turns whose spans were put into the outbox last, and came out of it last: they come out in order."""
        self._noted = (0, 0.0)
        self._kept = 0

    # -- the channel tells -----------------------------------------------------------------------------------------

    def begin(self, journal: Journal) -> None:
        """The channel comes to life, and replays first what came after the last snapshot."""
        self._journal = journal
        after = journal.replay_from()
        noted = journal.meta(SENT_META)
        if noted is None:  # nobody told of this job before: what it did until now is not told in hindsight
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
                    continue  # of another release: what began before is not told of
        return found

    def _follow(self, journal: Journal, after: int) -> None:
        """Take up the rules of what is replayed, which comes after this turn, and go on by one's own."""
        blob = journal.meta(RULES)
        try:
            rules = _rules_decoder.decode(blob) if blob else [(0, TraceSampling())]
        except msgspec.DecodeError:  # of another release
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
        """A turn is replayed. What it ended is told again, unless it is known to be out."""
        rule = next((rule for after, rule in reversed(self._rules) if seq > after), self._rules[0][1])
        self._look(seq, turn, out, k, rule, tell=seq > self._sent)

    def turn(self, seq: int, turn: events.Turn, out: commands.StepCommands, k: State) -> None:
        """A turn was committed."""
        self._look(seq, turn, out, k, self._rule, tell=True)
        if time.monotonic() - self._noted[1] >= NOTED_S:
            self._note()

    def kept(self, seq: int) -> None:
        """A snapshot of K is about to be written: the fold is kept with it."""
        if self._tracer is not None and self._journal is not None:
            self._kept += 1
            self._journal.set_meta(STATES[self._kept % 2], msgspec.msgpack.encode((seq, self._tracer.whole())))

    def child_of(self, goal: int, attempt: int) -> str:
        """The header for a child job; empty where its parent is not told of."""
        if self._tracer is None:
            return ""
        trace, key, kept = self._tracer.context(goal, attempt, child=True)
        return self._tracer.ids.traceparent(trace, key, kept) if kept else ""

    def marked(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Each with its ``traceparent``, where the settings have it go out."""
        tracer = self._tracer
        if not self.names_calls or tracer is None:
            return calls
        ids, context = tracer.ids, tracer.context
        return [replace(call, trace=ids.traceparent(*context(call.goal, call.attempt))) for call in calls]

    def sampled(self, goal: int, attempt: int) -> tuple[str, str] | None:
        """Trace and span id of an attempt that is not told of yet, where it will be."""
        if self._tracer is None:
            return None
        trace, span, kept = self._tracer.context(goal, attempt)
        ids = self._tracer.ids
        return (f"{ids.trace_id(trace):032x}", f"{ids.span_id(span):016x}") if kept else None

    def close(self) -> None:
        """The channel ends: let out what is whole, and say how far that went."""
        self._outbox.flush()
        self._note()

    # -- the way out -----------------------------------------------------------------------------------------------

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
            about = job_of(self._job, self._tracer.ids, labels, k.terms.places.get(TRACEPARENT, ""))
            self._wire = SpanEncoder(self._encoder, about)
        spans = count(records)
        if self._outbox.full:
            self._outbox.lose(spans)
            return
        wire = self._wire.spans(records) if self._sends else []
        lines = (
            [self._encoder.json(describe_span(span, self._wire.job)) for span in spread(records)]
            if self._writes
            else []
        )
        seq, size = self._seq, sum(map(len, wire)) + sum(map(len, lines))
        payload = EncodedSpans(self._job, self._folder, spans, wire, lines, size, lambda: self._out(seq))
        if self._outbox.put(payload):
            self._put_last = seq

    def _out(self, seq: int) -> None:
        self._out_last = seq

    def _note(self) -> None:
        """Write down how far all is out: a later incarnation need not tell that again."""
        number = self._seq if self._put_last == self._out_last else self._out_last - 1
        if self._journal is not None and number > self._noted[0]:
            self._journal.set_meta(SENT_META, b"%d" % number)
            self._noted = (number, time.monotonic())
        else:
            self._noted = (self._noted[0], time.monotonic())
