"""Spans as OTLP has them: protobuf for the wire, JSON for a file; https://github.com/open-telemetry/opentelemetry-proto.

Written by hand, since most of a span is what the one before it said, too: an attribute that was seen is not encoded
again. So a span takes about 5 us; by way of the SDK's span objects and their encoder it takes ten times as long. Tests
read what is written here with the classes that are generated from OTLP's own definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec

from actors.telemetry import Attributes, Told, Value
from cortex import __version__

SCOPE = "cortex"
SAMPLED = 0x101
"""W3C flags of a span: it is recorded, and whether its parent is another process's is known."""
REMOTE = 0x200
ERROR = 2
KNOWN_MAX = 4_096
"""Attributes that are kept encoded."""

_times = Struct("<BQBQ").pack
_fixed32 = Struct("<BBI").pack
_double = Struct("<Bd").pack


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    said = bytearray()
    number &= 0xFFFFFFFFFFFFFFFF
    while number >= 0x80:
        said.append(number & 0x7F | 0x80)
        number >>= 7
    said.append(number)
    return bytes(said)


def field(tag: bytes, content: bytes) -> bytes:
    """A field of a length: text, bytes, or a message inside. ``tag``: its number and type, encoded."""
    length = len(content)
    return tag + (bytes((length,)) if length < 0x80 else _varint(length)) + content


def _any(value: Value) -> bytes:
    if isinstance(value, str):
        return field(b"\x0a", value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value)
    if isinstance(value, float):
        return _double(0x21, value)
    return field(b"\x2a", b"".join(field(b"\x0a", _any(one)) for one in value))


def attribute(key: str, value: Value) -> bytes:
    """A ``KeyValue``."""
    return field(b"\x0a", key.encode()) + field(b"\x12", _any(value))


class Encoder:
    """Requests to a collector. ``resource``: attributes of the process that tells."""

    def __init__(self, resource: Attributes) -> None:
        self._known: dict[tuple[str, Value], bytes] = {}
        self._resource = field(b"\x0a", b"".join(field(b"\x0a", attribute(*one)) for one in resource))
        self._scope = field(b"\x0a", field(b"\x0a", SCOPE.encode()) + field(b"\x12", __version__.encode()))
        self._said = {"attributes": [_key_value(*one) for one in resource]}

    def span(self, told: Told) -> bytes:
        """A span, as a field of its ``ScopeSpans``."""
        known = self._known
        said = [
            b"\x0a\x10", told.trace_id.to_bytes(16, "big"), b"\x12\x08", told.span_id.to_bytes(8, "big"),
            b"\x22\x08" + told.parent_id.to_bytes(8, "big") if told.parent_id else b"",
            field(b"\x2a", told.name.encode(errors="replace")),
            b"\x30", bytes((told.kind,)), _times(0x39, told.begin_ns, 0x41, told.end_ns),
        ]  # fmt: skip
        for pair in told.attributes:
            blob = known.get(pair)
            if blob is None:
                blob = field(b"\x4a", attribute(*pair))
                if len(known) >= KNOWN_MAX:
                    known.clear()
                if len(blob) < 200:
                    known[pair] = blob
            said.append(blob)
        for trace_id, span_id in told.links:
            link = b"\x0a\x10" + trace_id.to_bytes(16, "big") + b"\x12\x08" + span_id.to_bytes(8, "big")
            said.append(field(b"\x6a", link + _link_flags))
        if told.failed:
            said.append(_error)
        said.append(_remote_flags if told.remote else _flags)
        return field(b"\x12", b"".join(said))

    def request(self, spans: Iterable[bytes]) -> bytes:
        """An ``ExportTraceServiceRequest``."""
        scope_spans = field(b"\x12", self._scope + b"".join(spans))
        return field(b"\x0a", self._resource + scope_spans)

    def line(self, spans: Sequence[Told]) -> bytes:
        """The same as a line of JSON."""
        scope = {"name": SCOPE, "version": __version__}
        scope_spans = [{"scope": scope, "spans": [json_span(told) for told in spans]}]
        return msgspec.json.encode({"resourceSpans": [{"resource": self._said, "scopeSpans": scope_spans}]}) + b"\n"


_flags = _fixed32(0x85, 0x01, SAMPLED)
_remote_flags = _fixed32(0x85, 0x01, SAMPLED | REMOTE)
_link_flags = Struct("<BI").pack(0x35, SAMPLED)
_error = field(b"\x7a", b"\x18\x02")


def json_span(told: Told) -> dict[str, Any]:
    """A span as OTLP's JSON has it: ids in hex, times as text."""
    said: dict[str, Any] = {"traceId": f"{told.trace_id:032x}", "spanId": f"{told.span_id:016x}"}
    if told.parent_id:
        said["parentSpanId"] = f"{told.parent_id:016x}"
    said |= {
        "name": told.name, "kind": told.kind, "startTimeUnixNano": str(told.begin_ns),
        "endTimeUnixNano": str(told.end_ns), "attributes": [_key_value(*one) for one in told.attributes],
    }  # fmt: skip
    if told.links:
        said["links"] = [
            {"traceId": f"{trace:032x}", "spanId": f"{span:016x}", "flags": SAMPLED} for trace, span in told.links
        ]
    if told.failed:
        said["status"] = {"code": ERROR}
    said["flags"] = SAMPLED | REMOTE if told.remote else SAMPLED
    return said


def _key_value(key: str, value: Value) -> dict[str, Any]:
    return {"key": key, "value": _json_any(value)}


def _json_any(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [_json_any(one) for one in value]}}
