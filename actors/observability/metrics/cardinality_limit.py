"""Limit on the number of series. Series above the limit are merged into one series an instrument.

A series that was shown once stays shown as long as it exists, and a series that was merged is not shown later, so that
no line of a dashboard appears and disappears. Counts of merged series are kept when one of them vanishes, so that their
sum never decreases either. The attribute of a merged series is OpenTelemetry's own (``otel.metric.overflow``).
"""

from __future__ import annotations

from collections.abc import Iterable

from actors.observability.metrics.instruments import INSTRUMENTS, JOB, OVERFLOW
from actors.observability.metrics.samples import HistogramSample, Labels, MetricSamples, NumberSample, spread

SERIES_MAX = 1_000
"""Most series of one process, as Prometheus counts them: a histogram is one for each bucket, and two more."""

_TOGETHER: Labels = ((OVERFLOW, "true"),)
_Key = tuple[str, Labels]


class CardinalityLimit:
    """Filter that keeps the samples of one process below ``series_max`` series. Not thread safe."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max - sum(_weight(name) for name in INSTRUMENTS if _adds_up(name))
        self._shown: dict[_Key, int] = {}
        """Shown series, with the number of Prometheus series each stands for."""
        self._used = {False: 0, True: 0}
        """Series in use: by jobs (False) and by the cluster (True)."""
        self._past: dict[str, float] = {}
        self._past_spreads: dict[str, HistogramSample] = {}
        self._hidden: dict[_Key, NumberSample | HistogramSample] = {}
        """Merged series, with their last samples."""

    def under(self, readings: MetricSamples) -> MetricSamples:
        """Return the samples, with no more series than the limit. Histograms are admitted last, so a job too many
        loses its histograms first. Series of the cluster take at most half of the limit."""
        every: list[NumberSample | HistogramSample] = [*readings.points, *readings.spreads]
        now = {(each.name, each.labels): each for each in every}
        for key in [key for key in self._shown if key not in now]:
            self._used[_of_cluster(key)] -= self._shown.pop(key)
        shown: list[NumberSample | HistogramSample] = []
        hidden: dict[_Key, NumberSample | HistogramSample] = {}
        for key in sorted(now, key=_rank):
            if key in self._shown or (key not in self._hidden and self._fits(key)):
                shown.append(now[key])
            else:
                hidden[key] = now[key]
        for key, last in self._hidden.items():
            if key not in hidden:
                self._keep(last)
        self._hidden = hidden
        points, spreads = self._together()
        return MetricSamples(
            readings.began_s, [*(each for each in shown if isinstance(each, NumberSample)), *points],
            [*(each for each in shown if isinstance(each, HistogramSample)), *spreads], readings.since_s,
        )  # fmt: skip

    def _fits(self, key: _Key) -> bool:
        weight, cluster = _weight(key[0]), _of_cluster(key)
        free = self._series_max // 2 - self._used[True] if cluster else self._series_max - sum(self._used.values())
        if weight > free:
            return False
        self._shown[key] = weight
        self._used[cluster] += weight
        return True

    def _keep(self, last: NumberSample | HistogramSample) -> None:
        if isinstance(last, HistogramSample):
            _add(self._past_spreads, (last,))
        elif INSTRUMENTS[last.name].kind == "counter":
            self._past[last.name] = self._past.get(last.name, 0) + last.value

    def _together(self) -> tuple[list[NumberSample], list[HistogramSample]]:
        sums = dict(self._past)
        spreads: dict[str, HistogramSample] = {}
        _add(spreads, self._past_spreads.values())
        for each in self._hidden.values():
            if isinstance(each, HistogramSample):
                _add(spreads, (each,))
            elif _adds_up(each.name):
                sums[each.name] = sums.get(each.name, 0) + each.value
        return [NumberSample(name, _TOGETHER, value) for name, value in sums.items()], list(spreads.values())


def _add(into: dict[str, HistogramSample], more: Iterable[HistogramSample]) -> None:
    for each in more:
        own = into.get(each.name)
        if own is None:
            own = into[each.name] = spread(each.name, _TOGETHER)
        own.counts = [mine + its for mine, its in zip(own.counts, each.counts, strict=True)]
        own.total += each.total


def _weight(name: str) -> int:
    bounds = INSTRUMENTS[name].bounds
    return len(bounds) + 3 if bounds else 1


def _adds_up(name: str) -> bool:
    return INSTRUMENTS[name].kind != "gauge"


def _of_cluster(key: _Key) -> bool:
    return all(label != JOB for label, _ in key[1])


def _rank(key: _Key) -> tuple[bool, bool]:
    return bool(INSTRUMENTS[key[0]].bounds), not _of_cluster(key)
