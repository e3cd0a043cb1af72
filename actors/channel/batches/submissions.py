"""Message batches of a channel: submitted once their intent is in the journal, watched, and read.

K decides which batches to submit, find, read and cancel (``cortex.loop.batch_submissions``); this module carries the
commands out, by orders to the branches, which have the credential. Bodies of calls are kept until the provider has
them. All other state here may be lost: K repeats its commands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from actors.branch import batch_executor
from actors.channel.batches.accumulator import BatchAccumulator, Calls, Put
from actors.channel.batches.orders import BatchOrderRouter, passes
from actors.jobs.wait_reasons import WORDS_MAX, time_of_day
from actors.ports.message_batches import THE_REST, UNKNOWN_REQUESTS, BatchRequest, surely_not_made
from actors.ports.model import shallow
from actors.ports.runtime import PeerUnavailable, Runtime
from cortex.loop.batch_submissions import custom_id
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.batch_record import Submission, SubmissionStatus
from cortex.values.display import clipped
from cortex.values.limits import Limits
from policies.estimates.batching import (
    LOOKS_SHORT_MAX,
    NEVER_BEGAN,
    NOT_THERE,
    QUEUE_FULL,
    BatchingPolicy,
    absent,
    results_expired,
)
from policies.failures.failure import RULES, Failure, FailureKind

_log = logging.getLogger("cortex.batches")

PERMITS = 1_000_000
"""Permits of a route that goes by message batches. It has no share of a pool: the job's concurrency bounds it."""
CONCURRENCY_DEFAULT = 20_000
"""Default of requests with the provider at once. Each keeps its row in memory meanwhile."""
QUICK = BatchingPolicy(
    gather_s=0.05, gather_max_s=1.0, settle_s=1.0, submit_timeout_s=60.0, poll_s=0.05, poll_max_s=1.0
)
"""Batching policy for a simulated provider, which takes moments for a batch that takes a real one an hour."""
TROUBLES_SHOWN = 3
"""Batches that cannot be read in the line of a running job."""
NOBODY = "no branch could ask the provider and deliver the answer"
WITHDRAW_S = 10.0
"""Seconds for which a job that has ended waits until the provider has taken the cancellations of its batches."""
A_DAY_S = 86_400.0
"""Seconds by which the provider's times of creation may contradict the order of its list, where that no longer shows
the batch from before the intent."""
_NO_BRANCH = Failure(FailureKind.TRANSIENT, "no branch was available to submit the batch", sent=False)
_STAYED_OPEN = Failure(FailureKind.LOST, "the breaker of its route stayed open", sent=False)
"""Of a kind for which the calls are asked anew: no try of the submission is used up."""
TRIES_MAX = 3
SUBMITTING_MAX = 2
"""Submissions of a route that are handed over at once: each is in memory as a whole meanwhile. The others are not
intended before, since the time of a submission counts from its intent: one that waited for its turn would have less."""


def bounds(limits: Limits, *, simulated: bool, own: bool) -> Limits:
    """Return the limits of a job that goes by message batches. ``own``: the user set a concurrency."""
    wide = limits.concurrency if own else max(limits.concurrency, CONCURRENCY_DEFAULT)
    return msgspec.structs.replace(
        limits, concurrency=wide, window_rows=max(limits.window_rows, wide),
        batching=QUICK if simulated else limits.batching,
    )  # fmt: skip


class _Trouble(NamedTuple):
    """Reason why a submission cannot be read now, the time since when, and the number of tries."""

    since_s: float
    tries: int
    why: str


