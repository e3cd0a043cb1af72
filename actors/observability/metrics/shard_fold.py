"""Series of the shards of a job, folded into those of the job, where one process knows both.

K of the whole job counts the results, calls and cost of its shards, so a shard has no series of these: they would be
counted twice. What the job does not know of its shards, their histograms and what is in flight now, a shard tells under
the name of the job, with a label of its own. Where the job is known too these become one: 256 shards then have as many
series as one job. On Ray's own port each process tells of itself, and the label stays.
"""

from __future__ import annotations

from actors.observability.metrics.instruments import INSTRUMENTS, JOB, SHARD
from actors.observability.metrics.samples import HistogramSample, Labels, MetricSamples, NumberSample

_Key = tuple[str, Labels]
_LEAST = frozenset({"cortex.disk.free"})
"""Gauges of which the least counts; of others the largest."""
NOTED_MAX = 4_096
"""Most last histograms that wait for a reader: those of some 256 shards, the most of a job."""


class ShardFold:
    """Fold of the samples of one reader. Not thread safe.

    Histograms of a shard that has ended, or was not reached by a scrape, count on, so that no sum decreases.
    """

    def __init__(self) -> None:
        self._latest: dict[_Key, HistogramSample] = {}
        self._jobs: set[str] = set()
        """Jobs that were here at the last fold, or whose shards still are."""
        self._noted: list[HistogramSample] = []
        """Last histograms since the last fold."""
        self._past: dict[_Key, HistogramSample] = {}
        """Histograms of earlier channels of the shards, by the labels of the job."""

    def note(self, last: list[HistogramSample]) -> None:
        """Note the last histograms of a channel that ends; those of shards count on. Called from any thread."""
        self._noted.extend(each for each in last if _root(each.labels) is not None)
        del self._noted[:-NOTED_MAX]

    def folded(self, samples: MetricSamples) -> MetricSamples:
        """Return the samples with those of shards folded into their jobs. Shards without their job stay as they are."""
        noted, self._noted = self._noted, []
        for last in noted:
            self._take(last)
        told = {_root(each.labels) for each in samples.points} | {_root(each.labels) for each in samples.spreads}
        if told <= {None} and not self._latest:
            return samples  # no shards: the usual case
        jobs = {dict(each.labels).get(JOB, "") for each in samples.points if each.name == "cortex.rows.expected"}
        gone = {job for job in self._jobs - jobs if job in told}  # its shards end a moment later: they add nothing
        self._jobs = jobs | gone
        whole: dict[_Key, float] = {}
        for each in samples.points:
            if _root(each.labels) in gone:
                continue
            key = each.name, _without(each.labels) if _root(each.labels) in jobs else each.labels
            before = whole.get(key)
            whole[key] = each.value if before is None else _both(each.name, before, each.value)
        spreads = [each for each in samples.spreads if _root(each.labels) not in self._jobs]
        for part in samples.spreads:
            if _root(part.labels) in jobs:
                self._take(part)
        points = [NumberSample(name, labels, value) for (name, labels), value in whole.items()]
        return MetricSamples(samples.began_s, points, _added([*spreads, *self._kept(jobs)]), samples.since_s)

    def _take(self, each: HistogramSample) -> None:
        key = each.name, each.labels
        before = self._latest.get(key)
        if before is not None and before is not each and before.count > each.count:  # another channel counts from 0
            own = each.name, _without(each.labels)
            self._past[own] = _added([_of_job(before), *([self._past[own]] if own in self._past else [])])[0]
        self._latest[key] = each

    def _kept(self, jobs: set[str]) -> list[HistogramSample]:
        for found in (self._latest, self._past):
            for key in [key for key in found if dict(key[1]).get(JOB, "") not in jobs]:
                del found[key]
        return [*map(_of_job, self._latest.values()), *self._past.values()]


def _root(labels: Labels) -> str | None:
    """Return the job of a shard's series; None for other series."""
    if len(labels) < 2 or labels[1][0] != SHARD:
        return None
    return labels[0][1]


def _without(labels: Labels) -> Labels:
    return labels[:1] + labels[2:]


def _of_job(each: HistogramSample) -> HistogramSample:
    return HistogramSample(each.name, _without(each.labels), list(each.counts), each.total, dict(each.exemplars))


def _both(name: str, one: float, other: float) -> float:
    if INSTRUMENTS[name].kind != "gauge":
        return one + other
    return min(one, other) if name in _LEAST else max(one, other)


def _added(some: list[HistogramSample]) -> list[HistogramSample]:
    found: dict[_Key, HistogramSample] = {}
    for each in some:
        own = found.get((each.name, each.labels))
        if own is None:
            found[each.name, each.labels] = each
            continue
        counts = [mine + its for mine, its in zip(own.counts, each.counts, strict=True)]
        total, exemplars = own.total + each.total, {**own.exemplars, **each.exemplars}
        found[each.name, each.labels] = HistogramSample(each.name, each.labels, counts, total, exemplars)
    return list(found.values())
