"""Telemetry collector in this process: receives OTLP over HTTP or gRPC, decoded with OTLP's own classes."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from actors.observability.logs import otlp_export as logs_export
from actors.observability.metrics import otlp_export as metrics_export
from actors.observability.metrics import registry
from actors.observability.traces.export_queue import ExportQueue
from tests.support.patience import PATIENCE_S


class Received:
    """Spans as received, each with the attributes of its resource, and requests as bytes."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.requests: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    def take(self, blob: bytes, headers: dict[str, str], path: str = "") -> None:
        """Receive a request; metrics and logs, identified by their path, are not decoded."""
        self.requests.append(blob)
        self.headers.append(headers)
        self.paths.append(path)
        if not path.endswith(("/metrics", "/logs")):
            self._take(trace_service_pb2.ExportTraceServiceRequest.FromString(blob))

    def _take(self, request: Any) -> None:
        for resource_spans in request.resource_spans:
            self.resources.append(values(resource_spans.resource.attributes))
            for scope_spans in resource_spans.scope_spans:
                self.spans += scope_spans.spans

    def read(self, path: Path) -> Received:
        """Read the lines of a file of the state folder."""
        for line in path.read_bytes().splitlines():
            request = trace_service_pb2.ExportTraceServiceRequest()
            json_format.Parse(_ids_as_base64(line), request)
            self._take(request)
        return self

    @property
    def traces(self) -> dict[bytes, list[Span]]:
        """Spans by trace id. A span that came twice counts once, and must be equal both times."""
        found: dict[bytes, dict[bytes, Span]] = defaultdict(dict)
        for span in self.spans:
            before = found[span.trace_id].setdefault(span.span_id, span)
            assert before == span, f"told twice, and differently:\n{before}\n{span}"
        return {trace: list(spans.values()) for trace, spans in found.items()}

    def named(self, name: str) -> list[Span]:
        """Return spans whose name has this prefix."""
        return [span for spans in self.traces.values() for span in spans if span.name.startswith(name)]


def _ids_as_base64(line: bytes) -> bytes:
    """Convert the ids in OTLP's JSON from hex to the base64 of protobuf's mapping."""
    import base64
    import re

    def turned(found: re.Match[bytes]) -> bytes:
        return found[1] + base64.b64encode(bytes.fromhex(found[2].decode())) + b'"'

    return re.sub(rb'("(?:traceId|spanId|parentSpanId)":")([0-9a-f]+)"', turned, line)


def value(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(one) for one in any_value.array_value.values]
    return getattr(any_value, kind)


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dict."""
    return {one.key: value(one.value) for one in attributes}


def attributes(span: Span) -> dict[str, Any]:
    return values(span.attributes)


def closing_waits() -> contextlib.ExitStack:
    """Let the end of a job wait for a collector that answers, however busy the machine is: after three seconds it would
    leave without the last spans and samples.
    """
    patient = contextlib.ExitStack()
    patient.enter_context(mock.patch.object(ExportQueue.flush, "__defaults__", (PATIENCE_S,)))
    for module, name, most in (
        (metrics_export, "CLOSE_S", PATIENCE_S), (registry, "READ_S", PATIENCE_S),
        (logs_export, "CLOSE_MS", 1_000 * PATIENCE_S),
    ):  # fmt: skip
        patient.enter_context(mock.patch.object(module, name, most))
    return patient


class HttpCollector(Received):
    """Collector of OTLP over HTTP on its own port. ``status``: status of its responses."""

    def __init__(self, port: int = 0, status: int = 200) -> None:
        super().__init__()
        self.status = status
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                blob = self.rfile.read(int(self.headers["content-length"]))
                if outer.status == 200:
                    outer.take(blob, {k.lower(): v for k, v in self.headers.items()}, self.path)
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *told: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint}

    def __enter__(self) -> HttpCollector:
        self._patient = closing_waits()
        self._thread.start()
        return self

    def __exit__(self, *told: object) -> None:
        self._patient.close()
        self._server.shutdown()
        self._server.server_close()


class GrpcCollector(Received):
    """Collector of OTLP over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        outer = self

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                headers = {str(k): str(v) for k, v in context.invocation_metadata()}
                outer.take(request.SerializeToString(), headers)
                return trace_service_pb2.ExportTraceServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}

    def __enter__(self) -> GrpcCollector:
        self._patient = closing_waits()
        self._server.start()
        return self

    def __exit__(self, *told: object) -> None:
        self._patient.close()
        self._server.stop(None).wait()


def well_formed(received: Received) -> None:
    """Assert what holds of all traces: no orphan, one root a trace, within bounds, in time."""
    for trace_id, spans in received.traces.items():
        assert len(trace_id) == 16 and any(trace_id)
        assert len(spans) <= 1_000, f"{len(spans)} spans in one trace"
        ids = {span.span_id: span for span in spans}
        roots = [span for span in spans if not span.parent_span_id]
        orphans = [span.name for span in spans if span.parent_span_id and span.parent_span_id not in ids]
        assert not orphans, f"orphans {orphans} in a trace of {[span.name for span in spans]}"
        assert len(roots) == 1, [span.name for span in roots]
        assert sum(span.ByteSize() for span in spans) < 5_000_000
        for span in spans:
            assert len(span.span_id) == 8 and any(span.span_id)
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
            assert len(span.links) <= 128
            facts = attributes(span)
            assert facts["cortex.job.id"] and facts["session.id"], span
