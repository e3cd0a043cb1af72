"""Message batches of the simulated provider: made, listed a while later, processed, read. One account for all branches.

Only this module knows what became of a submission. A channel sees no more than lost answers, truncated lists and
unreadable results.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from actors.ports.message_batches import BatchRequest, BatchStatus
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.simulation.loop import NOBODY, Life
from tests.simulation.provider import REFUSED, Request, spoken
from tests.simulation.scenario import EPOCH_S

VISIBLE_S = 5.0
"""Seconds before a new batch appears in the list, at most."""
_LOST = Failure(FailureKind.TRANSIENT, "the connection was lost")
_NOT_FOUND = Failure(FailureKind.REJECTED, "results are not there any more", 404, "not_found_error")
_FAILED = (
    Failure(FailureKind.TRANSIENT, "an internal error", 500, "api_error"),
    Failure(FailureKind.EXPIRED, "the provider did not come to it", 0, "expired", sent=False),
)


class Batch:
    """Message batch."""

    def __init__(self, name: str, requests: dict[str, Request], made_s: float, seen_s: float, unreadable: bool) -> None:
        self.name, self.requests, self.made_s, self.seen_s, self.unreadable = name, requests, made_s, seen_s, unreadable
        self.results: dict[str, Reply | Failure] = {}
        self.ended_s = 0.0

    @property
    def ended(self) -> bool:
        """True once all requests were processed."""
        return self.ended_s > 0


class Account:
    """All batches of one account. Each answer in a batch is billed when the batch has ended."""

    def __init__(self, world: Any, provider: Any) -> None:
        self._world, self._provider, self._loop = world, provider, world.loop
        self._plan = world.plan.batching
        self.random = world.plan.chance("account").random
        self.all: dict[str, Batch] = {}

    def desk(self, endpoint: str, life: Life) -> SimBatches:
        """Return the account as one branch accesses it."""
        return SimBatches(self, self._provider, endpoint, life, self._plan.trouble)

    def ids(self) -> dict[str, str]:
        """Return the names of batches by the custom ids of their requests."""
        return {custom_id: batch.name for batch in self.all.values() for custom_id in batch.requests}

    def trouble(self, share: float) -> bool:
        """Draw whether a fault happens now."""
        return not self._world.calm and self.random() < share

    def full(self, requests: int) -> bool:
        """Return whether the queue accepts no further requests."""
        waiting = sum(len(batch.requests) for batch in self.all.values() if not batch.ended)
        return bool(self._plan.queue) and waiting > 0 and waiting + requests > self._plan.queue

    def make(self, rows: Sequence[BatchRequest], endpoint: str, life: Life) -> Batch:
        """Make a batch of these requests."""
        now_s = self._loop.time()
        requests = {row.custom_id: Request(endpoint, spoken(row.body), life, now_s, 0.0, batched=True) for row in rows}
        unreadable = self.trouble(self._plan.unreadable)
        seen_s = now_s + VISIBLE_S * self.random()
        batch = Batch(f"batch{len(self.all) + 1}", requests, now_s, seen_s, unreadable)
        self.all[batch.name] = batch
        self._world.tell(f"{batch.name} is made by {life.name}, of {len(rows)} rows")
        self._world.watch.made(batch, life)
        for request in requests.values():
            self._world.watch.asked(request)
        self._loop.call_later(self._plan.takes_s * (0.5 + self.random()), self._end, batch, context=NOBODY)
        return batch

    def _end(self, batch: Batch) -> None:
        batch.ended_s = self._loop.time()
        self._world.tell(f"{batch.name} has ended")
        for custom_id, request in batch.requests.items():
            if request.text.endswith(REFUSED):
                words = f"{request.text} makes no sense"
                batch.results[custom_id] = Failure(FailureKind.REJECTED, words, 400, "invalid_request_error")
            elif self.trouble(self._plan.failing):
                batch.results[custom_id] = _FAILED[int(2 * self.random())]
            else:
                self._provider.bill(request)
                batch.results[custom_id] = self._provider.reply(request)
                self._world.watch.billed(request)


class SimBatches:
    """``actors.ports.message_batches.MessageBatches`` of one branch."""

    def __init__(self, account: Account, provider: Any, endpoint: str, life: Life, trouble: float) -> None:
        self._account, self._provider = account, provider
        self._endpoint, self._life, self._trouble = endpoint, life, trouble

    async def submit(self, rows: Sequence[BatchRequest], timeout_s: float) -> str | Failure:
        """Make a batch of these requests. A fault may happen before the provider has the batch, or after."""
        account = self._account
        began_s = asyncio.get_running_loop().time()
        takes_s = min(timeout_s, 0.05 + 2.0 * account.random())
        await asyncio.sleep(takes_s / 2)
        if self._provider.blocked:
            return Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400, "invalid_request_error")
        if account.full(len(rows)):
            return Failure(FailureKind.THROTTLED, "too many requests wait in batches", 429, "rate_limit_error", 2.0)
        if account.trouble(self._trouble):
            if account.random() < 0.3:
                return Failure(FailureKind.OVERLOADED, "overloaded", 529, "overloaded_error")
            return _LOST
        batch = account.make(rows, self._endpoint, self._life)
        await asyncio.sleep(takes_s / 2)
        if account.trouble(self._trouble):
            await asyncio.sleep(max(0.0, began_s + timeout_s - asyncio.get_running_loop().time()) * account.random())
            return _LOST
        return batch.name

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        """Return the visible batches, newest first."""
        if await self._fails():
            return _LOST
        now_s = asyncio.get_running_loop().time()
        found: list[BatchStatus] = []
        for batch in reversed(self._account.all.values()):
            if batch.name == since or EPOCH_S + batch.made_s < not_before_s or len(found) == batches_max:
                break
            if batch.seen_s <= now_s:
                found.append(self._standing(batch))
        return found

    async def look(self, name: str) -> BatchStatus | Failure:
        """Return the status of a batch."""
        if await self._fails():
            return _LOST
        return self._standing(self._account.all[name])

    async def results(self, name: str) -> AsyncIterator[tuple[str, Reply | Failure]]:
        """Yield the outcome of each request; sometimes reading ends too early, with or without a failure."""
        batch = self._account.all[name]
        cut = await self._fails()
        if batch.unreadable:
            yield "", _NOT_FOUND
            return
        for count, (custom_id, outcome) in enumerate(sorted(batch.results.items())):
            if cut and count == len(batch.results) // 2:
                if self._account.random() < 0.5:
                    yield "", _LOST
                return
            yield custom_id, outcome

    async def discard(self, name: str) -> Failure | None:
        return None

    async def cancel(self, name: str) -> Failure | None:
        """Do nothing but perhaps fail: paid requests are not cancelled."""
        return _LOST if await self._fails() else None

    async def _fails(self) -> bool:
        await asyncio.sleep(0.02 + 0.2 * self._account.random())
        return self._account.trouble(self._trouble)

    def _standing(self, batch: Batch) -> BatchStatus:
        return BatchStatus(batch.name, batch.ended, len(batch.requests), EPOCH_S + batch.made_s)
