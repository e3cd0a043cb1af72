"""A branch: makes bounded calls, many at once, each in a clean context. The one place where a prompt is sent.

It enforces the bound, keeps the attempt's deadline, and answers with a typed reply or a typed failure. It keeps a reply
until the channel has it on disk, and nothing else: it never retries and never sees K.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from actors.courier import Courier
from actors.model_port import Model
from actors.ports import Away, Gone, Runtime
from cortex import commands, events
from cortex.reply import Reply
from policies.failure import Failure, FailureKind
from policies.tokens import body_tokens_bound

SWEEP_S = 0.25
"""How often deadlines are looked at: one sweep over what is in flight costs less than a timer a call."""

_calls_decoder = msgspec.msgpack.Decoder(tuple[commands.Call, ...])


def _family(job: str) -> str:
    """The job that a user started: its child jobs, named ``job~goal``, work with its credential."""
    return job.partition("~")[0]


class _Under:
    """One call under way here."""

    __slots__ = ("call", "deadline_s", "job", "streamed", "task", "verdict")

    def __init__(self, job: str, call: commands.Call) -> None:
        self.job = job
        self.call = call
        self.deadline_s = float("inf")
        self.task: asyncio.Task[None] | None = None
        self.verdict: FailureKind | None = None
        """Why its request was cancelled, if it was."""
        self.streamed = 0
        """How much of its answer is here, in the model's own count: a long answer that grows is no stall."""

    def see(self, streamed: int) -> None:
        """More of the answer has come."""
        self.streamed = streamed


