"""Messages between the channel of a sharded job and the channels of its shards."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from actors.channel.feeding import PutDurably
from actors.channel.leases.lease import Lease
from actors.channel.tool_runs import ToolRuns
from actors.history.lost_shards import Store, finished, gone_back, refuse_to_lose
from actors.journal.journal import Journal, StoreError
from actors.journal.retrying import patiently
from actors.observability.logs.formatting import log_arguments
from cortex.goals import shards
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State

_log = logging.getLogger("cortex.channel")


async def reopened(source: Journal, store: Store, k: State | None, resumed: bool) -> list[events.Event]:
    """Return the event that lets shards begin again whose journals have lost their end, for a channel that begins with
    this journal.

    ``resumed``: by a user. A complete job is left as it is otherwise: nobody would write its results. One whose sink
    has them all is left as it is in any case: nothing is paid twice for them. Raises ``StoreError`` for a job without
    text whose shards have lost results that were written.
    """
    if k is None or not k.shards or finished(k) or k.outcome not in ("", "partial", "complete" if resumed else ""):
        return []
    job = source.job

    def look() -> tuple[int, ...]:
        refuse_to_lose(store, job, k)
        return gone_back(store, job, k, _tell_unread)

    goals = await patiently(source, look, apart=True)
    if not goals:
        return []
    names = ", ".join(f"{job}~{goal}" for goal in goals)
    text = "journals of shards have lost their end with the power: their rows are dealt again"
    _log.warning(**log_arguments(text, event="job.shards_reopened", job=job, shards=names))
    return [events.ShardsReopened(goals)]


def _tell_unread(shard: str, error: StoreError) -> None:
    text = "the journal of a shard cannot be read: the shard counts as ended, as its job knows it"
    _log.warning(**log_arguments(text, event="job.shard_unread", job=shard, error=str(error)))


class ShardLink:
    """Messages of one channel with its shards, and with its parent job.

    ``put`` writes events durably, and ``state`` returns the job's state as it is now. ``tool_runs`` has the tasks that
    wait for a shard; ``lease`` has the job's budget.
    """

    def __init__(self, put: PutDurably, state: Callable[[], State], tool_runs: ToolRuns, lease: Lease) -> None:
        self._put = put
        self._state = state
        self._tool_runs = tool_runs
        self._lease = lease

    async def shard(self, goal: int, report: bytes) -> bytes:
        """Take the report of a shard. Return, once the report is on disk, what the shard may commit.

        Without a report: return the epoch of its newest one, and whether this job is complete.
        """
        if not report:
            k = self._state()
            return msgspec.msgpack.encode((shards.epoch_of(k, goal), k.outcome == "complete"))
        before = shards.counted(self._state(), goal)
        await self._put(codec.encode_batch([events.reported(goal, report)]), 1)
        k = self._state()
        if goal in k.shards:
            self._tool_runs.request_reports(shards.stirred(k, goal, before))
        return msgspec.msgpack.encode(shards.answer(k, goal))

    def check_budget(self) -> None:
        """Look at the budget again: another shard lacks money, or gave some back."""
        self._lease.allowance.check_budget()

    def report(self) -> bytes:
        """Return what this job, a shard, has spent and done, as msgpack."""
        return msgspec.msgpack.encode(shards.report(self._state(), self._lease.allowance.serial()))
