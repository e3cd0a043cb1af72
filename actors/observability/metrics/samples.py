"""Metric samples of a process at one moment: plain records that are sent between actors and exported."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from actors.observability.metrics.instruments import INSTRUMENTS

Labels = tuple[tuple[str, str], ...]
"""Attributes and their values, in a fixed order."""


class NumberSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Value of a counter or a gauge."""

    name: str
    labels: Labels
    value: float


class Exemplar(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Call that was counted in a bucket, and whose trace is kept."""

    value: float
    at_s: float
    """Unix time by the clock of the machine, as that of a scrape, not the job's own time."""
    trace_id: str
    span_id: str


class HistogramSample(msgspec.Struct, array_like=True):
    """Histogram: counts by bucket; the last bucket is unbounded."""

    name: str
    labels: Labels
    counts: list[int]
    total: float = 0.0
    """Sum of all counted values."""
    exemplars: dict[int, Exemplar] = msgspec.field(default_factory=dict)
    """Latest exemplar, by index of the bucket."""

    @property
    def count(self) -> int:
        """Number of counted values."""
        return sum(self.counts)

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of the buckets, each inclusive."""
        return INSTRUMENTS[self.name].bounds

    def bucket(self, value: float) -> int:
        """Return the index of a value's bucket."""
        return bisect_left(self.bounds, value)

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[self.bucket(value)] += 1
        self.total += value

    def add_all(self, values: list[float]) -> None:
        """Count many values, and sort the list. For many values several times as fast as ``add`` for each."""
        values.sort()
        self.total += sum(values)
        before = 0
        for place, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound)
            self.counts[place] += upto - before
            before = upto
        self.counts[-1] += len(values) - before


def spread(name: str, labels: Labels) -> HistogramSample:
    """Return an empty histogram."""
    return HistogramSample(name, labels, [0] * (len(INSTRUMENTS[name].bounds) + 1))


class MetricSamples(msgspec.Struct, array_like=True):
    """All samples of a process, or of several."""

    began_s: float
    """Start of this process's counters, Unix time."""
    points: list[NumberSample] = msgspec.field(default_factory=list)
    spreads: list[HistogramSample] = msgspec.field(default_factory=list)
    since_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Start of a job's counters, by job, Unix time. These counters outlive the job's channel."""


def together(all_of: Iterable[MetricSamples]) -> MetricSamples:
    """Return the samples of several processes as one; of samples with equal name and labels the first is kept."""
    found = list(all_of)
    points: dict[tuple[str, Labels], NumberSample] = {}
    spreads: dict[tuple[str, Labels], HistogramSample] = {}
    for each in found:
        for point in each.points:
            points.setdefault((point.name, point.labels), point)
        for one in each.spreads:
            spreads.setdefault((one.name, one.labels), one)
    began_s = min((each.began_s for each in found), default=0.0)
    since_s = {job: at_s for each in reversed(found) for job, at_s in each.since_s.items()}
    return MetricSamples(began_s, list(points.values()), list(spreads.values()), since_s)
