"""Span exporters: OTLP over HTTP or gRPC to a collector; lines of JSON in the state folder or on standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from actors.common.errors import UserError
from actors.common.tolerant_stream import tolerant
from actors.observability.base.settings import FILE, GRPC, SignalSettings, before_grpc
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.providers.credentials.credential import without_password

FILE_BYTES_MAX = 32_000_000
"""Most bytes of one job's spans in the current file; the file before it holds as many again."""
REQUEST_BYTES_MAX = 3_500_000
"""Most bytes in one request. Collectors accept 4 MB in one gRPC message by default."""
OLDER = ".1.jsonl"
"""Suffix of the previous file."""
EXTRA = "pip install 'cortex-bounded-calls[otlp-grpc]'"


class ExporterError(UserError):
    """Exporter that cannot be created, for want of a package. The message is one line."""


class SpanBatch(NamedTuple):
    """Encoded spans of one job: for the wire and for a file, as far as each is needed."""

    job: str
    folder: str
    wire: list[bytes]
    lines: list[bytes]


class SpanExporter(Protocol):
    """Destination of spans. Called by one thread."""

    name: str

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Deliver the batches. Returns an empty text, or the reason of a failure in one line. May take as long as
        its timeout."""

    def close(self) -> None:
        """Release connections. No export follows."""


def exporters(signal: SignalSettings, encoder: OtlpEncoder) -> list[SpanExporter]:
    """Return the exporters named in the settings. Raises ``ExporterError`` if a package is missing."""
    made: list[SpanExporter] = []
    for name in signal.exporters:
        if name == FILE:
            made.append(FileExporter(encoder))
        elif name == "console":
            made.append(ConsoleExporter(encoder))
        elif name == "otlp":
            made.append(CollectorExporter(signal, encoder))
    return made


def prepare(signal: SignalSettings) -> None:
    """Import the SDK's exporter before there is anything to send: the import takes 0.1 s, and calls in flight would
    wait for it."""
    if "otlp" in signal.exporters:
        with contextlib.suppress(ImportError):  # reported by the first export
            import_module(f"opentelemetry.exporter.otlp.proto.{signal.protocol.partition('/')[0]}.trace_exporter")


class ConsoleExporter:
    """Exporter of lines of JSON to standard error: standard output is for results."""

    name = "console"

    def __init__(self, encoder: OtlpEncoder) -> None:
        self._encoder = encoder

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Print the batches. Never fails."""
        stream = tolerant(sys.stderr)
        for batch in batches:
            stream.write(self._encoder.line(batch.lines).decode())
        return ""

    def close(self) -> None:
        """Do nothing: the exporter holds nothing."""


def traces_path(folder: str | Path, job: str) -> Path:
    """Return the path of a job's spans."""
    return Path(folder) / "traces" / f"{job}.jsonl"


def traces_of(folder: str | Path, job: str) -> list[Path]:
    """Return the paths of all files that a job's spans may be in."""
    path = traces_path(folder, job)
    return [path, path.with_suffix(OLDER)]


class FileExporter:
    """Exporter to one file a job, below the state folder, readable by its user alone. A full file is renamed, and a
    new one begun."""

    name = FILE

    def __init__(self, encoder: OtlpEncoder) -> None:
        self._encoder = encoder

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Append a line for each batch. Returns the reason of a failure."""
        try:
            for batch in batches:
                self._append(traces_path(batch.folder, batch.job), self._encoder.line(batch.lines))
        except OSError as error:
            return f"{error.strerror or error}"
        return ""

    def _append(self, path: Path, line: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line  # the previous writer was killed within a line
            os.write(handle, line)
        finally:
            os.close(handle)
        if size + len(line) > FILE_BYTES_MAX:
            path.replace(path.with_suffix(OLDER))

    def close(self) -> None:
        """Do nothing: the file is closed after each export."""


class CollectorExporter:
    """OTLP exporter with OpenTelemetry's transports, their retries and TLS; the bytes are encoded by Cortex."""

    def __init__(self, signal: SignalSettings, encoder: OtlpEncoder) -> None:
        self.name = without_password(signal.endpoint)
        self._encoder = encoder
        self._headers = tuple(value for _, value in signal.headers)
        self._log_filter = _ExporterLogFilter()
        self._send, self._close = (_over_grpc if signal.protocol == GRPC else _over_http)(signal)
        self._log_filter.listen()

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Send the batches in one request, or in several if it would exceed ``REQUEST_BYTES_MAX``."""
        blobs: list[bytes] = []
        size, text = 0, ""
        for batch in batches:
            for blob in batch.wire:
                if size + len(blob) > REQUEST_BYTES_MAX and blobs:
                    text = text or self._sent(blobs)
                    blobs, size = [], 0
                blobs.append(blob)
                size += len(blob)
        return text or self._sent(blobs)

    def _sent(self, blobs: list[bytes]) -> str:
        self._log_filter.thread, self._log_filter.last = threading.get_ident(), ""
        try:
            went = self._send(self._encoder.request(blobs))
        except Exception as error:  # any error that a transport raises
            went, self._log_filter.last = False, f"{type(error).__name__}: {error}"
        if went:
            return ""
        text = self._log_filter.last or "the collector refused the request"
        for value in self._headers:
            text = text.replace(value, "[redacted]") if value else text
        return " ".join(text.split())[:300]

    def close(self) -> None:
        """Close the connections."""
        self._close()
        self._log_filter.forget()


class _ExporterLogFilter(logging.Filter):
    """Log filter that captures what OpenTelemetry's exporters log in the exporting thread. The export queue reports
    a failure once, not at every export."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = 0
        self.last = ""
        self._loggers: list[logging.Logger] = []

    def listen(self) -> None:
        names = [
            name for name in logging.root.manager.loggerDict if name.startswith(("opentelemetry.exporter", "urllib3"))
        ]
        self._loggers = [logging.getLogger(name) for name in names]
        for logger in self._loggers:
            logger.addFilter(self)

    def forget(self) -> None:
        for logger in self._loggers:
            logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.last = record.getMessage()
        return False


Send = Callable[[bytes], bool]


def _over_http(signal: SignalSettings) -> tuple[Send, Callable[[], None]]:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ExporterError(
            f"OTLP over HTTP lacks a package ({error.name}): install cortex-bounded-calls again"
        ) from None
    exporter = OTLPSpanExporter(signal.endpoint, headers=dict(signal.headers), timeout=signal.timeout_s)

    def send(request: bytes) -> bool:
        return bool(exporter._client.export(request).success)

    return send, exporter.shutdown


def _over_grpc(signal: SignalSettings) -> tuple[Send, Callable[[], None]]:
    before_grpc()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ExporterError(f"OTLP over gRPC needs an extra: {EXTRA}") from None
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Exporter(OTLPSpanExporter):
        """OTLP exporter whose requests are encoded already."""

        def _translate_data(self, data: Any) -> Any:
            return ExportTraceServiceRequest.FromString(data)

    exporter = Exporter(
        endpoint=signal.endpoint, insecure=not signal.endpoint.startswith("https:"), headers=dict(signal.headers),
        timeout=signal.timeout_s,
    )  # fmt: skip

    def send(request: bytes) -> bool:
        return exporter._export(request) is SpanExportResult.SUCCESS  # type: ignore[arg-type]

    return send, exporter.shutdown
