"""Lines in the results of a batch: one JSON object for each request.

A line that cannot be read may hold an answer that was paid for. It is told as the answer of the request that it names,
with its beginning. Where it names none, its request counts as one without a line, which may have been paid for too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from actors.ports.message_batches import THE_REST
from actors.providers.transport.body import unread
from actors.providers.transport.json_text import plain_value
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

T = TypeVar("T")
_FIRST_CHARS: Final = 300
"""Characters of an unreadable line that its failure shows; the failure is journalled."""


class UnreadableLine(ValueError):
    """Line that is no result. `custom_id`: the one request that it names; empty: none, or several."""

    def __init__(self, why: str, custom_id: str, line: bytes) -> None:
        beginning = line[:_FIRST_CHARS].decode("utf-8", "replace")
        super().__init__(f"its line in the results cannot be read ({why}): {beginning}")
        self.custom_id = custom_id


def result_in(
    line: bytes, decoder: msgspec.json.Decoder[T], field: str, outcome: Callable[[T], Reply | Failure], mark: int = 0
) -> tuple[str, Reply | Failure]:
    """Return custom id and outcome of a line: those that `outcome` makes of it, decoded as `line_in` does.

    Whatever `outcome` raises is an answer of this request that cannot be read: one line must never keep the others of
    its batch back. Raises UnreadableLine.
    """
    found = line_in(line, decoder, field, mark)
    custom_id = getattr(found, field)[mark:]
    if custom_id in ("", THE_REST):  # neither is a request's: the one would end the results, the other be told of all
        raise UnreadableLine("it names no request", "", line)
    try:
        return custom_id, outcome(found)
    except Exception as error:
        return custom_id, Failure(FailureKind.UNREADABLE, str(unread(error)), 200, answer_came=True)


def line_in(line: bytes, decoder: msgspec.json.Decoder[T], field: str, mark: int = 0) -> T:
    """Return the decoded line, in the encoding and form in which servers and gateways spoil JSON too.

    ``field``: name of the custom id. ``mark``: characters before the custom id proper. Raises UnreadableLine.
    """
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return decoder.decode(plain_value(line))
        except Exception as error:  # whatever the line holds
            raise UnreadableLine(str(error), _named(line, field)[mark:], line) from None


def _named(line: bytes, field: str) -> str:
    """Return the custom id that a text names; empty where it names none, or more than one.

    Inside a text of the model the quotes have backslashes, so that the field is not found there.
    """
    found = set(re.findall(rb'"%s"\s*:\s*"([\w-]{1,200})"' % field.encode(), line, re.ASCII))
    return found.pop().decode() if len(found) == 1 else ""
