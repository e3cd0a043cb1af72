"""Calls in hand, until they go together as one submission: gathered, cut, weighed, intended.

Nothing of it has left yet, and K knows that: whatever is lost here was never sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.channel.batches.orders import BatchOrderRouter, passes
from actors.ports.runtime import Runtime
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from policies.estimates.batching import BatchingPolicy, fits, gather_until_s
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import RULES, Failure, FailureKind

Calls = dict[int, commands.Call]
Put = Callable[[list[events.Event]], None]


class _PendingBatch:
    """Calls of one route that wait for others to go with them."""

    __slots__ = ("calls", "first_s", "last_s", "size")

    def __init__(self) -> None:
        self.calls: Calls = {}
        self.size = 0
        self.first_s = self.last_s = 0.0


class BatchAccumulator:
    """``intend`` is given the route, the calls, and the account's newest batch, when these shall go."""

    def __init__(
        self, runtime: Runtime, state: Callable[[], State], put: Put, orders: BatchOrderRouter,
        intend: Callable[[int, Calls, str], None],
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._state = state
        self._put = put
        self._orders = orders
        self._intend = intend
        self._pending: dict[int, _PendingBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def take(self, calls: Iterable[commands.Call]) -> list[commands.Call]:
        """Calls of roads of message batches stay here; the others are given back."""
        batched = [route.batched for route in self._state().terms.routes]
        others: list[commands.Call] = []
        now_s = self._runtime.monotonic_s()
        for call in calls:
            if not batched[call.route]:
                others.append(call)
                continue
            hand = self._pending.setdefault(call.route, _PendingBatch())
            hand.first_s = hand.first_s if hand.calls else now_s
            hand.last_s = now_s
            hand.calls[flight_key(call.goal, call.attempt)] = call
            hand.size += len(call.body)
        self.look()
        return others

    def abandon(self, keys: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Calls that nobody waits for and that are in hand do not go; the rest is given back."""
        others: list[tuple[int, int]] = []
        for goal, attempt in keys:
            key = flight_key(goal, attempt)
            hand = next((hand for hand in self._pending.values() if key in hand.calls), None)
            if hand is None:
                others.append((goal, attempt))
                continue
            call = hand.calls.pop(key)
            hand.size -= len(call.body)
            failure = Failure(FailureKind.CANCELLED, "abandoned before it was sent", sent=False)
            self._put([events.AttemptFailed(goal, call.sample, attempt, failure)])
        return others

    def look(self) -> None:
        """After each turn: perhaps nothing more is coming."""
        if self._pending:
            self._changed.set()
            if self._gathering is None or self._gathering.done():
                self._gathering = asyncio.get_running_loop().create_task(self._gather())

    async def close(self) -> None:
        """Let go of all of them."""
        tasks = [*self._tasks, *([self._gathering] if self._gathering else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- cutting ---------------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        """Until nothing is in hand: cut what is full, or has waited long enough, or has nothing to wait for."""
        while self._pending:
            self._changed.clear()
            wait_s = min([self._cut_what_is_due(place) for place in list(self._pending)])
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # in 3.11 wait_for may swallow a cancellation
                        await self._changed.wait()

    def _cut_what_is_due(self, place: int) -> float:
        """How long the rest of this hand waits; 0 where there is none."""
        k, hand = self._state(), self._pending[place]
        batching = k.terms.limits.batching
        while hand.calls:
            full = not fits(batching, len(hand.calls) + 1, hand.size + 1)
            wait_s = gather_until_s(batching, hand.first_s, hand.last_s, _more(k)) - self._runtime.monotonic_s()
            if not full and wait_s > 0:
                return max(0.001, wait_s)
            calls = self._cut(hand, batching)
            calls = {key: call for key, call in calls.items() if key in k.flights}  # K may have taken some back
            if calls:
                self._start(self._go(place, calls))
        del self._pending[place]
        return 0.0

    def _cut(self, hand: _PendingBatch, batching: BatchingPolicy) -> Calls:
        """The oldest calls, as many as go together."""
        cut: Calls = {}
        size = 0
        for key, call in hand.calls.items():
            if not fits(batching, len(cut) + 1, size + len(call.body)):
                break
            cut[key] = call
            size += len(call.body)
        for key in cut:
            del hand.calls[key]
        hand.size -= size
        hand.first_s = self._runtime.monotonic_s()
        return cut

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- before they go --------------------------------------------------------------------------------------------

    async def _go(self, place: int, calls: Calls) -> None:
        """See what may be sent at all, and learn the account's newest batch: what is newer was made since."""
        await self._weigh(place, calls)
        looks = 0
        while calls and not self._over():
            reply = await self._orders.ask(place, batch_executor.NewestOrder())
            if reply is not None and reply.failure is None:
                self._intend(place, calls, reply.name)
                return
            if reply is not None and reply.failure is not None and not passes(reply.failure):
                self._refuse(calls, reply.failure)
                return
            await self._orders.pause(looks, reply)
            looks += 1

    def _over(self) -> bool:
        """Whether the job stops: then K has taken back what is in hand."""
        k = self._state()
        return bool(k.outcome or k.stopping)

    async def _weigh(self, place: int, calls: Calls) -> None:
        """Take out what the provider's own counter finds above M."""
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
        """The account cannot be asked even for a list: nothing was sent, and no row is to blame."""
        if RULES[failure.kind].again != "hold":
            text = f"the provider's message batches cannot be used: {failure.message}"
            failure = msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=text)
        failure = msgspec.structs.replace(failure, sent=False)
        self._put([events.AttemptFailed(call.goal, call.sample, call.attempt, failure) for call in calls.values()])


def _more(k: State) -> bool:
    """Whether another call may come to hand before anything returns."""
    if k.stopping or k.outcome or len(k.flights) >= k.terms.limits.concurrency:
        return False
    return k.wishes or k.rows_wanted() > 0
