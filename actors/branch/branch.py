"""Branch: makes bounded calls, many at once, each in a clean context. Prompts are sent from here only.

A branch enforces the bound and the attempt's deadline, and returns a typed reply or a typed failure. It keeps a reply
until the reply is on the channel's disk, and nothing else: it never retries and never sees K. It counts the outcomes of
attempts and reports them to the cortex.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from actors.branch.batch_executor import BatchExecutor
from actors.branch.coalescing import RISE, worth_s
from actors.branch.credential_exchange import CredentialExchange
from actors.branch.in_flight import InFlightCall, goes_on
from actors.branch.model_registry import MissingCredential, ModelRegistry, OpenRoute, family_of
from actors.branch.outcome_counters import OutcomeCounters
from actors.branch.prompt_limit import PromptLimit, over_bound
from actors.branch.reply_outbox import QUICK_S, ReplyOutbox, Send
from actors.branch.route_breakers import CircuitBreakerError, RouteBreakers
from actors.branch.task_pool import TaskPool
from actors.messaging.payload import Payload
from actors.messaging.report_sender import ReportSender
from actors.ports.model import TRACEPARENT, Model, shallow
from actors.ports.runtime import Runtime
from cortex.scheduler.reports import ProgressReport
from cortex.state import commands, events
from cortex.values.bounds.json_depth import BRACKETS_MAX, JSON_DEPTH_MAX
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

SWEEP_S = 0.25
"""Seconds between two checks of deadlines: one sweep over all calls in flight costs less than a timer for each."""
GRACE_S = 5.0
"""Seconds that a cancelled call may take to end. Then its failure is reported, and its request abandoned."""
DRAINING = "draining"
"""Answer of a branch that accepts no more calls: the message was refused."""

PAST_MAX = 1_000
"""Ended jobs that are remembered, so that duplicates of their messages are recognized."""

_UNSENT = Failure(FailureKind.CANCELLED, "abandoned before it was sent", sent=False)
_calls_decoder = msgspec.msgpack.Decoder(tuple[commands.Call, ...])


class Branch:
    """Branch actor. ``make_model`` makes a model of an encoded endpoint and credential; it is called once for each."""

    def __init__(self, name: str, runtime: Runtime, make_model: Callable[[bytes], Model]) -> None:
        self.name = name
        self.incarnation = runtime.incarnation(name)
        self._runtime = runtime
        self._clock = runtime.monotonic_s
        self._batch_executor = BatchExecutor()
        self._counts = OutcomeCounters()
        self._breakers = RouteBreakers(name, runtime.monotonic_s)
        self._keys = ModelRegistry(make_model, self._counts, self._breakers)
        self._credentials = CredentialExchange(name, runtime, self._keys, self._enqueue)
        self._epochs: dict[str, int] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        """Epoch and number of the last message of each job."""
        self._past: dict[str, None] = {}
        """Ended jobs: a duplicate of a message may still come."""
        self._under: dict[InFlightCall, None] = {}
        self._calls: dict[str, int] = {}
        """Number of calls under way of each job."""
        self._stuck: set[InFlightCall] = set()
        """Calls reported as timed out or abandoned that have not ended yet."""
        self._task_pool = TaskPool(self._make)
        self._outboxes: dict[str, ReplyOutbox] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._reporter = ReportSender(runtime, self._report, self._more, self._breakers.heard)
        self._bound = PromptLimit()
        self._draining = self._closing = False
        self._done = 0
        self._overdue_s = 0.0
        self._traces = False
        """True once a call has carried a trace parent: later calls must set or clear theirs."""

    @property
    def busy(self) -> bool:
        """True while a call is under way or a reply is held."""
        return bool(self._under or self._batch_executor.busy) or any(outbox.busy for outbox in self._outboxes.values())

    # -- credentials -----------------------------------------------------------------------------------------------

    async def set_credential(self, job: str, connection: bytes) -> None:
        """Accept endpoint and credential for a job. They are sent in a message, never in a constructor or an
        environment.
        """
        await self._credentials.set_credential(job, connection)

    async def hand_over(self, job: str) -> bytes | None:
        """Return endpoint and credential of a job, for a peer branch that was restarted; None if there are none."""
        return self._credentials.hand_over(job)

    # -- messages --------------------------------------------------------------------------------------------------

    async def work(
        self, job: str, epoch: int, incarnation: str, number: int, blob: bytes, peers: tuple[str, ...] = (),
        on_disk: int = 0, waits: bool = False,
    ) -> str | tuple[str, bytes]:  # fmt: skip
        """Begin these calls if the message is for this incarnation; return this incarnation.

        - A message whose number was received before is not taken again.
        - Returns an empty text, with nothing done, if a newer incarnation of the channel is known.
        - Returns ``DRAINING``, with nothing done, if the branch accepts no more calls.

        ``on_disk``: events sent with the answers to messages up to this number are on the channel's disk. ``waits``:
        outcomes of quick calls, and other events that are ready, may be sent with the answer
        (``actors.branch.reply_outbox``).
        """
        if epoch < self._epochs.get(job, 0):
            return ""
        self._epochs[job] = epoch
        if on_disk:
            await self.on_disk(job, epoch, on_disk)
        if incarnation != self.incarnation or (epoch, number) <= self._acknowledged.get(job, (0, 0)):
            self._again(job)
            return self.incarnation
        if self._draining:
            self._reporter.at_once()  # a restarted cortex may not know that this branch is draining
            return DRAINING
        calls: Sequence[commands.Call] = blob.content if type(blob) is Payload else _calls_decoder.decode(blob)
        armed = (family := family_of(job)) in self._keys
        if not armed:
            self._credentials.request(job, peers)
        self._take(job, family, epoch, number, calls, armed)
        outbox = self._outbox(job)
        brought = b""
        if waits:
            if armed and outbox.quick:
                brought = await outbox.answer(epoch, number, len(calls))
            elif not outbox.patient:
                brought = await outbox.gathered(epoch, number)
        return (self.incarnation, brought) if brought else self.incarnation

    def fast_work(
        self, job: str, epoch: int, incarnation: str, number: int, payload: Payload, on_disk: int, send: Send
    ) -> bool:  # fmt: skip
        """Take the message as ``work`` does, without a coroutine that waits for the answer (fast path).

        For a channel of the same process, while nothing has changed since its last message and calls are quick.
        ``send`` is called with what ``work`` would return along with the incarnation, by the call that ends last.
        Returns False, with nothing done, if the message has to go through ``work``. Both lead to the same journal:
        ``tests/edge/messaging/test_in_process_messages.py``.
        """
        outbox, family = self._outboxes.get(job), family_of(job)
        if (
            outbox is None or not outbox.quick or outbox.asked or self._draining or family not in self._keys
            or incarnation != self.incarnation or self._acknowledged.get(job, (0, 0)) >= (epoch, number)
            or self._epochs.get(job) != epoch
        ):  # fmt: skip
            return False
        if on_disk:
            outbox.on_disk(epoch, on_disk)
        calls: Sequence[commands.Call] = payload.content
        self._take(job, family, epoch, number, calls, armed=True)
        outbox.expect(epoch, number, len(calls), send)
        return True

    def _take(
        self, job: str, family: str, epoch: int, number: int, calls: Sequence[commands.Call], armed: bool
    ) -> None:  # fmt: skip
        self._acknowledged[job] = (epoch, number)
        self._past.pop(job, None)
        now_s, within = self._clock(), self._bound.all_within(calls)
        taken = [InFlightCall(job, family, call, now_s, within) for call in calls]
        self._under.update(dict.fromkeys(taken))
        self._calls[job] = self._calls.get(job, 0) + len(taken)
        if armed:
            self._enqueue(taken)
        else:
            self._credentials.hold(family, taken)
        self._reporter.wake()

    async def on_disk(self, job: str, epoch: int, number: int) -> None:
        """Drop the events that were sent with the answers to this channel's messages, up to this number."""
        outbox = self._outboxes.get(job)
        if outbox is not None:
            outbox.on_disk(epoch, number)

    async def batches(self, job: str, epoch: int, place: int, order: bytes, peers: tuple[str, ...] = ()) -> bytes:
        """Carry out an order about message batches (``actors.branch.batch_executor``).

        Returns empty bytes if the order is stale, or if the branch has no credential for the job.
        """
        if epoch < self._epochs.get(job, 0) or self._draining:
            return b""
        self._epochs[job] = epoch
        if family_of(job) not in self._keys:
            self._credentials.request(job, peers)
            return b""
        route = self._keys.open_route(family_of(job), place)
        if route.breaker.shut:
            self._reporter.wake()  # orders alone are not reported, and the answer says when it closes
        clock = (self.incarnation, self._runtime.steady_s())
        return await self._batch_executor.carry_out(
            order, route.model, route.breaker.wait_s, self._runtime.peer(f"channel:{job}"), clock
        )

    async def abandon(self, job: str, epoch: int, calls: tuple[tuple[int, int], ...]) -> None:
        """Cancel these calls, whose results are not wanted any more, if that still saves anything."""
        if epoch < self._epochs.get(job, 0):
            return
        wanted = set(map(tuple, calls))
        for under in [each for each in self._under if each.job == job]:
            if (under.call.goal, under.call.attempt) in wanted:
                self._cancel(under, FailureKind.CANCELLED)

    async def held(self, job: str, epoch: int) -> tuple[str, bool, tuple[tuple[int, int], ...], int]:
        """Return (incarnation, has a credential, calls, epoch) for a job.

        ``calls`` are (goal, attempt) of calls that are under way or whose replies are not delivered yet; ``epoch`` is
        the highest epoch of the job that was known before this request.
        """
        number = self._epochs.get(job, 0)
        if epoch > number:
            self._epochs[job] = epoch
            self._again(job)
        under = [(each.call.goal, each.call.attempt) for each in self._under if each.job == job]
        outbox = self._outboxes.get(job)
        kept = outbox.keys() if outbox is not None else ()
        return self.incarnation, family_of(job) in self._keys, (*under, *kept), number

    async def beat(self, job: str, peers: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return signs of life: incarnation, phase, and whether there is a credential for the job; if not, ask
        ``peers`` for it.
        """
        armed = family_of(job) in self._keys
        if peers and not armed:
            self._credentials.request(job, peers)
        return {"incarnation": self.incarnation, "phase": self._phase(), "armed": armed}

    async def ping(self) -> tuple[str, str, tuple[str, ...]]:
        """Return incarnation, node, and the jobs with calls under way; an answer shows that the event loop runs."""
        return self.incarnation, self._runtime.node(), tuple(job for job, calls in self._calls.items() if calls)

    async def drain(self) -> None:
        """Accept no more calls. Return when all calls have ended and their events are on their channels' disks."""
        self._draining = True
        self._reporter.at_once()
        while self.busy:  # noqa: ASYNC110 - checked no more often than deadlines
            await asyncio.sleep(SWEEP_S)

    async def forget(self, job: str) -> None:
        """Drop everything that belongs to an ended job, its credential first. A child job leaves its family's
        credential.
        """
        for under in self._credentials.drop(job):
            self._leaves(under)
        self._past[job] = None
        for old in list(self._past)[:-PAST_MAX]:
            for kept in (self._past, self._acknowledged, self._epochs):
                kept.pop(old, None)
        outbox = self._outboxes.pop(job, None)
        if outbox is not None:
            await outbox.close()
        await self._keys.drop(job)

    async def close(self) -> None:
        """Stop everything at once."""
        self._closing = True
        self._credentials.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._task_pool.close()
        await self._reporter.close()
        for job in list(self._outboxes):
            await self.forget(job)
        await self._keys.close()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _outbox(self, job: str) -> ReplyOutbox:
        if (outbox := self._outboxes.get(job)) is None:
            channel = self._runtime.peer(f"channel:{job}")
            calls = lambda: self._calls.get(job, 0)  # noqa: E731
            outbox = self._outboxes[job] = ReplyOutbox(self.name, self.incarnation, channel, calls, worth_s)
        return outbox

    def _again(self, job: str) -> None:
        """Send the events of a job's answers again: an answer may have been lost."""
        if (outbox := self._outboxes.get(job)) is not None:
            outbox.again()

    def _enqueue(self, some: list[InFlightCall]) -> None:
        self._task_pool.give(some)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _make(self, queue: deque[InFlightCall], task: asyncio.Task[None]) -> None:
        """Make calls one after the other in one coroutine: a coroutine for each would cost a tenth of the branch's own
        CPU.
        """
        clock, bound_of, routes, open_route = self._clock, self._bound.of, self._keys.routes, self._keys.open_route
        preparing = self._credentials.preparing
        while queue:
            under = queue.popleft()
            verdict = under.verdict
            if verdict is not None:
                self._ended(under, _UNSENT)
                continue
            call, under.task = under.call, task
            refused: Failure | None = None
            result: Reply | Failure
            try:
                try:
                    route = routes[under.family][call.route]
                except LookupError:
                    route = open_route(under.family, call.route)  # raises in its words
                model = route.model
                if preparing and model in preparing:
                    under.begun_s = clock()
                    await asyncio.wait((preparing[model],))
                if route.breaker.shut:
                    route.breaker.admit(call.generation)
                if not under.within and bound_of(call.body) > call.prompt_tokens_max:
                    under.begun_s = clock()
                    refused = await over_bound(model, call)
                    if refused is None and route.breaker.shut:  # it may have opened meanwhile
                        route.breaker.admit(call.generation)
                if refused is not None:
                    result = refused
                else:
                    under.begun_s = clock()
                    count = under.count = route.counts.get(call.generation) or route.count(call.generation)
                    count.begun += 1  # `begin`, without a call
                    count.in_flight += 1
                    count.model = model
                    if call.trace or self._traces:
                        self._traces = True
                        TRACEPARENT.set(call.trace)
                    output_max, timeout_s = call.output_tokens_max, call.timeout_s
                    result = await model.call(
                        call.body, output_tokens_max=output_max, timeout_s=timeout_s, progress=under.see
                    )
            except asyncio.CancelledError:
                if self._closing or under.verdict is None:
                    raise
                result = under.stopped(clock())
            except CircuitBreakerError:
                self._give_back(under, route)
                continue
            except MissingCredential:
                result = Failure(FailureKind.BLOCKED, f"route {call.route} of this job has no key here", sent=False)
            except Exception as error:  # a model must never raise; the branch survives one that does
                result = Failure(FailureKind.TRANSIENT, f"{type(error).__name__} in the model's client")
            finally:
                under.task = None
                if under.verdict is not None and not self._closing:
                    goes_on(task)
            self._ended(under, result)

    # -- ends of calls ----------------------------------------------------------------------------------------------

    def _leaves(self, under: InFlightCall) -> None:
        del self._under[under]
        if left := self._calls[under.job] - 1:
            self._calls[under.job] = left
        else:
            del self._calls[under.job]

    def _ended(self, under: InFlightCall, result: Reply | Failure) -> None:
        call = under.call
        if type(result) is Reply:
            body = result.body  # `too_deep` begins so as well: its call for each reply would cost as much again
            if len(body) - len(body.replace(b"{", b"", BRACKETS_MAX).replace(b"[", b"", BRACKETS_MAX)) > JSON_DEPTH_MAX:
                result = shallow(result)
        now_s = self._clock()
        elapsed_s = now_s - under.begun_s if under.begun_s <= now_s else 0.0
        if self._stuck:
            self._stuck.discard(under)
        if under in self._under:
            job = under.job
            del self._under[under]  # `_leaves`, without a call
            if left := self._calls[job] - 1:
                self._calls[job] = left
            else:
                del self._calls[job]
            self._done += 1
        elif type(result) is not Reply:
            return  # the call was abandoned, and its outcome is not delivered
        count, under.count = under.count, None
        if count is not None and count.end(result, elapsed_s, call.timeout_s):
            self._reporter.at_once()
        waited_s = now_s - elapsed_s - under.taken_s
        event: events.Event
        if isinstance(result, Reply):
            event = events.Answered(
                call.goal, call.sample, call.attempt, call.hash, result, elapsed_s, waited_s, self.name
            )
        else:
            event = events.AttemptFailed(call.goal, call.sample, call.attempt, result, elapsed_s, waited_s, self.name)
        outbox = self._outboxes.get(under.job) or self._outbox(under.job)
        outbox.quick, took_s = elapsed_s < QUICK_S, outbox.took_s
        outbox.took_s = elapsed_s if elapsed_s < took_s else took_s + (elapsed_s - took_s) / RISE
        outbox.add(event)

    def _give_back(self, under: InFlightCall, route: OpenRoute) -> None:
        """Return a call that met an open breaker to its channel, unsent."""
        if under not in self._under:
            return  # it was abandoned while its prompt was counted
        self._leaves(under)
        call, breaker = under.call, route.breaker
        route.count(call.generation).given_back += 1
        self._reporter.wake()
        event = events.GivenBack(
            call.goal, call.sample, call.attempt, breaker.generation, breaker.again_s(), self.name
        )
        (self._outboxes.get(under.job) or self._outbox(under.job)).add(event)

    def _cancel(self, under: InFlightCall, why: FailureKind) -> None:
        """Cancel a call for this reason."""
        if under.verdict is None:
            under.verdict = why
            under.stop_s = self._clock()
            if under.task is not None:
                under.task.cancel()
            elif self._credentials.remove(under):
                self._ended(under, _UNSENT)

    def _sweep(self) -> None:
        """Enforce the deadlines of attempts: cancel at the deadline, and abandon a call that does not end within
        ``GRACE_S``.
        """
        self._sweeper = None
        now_s, overdue_s = self._clock(), 0.0
        for under in [*self._under, *self._stuck]:
            overdue_s = max(overdue_s, now_s - under.deadline_s)
            if under.verdict is None:
                if under.deadline_s < now_s:
                    self._cancel(under, FailureKind.TIMED_OUT)
            elif under.task is not None and under not in self._stuck and under.stop_s + GRACE_S < now_s:
                self._ended(under, under.stopped(now_s))
                self._stuck.add(under)
        self._overdue_s = overdue_s
        if (self._under or self._stuck) and not self._closing:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    # -- reports ---------------------------------------------------------------------------------------------------

    def _phase(self) -> str:
        queued = self._task_pool.queued + self._credentials.waiting
        if self._draining:
            return "draining"
        if len(self._under) > queued:
            return "calling"
        if queued:
            return "queued"
        return "starting" if self._credentials.preparing else "idle"

    def _report(self, number: int) -> ProgressReport:
        queued = self._task_pool.queued + self._credentials.waiting
        return ProgressReport(
            self.name, self.incarnation, self._runtime.node(), number, self._phase(), len(self._under) - queued, queued,
            self._overdue_s if self._under or self._stuck else 0.0,
            sum(under.streamed for under in self._under), self._done, self._counts.take_signals(),
        )  # fmt: skip

    def _more(self) -> bool:
        return bool(self._under or self._stuck) or self._counts.has_new()
