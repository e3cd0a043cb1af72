"""Queue of a simulated model server that works like vLLM: requests in a continuous batch, on the event loop."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Final

from actors.simulator.continuous_batch import TOKEN_S, BatchedCall, CallState, ContinuousBatch
from actors.simulator.settings import SimulatorSettings

PEEK_S: Final = 0.1
"""Longest wait until a stream looks again how far its answer is."""


class BatchQueue:
    """Requests that a server with ``kv_tokens`` or ``prefill_tps`` works on, and those that wait."""

    def __init__(self, settings: SimulatorSettings) -> None:
        assert settings.slots is not None
        self.batch = ContinuousBatch(
            settings.slots, kv_tokens=settings.kv_tokens or 0, prefill_tps=settings.prefill_tps or 0.0,
            token_s=settings.latency_ms_per_output_token / 1_000 or TOKEN_S, half=settings.batch_half or 0.0,
            step_tokens=settings.step_tokens,
        )  # fmt: skip
        self._places: dict[BatchedCall, BatchPlace] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def working(self) -> int:
        """Requests worked on."""
        return len(self.batch.running)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self.batch.waiting

    def call(self, prompt: int, answer: int, alone_s: float) -> BatchPlace:
        """Return the place of a request, to be entered (``async with``). ``alone_s``: seconds that its answer takes if
        no other is written."""
        return BatchPlace(self, prompt, answer, alone_s)

    def add(self, place: BatchPlace) -> BatchedCall:
        """Take a request."""
        now_s = self.now()
        call = self.batch.add(now_s, place.prompt, place.answer, place.alone_s)
        self._places[call] = place
        self.now()
        return call

    def drop(self, call: BatchedCall) -> None:
        """Let a request go, whether it has its answer or not."""
        self.batch.drop(self.now(), call)
        self._places.pop(call, None)
        self.now()

    def now(self) -> float:
        """Continue until now, and return the time of the event loop."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for call in self.batch.advance(now_s):
            if call in self._places:
                self._places[call].moved(call.state)
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.batch.due_s
        self._timer = loop.call_at(due_s, self.now) if due_s < math.inf else None
        return now_s


class BatchPlace:
    """Pace of one answer, as long as its request is at the server."""

    def __init__(self, queue: BatchQueue, prompt: int, answer: int, alone_s: float) -> None:
        self.prompt, self.answer, self.alone_s = prompt, answer, alone_s
        self._queue = queue
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._told = 0

    async def __aenter__(self) -> BatchPlace:
        self._call = self._queue.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.drop(self._call)

    def moved(self, state: CallState) -> None:
        """Note that the answer has begun or ended."""
        self._begun.set()
        if state is CallState.ENDED:
            self._ended.set()

    async def whole(self) -> None:
        """Wait until the answer is whole."""
        await self._ended.wait()

    async def first(self) -> None:
        """Wait until the prompt is read."""
        await self._begun.wait()

    async def tokens(self, more: int) -> None:
        """Wait until so many more tokens of the answer are written."""
        self._told += more
        batch = self._queue.batch
        while not self._ended.is_set():
            self._queue.now()
            if batch.written_of(self._call) >= self._told:
                return
            await asyncio.sleep(min(batch.until_s(self._call, self._told) + 0.001, PEEK_S))


class LatencyPace:
    """Pace of an answer whose time the settings give."""

    def __init__(self, first_s: float, whole_s: float, token_s: float) -> None:
        self._first_s, self._whole_s, self._token_s = first_s, whole_s, token_s

    async def whole(self) -> None:
        """Wait for the time of the whole answer."""
        if self._whole_s > 0:
            await asyncio.sleep(self._whole_s)

    async def first(self) -> None:
        """Wait for the time until a stream begins."""
        if self._first_s > 0:
            await asyncio.sleep(self._first_s)

    async def tokens(self, more: int) -> None:
        """Wait for the time of so many tokens."""
        if self._token_s > 0 and more:
            await asyncio.sleep(self._token_s * more)