class SubmissionTracker:
    """Submissions of one job.

    ``state`` returns the job's state as it is now, ``put`` gives events to the channel's next turn,
    ``processes`` returns the incarnations of the branches by name, and ``now_s`` the job's time.
    """

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], put: Put, processes: Callable[[], dict[str, str]],
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._runtime, self._now_s = runtime, now_s
        self._state = state
        self._put = put
        self._orders = BatchOrderRouter(job, runtime, state, processes)
        self._gathering = BatchAccumulator(runtime, state, put, self._orders, self._intend, self._has_turn)
        self._bodies: dict[int, Calls] = {}
        """Calls of submissions that the provider may not have yet, by number."""
        self._next = 1
        self._reading: dict[int, dict[str, int]] = {}
        """Attempts by custom id, of submissions whose results are being read."""
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._troubles: dict[int, _Trouble] = {}
        """Submissions whose state or results cannot be read now, by number."""

    def without_credential(self) -> set[str]:
        """Return the branches that have answered that they have no credential for this job."""
        return self._orders.without_credential

    def words(self) -> list[str]:
        """Return for the batches that cannot be read now what keeps them, since when, and the number of tries."""
        k, found = self._state(), []
        for number, trouble in sorted(self._troubles.items()):
            if (made := k.submissions.get(number)) is not None:
                what = f"batch {made.name}" if made.name else f"submission {number}"
                tries = f"{trouble.tries:,} {'try' if trouble.tries == 1 else 'tries'}"
                found.append(f"{what} cannot be read since {time_of_day(trouble.since_s)} ({tries}): {trouble.why}")
        return found[:TROUBLES_SHOWN]

    def _note(self, number: int, reply: batch_executor.OrderReply | None) -> None:
        """Note whether an order about a submission could be carried out."""
        if reply is not None and reply.failure is None:
            self._troubles.pop(number, None)
            return
        why = clipped(reply.failure.message, WORDS_MAX) if reply is not None and reply.failure is not None else NOBODY
        was = self._troubles.get(number)
        since_s, tries = (was.since_s, was.tries) if was is not None else (self._runtime.now_s(), 0)
        self._troubles[number] = _Trouble(since_s, tries + 1, why)

    # -- from the channel --------------------------------------------------------------------------------------------

    def take(self, calls: Iterable[commands.Call]) -> list[commands.Call]:
        """Keep the calls whose route goes by message batches, and return the others."""
        return self._gathering.take(calls)

    def abandon(self, keys: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Drop abandoned calls that were not submitted yet, and return the keys of the others."""
        return self._gathering.abandon(keys)

    def carry_out(
        self,
        command: commands.SubmitBatch | commands.FindSubmission | commands.CollectResults | commands.CancelSubmission
        | commands.DiscardFiles,
    ) -> None:  # fmt: skip
        """Begin to carry out a command of K, unless it is being carried out already."""
        if isinstance(command, commands.SubmitBatch):
            self._begin("submit", command.number, self._submit)
        elif isinstance(command, commands.FindSubmission):
            self._begin("find", command.number, self._find)
        elif isinstance(command, commands.CollectResults):
            self._begin("collect", command.number, self._collect)
        elif isinstance(command, commands.DiscardFiles):
            self._begin("discard", command.number, partial(self._discard, command.route, command.name))
        else:
            self._begin("withdraw", command.number, partial(self._withdraw, command.route, command.name))

    def look(self) -> None:
        """Drop bodies that the provider has, or whose calls K has withdrawn. Called after each turn."""
        self._gathering.look()
        if not self._bodies:
            return
        k = self._state()
        for number in list(self._bodies):
            made = k.submissions.get(number)
            if number < k.next_submission and (made is None or made.stand == SubmissionStatus.OUT):
                del self._bodies[number]
        self._gathering.turned()

    def results(self, number: int, blob: bytes) -> list[events.Event]:
        """Return the results of a submission as events, without those that K has already.

        Raises ``PeerUnavailable`` if this channel does not read the submission. A message by the job's name may reach
        an earlier incarnation of the channel, and if that accepted results, all of their rows would be paid again.
        """
        k = self._state()
        keys = self._reading.get(number)
        if keys is None:
            raise PeerUnavailable(f"submission {number} is not being read here")
        found: list[events.Event] = []
        results = batch_executor.results_in(blob)
        if results and results[-1][0] == THE_REST:
            told = {name for name, _, _ in results}
            results = (*results[:-1], *((name, *results[-1][1:]) for name in keys if name not in told))
        for name, reply, failure in results:
            flight = k.flights.get(keys.get(name, -1))
            if flight is None:
                continue  # read before
            if reply is not None and isinstance(checked := shallow(reply), Failure):
                reply, failure = None, checked
            if reply is not None:
                asked = flight.sent or flight.hash
                found.append(events.Answered(flight.goal, flight.sample, flight.attempt, asked, reply))
            elif failure is not None:
                found.append(events.AttemptFailed(flight.goal, flight.sample, flight.attempt, failure))
        return found

    async def settle(self) -> None:
        """Wait until the provider has taken the cancellations of an ended job and deleted its files, ``WITHDRAW_S`` at
        most."""
        last = [task for (kind, _), task in self._tasks.items() if kind in ("withdraw", "discard")]
        if last:
            await asyncio.wait(last, timeout=WITHDRAW_S)

    async def close(self) -> None:
        """Stop watching. Batches stay with the provider."""
        await self.settle()
        await self._gathering.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_turn(self, place: int) -> bool:
        """Return whether a submission of this route may be intended now."""
        k = self._state()
        coming = sum(number >= k.next_submission for number in self._bodies)  # intended, and not in K yet
        for made in k.submissions.values():
            coming += made.route == place and made.stand in (SubmissionStatus.INTENDED, SubmissionStatus.RESTING)
        return coming < SUBMITTING_MAX

    def _intend(self, place: int, calls: Calls, newest: str, newest_s: float) -> None:
        """Record the intent to submit these calls: it is journalled before anything is sent."""
        number = self._next = max(self._next, self._state().next_submission)
        self._next += 1
        self._bodies[number] = calls
        self._put([events.SubmissionIntended(number, place, tuple(calls), newest, newest_s)])

    # -- one submission --------------------------------------------------------------------------------------------

    async def _submit(self, number: int) -> None:
        """Send the submission, once. A doubtful outcome is recorded as uncertain."""
        self._put([await self._handed_over(number)])

    async def _handed_over(self, number: int) -> events.Event:
        k = self._state()
        made, calls = k.submissions[number], self._bodies[number]
        until_s = made.settled_at_s - k.terms.limits.batching.settle_s
        rows = tuple(BatchRequest(custom_id(k, k.flights[key]), calls[key].body) for key in made.keys)
        while True:
            reply = await self._orders.ask(made.route, batch_executor.ClockOrder())
            if reply is not None and reply.clock:
                # its time was read before this moment: by that clock the deadline is not later than by this one
                order = batch_executor.SubmitOrder(rows, reply.clock_s + until_s - self._now_s(), reply.clock)
                try:
                    reply = await self._orders.ask_once(made.route, order)
                except Exception as error:  # the branch may have died, or may be slow and still handing it over
                    await asyncio.sleep(max(0.0, until_s - self._now_s()))
                    failure = Failure(FailureKind.TRANSIENT, f"the submitting branch did not answer ({error})")
                    return events.SubmissionUncertain(number, failure)
                if reply is not None and reply.clock:
                    reply = None  # another branch has the credential now
            if reply is not None and not reply.given_back_s:
                break
            left_s = until_s - self._now_s()
            if left_s <= 0:
                reply = batch_executor.OrderReply(_NO_BRANCH if reply is None else _STAYED_OPEN)
                break
            if reply is None:
                await self._orders.pause(0, None)
            else:  # the breaker of the route is open: nothing was sent, so that no try is used up
                await asyncio.sleep(min(reply.given_back_s, left_s))
        if reply.failure is None:
            return events.SubmissionAccepted(number, reply.name)
        if reply.failure.error_type == QUEUE_FULL:
            self._gathering.is_full(made)
        sure = surely_not_made(reply.failure)
        return (
            events.SubmissionRejected(number, reply.failure)
            if sure
            else events.SubmissionUncertain(number, reply.failure)
        )

    async def _find(self, number: int) -> None:
        """Look through the batches made since the intent: their sizes, and then custom ids, decide which one it is."""
        strangers: set[str] = set()
        looks = 0
        while (made := self._state().submissions.get(number)) is not None:
            listed_at_s = self._now_s()
            not_before_s = made.marker_at_s - A_DAY_S if made.marker_at_s else 0.0  # the provider's clock, never ours
            settled = absent(made.settled_at_s, listed_at_s)
            found: events.Event | None = None
            reply = await self._orders.ask(made.route, batch_executor.ListOrder(made.marker, not_before_s))
            if reply is not None and reply.failure is None:
                found, early = await self._among(made, reply, strangers)
                if found is None and not early and settled:
                    never = Failure(FailureKind.LOST, "the provider never received the batch", sent=False)
                    found = events.SubmissionRejected(number, made.failure or never)
            elif reply is not None and reply.failure is not None and not passes(reply.failure):
                found = events.SubmissionUnreadable(number, reply.failure)
            if found is not None and (settled or not _asks(found)):
                self._put([found])
                return
            self._note(number, reply)
            await self._orders.pause(looks, reply)
            looks += 1

    async def _among(
        self, made: Submission, reply: batch_executor.OrderReply, strangers: set[str]
    ) -> tuple[events.Event | None, bool]:
        """Return the event that decides, if one of these batches does, and whether some of them cannot be judged yet.
        """
        known = {other.name for other in self._state().submissions.values()}
        sizes = (len(made.keys), UNKNOWN_REQUESTS)
        alike = [each for each in reply.statuses if each.requests in sizes and each.name not in known]
        ids = self._ids(made)
        early, why = False, ""
        for each in alike:
            if each.first_id:  # the provider keeps what was said of the batch: its results need not be awaited
                if each.first_id in ids:
                    return events.SubmissionAccepted(made.number, each.name), False
                continue
            if each.name in strangers:
                continue
            if not each.ended:
                early = True  # custom ids are known from results only
                continue
            first = await self._orders.ask(made.route, batch_executor.FirstIdOrder(each.name))
            if first is None or (first.failure is not None and passes(first.failure)):
                early = True
            elif first.failure is not None or not first.name:
                cause = first.failure.message if first.failure is not None else "they are empty"
                why = why or f"batch {each.name} may be it, and its results cannot be read: {cause}"
            elif first.name in ids:
                return events.SubmissionAccepted(made.number, each.name), False
            else:
                strangers.add(each.name)
        if why and not early:  # each of the others is somebody else's
            return events.SubmissionUnreadable(made.number, Failure(FailureKind.REJECTED, why)), False
        return None, early

    async def _collect(self, number: int) -> None:
        """Wait until a batch has ended, and have its results delivered, to the last line."""
        looks = short = 0
        while (made := self._state().submissions.get(number)) is not None:
            reply = await self._orders.ask(made.route, batch_executor.StatusOrder(made.name))
            if reply is not None and reply.failure is None and reply.statuses[0].ended:
                requests = reply.statuses[0].requests
                self._reading[number] = self._ids(made)
                order = batch_executor.ReadOrder(made.name, number, max(0, requests))
                reply = await self._orders.ask(made.route, order)
                del self._reading[number]
                if reply is not None and reply.failure is None:
                    if reply.rows >= requests or short >= LOOKS_SHORT_MAX:
                        self._gathering.has_room(made.route)
                        self._put([events.ResultsCollected(number)])
                        return
                    short += 1
            if reply is not None and reply.failure is not None and reply.failure.error_type in NEVER_BEGAN:
                if reply.failure.error_type == QUEUE_FULL:
                    self._gathering.is_full(made)
                self._put([events.SubmissionRejected(number, reply.failure)])
                self._begin("discard", number, partial(self._discard, made.route, made.name))
                return
            if reply is not None and reply.failure is not None and not passes(reply.failure):
                self._put([_gone(made, reply.failure, self._now_s())])
                return
            self._note(number, reply)
            await self._orders.pause(looks, reply)
            looks += 1

    async def _withdraw(self, place: int, name: str, _: int) -> None:
        for looks in range(TRIES_MAX):
            reply = await self._orders.ask(place, batch_executor.CancelOrder(name))
            if reply is not None and (reply.failure is None or not passes(reply.failure)):
                return
            await self._orders.pause(looks, reply)

    async def _discard(self, place: int, name: str, _: int) -> None:
        """Delete the files of a batch. They expire by themselves, so that a failure is told and no more."""
        reply: batch_executor.OrderReply | None = None
        for looks in range(TRIES_MAX):
            reply = await self._orders.ask(place, batch_executor.DiscardOrder(name))
            if reply is not None and (reply.failure is None or not passes(reply.failure)):
                break
            await self._orders.pause(looks, reply)
        why = "no branch was available" if reply is None else reply.failure and reply.failure.message
        if why:
            _log.warning("files of batch %s stay at the provider: %s", name, why)

    # -- tasks ------------------------------------------------------------------------------------------------------

    def _ids(self, made: Submission) -> dict[str, int]:
        """Return the attempts of a submission that K still waits for, by custom id."""
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
        self._troubles.pop(number, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        failure = Failure(FailureKind.FAULTY, f"{type(error).__name__} in the watch of the batch: {error}")
        if kind == "submit":
            self._put([events.SubmissionUncertain(number, failure)])
        elif kind in ("find", "collect"):
            self._put([events.SubmissionUnreadable(number, failure)])
        else:
            raise error


def _asks(found: events.Event) -> bool:
    """Return whether a person is to say what became of a submission. Nobody can tell before no request is pending: who
    sees no batch says that there is none, and its rows are sent again while the request may still arrive.
    """
    return type(found) is events.SubmissionUnreadable and RULES[found.failure.kind].again != "hold"


def _gone(made: Submission, failure: Failure, now_s: float) -> events.Event:
    """Return the event of a batch that existed and cannot be read. ``now_s``: the job's time."""
    if failure.kind == FailureKind.LOST:
        return events.SubmissionRejected(made.number, failure)
    if failure.status in NOT_THERE:
        text = f"the provider does not find batch {made.name}: "
        if results_expired(failure.status, made.intended_at_s, now_s):
            text += "it keeps results for a time alone"
        else:  # no proof that the batch is gone
            text += "the key may be of another workspace, or the batch may be found later"
        failure = msgspec.structs.replace(failure, message=f"{text} ({failure.message})")
    return events.SubmissionUnreadable(made.number, failure)
