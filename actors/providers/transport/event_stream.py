"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): the framing of a streamed
response, whose events each wire form puts together in its own way.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import msgspec

from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse, unread

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

    `feed` raises StreamError for an error event and UnreadableAnswer for an event that cannot be read. A subclass may
    raise anything else at one: it means that.
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
        """Return the whole message as JSON. Raises UnreadableAnswer for one that cannot be read, and where the stream
        ended in the midst of it; UnreadableResponse where it ended before."""
        try:
            return self.put_together()
        except (StreamError, UnreadableResponse):
            raise
        except Exception as error:
            raise unread(error) from None

    def put_together(self) -> bytes:
        """Return the whole message, as `message` does. Raises anything for one that cannot be read."""
        raise NotImplementedError

    def take(self, text: bytes, name: bytes) -> None:
        """Take the data of one event. Raises StreamError for an error event, and anything for one that cannot be read.
        """
        raise NotImplementedError

    def may_miss(self, name: bytes) -> bool:
        """Return whether nothing of the message is lost with an event of this name."""
        return False

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
                try:
                    self.take(b"\n".join(lines), name)
                except (StreamError, UnreadableResponse):
                    raise
                except Exception as error:
                    if not self.may_miss(name):
                        raise damaged(type(error).__name__) from None


def damaged(why: str) -> UnreadableAnswer:
    """Return the error for an event that cannot be read. Those before and behind it were paid for."""
    return UnreadableAnswer(f"the stream holds an event that cannot be read: {why}")


def decoded(text: bytes) -> Any:
    """Return the value of an event's JSON. Raises ValueError for other text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # it takes half a surrogate pair, whose other half may be in the next event
