"""Export of log records to a collector: where an endpoint is set, unless ``OTEL_LOGS_EXPORTER=none``.

Exports the records that go to standard error, with their fields as attributes; records of operators' actions have an
event name. The records wait in a bounded queue of the SDK's, which drops the oldest while the collector is down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource

from actors.observability.base.settings import GRPC, SignalSettings, TelemetrySettings, before_grpc
from actors.observability.logs.formatting import FIELDS, OURS, envelope, facts, redaction
from actors.providers.credentials.credential import without_password
from cortex import __version__

_SEVERITY: Final = {
    logging.DEBUG: SeverityNumber.DEBUG, logging.INFO: SeverityNumber.INFO, logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR, logging.CRITICAL: SeverityNumber.FATAL,
}  # fmt: skip
CLOSE_MS: Final = 3_000
"""Most milliseconds that closing waits for queued records to be sent."""
_log = logging.getLogger("cortex.observing.logs")
_SILENT: Final = "cortex.observing"
"""Logger prefix of records about telemetry itself, which are not exported."""


def exporter_of(signal: SignalSettings) -> LogRecordExporter:
    """Return the SDK's exporter for the signal's protocol."""
    given: dict[str, Any] = {"endpoint": signal.endpoint, "headers": dict(signal.headers), "timeout": signal.timeout_s}
    if signal.protocol == GRPC:
        before_grpc()
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as Grpc

        return Grpc(**given)
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as Http

    return Http(**given)


class _OutageExporter(LogRecordExporter):
    """Exporter that reports an unreachable collector once, in place of the SDK exporter's own line for every try."""

    def __init__(self, make: Callable[[], LogRecordExporter], where: str) -> None:
        self._make, self._where = make, where
        self._exporter: LogRecordExporter | None = None
        self._down = self._closed = False
        self._thread = 0
        for name in ("http._log_exporter", "grpc.exporter"):
            logging.getLogger(f"opentelemetry.exporter.otlp.proto.{name}").addFilter(self._others)

    def _others(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread

    def export(self, batch: Any) -> LogRecordExportResult:
        """Send the records. Never raises; returns FAILURE instead."""
        self._thread = threading.get_ident()
        try:
            self._exporter = self._exporter or self._make()
            found = self._exporter.export(batch)
        except Exception:
            found = LogRecordExportResult.FAILURE
        well = found is LogRecordExportResult.SUCCESS
        if not well:
            self._log_down()
        self._down = not well
        return found

    def give_up(self) -> None:
        """Report that the records left are dropped. A later end of the request in flight is not logged."""
        self._log_down()
        self._closed = True

    def _log_down(self) -> None:
        if not (self._down or self._closed):
            _log.warning("log records do not reach %s: they are dropped", self._where)

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        """Return True: this exporter holds nothing."""
        return True

    def shutdown(self) -> None:
        """Shut down the SDK's exporter, if it was created."""
        if self._exporter is not None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


class OtlpLogHandler(logging.Handler):
    """Handler that emits records to OpenTelemetry, in the envelope of this process."""

    def __init__(self, settings: TelemetrySettings, make: Callable[[], LogRecordExporter]) -> None:
        super().__init__()
        resource = Resource.create({**dict(settings.resource), "service.name": settings.service})
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        where = without_password(settings.logs.endpoint)
        self._exporter = _OutageExporter(make, where)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(self._exporter))
        self._logger = self._provider.get_logger(OURS, __version__)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record for export."""
        if record.name.startswith(_SILENT):
            return
        try:
            found = facts(record, envelope())
            event = str(getattr(record, FIELDS, {}).get("event", "")) or None
            attributes = {
                _named(name): value if isinstance(value, (str, int, float, bool)) else redaction(str(value))
                for name, value in found.items() if name not in ("time", "level", "message", "event")
            }  # fmt: skip
            self._logger.emit(
                LogRecord(
                    timestamp=int(record.created * 1e9), severity_text=record.levelname,
                    severity_number=_SEVERITY.get(record.levelno, SeverityNumber.UNSPECIFIED),
                    body=redaction(record.getMessage()), attributes=attributes,
                    event_name=f"cortex.{event}" if event else None,
                )
            )  # fmt: skip
        except Exception:  # a failure to log must not fail the job
            self.handleError(record)

    def close(self) -> None:
        """Send the queued records, in at most ``CLOSE_MS``."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_MS / 1000)
        if closing.is_alive():  # a daemon thread: it ends with the process
            self._exporter.give_up()
        super().close()


def _named(name: str) -> str:
    return {"job": "cortex.job.id", "logger": "log.logger"}.get(name, f"cortex.{name}")


class LogExports:
    """Part of a process's telemetry that exports logs."""

    def __init__(self, settings: TelemetrySettings) -> None:
        self._settings = settings
        self._handler = OtlpLogHandler(settings, lambda: exporter_of(self._settings.logs))
        ours = logging.getLogger(OURS)
        ours.addHandler(self._handler)
        ours.setLevel(min(ours.level or logging.WARNING, logging.INFO))

    def watch(self, job: str, folder: str) -> None:
        """Return None: the log handler exports the records of every job."""
        return

    def observe_cluster(self, state: object) -> None:
        """Return None: the log handler exports the records about the cluster."""
        return

    def take(self, settings: TelemetrySettings) -> None:
        """Replace the settings; the copy has headers."""
        self._settings = settings

    def close(self) -> None:
        """Remove the handler and send the queued records."""
        logging.getLogger(OURS).removeHandler(self._handler)
        self._handler.close()
