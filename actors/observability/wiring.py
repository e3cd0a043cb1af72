"""Who looks on in a process, put together from its settings."""

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
"""By signal."""

_log = logging.getLogger("cortex.observing")
Reading = Callable[[], MetricSamples | None]


class TelemetryPart(Protocol):
    """One kind of telemetry in one process: traces, say. What is costly to make is made by its first watch."""

    def watch(self, job: str, folder: str) -> JobObserver | None:
        """Somebody to look on at this job; None where this part has no wish to."""

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver | None:
        """The same for the cortex."""

    def take(self, settings: TelemetrySettings) -> None:
        """The same settings as before, but for the headers. Told before there is anything to send."""

    def close(self) -> None:
        """The process ends: let out what waits, in a bounded time."""


class TelemetryParts:
    """All the parts of a process; ``metrics`` is one of them, where anybody counts."""

    def __init__(self, settings: TelemetrySettings, parts: list[TelemetryPart], metrics: Metrics | None = None) -> None:
        self.settings = settings
        self.metrics = metrics
        self._parts = parts

    def watch(self, job: str, folder: str) -> JobObservers:
        """One of each part."""
        found = (part.watch(job, folder) for part in self._parts)
        return JobObservers([watch for watch in found if watch is not None])

    def observe_cluster(self, state: SchedulerState) -> ClusterObserver:
        """One of each part."""
        found = (part.observe_cluster(state) for part in self._parts)
        return ClusterObservers([each for each in found if each is not None])

    def take(self, headers: bytes) -> None:
        """What a collector wants to see came in a call."""
        self.settings = self.settings.with_headers(msgspec.msgpack.decode(headers, type=Headers))
        for part in self._parts:
            part.take(self.settings)

    def readings(self) -> bytes:
        """What is known here in numbers."""
        return self.metrics.readings() if self.metrics is not None else b""

    def close(self) -> None:
        """Let out what waits. All at once, since each may wait for a collector that does not answer."""
        closing = [threading.Thread(target=_close, args=(part,), daemon=True) for part in self._parts]
        for each in closing:
            each.start()
        for each in closing:
            each.join()


def _close(part: TelemetryPart) -> None:
    try:
        part.close()
    except Exception:  # nothing of the job may hang on it
        _log.exception("%s did not end well", type(part).__name__)


def assembled(
    settings: TelemetrySettings, environ: Mapping[str, str], counts: bool = False, node: str = ""
) -> Telemetry:
    """The telemetry of this process; nobody, where it is switched off. ``counts``: somebody will ask for readings.
    ``node``: where it is, among several."""
    for line in settings.problems:
        _log.warning("%s", line)
    traces = TraceTelemetry(settings, node) if settings.traces.exporters else None
    sampled = traces.sampled if traces is not None else nobody
    # before traces: an attempt's trace is asked for while it is under way there
    parts: list[TelemetryPart] = [LogTelemetry(sampled)]
    if "otlp" in settings.logs.exporters and "otlp" in environ.get("OTEL_LOGS_EXPORTER", "").lower():
        from actors.observability.logs.otlp_export import LogExports

        parts.append(LogExports(settings, {}))
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
            exports_of,  # not before somebody wants it: it takes long to import
        )

        return [*exports_of(settings, read, environ)]

    return begin


def of_process(role: str, node: str) -> Telemetry:
    """The telemetry of an actor's process, on this node. No headers stay in its environment: one may hold a key."""
    settings = TelemetrySettings.from_environ(os.environ) if role in WATCHED else None
    for name in HEADERS:
        os.environ.pop(name, None)
    return assembled(settings, os.environ, counts=True, node=node) if settings is not None else NullObserver()


async def hand_over(peer: Peer, environ: Mapping[str, str], cluster: str) -> None:
    """Give the cortex of a cluster of this user's own, and so its channels, what the user's collector wants to see. In
    other clusters their own environment counts."""
    if cluster == "local" and (headers := TelemetrySettings.from_environ(environ).headers()):
        await peer.ask("observe", msgspec.msgpack.encode(headers))


def of_environ(environ: Mapping[str, str], counts: bool = False) -> Telemetry:
    """The telemetry of a run in this process."""
    return assembled(TelemetrySettings.from_environ(environ), environ, counts)


WATCHED = frozenset({"channel", "cortex"})
"""Roles whose processes tell of themselves."""
