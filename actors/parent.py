"""The parent of a shard, as the shard sees it: told what that has come to, it says what the shard may commit."""

from __future__ import annotations

import msgspec

from actors.ports import Runtime
from cortex import shards
from cortex.purse import JOB, TOKENS, Slice
from cortex.shards import Report
from cortex.state import State

QUIET_S = 15.0
"""A shard in which nothing changes is heard so often all the same: who is silent for long may be dead."""
_decoder = msgspec.msgpack.Decoder(tuple[tuple[Slice, ...], str])


class Parent:
    """Of the shard with this name."""

    def __init__(self, job: str, runtime: Runtime) -> None:
        parent, _, goal = job.rpartition("~")
        self._peer = runtime.peer(f"channel:{parent}")
        self._goal = int(goal)
        self._told = b""
        self._told_s = float("-inf")
        self._used = {JOB: 0, TOKENS: 0}
        self.lent: tuple[tuple[Slice, ...], str] = (), ""
        """The slices that it answered last, and why no more is to be had."""
        self.failed: dict[str, int] = {}
        """Failed rows by kind, as it was told last."""

    async def tell(self, k: State, at_s: float, stirred: bool) -> None:
        """Tell it what is new. Raises ``Away``, ``Gone`` or ``StoreError``: then nobody knows what it heard."""
        report = shards.report(k)
        blob = msgspec.msgpack.encode(report)
        if not stirred and blob == self._told and at_s - self._told_s < QUIET_S and not any(report.lacks):
            return
        self.failed = dict(k.tally.failed_for_good)
        self._told = b""
        self.lent = await self.ask(report, blob)
        self._told, self._told_s = blob, at_s

    async def ask(self, report: Report, blob: bytes = b"") -> tuple[tuple[Slice, ...], str]:
        """What it may commit, when that stands in the parent's journal."""
        self._used = {JOB: report.ledger.committed_nusd, TOKENS: report.ledger.committed_tokens}
        return _decoder.decode(await self._peer.ask("shard", self._goal, blob or msgspec.msgpack.encode(report)))

    def room(self) -> dict[str, int]:
        """What each slice had left when it was new."""
        return {each.budget: each.upto_nusd - self._used[each.period] for each in self.lent[0]}
