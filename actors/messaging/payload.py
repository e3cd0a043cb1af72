"""Bytes of a message that carry their decoded content within the process that made them.

Between two processes they are plain bytes, and are decoded at the receiver. Within one process no decoding is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cortex.journal import codec
from cortex.state import commands, events
from cortex.values.reply import Reply, Usage


class Payload(bytes):
    """Bytes with their decoded content. ``content``: None if the bytes must be decoded."""

    content: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)  # pickled for another process: the bytes only


def of_calls(blob: bytes, calls: Sequence[commands.Call]) -> Payload:
    """Return a payload of calls for a branch. Within one process only ``content`` is read."""
    made = Payload(blob)
    made.content = calls
    return made


def of_events(blob: bytes, batch: Sequence[events.Event]) -> Payload:
    """Return a payload of events for a channel and its journal."""
    made = Payload(blob)
    if all_sound(batch):
        made.content = tuple(batch)
    return made


def batch_in(blob: bytes) -> tuple[events.Event, ...] | None:
    """Return the decoded events of these bytes; None if they must be decoded."""
    return blob.content if type(blob) is Payload else None


def decoded(blob: bytes) -> tuple[events.Event, ...]:
    """Return the events of a message. Raises ``msgspec.DecodeError`` for invalid bytes."""
    return batch_in(blob) or codec.decode_batch(blob)


def all_sound(batch: Sequence[events.Event]) -> bool:
    """Return True if encoding and decoding these events would give equal events.

    A user's model may put anything into a reply, and the journal must hold exactly what was acted upon. False for all
    events but answers, since others are rare.
    """
    for event in batch:
        if type(event) is not events.Answered:
            return False
        reply = event.reply
        usage = reply.usage
        if not (
            type(reply) is Reply and type(reply.body) is bytes and type(reply.stop_reason) is str
            and type(reply.model) is str and type(usage) is Usage and type(usage.input_tokens) is int
            and type(usage.output_tokens) is int and type(usage.cache_read_tokens) is int
            and type(usage.cache_creation_tokens) is int and type(usage.cache_creation_1h_tokens) is int
            and type(usage.unknown) is bool
        ):  # fmt: skip
            return False
    return True
