"""Checks of the telemetry endpoints: does a collector accept exports?"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator

import aiohttp

from actors.cluster.bootstrap import speaks_http2
from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.doctor.connection_probe import host_port, reason
from actors.observability.base.settings import GRPC, SIGNALS, SignalSettings, TelemetrySettings
from actors.providers.credentials.credential import without_password

_DO = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; runs work without a collector"


def telemetry(asked: DoctorOptions) -> Iterator[Finding]:
    """Check each endpoint of the ``OTEL_*`` variables."""
    settings = TelemetrySettings.from_environ(asked.environ)
    for line in settings.problems:
        yield warning("telemetry", line, "correct that variable: its value is ignored")
    seen: set[str] = set()
    dead: set[tuple[str, int]] = set()
    for name in SIGNALS:
        signal: SignalSettings = getattr(settings, name)
        if "otlp" not in signal.exporters or signal.endpoint in seen or _where(signal) in dead:
            continue
        seen.add(signal.endpoint)
        try:
            yield _grpc(signal, asked) if signal.protocol == GRPC else asyncio.run(_http(name, signal, asked))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            dead.add(_where(signal))
            why = reason(getattr(error, "os_error", None) or error)
            yield wrong("telemetry", f"{without_password(signal.endpoint)}: no answer: {why}", _DO)
    if not seen:
        yield ok("telemetry", "no endpoint is set: nothing is sent")


def _where(signal: SignalSettings) -> tuple[str, int]:
    return host_port(signal.endpoint if "://" in signal.endpoint else f"http://{signal.endpoint}")


def _grpc(signal: SignalSettings, asked: DoctorOptions) -> Finding:
    shown = without_password(signal.endpoint)
    url = signal.endpoint if "://" in signal.endpoint else f"http://{signal.endpoint}"
    with socket.create_connection(host_port(url), asked.timeout_s) as line:
        line.settimeout(asked.timeout_s)
        if url.startswith("https:"):
            context = ssl.create_default_context()
            context.set_alpn_protocols(["h2"])
            line = context.wrap_socket(line, server_hostname=host_port(url)[0])
        with line:
            speaks = speaks_http2(line)
    if not speaks:
        text = f"{shown} does not speak gRPC: another service listens there"
        return wrong("telemetry", text, "4317 is the usual port of gRPC, 4318 that of http/protobuf")
    return ok("telemetry", f"{shown} speaks gRPC")


async def _http(name: str, signal: SignalSettings, asked: DoctorOptions) -> Finding:
    """Check an endpoint with an empty export, which a collector accepts and discards."""
    shown = without_password(signal.endpoint)
    headers = {**dict(signal.headers), "content-type": "application/x-protobuf"}
    timeout = aiohttp.ClientTimeout(total=asked.timeout_s)
    async with (
        aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
        session.post(signal.endpoint, data=b"", headers=headers, allow_redirects=False) as answer,
    ):
        status = answer.status
    if status in (401, 403):
        do = "correct OTEL_EXPORTER_OTLP_HEADERS: it holds the collector's key"
        return wrong("telemetry", f"{shown} refuses {name} with HTTP {status}", do)
    if not 200 <= status < 300:
        do = f"check what listens there: {name} over HTTP go to a path like /v1/{name}"
        return wrong("telemetry", f"{shown} refuses {name} with HTTP {status}", do)
    return ok("telemetry", f"{shown} accepts {name}")
