"""The metrics of a process: who is measured in it, read together when somebody asks."""

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
from actors.observability.metrics.job_meter import JobMeter, Sampled, nobody
from actors.observability.metrics.samples import MetricSamples
from actors.ports.telemetry import ClusterObserver
from cortex.scheduler.state import SchedulerState

READ_S = 5.0
"""How long another thread waits for readings: the event loop may be busy."""
LAST_KEPT = 100
"""Jobs that have ended and were not read since, of which the last readings are kept."""


class MetricExporter(Protocol):
    """Somebody who reads now and then, from a thread of its own."""

    def close(self) -> None:
        """Read once more, and end."""


_USUAL = TelemetrySettings()

MakeExports = Callable[[Callable[[], MetricSamples | None], Callable[[], TelemetrySettings]], list[MetricExporter]]
"""Begins exports: given how to read, and what the settings are by then."""


class Metrics:
    """A part of a process's telemetry. Read on the event loop that its jobs live on; ``now_s``: since 1970."""

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
        self._meters: dict[str, JobMeter] = {}
        self._last: dict[str, MetricSamples] = {}
        """What ended jobs came to, until that was exported once more."""
        self._cluster: SchedulerState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, job: str, folder: str) -> JobMeter:
        """Somebody to measure this job."""
        self._found_loop()
        meter = self._meters[job] = JobMeter(job, folder, self._now_s, self._gone, self._sampled)
        self._last.pop(job, None)
        return meter

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver | None:
        """The cortex is here: its state is read with the rest."""
        self._found_loop()
        self._cluster = state
        return None

    def take(self, settings: TelemetrySettings) -> None:
        """The same settings, with headers: nothing is exported before its first interval is over."""
        self._settings = settings

    def close(self) -> None:
        """Have what is known exported once more."""
        for each in self._exports or ():
            each.close()

    def read(self, for_good: bool = False) -> MetricSamples:
        """Everything, as it is now, within the bound on series."""
        found = MetricSamples(self._began_s)
        if self._cluster is not None:
            found.points += of_cluster(self._cluster)
        for meter in self._meters.values():
            found.points += meter.points()
            found.spreads += meter.spreads()
            found.since_s[meter.job] = meter.began_s
        if for_good:
            last, self._last = self._last, {}
            for job, each in last.items():
                found.points += each.points
                found.spreads += each.spreads
                found.since_s[job] = each.began_s
        return (self._exported if for_good else self._ceiling).under(found)

    def read_elsewhere(self) -> MetricSamples | None:
        """The same, for good and from another thread; None where the event loop does not answer."""
        loop = self._loop
        if loop is None:
            return self.read(for_good=True)
        future: Future[MetricSamples] = Future()
        try:
            loop.call_soon_threadsafe(self._read_for, future)  # a coroutine would never be awaited where the loop ends
        except RuntimeError:  # it is closed: nothing changes any more
            return self.read(for_good=True)
        with contextlib.suppress(TimeoutError):
            return future.result(READ_S)
        if not future.cancel():
            return future.result()  # it is being read just now, and would be read for nobody
        return self.read(for_good=True) if loop.is_closed() else None

    def readings(self) -> bytes:
        """What ``read`` gives, for a message."""
        return msgspec.msgpack.encode(self.read())

    def _read_for(self, future: Future[MetricSamples]) -> None:
        """On the event loop; what is told once is told for good, so nothing is read for somebody who has gone."""
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

    def _gone(self, meter: JobMeter) -> None:
        if self._meters.get(meter.job) is not meter:
            return
        del self._meters[meter.job]
        if self._exports and len(self._last) < LAST_KEPT:
            self._last[meter.job] = MetricSamples(meter.began_s, list(meter.points()), list(meter.spreads()))


def decoded(blob: bytes) -> MetricSamples | None:
    """Readings that came in a message; None where nobody counts there."""
    return _decoder.decode(blob) if blob else None


_decoder = msgspec.msgpack.Decoder(MetricSamples)
