"""Assembler of a streamed message: server-sent events in, the bytes of the whole message out.

The result equals an unstreamed message: the same fields in the same order, as compact JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.providers.transport.body import UnreadableResponse


def asking_to_stream(body: bytes) -> bytes:
    """Return the request with `"stream": true`, without parsing it."""
    inside = body.rstrip().removesuffix(b"}").rstrip()
    return inside + (b'"stream":true}' if inside.endswith(b"{") else b',"stream":true}')


class StreamError(Exception):
    """Error event inside a stream; ``error`` holds its type, message and details."""

    def __init__(self, error: object) -> None:
        super().__init__("error event")
        self.error = error


class StreamAssembler:
    """Assembler of a `text/event-stream` body, fed with chunks as they come; `done` once the message is whole.

    `feed` raises StreamError for an error event and Unreadable for what is no stream of a message. Events and
    fields that are not known here are kept or passed over, as the API's versioning policy asks of clients.
    """

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._lines: list[bytes] = []
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}  # text that grows, joined once at the end
        self._inputs: dict[int, list[str]] = {}  # the JSON text of a tool's input

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes, split anywhere."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                event, self._lines = b"\n".join(self._lines), []
                self._take(event)

    def message(self) -> bytes:
        """Return the whole message as JSON. Raises UnreadableResponse where the stream ended before it."""
        if not self.done or self._message is None:
            raise UnreadableResponse("the stream was cut before the message was whole")
        for (index, field), pieces in self._pieces.items():
            self._blocks[index][field] = "".join(pieces)
        for index, parts in self._inputs.items():
            if text := "".join(parts).strip():
                self._blocks[index]["input"] = _tool_input(text)
        self._message["content"] = [self._blocks[index] for index in sorted(self._blocks)]
        return msgspec.json.encode(self._message)

    def _take(self, text: bytes) -> None:
        if self.done:
            return
        try:
            event = msgspec.json.decode(text)
            kind = event["type"]
            if kind == "content_block_delta":
                self._grow(event["index"], event["delta"])
            elif kind == "message_start":
                self._message = dict(event["message"])
            elif kind == "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            elif kind == "message_delta":
                self._finish(event)
            elif kind == "message_stop":
                self.done = self._message is not None
            elif kind == "error":
                raise StreamError(event.get("error"))
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableResponse(f"the stream holds an event that cannot be read: {type(error).__name__}") from None

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        kind = delta["type"]
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        else:  # text, thinking, and kinds to come: text grows, anything else replaces
            for field, value in delta.items():
                if field == "type":
                    continue
                if isinstance(value, str):
                    pieces = self._pieces.setdefault((index, field), [block.get(field) or ""])
                    pieces.append(value)
                else:
                    block[field] = value

    def _finish(self, event: dict[str, Any]) -> None:
        """Apply `message_delta`, the end of the message. Counts are totals and replace those before; an absent one
        stays."""
        if self._message is None:
            raise LookupError
        changed = event["delta"] | {k: v for k, v in event.items() if k not in ("type", "delta", "usage")}
        for field, value in changed.items():
            if value is not None or field in self._message:
                self._message[field] = value
        usage = self._message["usage"] = dict(self._message["usage"])
        for field, value in (event.get("usage") or {}).items():
            if value is not None or field not in usage:
                usage[field] = value


def _tool_input(text: str) -> Any:
    """Return a tool's input from its JSON text, numbers to the digit; if `max_tokens` cut it, its whole parts."""
    try:
        msgspec.json.decode(text)
        return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))
    except msgspec.DecodeError:
        import jiter  # a dependency of the SDK's, which uses it so; wanted here alone

        return jiter.from_json(text.encode(), partial_mode=True)
