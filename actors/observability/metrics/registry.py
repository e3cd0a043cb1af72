"""Metrics registry of a process: the observed jobs and the scheduler, sampled together on request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from actors.observability.base.settings import TelemetrySettings
from actors.observability.metrics.cardinality_limit import SERIES_MAX, CardinalityLimit
from actors.observability.metrics.cluster_samples import of_cluster
from actors.observability.metrics.job_ends import KeptEnds
from actors.observability.metrics.job_meter import JobMeter, Sampled, nobody
from actors.observability.metrics.samples import MetricSamples
from actors.observability.metrics.shard_fold import ShardFold
from actors.ports.telemetry import ClusterObserver
from cortex.scheduler.state import SchedulerState

READ_S = 5.0
"""Most seconds that another thread waits for samples: the event loop may be busy."""
LAST_KEPT = 100
"""Most ended jobs whose last samples are kept until the next export."""


class MetricExporter(Protocol):
    """Periodic reader of samples, with a thread of its own."""

    def close(self) -> None:
        """Export once more, and end."""


_USUAL = TelemetrySettings()

MakeExports = Callable[[Callable[[], MetricSamples | None], Callable[[], TelemetrySettings]], list[MetricExporter]]
"""Starts exporters, given functions that return the samples and the current settings."""


class Metrics:
    """Part of a process's telemetry that samples metrics. Read on the event loop of its jobs. ``now_s``: Unix time."""

    def __init__(
        self, settings: TelemetrySettings = _USUAL, now_s: Callable[[], float] = time.time,
        series_max: int = SERIES_MAX,
        sampled: Sampled = nobody, exports: MakeExports = lambda read, settings: [],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._now_s = now_s
        self._make_exports = exports
        self._exports: list[MetricExporter] | None = None
        self._began_s = now_s()
        self._sampled = sampled
        self._ceiling = CardinalityLimit(series_max)
        self._exported = CardinalityLimit(series_max)
        self._fold, self._fold_exported = ShardFold(), ShardFold()
        self._meters: dict[str, JobMeter] = {}
        self._last: dict[str, MetricSamples] = {}
        """Last samples of ended jobs, until they are exported once more."""
        self.ends = KeptEnds(now_s)
        """Ends of jobs whose channels are gone, or about to go."""
        self._cluster: SchedulerState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, job: str, folder: str) -> JobMeter:
        """Return an observer that measures this job."""
        self._found_loop()
        meter = self._meters[job] = JobMeter(job, folder, self._now_s, self._gone, self._sampled)
        self._last.pop(job, None)
        self.ends.drop(job)
        return meter

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver | None:
        """Sample the scheduler's state with the rest. Returns None: no observer is needed."""
        self._found_loop()
        self._cluster = state
        return None

    def take(self, settings: TelemetrySettings) -> None:
        """Replace the settings; the copy has headers. Nothing is exported before the first interval is over."""
        self._settings = settings

    def close(self) -> None:
        """Export the current samples once more."""
        for each in self._exports or ():
            each.close()

    def read(self, for_good: bool = False) -> MetricSamples:
        """Return all current samples, within the limit on series. ``for_good``: for an exporter; includes the last
        samples of ended jobs and forgets these."""
        found = MetricSamples(self._began_s)
        if self._cluster is not None:
            found.points += of_cluster(self._cluster)
        for meter in list(self._meters.values()):  # a channel that ends leaves in another thread
            found.points += meter.points()
            found.spreads += meter.spreads()
            found.since_s[meter.job] = meter.began_s
        if for_good:
            last, self._last = self._last, {}
            for job, each in last.items():
                found.points += each.points
                found.spreads += each.spreads
                found.since_s[job] = each.began_s
        found.points += self.ends.points(self._epoch_of, found.since_s)
        ceiling, fold = (self._exported, self._fold_exported) if for_good else (self._ceiling, self._fold)
        return ceiling.under(fold.folded(found))

    def read_elsewhere(self) -> MetricSamples | None:
        """Return ``read(for_good=True)``, called from another thread; None if the event loop does not answer within
        ``READ_S``."""
        loop = self._loop
        if loop is None:
            return self.read(for_good=True)
        future: Future[MetricSamples] = Future()
        try:
            loop.call_soon_threadsafe(self._read_for, future)  # a coroutine might never be awaited
        except RuntimeError:  # the loop is closed: no state changes any more
            return self.read(for_good=True)
        with contextlib.suppress(TimeoutError):
            return future.result(READ_S)
        if not future.cancel():
            return future.result()  # the reading has begun: wait, or its samples would be lost
        return self.read(for_good=True) if loop.is_closed() else None

    def readings(self) -> bytes:
        """Return the samples of ``read``, encoded for a message."""
        return msgspec.msgpack.encode(self.read())

    def _read_for(self, future: Future[MetricSamples]) -> None:
        """Read on the event loop. Samples read for good are forgotten, so a cancelled request reads nothing."""
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self.read(for_good=True))
            except Exception as error:
                future.set_exception(error)

    def _found_loop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        if self._exports is None:
            self._exports = self._make_exports(self.read_elsewhere, lambda: self._settings)

    def _epoch_of(self, job: str) -> int:
        """Return the epoch of a job that runs in the cluster; 0 if it does not."""
        claims = self._cluster.jobs.get(job) if self._cluster is not None else None
        return claims.epoch if claims is not None else 0

    def _gone(self, meter: JobMeter) -> None:
        if self._meters.get(meter.job) is not meter:
            return
        del self._meters[meter.job]
        if not (self._exports or "~" in meter.job):
            return
        last = list(meter.spreads())
        self._fold.note(last)
        self._fold_exported.note(last)
        if self._exports and len(self._last) < LAST_KEPT:
            self._last[meter.job] = MetricSamples(meter.began_s, list(meter.points()), last)


def decoded(blob: bytes) -> MetricSamples | None:
    """Return the samples that came in a message; None if empty, since the sender does not count."""
    return _decoder.decode(blob) if blob else None


_decoder = msgspec.msgpack.Decoder(MetricSamples)
