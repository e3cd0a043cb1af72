"""Metric samples in Prometheus's text format, or in OpenMetrics with exemplars, as the scraper asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Shown

from actors.observability.metrics.instruments import INSTRUMENTS, Instrument, prometheus_name
from actors.observability.metrics.samples import HistogramSample, Labels, MetricSamples, NumberSample


def page(readings: MetricSamples, resource: Mapping[str, str], accept: str) -> tuple[bytes, str]:
    """Return the body of the reply to a scrape, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SamplesCollector(readings, resource))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _SamplesCollector(Collector):
    def __init__(self, readings: MetricSamples, resource: Mapping[str, str]) -> None:
        self._readings, self._resource = readings, resource

    def collect(self) -> Iterator[Metric]:
        return families(self._readings, self._resource)


def families(readings: MetricSamples, resource: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the samples, instrument by instrument, under the names that OpenTelemetry's own exporter gives them."""
    if resource:
        labels = {prometheus_name(name): value for name, value in resource.items()}
        yield InfoMetricFamily("target", "Target metadata", value=labels)
    points: dict[str, list[NumberSample]] = {}
    for point in readings.points:
        points.setdefault(point.name, []).append(point)
    spreads: dict[str, list[HistogramSample]] = {}
    for each in readings.spreads:
        spreads.setdefault(each.name, []).append(each)
    for name, instrument in INSTRUMENTS.items():
        if name in points:
            yield _numbers(instrument, points[name])
        elif name in spreads:
            yield _histogram(instrument, spreads[name])


def _numbers(instrument: Instrument, points: list[NumberSample]) -> Metric:
    counter = instrument.kind == "counter"
    made = CounterMetricFamily if counter else GaugeMetricFamily
    family = made(instrument.prometheus, instrument.description)
    name = instrument.prometheus + ("_total" if counter else "")
    for point in points:
        family.add_sample(name, _labels(point.labels), point.value)
    return family


def _histogram(instrument: Instrument, spreads: Iterable[HistogramSample]) -> Metric:
    family = HistogramMetricFamily(instrument.prometheus, instrument.description)
    for each in spreads:
        labels, name = _labels(each.labels), instrument.prometheus
        bounds = (*instrument.bounds, math.inf)
        for place, (bound, count) in enumerate(zip(bounds, accumulate(each.counts), strict=True)):
            kept = each.exemplars.get(place)
            shown = None
            if kept is not None:
                shown = Shown({"trace_id": kept.trace_id, "span_id": kept.span_id}, kept.value, kept.at_s)
            text = "+Inf" if bound == math.inf else repr(bound)
            family.add_sample(f"{name}_bucket", {**labels, "le": text}, count, exemplar=shown)
        family.add_sample(f"{name}_count", labels, each.count)
        family.add_sample(f"{name}_sum", labels, each.total)
    return family


def _labels(labels: Labels) -> dict[str, str]:
    return {prometheus_name(name): value for name, value in labels}


__all__ = ["families", "page"]
