"""Where spans go: a collector, by OTLP over HTTP or gRPC; lines of JSON, in the state folder or on standard error."""

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
from actors.observability.base.settings import FILE, GRPC, SignalSettings, before_grpc
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.providers.credentials.credential import without_password

FILE_BYTES_MAX = 32_000_000
"""Of one job's spans in the state folder; as many again in the file before it."""
REQUEST_BYTES_MAX = 3_500_000
"""Collectors take 4 MB in one gRPC message, unless told otherwise."""
OLDER = ".1.jsonl"
"""What the file before it ends in."""
EXTRA = "pip install 'cortex-bounded-calls[otlp-grpc]'"


class ExporterError(UserError):
    """Spans cannot go where they were to go. The message is one clear line."""


class SpanBatch(NamedTuple):
    """Spans of one job, encoded already: for the wire, and for a file, as far as there is need of either."""

    job: str
    folder: str
    wire: list[bytes]
    lines: list[bytes]


class SpanExporter(Protocol):
    """One place that spans go to. Called by one thread."""

    name: str

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Deliver them. Empty where that went well, else why not, in a line. May take as long as its timeout."""

    def close(self) -> None:
        """No more will come."""


def exporters(signal: SignalSettings, encoder: OtlpEncoder) -> list[SpanExporter]:
    """Those that the settings name. Raises ``ExporterError`` where one lacks its package."""
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
    """Import what sends, before there is anything to send: it takes a tenth of a second, and calls that are under way
    would have to wait for it."""
    if "otlp" in signal.exporters:
        with contextlib.suppress(ImportError):  # it is told of when there is something to send
            import_module(f"opentelemetry.exporter.otlp.proto.{signal.protocol.partition('/')[0]}.trace_exporter")


class ConsoleExporter:
    """Lines on standard error: standard output is for results."""

    name = "console"

    def __init__(self, encoder: OtlpEncoder) -> None:
        self._encoder = encoder

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Print them."""
        for batch in batches:
            sys.stderr.write(self._encoder.line(batch.lines).decode())
        return ""

    def close(self) -> None:
        """Nothing is held."""


def traces_path(folder: str | Path, job: str) -> Path:
    """Where the spans of a job are kept."""
    return Path(folder) / "traces" / f"{job}.jsonl"


def traces_of(folder: str | Path, job: str) -> list[Path]:
    """All files that the spans of a job may be in."""
    path = traces_path(folder, job)
    return [path, path.with_suffix(OLDER)]


class FileExporter:
    """A file a job, below the state folder, for its user alone. When it is full it makes room for another."""

    name = FILE

    def __init__(self, encoder: OtlpEncoder) -> None:
        self._encoder = encoder

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """Append them, a line a batch."""
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
                line = b"\n" + line  # whoever wrote before was killed within a line
            os.write(handle, line)
        finally:
            os.close(handle)
        if size + len(line) > FILE_BYTES_MAX:
            path.replace(path.with_suffix(OLDER))

    def close(self) -> None:
        """Nothing is held open."""


class CollectorExporter:
    """OTLP, by the exporters of OpenTelemetry: their retries, their TLS; the bytes are ours."""

    def __init__(self, signal: SignalSettings, encoder: OtlpEncoder) -> None:
        self.name = without_password(signal.endpoint)
        self._encoder = encoder
        self._headers = tuple(value for _, value in signal.headers)
        self._log_filter = _ExporterLogFilter()
        self._send, self._close = (_over_grpc if signal.protocol == GRPC else _over_http)(signal)
        self._log_filter.listen()

    def export(self, batches: Sequence[SpanBatch]) -> str:
        """One request, or several where it would be too large."""
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
        except Exception as error:  # whatever a transport raises
            went, self._log_filter.last = False, f"{type(error).__name__}: {error}"
        if went:
            return ""
        text = self._log_filter.last or "it was refused"
        for value in self._headers:
            text = text.replace(value, "[redacted]") if value else text
        return " ".join(text.split())[:300]

    def close(self) -> None:
        """Close its connections."""
        self._close()
        self._log_filter.forget()


class _ExporterLogFilter(logging.Filter):
    """What OpenTelemetry's exporters log in our thread: it is said once, by us, and not with every export."""

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
        """Takes a request that is encoded already."""

        def _translate_data(self, data: Any) -> Any:
            return ExportTraceServiceRequest.FromString(data)

    exporter = Exporter(
        endpoint=signal.endpoint, insecure=not signal.endpoint.startswith("https:"), headers=dict(signal.headers),
        timeout=signal.timeout_s,
    )  # fmt: skip

    def send(request: bytes) -> bool:
        return exporter._export(request) is SpanExportResult.SUCCESS  # type: ignore[arg-type]

    return send, exporter.shutdown
