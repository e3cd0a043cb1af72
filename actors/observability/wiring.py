"""Assembly of a process's telemetry (traces, metrics, logs) from its settings."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from actors.observability.base.settings import HEADERS, TelemetrySettings
from actors.observability.logs.job_events import LogTelemetry
from actors.observability.metrics.job_meter import nobody
from actors.observability.metrics.registry import MetricExporter, Metrics
from actors.observability.metrics.samples import MetricSamples
from actors.observability.traces.tracer import TraceTelemetry
from actors.ports.runtime import Peer
from actors.ports.telemetry import ClusterObserver, ClusterObservers, JobObserver, JobObservers, NullObserver, Telemetry
from cortex.scheduler.state import SchedulerState

Headers = dict[str, tuple[tuple[str, str], ...]]
"""HTTP headers of exports, by signal: pairs of name and value."""

_log = logging.getLogger("cortex.observing")
Reading = Callable[[], MetricSamples | None]


class TelemetryPart(Protocol):
    """Telemetry of one signal (traces, metrics or logs) in one process. Expensive objects are created by the first
    ``watch``."""

    def watch(self, job: str, folder: str) -> JobObserver | None:
        """Return an observer of this job, or None if this part does not observe jobs."""

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver | None:
        """Return an observer of the cluster's scheduler, or None if this part has none."""

    def take(self, settings: TelemetrySettings) -> None:
        """Replace the settings by a copy that differs in the headers alone. Called before the first export."""

    def close(self) -> None:
        """Flush what is queued, in a bounded time. Called when the process ends."""


class TelemetryParts:
    """All telemetry parts of a process. ``metrics`` is one of the parts, or None if nothing is counted."""

    def __init__(self, settings: TelemetrySettings, parts: list[TelemetryPart], metrics: Metrics | None = None) -> None:
        self.settings = settings
        self.metrics = metrics
        self._parts = parts

    def watch(self, job: str, folder: str) -> JobObservers:
        """Return observers of this job, one from each part that has one."""
        found = (part.watch(job, folder) for part in self._parts)
        return JobObservers([watch for watch in found if watch is not None])

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """Return observers of the cluster, one from each part that has one."""
        found = (part.observe_cluster(state) for part in self._parts)
        return ClusterObservers([each for each in found if each is not None])

    def take(self, headers: bytes) -> None:
        """Apply headers for the collector that came in a call (msgpack of ``Headers``)."""
        self.settings = self.settings.with_headers(msgspec.msgpack.decode(headers, type=Headers))
        for part in self._parts:
            part.take(self.settings)

    def readings(self) -> bytes:
        """Return the current metric samples of this process, encoded; empty without metrics."""
        return self.metrics.readings() if self.metrics is not None else b""

    def keep_end(self, blob: bytes) -> None:
        """Keep the end of a job among the metrics of this process."""
        if self.metrics is not None:
            self.metrics.ends.keep(blob)

    def close(self) -> None:
        """Flush and close all parts in parallel, since each may wait for a collector that does not answer."""
        closing = [threading.Thread(target=_close, args=(part,), daemon=True) for part in self._parts]
        for each in closing:
            each.start()
        for each in closing:
            each.join()


def _close(part: TelemetryPart) -> None:
    try:
        part.close()
    except Exception:  # an error in telemetry must not fail the job
        _log.exception("%s could not be closed", type(part).__name__)


def assembled(
    settings: TelemetrySettings, environ: Mapping[str, str], counts: bool = False, node: str = ""
) -> TelemetryParts:
    """Return the telemetry of this process. ``counts``: collect metrics even if no exporter is configured, because
    samples will be requested by message. ``node``: name of the cluster node, recorded in traces."""
    for line in settings.problems:
        _log.warning("%s", line)
    traces = TraceTelemetry(settings, node) if settings.traces.exporters else None
    sampled = traces.sampled if traces is not None else nobody
    # logs and metrics come before traces: they ask for an attempt's trace while the tracer still holds the attempt
    parts: list[TelemetryPart] = [LogTelemetry(sampled)]
    if "otlp" in settings.logs.exporters:
        from actors.observability.logs.otlp_export import LogExports

        parts.append(LogExports(settings))
    metrics = None
    if counts or settings.metrics.exporters:
        metrics = Metrics(settings, exports=_exports(environ), sampled=sampled)
        parts.append(metrics)
    if traces is not None:
        parts.append(traces)
    return TelemetryParts(settings, parts, metrics)


def _exports(environ: Mapping[str, str]) -> Callable[[Reading, Callable[[], TelemetrySettings]], list[MetricExporter]]:
    def begin(read: Reading, settings: Callable[[], TelemetrySettings]) -> list[MetricExporter]:
        if not set(settings().metrics.exporters) & {"otlp", "console"}:
            return []
        from actors.observability.metrics.otlp_export import (
            exports_of,  # imported on demand: the SDK is slow to import
        )

        return [*exports_of(settings, read, environ)]

    return begin


def of_process(role: str, node: str, standing: bool = False) -> Telemetry:
    """Return the telemetry of an actor's process, on this node. The variables with headers are removed from its
    environment, because a header may hold a key. ``standing``: the cluster outlives its jobs, so the cortex tells of
    their ends."""
    settings = TelemetrySettings.from_environ(os.environ) if role in WATCHED else None
    for name in HEADERS:
        os.environ.pop(name, None)
    if settings is None:
        return NullObserver()
    made = assembled(settings, os.environ, counts=True, node=node)
    if standing and role == "cortex" and made.metrics is not None:
        made.metrics.ends.standing = True
    return made


async def hand_over(peer: Peer, environ: Mapping[str, str], cluster: str) -> None:
    """Send the headers for the user's collector to the scheduler of a local cluster, which passes them on to its
    channels. In other clusters the environment of the cluster's own processes applies."""
    if cluster == "local" and (headers := TelemetrySettings.from_environ(environ).headers()):
        await peer.ask("observe", msgspec.msgpack.encode(headers))


def of_environ(environ: Mapping[str, str], counts: bool = False) -> Telemetry:
    """Return the telemetry of a run in this process, configured by these variables."""
    return assembled(TelemetrySettings.from_environ(environ), environ, counts)


WATCHED = frozenset({"channel", "cortex"})
"""Roles whose processes record telemetry."""
