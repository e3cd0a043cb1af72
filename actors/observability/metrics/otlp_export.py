"""Periodic export of metric samples to a collector, by the SDK's own exporters.

The SDK's instruments are not used: one call of theirs for each LLM call would cost more than all other work for it.
Exports are made from the samples, on the SDK's schedule and by its variables, with its data model and its exporters.
Nothing is queued while the collector is down, since the next samples are cumulative.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar as Shown
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from actors.observability.base.exporter_noise import THREAD, silence_exporters
from actors.observability.base.settings import GRPC, SignalSettings, TelemetrySettings, before_grpc
from actors.observability.metrics.instruments import INSTRUMENTS, JOB, Instrument
from actors.observability.metrics.samples import HistogramSample, Labels, MetricSamples, NumberSample
from actors.providers.credentials.credential import without_password
from cortex import __version__

INTERVAL_MS: Final = 60_000.0
"""Default milliseconds between two exports, as in the standard."""
CLOSE_S: Final = 3.0
"""Most seconds that the end of a process waits for the last samples to be sent."""

_log = logging.getLogger("cortex.observing.metrics")
_EXPORTER_LOGS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.exporter.otlp.proto.grpc.exporter",
)  # fmt: skip


def exporter_of(signal: SignalSettings, name: str) -> MetricExporter:
    """Return the exporter of this name, ``otlp`` or ``console``."""
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter()
    silence_exporters(*_EXPORTER_LOGS)
    given: dict[str, Any] = {"endpoint": signal.endpoint, "headers": dict(signal.headers), "timeout": signal.timeout_s}
    if signal.protocol == GRPC:
        before_grpc()
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

        return Grpc(**given)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

    return Http(**given)


class MetricExports:
    """Periodic exporter with a thread of its own, so that a slow collector delays no other work.

    ``make`` creates the exporter when there is something to send. ``read`` returns None if no samples can be read at
    the moment. ``where`` names the collector, for the warning.
    """

    def __init__(
        self, make: Callable[[], MetricExporter], read: Callable[[], MetricSamples | None], settings: TelemetrySettings,
        where: str,
        interval_s: float, delta: bool = False,
    ) -> None:  # fmt: skip
        self._make, self._read, self._where, self._interval_s = make, read, where, interval_s
        self._exporter: MetricExporter | None = None
        self._resource = Resource.create({**dict(settings.resource), "service.name": settings.service})
        self._delta = _Delta() if delta else None
        self._down = self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{THREAD}-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the current samples once more, in at most ``CLOSE_S``."""
        self._stop.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():  # a daemon thread: it ends with the process
            self._log_down()
            self._closed = True  # a later end of the request in flight is not logged

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._send()
        self._send()
        if self._exporter is not None:
            self._exporter.shutdown()

    def _send(self) -> None:
        try:
            found = self._read()
            if found is None or not (found.points or found.spreads):
                return
            self._exporter = self._exporter or self._make()
            if self._delta is not None:
                found = self._delta.since(found)
            made = otlp(found, self._resource, time.time(), delta=self._delta is not None)
            well = self._exporter.export(made) is MetricExportResult.SUCCESS
        except Exception as error:
            _log.debug("metrics: %s", type(error).__name__)
            well = False
        if well and self._down and not self._closed:
            self._down = False
            _log.info("metrics reach %s again", self._where)
        elif not well:
            self._log_down()

    def _log_down(self) -> None:
        if not self._down and not self._closed:
            self._down = True
            _log.warning(
                "metrics do not reach %s: jobs go on; the export is retried every %g s", self._where, self._interval_s
            )


def exports_of(
    now: Callable[[], TelemetrySettings], read: Callable[[], MetricSamples | None], environ: Mapping[str, str]
) -> list[MetricExports]:  # fmt: skip
    """Return one exporter for each name in the settings. Each is created when first used, since headers may arrive
    until then."""
    made, settings = [], now()
    for name in settings.metrics.exporters:
        if name in ("otlp", "console"):
            where = without_password(settings.metrics.endpoint) if name == "otlp" else "the console"
            text = environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
            interval_s = (float(text) if text.isdecimal() and int(text) else INTERVAL_MS) / 1000
            delta = environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "").lower() == "delta"
            make = partial(_exporter_of_now, now, name)
            made.append(MetricExports(make, read, settings, where, interval_s, delta))
    return made


def _exporter_of_now(now: Callable[[], TelemetrySettings], name: str) -> MetricExporter:
    return exporter_of(now().metrics, name)


