"""Client of a shard to its parent job: reports to it, and slices of the job's cap from it."""

from __future__ import annotations

import msgspec

from actors.ports.runtime import Runtime
from cortex.goals import shards
from cortex.state.budget_slice import JOB, TOKENS, BudgetSlice
from cortex.state.shard_record import ShardReport
from cortex.state.state import State

QUIET_S = 15.0
"""Seconds after which a shard in which nothing changes reports all the same, so that its parent knows it is alive."""
_decoder = msgspec.msgpack.Decoder(tuple[tuple[BudgetSlice, ...], str])


async def newest_reported(runtime: Runtime, shard: str) -> tuple[int, bool]:
    """Return the newest epoch of this shard that its parent has a report of, and whether the parent is complete.
    Reports of earlier epochs are dropped.
    """
    parent, _, goal = shard.rpartition("~")
    answer = await runtime.peer(f"channel:{parent}").ask("shard", int(goal), b"")
    return msgspec.msgpack.decode(answer, type=tuple[int, bool])


class ParentClient:
    """Client of the shard with this name."""

    def __init__(self, job: str, runtime: Runtime) -> None:
        parent, _, goal = job.rpartition("~")
        self._peer = runtime.peer(f"channel:{parent}")
        self._goal = int(goal)
        self._serial = 0
        self._reported: ShardReport | None = None
        self._reported_s = float("-inf")
        self._used = {JOB: 0, TOKENS: 0}
        self.lent: tuple[tuple[BudgetSlice, ...], str] = (), ""
        """Slices that the parent answered last, and why it lends no more; empty if it may."""
        self.failed: dict[str, int] = {}
        """Failed rows by kind, as last reported."""

    async def report(self, k: State, at_s: float, stirred: bool) -> None:
        """Report changes to the parent.

        Raises ``PeerUnavailable``, ``PeerGone`` or ``StoreError``: the parent may have received the report or not.
        """
        now = shards.report(k, 0)
        if not stirred and now == self._reported and at_s - self._reported_s < QUIET_S and not any(now.lacks):
            return
        self.failed = dict(k.tally.failed_for_good)
        self._reported = None
        same = msgspec.msgpack.decode(msgspec.msgpack.encode(now), type=ShardReport)  # a copy: K goes on meanwhile
        self.lent = await self.ask(msgspec.structs.replace(same, serial=self.next()))
        self._reported, self._reported_s = same, at_s

    def next(self) -> int:
        """Return the serial of the next report."""
        self._serial += 1
        return self._serial

    async def ask(self, report: ShardReport) -> tuple[tuple[BudgetSlice, ...], str]:
        """Report to the parent. Return the slices that the shard may commit, once the parent's journal has the report.
        """
        self._used = {JOB: report.ledger.committed_nusd, TOKENS: report.ledger.committed_tokens}
        return _decoder.decode(await self._peer.ask("shard", self._goal, msgspec.msgpack.encode(report)))

    def room(self) -> dict[str, int]:
        """Return the amount that each slice had left when it was new, by budget."""
        return {each.budget: each.upto_nusd - self._used[each.period] for each in self.lent[0]}
