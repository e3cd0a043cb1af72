"""OTLP encoding of spans: protobuf for the wire, JSON for a file;
https://github.com/open-telemetry/opentelemetry-proto.

Written by hand, since most of a span repeats the span before it: an attribute that was encoded once is taken from a
cache. A span takes about 5 us; with the SDK's span objects and their encoder it takes ten times as long. Tests read
these encodings with the classes generated from OTLP's own definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec

from actors.observability.base.conventions import Attributes, SpanText, Value
from cortex import __version__

SCOPE = "cortex"
SAMPLED = 0x101
"""W3C flags of a span: the span is recorded, and whether its parent belongs to another process is known."""
REMOTE = 0x200
"""Flag of a span whose parent belongs to another process."""
ERROR = 2
KNOWN_MAX = 4_096
"""Most encoded attributes kept."""

_times = Struct("<BQBQ").pack
_fixed32 = Struct("<BBI").pack
_double = Struct("<Bd").pack


def varint(number: int) -> bytes:
    """Return a number as a protobuf varint: seven bits a byte, the lowest first."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:  # most numbers are small
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    data = bytearray()
    number &= 0xFFFFFFFFFFFFFFFF
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def field(tag: bytes, content: bytes) -> bytes:
    """Return a length-delimited field: text, bytes or an embedded message. ``tag``: encoded number and wire type."""
    length = len(content)
    return tag + (bytes((length,)) if length < 0x80 else varint(length)) + content


def _any(value: Value) -> bytes:
    if isinstance(value, str):
        return field(b"\x0a", value.encode(errors="replace"))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + varint(value)
    if isinstance(value, float):
        return _double(0x21, value)
    return field(b"\x2a", b"".join(field(b"\x0a", _any(one)) for one in value))


def attribute(key: str, value: Value) -> bytes:
    """Return a ``KeyValue`` message."""
    return field(b"\x0a", key.encode()) + field(b"\x12", _any(value))


def link(trace_id: int, span_id: int) -> bytes:
    """Return the field of a span's link."""
    return field(
        b"\x6a", b"\x0a\x10" + trace_id.to_bytes(16, "big") + b"\x12\x08" + span_id.to_bytes(8, "big") + _link_flags
    )


class OtlpEncoder:
    """Encoder of requests to a collector and of lines of a file. ``resource``: attributes of this process."""

    def __init__(self, resource: Attributes) -> None:
        self._known: dict[tuple[str, Value], bytes] = {}
        self._known_json: dict[tuple[str, Value], bytes] = {}
        self._resource = field(b"\x0a", b"".join(field(b"\x0a", attribute(*one)) for one in resource))
        self._scope = field(b"\x0a", field(b"\x0a", SCOPE.encode()) + field(b"\x12", __version__.encode()))
        facts = {"attributes": [_key_value(*one) for one in resource]}
        scope = {"name": SCOPE, "version": __version__}
        self._line = (
            b'{"resourceSpans":[{"resource":'
            + _json(facts)
            + b',"scopeSpans":[{"scope":'
            + _json(scope)
            + b',"spans":['
        )

    def span(self, entries: SpanText) -> bytes:
        """Return a span, as a field of its ``ScopeSpans``."""
        trace_id, span_id, parent_id, _, _, begin_ns, end_ns, *_ = entries
        parts = [
            b"\x0a\x10", trace_id.to_bytes(16, "big"), b"\x12\x08", span_id.to_bytes(8, "big"),
            b"\x22\x08" + parent_id.to_bytes(8, "big") if parent_id else b"",
            _times(0x39, begin_ns, 0x41, end_ns), self.common(entries),
        ]  # fmt: skip
        parts += [link(trace, span) for trace, span in entries.links]
        return field(b"\x12", b"".join(parts))

    def common(self, entries: SpanText) -> bytes:
        """Return the part of a span that may recur in others: all but ids, times and links."""
        known, name = self._known, entries.name
        parts = [
            known.get((name, "")) or _kept(known, (name, ""), field(b"\x2a", name.encode(errors="replace"))),
            bytes((0x30, entries.kind)),
        ]
        for pair in entries.attributes:
            parts.append(known.get(pair) or _kept(known, pair, field(b"\x4a", attribute(*pair))))
        if entries.failed:
            parts.append(_error)
        parts.append(_remote_flags if entries.remote else _flags)
        return b"".join(parts)

    def request(self, spans: Sequence[bytes]) -> bytes:
        """Return an ``ExportTraceServiceRequest``."""
        inside = sum(map(len, spans)) + len(self._scope)
        before = b"\x12" + varint(inside)
        whole = len(self._resource) + len(before) + inside
        # joined in one go: each copy of a megabyte would block the interpreter for 1 ms
        return b"".join((b"\x0a", varint(whole), self._resource, before, self._scope, *spans))

    def json(self, entries: SpanText) -> bytes:
        """Return a span in OTLP's JSON: ids in hex, times as text."""
        known = self._known_json
        trace_id, span_id, parent_id, name, kind, begin_ns, end_ns, failed, attributes, links, remote = entries
        shown = known.get((name, "")) or _kept(known, (name, ""), _json(name))
        parts = [known.get(pair) or _kept(known, pair, _json(_key_value(*pair))) for pair in attributes]
        parent = b',"parentSpanId":"%016x"' % parent_id if parent_id else b""
        more = b',"status":{"code":2}' if failed else b""
        if links:
            each = (b'{"traceId":"%032x","spanId":"%016x","flags":%d}' % (*link, SAMPLED) for link in links)
            more += b',"links":[' + b",".join(each) + b"]"
        return (
            b'{"traceId":"%032x","spanId":"%016x"%b,"name":%b,"kind":%d,"startTimeUnixNano":"%d",'
            b'"endTimeUnixNano":"%d","attributes":[%b]%b,"flags":%d}'
        ) % (
            trace_id, span_id, parent, shown, kind, begin_ns, end_ns, b",".join(parts), more,
            SAMPLED | REMOTE if remote else SAMPLED,
        )  # fmt: skip

    def line(self, spans: Iterable[bytes]) -> bytes:
        """Return a request as a line of JSON."""
        return self._line + b",".join(spans) + b"]}]}]}\n"


def _kept(known: dict[tuple[str, Value], bytes], pair: tuple[str, Value], blob: bytes) -> bytes:
    """Return ``blob``, and cache it if it is likely to recur. Long texts, floats and large integers are not cached:
    they differ from call to call."""
    if len(blob) < 200 and type(pair[1]) is not float and not (type(pair[1]) is int and pair[1] > 255):
        if len(known) >= KNOWN_MAX:
            known.clear()
        known[pair] = blob
    return blob


_json = msgspec.json.encode
_flags = _fixed32(0x85, 0x01, SAMPLED)
_remote_flags = _fixed32(0x85, 0x01, SAMPLED | REMOTE)
_link_flags = Struct("<BI").pack(0x35, SAMPLED)
_error = field(b"\x7a", b"\x18\x02")


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