class _Delta:
    """Converter of cumulative samples to the increase since the last ones."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, Labels], NumberSample | HistogramSample] = {}
        self._at_s = 0.0

    def since(self, now: MetricSamples) -> MetricSamples:
        """Return counters and histograms as increases; all other samples unchanged."""
        points = [self._point(each) if INSTRUMENTS[each.name].kind == "counter" else each for each in now.points]
        spreads = [self._spread(each) for each in now.spreads]
        every: list[NumberSample | HistogramSample] = [*now.points, *_copied(now.spreads)]
        self._before = {(each.name, each.labels): each for each in every}
        found = MetricSamples(self._at_s or now.began_s, points, spreads)
        self._at_s = time.time()
        return found

    def _point(self, now: NumberSample) -> NumberSample:
        before = self._before.get((now.name, now.labels))
        value = (
            now.value - before.value if isinstance(before, NumberSample) and before.value <= now.value else now.value
        )
        return NumberSample(now.name, now.labels, value)

    def _spread(self, now: HistogramSample) -> HistogramSample:
        before = self._before.get((now.name, now.labels))
        if not isinstance(before, HistogramSample) or before.count > now.count:
            return now
        counts = [count - then for count, then in zip(now.counts, before.counts, strict=True)]
        return HistogramSample(now.name, now.labels, counts, now.total - before.total, now.exemplars)


def _copied(spreads: list[HistogramSample]) -> list[HistogramSample]:
    return [HistogramSample(each.name, each.labels, list(each.counts), each.total) for each in spreads]


def otlp(readings: MetricSamples, resource: Resource, at_s: float, delta: bool = False) -> MetricsData:
    """Return the samples in the SDK's data model."""
    points: dict[str, list[NumberSample]] = {}
    for point in readings.points:
        points.setdefault(point.name, []).append(point)
    spreads: dict[str, list[HistogramSample]] = {}
    for each in readings.spreads:
        spreads.setdefault(each.name, []).append(each)
    made = _MetricBuilder(readings, at_s, AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE)
    metrics = [made.numbers(INSTRUMENTS[name], some) for name, some in points.items()]
    metrics += [made.histogram(INSTRUMENTS[name], some) for name, some in spreads.items()]
    scope = ScopeMetrics(InstrumentationScope("cortex", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


class _MetricBuilder:
    """Builder of the SDK's metrics. All its times are those of the machine's clock.

    A series that began after ``at_s``, since the clock was set back meanwhile, is told as begun at ``at_s``, which
    stands for a start that is not known; a later one is invalid, and exemplars are inside the interval
    (https://opentelemetry.io/docs/specs/otel/metrics/data-model, "Cumulative streams: handling unknown start time").
    """

    def __init__(self, readings: MetricSamples, at_s: float, temporality: AggregationTemporality) -> None:
        self._readings, self._at_ns, self._temporality = readings, _ns(at_s), temporality

    def numbers(self, instrument: Instrument, points: list[NumberSample]) -> Metric:
        """Return a counter or a gauge."""
        some = [
            NumberDataPoint(dict(each.labels), self._since(each.labels), self._at_ns, each.value) for each in points
        ]
        found: Gauge | Sum
        if instrument.kind == "counter":
            found = Sum(some, self._temporality, is_monotonic=True)
        elif instrument.kind == "sum":
            found = Sum(some, AggregationTemporality.CUMULATIVE, is_monotonic=False)
        else:
            found = Gauge(some)
        return Metric(instrument.name, instrument.description, instrument.unit, found)

    def histogram(self, instrument: Instrument, spreads: list[HistogramSample]) -> Metric:
        """Return a histogram. Minimum and maximum are not known."""
        began_ns = self._not_later(self._readings.began_s)
        some = [
            HistogramDataPoint(
                dict(each.labels), began_ns, self._at_ns, each.count, each.total, list(each.counts), each.bounds,
                None, None, _exemplars(each),  # type: ignore[arg-type]  # optional on the wire
            )
            for each in spreads
        ]  # fmt: skip
        return Metric(instrument.name, instrument.description, instrument.unit, Histogram(some, self._temporality))

    def _since(self, labels: Labels) -> int:
        """Return the start of a series in nanoseconds: a job's counters are kept by its journal and start with the
        job, not with this process."""
        if self._temporality is AggregationTemporality.DELTA:
            return self._not_later(self._readings.began_s)
        job = dict(labels).get(JOB, "")
        return self._not_later(self._readings.since_s.get(job, self._readings.began_s))

    def _not_later(self, began_s: float) -> int:
        return min(_ns(began_s), self._at_ns)


def _exemplars(each: HistogramSample) -> list[Shown]:
    return [
        Shown({}, kept.value, _ns(kept.at_s), int(kept.span_id, 16), int(kept.trace_id, 16))
        for kept in each.exemplars.values()
    ]


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)
