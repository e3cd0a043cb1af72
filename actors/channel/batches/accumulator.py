"""Accumulation of calls into one message-batch submission: collected, cut, checked for size, intended.

Nothing has left for the provider yet, and K knows that: calls that are lost here were never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.channel.batches.orders import BatchOrderRouter, passes
from actors.common.errors import error_words
from actors.ports.runtime import Runtime
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from cortex.values.batch_record import Submission
from policies.estimates.batching import (
    REQUESTS_MAX,
    BatchingPolicy,
    enqueued_after_end,
    enqueued_after_full,
    fits,
    gather_until_s,
)
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import RULES, Failure, FailureKind

Calls = dict[int, commands.Call]
Put = Callable[[list[events.Event]], None]
_log = logging.getLogger("cortex.batches")


class _PendingBatch:
    """Calls of one route that wait for others to be submitted with."""

    __slots__ = ("calls", "first_s", "last_s", "size")

    def __init__(self) -> None:
        self.calls: Calls = {}
        self.size = 0
        self.first_s = self.last_s = 0.0


class BatchAccumulator:
    """Calls of one job that wait for their submission.

    ``intend`` is called with the route, the calls, and name and time of creation of the account's newest batch when the
    calls are due and ``has_turn`` returns True for the route.
    """

    def __init__(
        self, runtime: Runtime, state: Callable[[], State], put: Put, orders: BatchOrderRouter,
        intend: Callable[[int, Calls, str, float], None], has_turn: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._state = state
        self._put = put
        self._orders = orders
        self._intend, self._has_turn = intend, has_turn
        self._pending: dict[int, _PendingBatch] = {}
        self._enqueued_max: dict[int, int] = {}
        """Most requests that may wait at the provider, by route, as far as a full queue has told."""
        self._going: dict[int, int] = {}
        """Requests that are cut and not intended yet, by route."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._turned = asyncio.Event()

    def take(self, calls: Iterable[commands.Call]) -> list[commands.Call]:
        """Keep the calls whose route goes by message batches, and return the others."""
        batched = [route.batched for route in self._state().terms.routes]
        others: list[commands.Call] = []
        now_s = self._runtime.monotonic_s()
        for call in calls:
            if not batched[call.route]:
                others.append(call)
                continue
            pending = self._pending.setdefault(call.route, _PendingBatch())
            pending.first_s = pending.first_s if pending.calls else now_s
            pending.last_s = now_s
            pending.calls[flight_key(call.goal, call.attempt)] = call
            pending.size += len(call.body)
        self.look()
        return others

    def abandon(self, keys: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Drop abandoned calls that wait here, and return the keys of the others."""
        others: list[tuple[int, int]] = []
        for goal, attempt in keys:
            key = flight_key(goal, attempt)
            pending = next((pending for pending in self._pending.values() if key in pending.calls), None)
            if pending is None:
                others.append((goal, attempt))
                continue
            call = pending.calls.pop(key)
            pending.size -= len(call.body)
            failure = Failure(FailureKind.CANCELLED, "abandoned before it was sent", sent=False)
            self._put([events.AttemptFailed(goal, call.sample, attempt, failure)])
        return others

    def look(self) -> None:
        """Check whether calls are due: no further call may be coming. Called after each turn."""
        if self._pending:
            self._changed.set()
            if self._gathering is None or self._gathering.done():
                self._gathering = asyncio.get_running_loop().create_task(self._gather())

    def turned(self) -> None:
        """Let calls that wait for their turn to be submitted look whether it has come. Called after each turn of K with
        submissions that the provider may not have yet."""
        self._turned.set()
        self._turned.clear()

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = [*self._tasks, *([self._gathering] if self._gathering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- a full queue ------------------------------------------------------------------------------------------------

    def is_full(self, made: Submission) -> None:
        """Note that the provider's queue had no room for a submission: the next one is smaller, or waits for others."""
        self._enqueued_max[made.route] = enqueued_after_full(self._out(made.route) - len(made.keys), len(made.keys))

    def has_room(self, place: int) -> None:
        """Note that a submission has ended."""
        if place in self._enqueued_max:
            self._enqueued_max[place] = enqueued_after_end(self._enqueued_max[place])

    def _out(self, place: int) -> int:
        """Return the number of requests of a route that may be with the provider."""
        submissions = self._state().submissions.values()
        return sum(len(made.keys) for made in submissions if made.route == place) + self._going.get(place, 0)

    def _room(self, place: int) -> int:
        """Return the number of requests that may be submitted now."""
        most = self._enqueued_max.get(place)
        return REQUESTS_MAX if most is None else most - self._out(place)

    # -- cutting ---------------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        """Submit calls as they become due, until no call waits."""
        while self._pending:
            self._changed.clear()
            wait_s = min([self._cut_what_is_due(place) for place in list(self._pending)])
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # in 3.11 wait_for may swallow a cancellation
                        await self._changed.wait()

    def _cut_what_is_due(self, place: int) -> float:
        """Submit the calls that are due on this route. Return the seconds that the rest waits; 0 if no call is left."""
        k, pending = self._state(), self._pending[place]
        batching = k.terms.limits.batching
        while pending.calls:
            full = not fits(batching, len(pending.calls) + 1, pending.size + 1)
            wait_s = gather_until_s(batching, pending.first_s, pending.last_s, _more(k)) - self._runtime.monotonic_s()
            if not full and wait_s > 0:
                return max(0.001, wait_s)
            if (room := self._room(place)) <= 0:
                return batching.poll_s
            calls = self._cut(pending, batching, room)
            calls = {key: call for key, call in calls.items() if key in k.flights}  # K may have withdrawn some
            if calls:
                self._going[place] = self._going.get(place, 0) + len(calls)
                self._start(self._go(place, calls))
        del self._pending[place]
        return 0.0

    def _cut(self, pending: _PendingBatch, batching: BatchingPolicy, room: int) -> Calls:
        """Take the oldest calls, as many as fit into one submission, and ``room`` at most."""
        cut: Calls = {}
        size = 0
        for key, call in pending.calls.items():
            if len(cut) >= room or not fits(batching, len(cut) + 1, size + len(call.body)):
                break
            cut[key] = call
            size += len(call.body)
        for key in cut:
            del pending.calls[key]
        pending.size -= size
        pending.first_s = self._runtime.monotonic_s()
        return cut

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- before a submission -----------------------------------------------------------------------------------------

    async def _go(self, place: int, calls: Calls) -> None:
        """Drop the calls that are too large, and learn the account's newest batch: later batches were made since."""
        count = len(calls)
        try:
            await self._settled(place, calls)
        except Exception as error:  # of a branch, or of this code: the calls are asked again, and nothing was sent
            _log.exception("%d calls could not be submitted", len(calls))
            text = f"the calls could not be submitted: {error_words(error)}"
            self._fail(calls, Failure(FailureKind.TRANSIENT, text, sent=False))
        finally:
            self._going[place] -= count

    async def _settled(self, place: int, calls: Calls) -> None:
        await self._weigh(place, calls)
        looks = 0
        while calls and not self._over():
            if not self._has_turn(place):
                await self._turned.wait()
                continue
            reply = await self._orders.ask(place, batch_executor.NewestOrder())
            if reply is not None and reply.failure is None:
                if not self._has_turn(place):  # others, that asked meanwhile, took it
                    continue
                self._intend(place, calls, reply.name, reply.statuses[0].created_at_s if reply.statuses else 0.0)
                return
            if reply is not None and reply.failure is not None and not passes(reply.failure):
                self._refuse(calls, reply.failure)
                return
            await self._orders.pause(looks, reply)
            looks += 1

    def _over(self) -> bool:
        """True if the job stops: K has taken the waiting calls back."""
        k = self._state()
        return bool(k.outcome or k.stopping)

    async def _weigh(self, place: int, calls: Calls) -> None:
        """Drop the calls whose prompt the provider's own counter finds larger than M."""
        heavy = [call for call in calls.values() if body_tokens_bound(call.body) > call.prompt_tokens_max]
        looks = 0
        while heavy and not self._over():
            some = heavy[: batch_executor.MESSAGE_ROWS_MAX]
            reply = await self._orders.ask(place, batch_executor.CheckSizeOrder(tuple(some)))
            if reply is None:
                await self._orders.pause(looks, reply)
                looks += 1
                continue
            for call, refused in zip(some, reply.refused, strict=False):
                if refused is not None:
                    del calls[flight_key(call.goal, call.attempt)]
                    self._put([events.AttemptFailed(call.goal, call.sample, call.attempt, refused)])
            heavy = heavy[len(some) :]

    def _refuse(self, calls: Calls, failure: Failure) -> None:
        """Fail the calls of an account that does not even list its batches: nothing was sent, and no row is at fault.
        """
        if RULES[failure.kind].again != "hold":
            text = f"the provider's message batches cannot be used: {failure.message}"
            failure = msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=text)
        self._fail(calls, msgspec.structs.replace(failure, sent=False))

    def _fail(self, calls: Calls, failure: Failure) -> None:
        self._put([events.AttemptFailed(call.goal, call.sample, call.attempt, failure) for call in calls.values()])


def _more(k: State) -> bool:
    """True if another call may come before any call in flight returns."""
    if k.stopping or k.outcome or len(k.flights) >= k.terms.limits.concurrency:
        return False
    return k.wishes or k.rows_wanted() > 0
