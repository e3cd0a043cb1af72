"""Telemetry settings of this process, read once from the standard `OTEL_*` variables.

See https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and, for OTLP,
https://opentelemetry.io/docs/specs/otel/protocol/exporter/. By default spans are kept in the state folder. Headers may
hold a key: they are passed on in a call, never in an environment, and are never printed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from actors.providers.credentials.credential import without_password

FILE: Final = "file"
"""Cortex's own exporter name, beside the standard `otlp`, `console` and `none`: lines of OTLP JSON, in the state
folder."""
GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
SIGNALS: Final = ("traces", "metrics", "logs")
HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", *(f"OTEL_EXPORTER_OTLP_{name.upper()}_HEADERS" for name in SIGNALS))
"""Variables with headers, whose values may hold a key."""
SAMPLERS: Final = frozenset(
    {"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off",
     "parentbased_traceidratio"}
)  # fmt: skip
TIMEOUT_S: Final = 10.0
"""Default timeout of an export, in seconds, as in the standard."""
BATCH_SPANS: Final = 4_096
"""Default spans per export. The standard's default is 512; a request costs as much as the encoding of some hundred
spans."""
QUEUE_SPANS: Final = 32_768
"""Default capacity of the export queue, in spans. The standard's default is 2,048, for a program whose spans end one
by one; here the spans of a whole turn are queued at once."""
DELAY_S: Final = 1.0
"""Default seconds between two exports of spans. The standard's default is 5."""

CHARS_MAX: Final = 1 << 62
"""Default limit of a text in spans, in characters: none, as in the standard."""

_PORTS: Final = {GRPC: 4317, HTTP: 4318}
_EXPORTERS: Final = frozenset({"otlp", "console", "none", FILE, "prometheus"})
_CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURED: Final = {
    "": False, "false": False, "no_content": False, "event_only": False, "true": True, "span_only": True,
    "span_and_event": True,
}  # fmt: skip


