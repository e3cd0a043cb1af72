"""A channel's message batches: submitted once their intent is in the journal, looked after, read.

What is to be done is K's to say (``cortex.loop.batch_submissions``); here it is done, by orders to the branches, which
hold the key. The bodies of calls are kept until the provider has them, no longer. All else here can be lost: K says it
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.channel.batches.accumulator import BatchAccumulator, Calls, Put
from actors.channel.batches.orders import BatchOrderRouter, passes
from actors.ports.message_batches import BatchRequest, surely_not_made
from actors.ports.runtime import Runtime
from cortex.loop.batch_submissions import custom_id
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.batch_record import Submission, SubmissionStatus
from cortex.values.limits import Limits
from policies.estimates.batching import LOOKS_SHORT_MAX, BatchingPolicy, absent
from policies.failures.failure import Failure, FailureKind

PERMITS = 1_000_000
"""A road of message batches has no share of a pool: what is in flight there is bounded by the user's concurrency."""
CONCURRENCY_DEFAULT = 20_000
"""Requests with the provider at once, where the user names no number: each keeps its row in memory meanwhile."""
QUICK = BatchingPolicy(
    gather_s=0.05, gather_max_s=1.0, settle_s=1.0, submit_timeout_s=60.0, poll_s=0.05, poll_max_s=1.0
)
"""For a simulated provider, which works off in moments what a real one takes an hour for."""
WITHDRAW_S = 10.0
"""How long a job that has ended waits for the provider to hear that its batches are not wanted any more."""
A_DAY_S = 86_400.0
"""Where the list no longer shows the batch from before the intent, this much of a wrong clock is allowed for."""
TRIES_MAX = 3
SUBMITTING_MAX = 2
"""Submissions handed over at once: each is in memory as a whole while it is."""


def bounds(limits: Limits, *, simulated: bool, own: bool) -> Limits:
    """The limits of a job that goes over message batches. ``own``: the user named a concurrency."""
    wide = limits.concurrency if own else max(limits.concurrency, CONCURRENCY_DEFAULT)
    return msgspec.structs.replace(
        limits, concurrency=wide, window_rows=max(limits.window_rows, wide),
        batching=QUICK if simulated else limits.batching,
    )  # fmt: skip


