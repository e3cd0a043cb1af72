"""Assembler of a streamed message: server-sent events in, the bytes of the whole message out.

The result equals an unstreamed message: the same fields in the same order, as compact JSON.

Streams of gateways have flaws beside the text, which are repaired or passed over: the type of an event in one of its
two places alone (earendil-works/pi#1983), comments and words that are sent as data (mnfst/llm-gateway#2053), `[DONE]`
at the end, a text block that was never opened, a `message_delta` without usage (earendil-works/pi#6567) or with usage
inside its delta (fumito-ito/AnthropicSwiftSDK#7), no `message_stop` (tombii/better-ccflare#307).

A message is whole if its stop reason came, or one of the two marks of its end (`message_stop`, `[DONE]`). A stream that
ends before may have lost text (BerriAI/litellm#32159), and is no message.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse, json_bytes, utf8
from actors.providers.transport.event_stream import DONE, ERROR, EventStream, StreamError, damaged, decoded
from actors.providers.transport.json_text import plain_value


def asking_to_stream(body: bytes) -> bytes:
    """Return the request with `"stream": true`, without parsing it."""
    inside = body.rstrip().removesuffix(b"}").rstrip()
    return inside + (b'"stream":true}' if inside.endswith(b"{") else b',"stream":true}')


class StreamAssembler(EventStream):
    """Assembler of a `text/event-stream` body, fed with chunks as they come; `done` once the message is whole.

    Events and fields that are not known here are kept or passed over, as the API's versioning policy asks of clients.
    """

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}  # text that grows, joined once at the end
        self._inputs: dict[int, list[str]] = {}  # the JSON text of a tool's input
        self._ended = False
        """True once a stop reason, or a mark of the end, came."""
        self._counted = False
        """True once the output tokens of the whole reply came; those at its start count the first tokens alone."""

    @property
    def whole(self) -> bool:
        """True once nothing of the message can be missing: it is done, or its stop reason came."""
        return self._message is not None and (self.done or self._ended)

    def put_together(self) -> bytes:
        """Return the whole message as JSON."""
        if not self.done:
            self.take_rest()
        if self._message is None or not self.whole:
            kind = UnreadableAnswer if self._blocks else UnreadableResponse
            raise kind("the stream was cut before the message was whole")
        for (index, field), pieces in self._pieces.items():
            self._blocks[index][field] = "".join(pieces)
        for index, parts in self._inputs.items():
            if text := "".join(parts).strip():
                self._blocks[index]["input"] = tool_input(text)
        if self._blocks or not self._message.get("content"):
            self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        usage = self._message.get("usage")
        if not self._counted and isinstance(usage, dict):
            self._message["usage"] = {name: value for name, value in usage.items() if name != "output_tokens"}
        return json_bytes(self._message)

    def take(self, text: bytes, name: bytes) -> None:
        """Take the data of one event."""
        if self.done:
            return
        if not text.lstrip().startswith(b"{"):
            if name == ERROR:
                self._fail({"message": text.decode("utf-8", "replace")})
            elif text.strip() == DONE:
                self.done = bool(self._blocks)
            elif text.strip()[:1] in (b"[", b'"'):
                raise damaged("no object")
            return
        event = decoded(text)
        kind = event.get("type") or name.decode()
        if kind == "content_block_delta":
            self._grow(event)
        elif kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._message = self._message if self._message is not None else {}
            self._blocks[self._index(event)] = dict(event["content_block"])
        elif kind == "message_delta":
            self._finish(event)
        elif kind == "message_stop":
            self.done = self._message is not None
        elif kind == "ping":
            self.done = self._ended  # the message is whole: nothing but its mark of the end can follow
        elif kind == "error":
            self._fail(event.get("error"))

    def may_miss(self, name: bytes) -> bool:
        """Return whether an event of this name is none of the message, as a ping."""
        return name != b"" and not name.startswith((b"message_", b"content_block_", b"error"))

    def _fail(self, error: object) -> None:
        """Raise StreamError, unless the whole message came before the error."""
        if not self._ended:
            raise StreamError(error, bool(self._pieces or self._inputs))
        self.done = self._message is not None

    def _index(self, event: dict[str, Any]) -> int:
        """Return the index of an event's block; of one without an index, that of the last block."""
        index = event.get("index")
        if index is None:
            return max(self._blocks, default=0)
        if not isinstance(index, int):
            raise TypeError
        return index

    def _grow(self, event: dict[str, Any]) -> None:
        index, delta = self._index(event), event["delta"]
        kind = delta.get("type") or ("text_delta" if "text" in delta else "")
        if index not in self._blocks:
            if kind not in ("text_delta", "thinking_delta"):
                raise LookupError
            self._message = self._message if self._message is not None else {}
            self._blocks[index] = {"type": kind.removesuffix("_delta")}
        block = self._blocks[index]
        if kind == "input_json_delta":
            piece = delta["partial_json"]
            piece = piece if isinstance(piece, str) else json_bytes(piece).decode()
            self._inputs.setdefault(index, []).append(piece)
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        else:  # text, thinking, and kinds to come: text grows, anything else replaces
            for field, value in delta.items():
                if field == "type":
                    continue
                if isinstance(value, str):
                    begun = block.get(field)
                    pieces = self._pieces.setdefault((index, field), [begun if isinstance(begun, str) else ""])
                    pieces.append(value)
                elif value is not None:
                    block[field] = value

    def _finish(self, event: dict[str, Any]) -> None:
        """Apply `message_delta`, the end of the message. Counts are totals and replace those before; an absent one
        stays."""
        if self._message is None:
            raise LookupError
        delta = event.get("delta") or {}
        changed = delta | {k: v for k, v in event.items() if k not in ("type", "delta")}
        counts = [each for each in (delta.get("usage"), event.get("usage")) if isinstance(each, dict)]
        changed.pop("usage", None)
        for field, value in changed.items():
            if value is not None or field in self._message:
                self._message[field] = value
        self._ended = self._ended or isinstance(self._message.get("stop_reason"), str)
        usage = self._message.get("usage")
        usage = dict(usage) if isinstance(usage, dict) else {}
        for each in counts:
            self._counted = self._counted or each.get("output_tokens") is not None
            for field, value in each.items():
                if value is not None or field not in usage:
                    usage[field] = value
        if usage:
            self._message["usage"] = usage


def tool_input(text: str) -> Any:
    """Return a tool's input from its JSON text, numbers to the digit; if `max_tokens` cut it, its whole parts; else the
    text as it came, so that whoever reads it asks for another reply."""
    said = utf8(text)
    try:
        msgspec.json.decode(said)
        return msgspec.Raw(msgspec.json.format(said, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return msgspec.Raw(plain_value(said))  # half a surrogate pair, in its escaped form
    except UnreadableResponse:
        import jiter  # a dependency of the SDK's, which uses it so; wanted here alone
    try:
        return jiter.from_json(said, partial_mode=True)
    except ValueError:
        return text
