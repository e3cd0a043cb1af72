"""What the channels of one family, a job and its shards, say to each other."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.channel.leases.lease import Lease
from actors.channel.tool_runs import Errands
from actors.ports.runtime import Unbegun
from cortex.goals import shards
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State


class Kin:
    """The part of a channel that hears its shards, or its parent."""

    job: str
    _k: State
    _errands: Errands
    _lease: Lease

    def __getattr__(self, name: str) -> Any:
        if name == "_k":  # it is set when the channel has begun
            raise Unbegun(f"channel:{self.job} has not begun")
        raise AttributeError(name)

    async def _put(self, blob: bytes, size: int, batch: tuple[events.Event, ...] | None = None) -> None:
        """Give events to the next turn and wait until they are on disk."""
        raise NotImplementedError

    async def shard(self, goal: int, report: bytes) -> bytes:
        """A shard says what it has come to; what it may commit, once that is on disk."""
        before = shards.counted(self._k, goal)
        await self._put(codec.encode_batch([events.reported(goal, report)]), 1)
        if goal in self._k.shards:
            self._errands.stir(shards.stirred(self._k, goal, before))
        return msgspec.msgpack.encode(shards.answer(self._k, goal))

    async def heed(self) -> None:
        """Another shard lacks money, or gave some back."""
        self._lease.allowance.heed()

    async def report(self) -> bytes:
        """What this job, a shard, has come to."""
        return msgspec.msgpack.encode(shards.report(self._k, self._lease.allowance.serial()))