class Branch:
    """``make_model`` turns an arming (bytes that hold endpoint and credential) into a model; called once for each."""

    def __init__(self, name: str, runtime: Runtime, make_model: Callable[[bytes], Model]) -> None:
        self.name = name
        self.incarnation = runtime.incarnation(name)
        self._runtime = runtime
        self._make_model = make_model
        self._armings: dict[str, bytes] = {}
        self._models: dict[bytes, Model] = {}
        self._epochs: dict[str, int] = {}
        self._heard: dict[str, tuple[int, int]] = {}
        """Epoch and number of the last message of each job."""
        self._queue: deque[_Under] = deque()
        self._unarmed: dict[str, list[_Under]] = {}
        self._under: dict[tuple[str, int, int], _Under] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._hands: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()
        self._couriers: dict[str, Courier] = {}
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it makes a call, or holds a reply."""
        return bool(self._under) or any(courier.keys() for courier in self._couriers.values())

    # -- what it is told -------------------------------------------------------------------------------------------

    async def arm(self, job: str, arming: bytes) -> None:
        """Take endpoint and credential for a job. Sent in a call, never in a constructor or an environment."""
        self._armings[_family(job)] = arming
        prepare = getattr(self._model(job), "prepare", None)
        if prepare is not None:
            self._in_background(prepare())
        for under in self._unarmed.pop(_family(job), []):
            self._enqueue(under)

    async def hand_over(self, job: str) -> bytes | None:
        """Give a peer branch, which was restarted, what it needs to work for this job."""
        return self._armings.get(_family(job))

    async def work(
        self, job: str, epoch: int, incarnation: str, number: int, blob: bytes, peers: tuple[str, ...] = ()
    ) -> str:
        """Make these calls, if the message is for this very incarnation, which is what it answers.

        A message whose number was heard before is not taken twice. Empty, and nothing done, where a newer incarnation
        of the channel has been heard.
        """
        if epoch < self._epochs.get(job, 0):
            return ""
        self._epochs[job] = epoch
        if incarnation != self.incarnation or (epoch, number) <= self._heard.get(job, (0, 0)):
            return self.incarnation
        self._heard[job] = (epoch, number)
        calls = _calls_decoder.decode(blob)
        if _family(job) not in self._armings:
            self._in_background(self._ask_peers(job, peers))
        for call in calls:
            under = self._under[job, call.goal, call.attempt] = _Under(job, call)
            if _family(job) in self._armings:
                self._enqueue(under)
            else:
                self._unarmed.setdefault(_family(job), []).append(under)
        return self.incarnation

    async def abandon(self, job: str, epoch: int, calls: tuple[tuple[int, int], ...]) -> None:
        """Nobody waits for these calls: stop them where that still saves something."""
        if epoch < self._epochs.get(job, 0):
            return
        for goal, attempt in calls:
            under = self._under.get((job, goal, attempt))
            if under is not None:
                self._cancel(under, FailureKind.CANCELLED)

    async def held(self, job: str, epoch: int) -> tuple[str, bool, tuple[tuple[int, int], ...]]:
        """Which incarnation this is, whether it is armed, and (goal, attempt) of the calls of a job that are under way
        here, or whose replies wait to be taken.
        """
        self._epochs[job] = max(epoch, self._epochs.get(job, 0))
        under = [(goal, attempt) for (of, goal, attempt) in self._under if of == job]
        courier = self._couriers.get(job)
        kept = courier.keys() if courier is not None else ()
        return self.incarnation, _family(job) in self._armings, (*under, *kept)

    async def beat(self, job: str) -> dict[str, Any]:
        """Signs of life: which incarnation this is, and what it does for a job."""
        return {
            "incarnation": self.incarnation,
            "phase": "calling" if self._under else "idle",
            "calling": len(self._under),
            "streamed": sum(under.streamed for under in self._under.values()),
            "armed": _family(job) in self._armings,
        }

    async def forget(self, job: str) -> None:
        """The job has ended: drop what was kept for it, its credential first. A child leaves its family's."""
        self._armings.pop(job, None)
        self._unarmed.pop(job, None)
        self._heard.pop(job, None)
        courier = self._couriers.pop(job, None)
        if courier is not None:
            await courier.close()
        for arming in [a for a in self._models if a not in self._armings.values()]:
            await self._models.pop(arming).close()

    async def close(self) -> None:
        """Stop everything now."""
        for task in [*self._hands, *self._errands, *([self._sweeper] if self._sweeper else [])]:
            task.cancel()
        await asyncio.gather(*self._hands, return_exceptions=True)
        for job in list(self._couriers):
            await self.forget(job)

    # -- what it does ----------------------------------------------------------------------------------------------

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _ask_peers(self, job: str, peers: tuple[str, ...]) -> None:
        for peer in peers:
            if peer == self.name:
                continue
            with contextlib.suppress(Away, Gone):
                arming = await self._runtime.peer(peer).ask("hand_over", job)
                if arming is not None:
                    await self.arm(job, arming)
                    return

    def _courier(self, job: str) -> Courier:
        courier = self._couriers.get(job)
        if courier is None:
            channel = self._runtime.peer(f"channel:{job}")
            courier = self._couriers[job] = Courier(self.name, self.incarnation, channel)
        return courier

    def _enqueue(self, under: _Under) -> None:
        self._queue.append(under)
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)  # wakes one hand, not all of them
                break
        else:
            hand = asyncio.get_running_loop().create_task(self._hand())
            self._hands.add(hand)
            hand.add_done_callback(self._hands.discard)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _hand(self) -> None:
        """One coroutine of the pool: takes call after call; there are as many as calls were ever under way at once."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            while not self._queue:
                waiter = asyncio.get_running_loop().create_future()
                self._idle.append(waiter)
                await waiter
            under = self._queue.popleft()
            if under.verdict is None:
                under.task = task
                result = await self._call(under, task)
            else:
                result = Failure(under.verdict, "abandoned before it was sent", sent=False)
            self._report(under, result)

    async def _call(self, under: _Under, task: asyncio.Task[None]) -> Reply | Failure:
        call = under.call
        started = self._runtime.monotonic_s()
        under.deadline_s = started + call.timeout_s
        try:
            model = self._model(under.job)
            refused = await self._bound(model, call)
            if refused is not None:
                return refused
            return await model.call(
                call.body, output_tokens_max=call.output_tokens_max, timeout_s=call.timeout_s, progress=under.see
            )
        except asyncio.CancelledError:
            if under.verdict is None or task.uncancel() > 0:
                raise  # the branch itself is being closed
            said = "the deadline of the attempt passed" if under.verdict == FailureKind.TIMED_OUT else "abandoned"
            return Failure(under.verdict, f"{said} after {self._runtime.monotonic_s() - started:.1f} s")
        except Exception as error:  # a model never raises; one that does must not take the branch along
            return Failure(FailureKind.TRANSIENT, f"{type(error).__name__} in the model's client")
        finally:
            under.task = None

    async def _bound(self, model: Model, call: commands.Call) -> Failure | None:
        """A prompt above M is never sent. Its bytes bound its tokens; above that the provider's own counter decides."""
        bound = body_tokens_bound(call.body)
        if bound <= call.prompt_tokens_max:
            return None
        counted = await model.count_tokens(call.body)
        if counted is not None and counted <= call.prompt_tokens_max:
            return None
        size = f"{counted} tokens" if counted is not None else f"up to {bound} tokens, and no counter to ask,"
        said = f"the prompt has {size}; M is {call.prompt_tokens_max}"
        return Failure(FailureKind.TOO_LARGE, said, sent=False)

    def _model(self, job: str) -> Model:
        arming = self._armings[_family(job)]
        model = self._models.get(arming)
        if model is None:
            model = self._models[arming] = self._make_model(arming)
        return model

    def _report(self, under: _Under, result: Reply | Failure) -> None:
        call = under.call
        elapsed_s = 0.0
        if under.deadline_s != float("inf"):
            elapsed_s = self._runtime.monotonic_s() - under.deadline_s + call.timeout_s
        event: events.Event
        if isinstance(result, Reply):
            event = events.Answered(call.goal, call.sample, call.attempt, call.hash, result, elapsed_s)
        else:
            event = events.Broke(call.goal, call.sample, call.attempt, result, elapsed_s)
        self._under.pop((under.job, call.goal, call.attempt), None)
        self._courier(under.job).add(event)

    def _cancel(self, under: _Under, why: FailureKind) -> None:
        if under.verdict is None:
            under.verdict = why
            if under.task is not None:
                under.task.cancel()

    async def _sweep(self) -> None:
        while self._under:
            await asyncio.sleep(SWEEP_S)
            now_s = self._runtime.monotonic_s()
            for under in list(self._under.values()):
                if under.deadline_s < now_s:
                    self._cancel(under, FailureKind.TIMED_OUT)
