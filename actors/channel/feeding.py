"""What a driver brings to a channel: rows, and word of what the sink holds."""

from __future__ import annotations

from actors.channel.backpressure import Appetite
from actors.channel.shard_protocol import Kin
from actors.messaging.inbox import fed_entry
from cortex.journal import codec
from cortex.state import events


class Fed(Kin):
    """The part of a channel that hears its driver's hands."""

    _appetite: Appetite

    async def feed(self, rows: bytes, start: int, position: int, ended: bool) -> int:
        """A window of the source. Returns, once it is on disk, how many more rows are wanted now."""
        fed = fed_entry(rows, start, position, ended)
        await self._put(fed.blob, fed.size, fed.batch)
        return self._k.rows_wanted()

    async def room(self, enough: int, least: int, wait_s: float) -> int:
        """How many more rows are wanted, as soon as there is room for them (``actors.channel.backpressure``)."""
        return await self._appetite.room(enough, least, wait_s)

    async def written(self, rows: int, size_bytes: int, parts: tuple[int, ...] = ()) -> None:
        """The sink holds so many results on disk; ``parts``: so many of each shard."""
        await self._put(codec.encode_batch([events.Written(rows, size_bytes, tuple(parts))]), 1)