def before_grpc() -> None:
    """Disable gRPC's fork handlers, unless the user has set ``GRPC_ENABLE_FORK_SUPPORT``. Call before gRPC is imported.

    With the handlers, a child that is forked while a channel is open sometimes dies before it has started
    (grpc/grpc#43055). Ray starts processes in this way, by ``preexec_fn``. No code of Cortex uses gRPC after a fork.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


class SignalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Export settings of one signal: traces, metrics or logs."""

    exporters: tuple[str, ...] = ()
    endpoint: str = ""
    """Complete URL; for HTTP with its path."""
    protocol: str = HTTP
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of each export. May hold a key."""
    timeout_s: float = TIMEOUT_S

    def __repr__(self) -> str:
        where = without_password(self.endpoint) or "-"
        return f"Signal({','.join(self.exporters) or 'none'}, {where}, {len(self.headers)} headers)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("settings", repr(self))]


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Telemetry settings of a process. Encodes with msgspec, for a call to another process."""

    traces: SignalSettings = SignalSettings()
    metrics: SignalSettings = SignalSettings()
    logs: SignalSettings = SignalSettings()
    service: str = "cortex"
    resource: tuple[tuple[str, str], ...] = ()
    """Resource attributes of this process, besides the service's name. They serve as a job's labels too."""
    sampler: str = ""
    """Name of a sampler among ``SAMPLERS``; empty (default): Cortex's own sampler."""
    ratio: float = 1.0
    """Share of traces that the ratio samplers keep, 0 to 1."""
    propagators: tuple[str, ...] = ()
    """Formats of the trace headers sent to the provider with each attempt. Default: none."""
    captures: bool = False
    """Whether prompts and replies may be recorded in spans."""
    chars_max: int = CHARS_MAX
    """Most characters of one text of a prompt or reply in spans."""
    batch_spans: int = BATCH_SPANS
    queue_spans: int = QUEUE_SPANS
    delay_s: float = DELAY_S
    """Most seconds between two exports of spans."""
    problems: tuple[str, ...] = ()
    """Variables with invalid values, one line each. An invalid variable is treated as unset."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> TelemetrySettings:
        """Return the settings in these variables. Never raises: as the standard demands, an invalid value is
        reported (``problems``) and ignored."""
        read = _VariableReader(environ)
        disabled = read.flag("OTEL_SDK_DISABLED")
        sampler = read.one_of("OTEL_TRACES_SAMPLER", SAMPLERS)
        resource = dict(read.pairs("OTEL_RESOURCE_ATTRIBUTES"))
        named = resource.pop("service.name", "")
        signals = {} if disabled else {name: _signal(read, name) for name in SIGNALS}
        propagators = () if disabled else read.words("OTEL_PROPAGATORS")
        return cls(
            **signals,
            service=read.text("OTEL_SERVICE_NAME") or named or "cortex",
            resource=tuple(resource.items()),
            sampler=sampler,
            ratio=read.number("OTEL_TRACES_SAMPLER_ARG", 1.0, 0.0, 1.0) if "ratio" in sampler else 1.0,
            propagators=tuple(name for name in propagators if name != "none"),
            captures=_captures(read),
            chars_max=_chars_max(read),
            batch_spans=int(read.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_SPANS, 1, 1e6)),
            queue_spans=int(read.number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_SPANS, 1, 1e7)),
            delay_s=read.number("OTEL_BSP_SCHEDULE_DELAY", 1000 * DELAY_S, 1, 1e9) / 1000,
            problems=tuple(read.problems),
        )

    def with_headers(self, headers: Mapping[str, tuple[tuple[str, str], ...]]) -> TelemetrySettings:
        """Return a copy with these headers, by signal, which came in a call."""
        changed = {name: msgspec.structs.replace(getattr(self, name), headers=headers[name]) for name in headers}
        return msgspec.structs.replace(self, **changed)

    def headers(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """Return the headers by signal, to be passed on in a call; signals without headers are left out."""
        return {name: found for name in SIGNALS if (found := getattr(self, name).headers)}


def _signal(read: _VariableReader, name: str) -> SignalSettings:
    upper = name.upper()

    def either(what: str) -> str:
        return read.text(f"OTEL_EXPORTER_OTLP_{upper}_{what}") or read.text(f"OTEL_EXPORTER_OTLP_{what}")

    protocol = either("PROTOCOL") or HTTP
    if protocol not in _PORTS:
        read.add_problem(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: give {HTTP} or {GRPC}")
        protocol = HTTP
    own, base = read.text(f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT"), read.text("OTEL_EXPORTER_OTLP_ENDPOINT")
    exporters = read.words(f"OTEL_{upper}_EXPORTER")
    for unknown in [each for each in exporters if each not in _EXPORTERS]:
        read.add_problem(f"OTEL_{upper}_EXPORTER names {unknown!r}: give {', '.join(sorted(_EXPORTERS))}")
    if not exporters:
        exporters = ("otlp",) if own or base else (FILE,) if name == "traces" else ()
    endpoint = base or f"http://localhost:{_PORTS[protocol]}"
    if protocol == HTTP:
        endpoint = f"{endpoint.rstrip('/')}/v1/{name}"
    header_name = f"OTEL_EXPORTER_OTLP_{upper}_HEADERS"
    headers = read.pairs(header_name) if read.text(header_name) else read.pairs(HEADERS[0])
    timeout_ms = f"OTEL_EXPORTER_OTLP_{upper}_TIMEOUT"
    timeout_ms = timeout_ms if read.text(timeout_ms) else "OTEL_EXPORTER_OTLP_TIMEOUT"
    return SignalSettings(
        exporters=tuple(each for each in exporters if each in _EXPORTERS - {"none"}),
        endpoint=own or endpoint, protocol=protocol, headers=tuple((key.lower(), value) for key, value in headers),
        timeout_s=read.number(timeout_ms, 1000 * TIMEOUT_S, 1, 1e9) / 1000,
    )  # fmt: skip


def _captures(read: _VariableReader) -> bool:
    text = read.text(_CAPTURE).lower()
    if text not in _CAPTURED:
        read.add_problem(f"{_CAPTURE} is {text!r}: give NO_CONTENT or SPAN_ONLY")
    return _CAPTURED.get(text, False)


def _chars_max(read: _VariableReader) -> int:
    """Return the limit of a span's texts: the variable of spans goes before the one of all signals."""
    own, common = (f"OTEL_{name}ATTRIBUTE_VALUE_LENGTH_LIMIT" for name in ("SPAN_", ""))
    return int(read.number(own if read.text(own) else common, CHARS_MAX, 1, CHARS_MAX))


class _VariableReader:
    """Reader of environment variables. Reports an invalid variable by name, and never shows what a header holds."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def add_problem(self, line: str) -> None:
        if line not in self.problems:
            self.problems.append(line)

    def text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word.strip().lower() for word in self.text(name).split(",") if word.strip()))

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            self.add_problem(f"{name} is {text!r}: give true or false")
        return text == "true"

    def one_of(self, name: str, known: frozenset[str]) -> str:
        text = self.text(name).lower()
        if text and text not in known:
            self.add_problem(f"{name} is {text!r}: give one of {', '.join(sorted(known))}")
            return ""
        return text

    def number(self, name: str, default: float, least: float, most: float) -> float:
        text = self.text(name)
        if not text:
            return default
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            self.add_problem(f"{name} is {text!r}: give a number from {least:g} to {most:g}")
            return default
        return found

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        for part in self.text(name).split(","):
            key, equals, value = part.partition("=")
            key = unquote(key).strip()
            if equals and key:
                found[key] = unquote(value).strip()
            elif part.strip():
                self.add_problem(f"{name}: a part is not KEY=VALUE: give KEY=VALUE,KEY=VALUE")
        return tuple(found.items())