class SubmissionTracker:
    """``state`` gives K as it is now, ``put`` puts events into the channel's inbox, ``names`` are the branches."""

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], put: Put, names: Callable[[], tuple[str, ...]]
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._put = put
        self._orders = BatchOrderRouter(job, runtime, state, names)
        self._gathering = BatchAccumulator(runtime, state, put, self._orders, self._intend)
        self._bodies: dict[int, Calls] = {}
        """Of submissions that the provider may yet not have, by number."""
        self._next = 1
        self._reading: dict[int, dict[str, int]] = {}
        """Attempts by custom id, of submissions whose results are being read."""
        self._submitting = asyncio.Semaphore(SUBMITTING_MAX)
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def without_credential(self) -> set[str]:
        """Branches that said that they have no key for this job."""
        return self._orders.without_credential

    # -- what the channel says -------------------------------------------------------------------------------------

    def take(self, calls: Iterable[commands.Call]) -> list[commands.Call]:
        """Calls of roads of message batches stay here; the others are given back."""
        return self._gathering.take(calls)

    def abandon(self, keys: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Calls that nobody waits for and that are in hand do not go; the rest is given back."""
        return self._gathering.abandon(keys)

    def carry_out(
        self,
        command: commands.SubmitBatch | commands.FindSubmission | commands.CollectResults | commands.CancelSubmission,
    ) -> None:
        """Do what K wants done; what is being done already is not done twice."""
        if isinstance(command, commands.SubmitBatch):
            self._begin("submit", command.number, self._submit)
        elif isinstance(command, commands.FindSubmission):
            self._begin("find", command.number, self._find)
        elif isinstance(command, commands.CollectResults):
            self._begin("collect", command.number, self._collect)
        else:
            self._begin("withdraw", command.number, partial(self._withdraw, command.route, command.name))

    def look(self) -> None:
        """After each turn: let go of bodies that the provider has, or that K has taken back."""
        self._gathering.look()
        if not self._bodies:
            return
        k = self._state()
        for number in list(self._bodies):
            made = k.submissions.get(number)
            if number < k.next_submission and (made is None or made.stand == SubmissionStatus.OUT):
                del self._bodies[number]

    def results(self, number: int, blob: bytes) -> list[events.Event]:
        """Results of a submission, as events; of those that K still waits for."""
        k = self._state()
        keys = self._reading.get(number, {})
        found: list[events.Event] = []
        for name, reply, failure in batch_executor.results_in(blob):
            flight = k.flights.get(keys.get(name, -1))
            if flight is None:
                continue  # read before
            if reply is not None:
                asked = flight.sent or flight.hash
                found.append(events.Answered(flight.goal, flight.sample, flight.attempt, asked, reply))
            elif failure is not None:
                found.append(events.AttemptFailed(flight.goal, flight.sample, flight.attempt, failure))
        return found

    async def settle(self) -> None:
        """The job has ended: wait a little until the provider has heard what is not wanted any more."""
        withdrawals = [task for (kind, _), task in self._tasks.items() if kind == "withdraw"]
        if withdrawals:
            await asyncio.wait(withdrawals, timeout=WITHDRAW_S)

    async def close(self) -> None:
        """Stop looking. What is with the provider stays there."""
        await self.settle()
        await self._gathering.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _intend(self, place: int, calls: Calls, newest: str) -> None:
        """These calls shall go: journal it first."""
        number = self._next = max(self._next, self._state().next_submission)
        self._next += 1
        self._bodies[number] = calls
        self._put([events.SubmissionIntended(number, place, tuple(calls), newest)])

    # -- one submission --------------------------------------------------------------------------------------------

    async def _submit(self, number: int) -> None:
        """Hand it over, once. Whatever leaves room for doubt is told as doubt."""
        async with self._submitting:
            event = await self._handed_over(number)
        self._put([event])

    async def _handed_over(self, number: int) -> events.Event:
        k = self._state()
        made, calls = k.submissions[number], self._bodies[number]
        until_s = made.settled_at_s - k.terms.limits.batching.settle_s
        rows = tuple(BatchRequest(custom_id(k, k.flights[key]), calls[key].body) for key in made.keys)
        while True:
            try:
                reply = await self._orders.ask_once(made.route, batch_executor.SubmitOrder(rows, until_s))
            except Exception as error:  # the branch may have died, or be slow: it may be handing it over still
                await asyncio.sleep(max(0.0, until_s - self._runtime.now_s()))
                failure = Failure(FailureKind.TRANSIENT, f"the branch that submitted it did not answer ({error})")
                return events.SubmissionUncertain(number, failure)
            if reply is not None:
                break
            if self._runtime.now_s() >= until_s:
                failure = Failure(FailureKind.TRANSIENT, "no branch was there to submit it", sent=False)
                reply = batch_executor.OrderReply(failure)
                break
            await self._orders.pause(0, None)
        if reply.failure is None:
            return events.SubmissionAccepted(number, reply.name)
        sure = surely_not_made(reply.failure)
        return (
            events.SubmissionRejected(number, reply.failure)
            if sure
            else events.SubmissionUncertain(number, reply.failure)
        )

    async def _find(self, number: int) -> None:
        """Look through the batches made since the intent: count and then custom ids decide which of them it is."""
        strangers: set[str] = set()
        looks = 0
        while (made := self._state().submissions.get(number)) is not None:
            listed_at_s = self._runtime.now_s()
            reply = await self._orders.ask(
                made.route, batch_executor.ListOrder(made.marker, made.intended_at_s - A_DAY_S)
            )
            if reply is not None and reply.failure is None:
                found, early = await self._among(made, reply, strangers)
                if found is None and not early and absent(made.settled_at_s, listed_at_s):
                    never = Failure(FailureKind.LOST, "the provider never had it", sent=False)
                    found = events.SubmissionRejected(number, made.failure or never)
                if found is not None:
                    self._put([found])
                    return
            elif reply is not None and reply.failure is not None and not passes(reply.failure):
                self._put([events.SubmissionUnreadable(number, reply.failure)])
                return
            await self._orders.pause(looks, reply)
            looks += 1

    async def _among(
        self, made: Submission, reply: batch_executor.OrderReply, strangers: set[str]
    ) -> tuple[events.Event | None, bool]:
        """The event that decides, if one of these batches does; and whether it is too early to say of some of them."""
        known = {other.name for other in self._state().submissions.values()}
        alike = [each for each in reply.statuses if each.requests == len(made.keys) and each.name not in known]
        ids = self._ids(made)
        early = False
        for each in alike:
            if each.name in strangers:
                continue
            if not each.ended:
                early = True  # its ids are told with its results
                continue
            first = await self._orders.ask(made.route, batch_executor.FirstIdOrder(each.name))
            if first is None or (first.failure is not None and passes(first.failure)):
                early = True
            elif first.failure is not None or not first.name:
                why = first.failure.message if first.failure is not None else "they are empty"
                why = f"batch {each.name} may be it, and its results cannot be read: {why}"
                return events.SubmissionUnreadable(made.number, Failure(FailureKind.REJECTED, why)), False
            elif first.name in ids:
                return events.SubmissionAccepted(made.number, each.name), False
            else:
                strangers.add(each.name)
        return None, early

    async def _collect(self, number: int) -> None:
        """Wait until a batch has ended, and have its results brought, to the last line."""
        looks = short = 0
        while (made := self._state().submissions.get(number)) is not None:
            reply = await self._orders.ask(made.route, batch_executor.StatusOrder(made.name))
            if reply is not None and reply.failure is None and reply.statuses[0].ended:
                requests = reply.statuses[0].requests
                self._reading[number] = self._ids(made)
                reply = await self._orders.ask(made.route, batch_executor.ReadOrder(made.name, number))
                del self._reading[number]
                if reply is not None and reply.failure is None:
                    if reply.rows >= requests or short >= LOOKS_SHORT_MAX:
                        self._put([events.ResultsCollected(number)])
                        return
                    short += 1
            if reply is not None and reply.failure is not None and not passes(reply.failure):
                self._put([_gone(made, reply.failure)])
                return
            await self._orders.pause(looks, reply)
            looks += 1

    async def _withdraw(self, place: int, name: str, _: int) -> None:
        for looks in range(TRIES_MAX):
            reply = await self._orders.ask(place, batch_executor.CancelOrder(name))
            if reply is not None and (reply.failure is None or not passes(reply.failure)):
                return
            await self._orders.pause(looks, reply)

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _ids(self, made: Submission) -> dict[str, int]:
        """Its attempts by custom id, those that K still waits for."""
        k = self._state()
        return {custom_id(k, k.flights[key]): key for key in made.keys if key in k.flights}

    def _begin(self, kind: str, number: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        if (kind, number) in self._tasks:
            return
        task = asyncio.get_running_loop().create_task(work(number))
        self._tasks[kind, number] = task
        task.add_done_callback(lambda done: self._ended(kind, number, done))

    def _ended(self, kind: str, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop((kind, number), None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        failure = Failure(FailureKind.FAULTY, f"{type(error).__name__} while it was looked after: {error}")
        if kind == "submit":
            self._put([events.SubmissionUncertain(number, failure)])
        elif kind in ("find", "collect"):
            self._put([events.SubmissionUnreadable(number, failure)])
        else:
            raise error


def _gone(made: Submission, failure: Failure) -> events.Event:
    """Its batch, which there was, cannot be read."""
    if failure.kind == FailureKind.LOST:
        return events.SubmissionRejected(made.number, failure)
    if failure.status == 404:
        text = f"batch {made.name} is not there any more, and the provider keeps results for 29 days"
        failure = msgspec.structs.replace(failure, message=f"{text} ({failure.message})")
    return events.SubmissionUnreadable(made.number, failure)
