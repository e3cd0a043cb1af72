"""What waits for a channel's next turn."""

from __future__ import annotations

import asyncio

from cortex import events, journal


class Entry:
    """One message in the inbox: its bytes, for the journal; its events, where they are known already."""

    __slots__ = ("batch", "blob", "durable", "size")

    def __init__(
        self, blob: bytes, size: int, durable: asyncio.Future[None] | None, batch: tuple[events.Event, ...] | None
    ) -> None:
        self.blob, self.size, self.durable, self.batch = blob, size, durable, batch


def entry_of(batch: list[events.Event]) -> Entry:
    """Events of the channel's own, for whose being on disk nobody waits."""
    return Entry(journal.encode_batch(batch), len(batch), None, tuple(batch))
