"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): the framing of a streamed
response, whose events each wire form puts together in its own way.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import msgspec

from actors.providers.transport.body import UnreadableResponse

_BOM: Final = b"\xef\xbb\xbf"
DONE: Final = b"[DONE]"
"""Data of the last event in OpenAI's streams, which gateways send behind other streams too."""

ERROR: Final = b"error"
"""Name of an error event, whose data may be plain words."""


class StreamError(Exception):
    """Error event inside a stream; ``error`` holds its type, message and details.

    ``text_came``: a part of the answer had come before it, and was paid.
    """

    def __init__(self, error: object, text_came: bool = False) -> None:
        super().__init__("error event")
        self.error = error
        self.text_came = text_came


class EventStream:
    """Body of type `text/event-stream`, fed with chunks as they come; `done` once its message is whole.

    `feed` raises what `take` raises.
    """

    def __init__(self) -> None:
        self.done = False
        self._begun = False
        self._rest = b""
        self._name = b""  # of the event, for data without a type
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes, split anywhere."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            for part in line.removesuffix(b"\r").split(b"\r"):  # each of the two, and both, end a line
                self._take_line(part)

    @property
    def whole(self) -> bool:
        """True once nothing of the message can be missing: it is done, or its end came."""
        raise NotImplementedError

    def message(self) -> bytes:
        """Return the whole message as JSON. Raises UnreadableResponse where the stream ended before it."""
        raise NotImplementedError

    def take(self, text: bytes, name: bytes) -> None:
        """Take the data of one event. Raises StreamError for an error event, UnreadableResponse for a damaged one."""
        raise NotImplementedError

    def take_rest(self) -> None:
        """Take the last event, which may lack the blank line behind it, if it is whole."""
        rest, self._rest = self._rest, b""
        with contextlib.suppress(UnreadableResponse):
            for line in (*rest.splitlines(), b""):
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        if not self._begun and line:
            self._begun, line = True, line.removeprefix(_BOM)
        if line.startswith(b"data:"):
            self._lines.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()
        elif not line:
            lines, name = self._lines, self._name
            self._lines, self._name = [], b""
            if lines:
                self.take(b"\n".join(lines), name)


def damaged(why: str) -> UnreadableResponse:
    """Return the error for an event that was damaged on its way: the same request may well bring a whole answer."""
    return UnreadableResponse(f"the stream holds an event that cannot be read: {why}")


def decoded(text: bytes) -> Any:
    """Return the value of an event's JSON. Raises ValueError for other text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # it takes half a surrogate pair, whose other half may be in the next event
