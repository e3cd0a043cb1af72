"""The bytes of a message which, as long as they stay in the process that made them, still know what they say.

Between two processes they are bytes like any other, and are decoded there. Within one nobody need decode them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cortex.journal import codec
from cortex.state import commands, events
from cortex.values.reply import Reply, Usage


class Payload(bytes):
    """``content``: what they say; None where only decoding tells."""

    content: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)  # a letter to another process takes the bytes alone


def of_calls(blob: bytes, calls: Sequence[commands.Call]) -> Payload:
    """Calls on their way to a branch; within one process without their bytes, which nobody there would read."""
    made = Payload(blob)
    made.content = calls
    return made


def of_events(blob: bytes, batch: Sequence[events.Event]) -> Payload:
    """Events on their way to a channel, and into its journal."""
    made = Payload(blob)
    if all_sound(batch):
        made.content = tuple(batch)
    return made


def batch_in(blob: bytes) -> tuple[events.Event, ...] | None:
    """The events that these bytes still know; None where they must be decoded."""
    return blob.content if type(blob) is Payload else None


def decoded(blob: bytes) -> tuple[events.Event, ...]:
    """The events of one message, wherever it comes from. Raises ``msgspec.DecodeError`` where they are none."""
    return batch_in(blob) or codec.decode_batch(blob)


def all_sound(batch: Sequence[events.Event]) -> bool:
    """Whether decoding these would give the same: a model that somebody else wrote may have put anything into a reply,
    and what stands in a journal must be what was acted upon. False, too, of all but answers: they are rare."""
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
        ):  # fmt: skip
            return False
    return True
