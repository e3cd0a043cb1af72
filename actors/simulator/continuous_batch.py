"""Continuous batch of a model server: prompts are read beside the decoding of answers, in a bounded KV cache.

Model of vLLM's scheduler (``vllm/v1/core/sched/scheduler.py``, v0.33), in continuous time:

- A step decodes one token of each answer, and reads prompts with what is left of ``step_tokens`` (chunked prefill,
  ``--max-num-batched-tokens``, https://docs.vllm.ai/en/stable/configuration/optimization/). So answers are written the
  slower the more prompts are read.
- The first waiting call is admitted if a slot (``--max-num-seqs``) and tokens of the step are left, and the free part
  of the KV cache holds its prompt after the next step of the others. Nothing is reserved for its answer
  (``scheduler_reserve_full_isl``, https://github.com/vllm-project/vllm/pull/37307), but for ``headroom``
  (``--watermark``, https://github.com/vllm-project/vllm/pull/44594).
- When the cache is full, the call that was admitted last is preempted: it gives its tokens back, waits before all
  others, and then reads prompt and answer so far again (``PreemptionMode.RECOMPUTE``).

Left out: prefix caching, blocks (16 tokens of which the last is half empty), speculative decoding. llama.cpp preempts
nothing: its slots share the context equally, and calls that do not fit in a unified cache fail
(https://github.com/ggml-org/llama.cpp/pull/16736).

Time is an argument: seconds on any clock that does not go back.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from enum import Enum
from typing import Final

import msgspec

STEP_TOKENS: Final = 8_192
"""Default of ``--max-num-batched-tokens`` of an API server with 70 GiB and more, but for an A100 (2,048 there):
``EngineArgs.get_batch_defaults`` in ``vllm/engine/arg_utils.py``."""
TOKEN_S: Final = 0.02
"""Seconds of an answer's token, if none are given: they share a step with the prompts."""


class CallState(Enum):
    """Place of a call."""

    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"
    ENDED = "ended"


class BatchedCall(msgspec.Struct, eq=False):
    """Call at the server."""

    prompt: float
    """Tokens to read: those of the prompt and, after a preemption, of the answer so far."""
    answer: float
    """Tokens of the whole answer."""
    left_s: float
    """Seconds that the rest of the answer takes, decoded alone; correct while it is not written."""
    tokens_per_s: float = 0.0
    """Tokens of the answer per second, decoded alone."""
    state: CallState = CallState.WAITING
    read: float = 0.0
    """Tokens read, while the state is READING."""
    ends_s: float = 0.0
    """Reading of the batch's clock at which the answer is whole, while it is written."""
    number: int = 0


class ContinuousBatch:
    """Server of one model.

    ``slots``: most calls worked on at once; 0: the server stands still. ``kv_tokens``: tokens that the cache holds; 0:
    no bound. ``prefill_tps``: tokens of prompts read per second; 0: at once. ``token_s``: seconds of an answer's token.
    ``half``: answers at once at which each takes twice its time, ``1 + n / half`` times it for n answers; 0: its time,
    however many.
    ``headroom``: share of the cache that an admission leaves free.
    """

    def __init__(
        self, slots: int, *, kv_tokens: int = 0, prefill_tps: float = 0.0, token_s: float = TOKEN_S, half: float = 0.0,
        step_tokens: int = STEP_TOKENS, headroom: float = 0.0,
    ) -> None:  # fmt: skip
        self.slots, self.kv_tokens, self.prefill_tps = slots, kv_tokens, prefill_tps
        self.token_s, self.half, self.step_tokens, self.headroom = token_s, half, step_tokens, headroom
        self.queue: deque[BatchedCall] = deque()
        self.running: dict[BatchedCall, None] = {}
        """Calls worked on, in the order of admission."""
        self.preemptions = 0
        self.written = 0.0
        """Tokens of answers written so far."""
        self.due_s = math.inf
        """Time of the next event."""
        self._reading: deque[BatchedCall] = deque()
        self._ends: list[tuple[float, int, BatchedCall]] = []
        self._held = self._unread = self._growth = 0.0
        """Tokens in the cache, tokens of admitted prompts that are not read yet, and tokens that answers grow by in a
        second of the clock."""
        self._writing = self._number = 0
        self._clock_s = self._at_s = 0.0
        """Seconds for which each answer was decoded that was there from the beginning, as if alone; present time."""
        self._decodes = self._reads = 0.0
        """Seconds of the clock and tokens of prompts per second, until the next event."""
        self._event = self._end
        self._full = math.inf if not kv_tokens else float(kv_tokens)

    # ------------------------------------------------------------------------------------------------ readings

    @property
    def waiting(self) -> int:
        """Calls that wait."""
        return len(self.queue)

    @property
    def kv_usage(self) -> float:
        """Share of the cache in use; 0 without a bound."""
        return min(self._held / self._full, 1.0)

    @property
    def writes_tps(self) -> float:
        """Tokens of answers written per second now."""
        return self._decodes * self._growth

    def written_of(self, call: BatchedCall) -> float:
        """Return the tokens of the answer that are written."""
        left_s = call.ends_s - self._clock_s if call.state is CallState.WRITING else call.left_s
        return call.answer - call.tokens_per_s * max(left_s, 0.0) if call.tokens_per_s else 0.0

    def until_s(self, call: BatchedCall, tokens: float) -> float:
        """Return the seconds until so many tokens of an answer are written, if the batch stays as it is."""
        if call.state is not CallState.WRITING or not self._decodes or not call.tokens_per_s:
            return math.inf
        return max(tokens - self.written_of(call), 0.0) / call.tokens_per_s / self._decodes

    # -------------------------------------------------------------------------------------------------- changes

    def add(self, at_s: float, prompt: int, answer: int, alone_s: float) -> BatchedCall:
        """Take a call whose answer takes ``alone_s`` seconds, decoded alone. To be called after ``advance``."""
        call = BatchedCall(float(prompt), float(answer), alone_s, answer / alone_s if alone_s else 0.0)
        self.queue.append(call)
        self._admit(at_s)
        return call

    def drop(self, at_s: float, call: BatchedCall) -> None:
        """Give a call up, whose client is gone. Does nothing to one that has ended."""
        if call.state is CallState.WAITING:
            self.queue.remove(call)
        elif call.state is not CallState.ENDED:
            self._leave(call)
        call.state = CallState.ENDED
        self._admit(at_s)

    def resize(self, at_s: float, slots: int) -> None:
        """Change the number of slots. Calls beyond it go on."""
        self.slots = slots
        self._admit(at_s)

    def advance(self, at_s: float) -> list[BatchedCall]:
        """Continue until this time. Returns the calls whose answer has begun or ended, in order."""
        moved: dict[BatchedCall, None] = {}
        while self.due_s <= at_s:
            self._pass(self.due_s)
            self._event(moved)
        self._pass(at_s)
        return list(moved)

    # ---------------------------------------------------------------------------------------------------- events

    def _pass(self, at_s: float) -> None:
        took_s, self._at_s = at_s - self._at_s, at_s
        if took_s <= 0:
            return
        self._clock_s += took_s * self._decodes
        written, read = took_s * self._decodes * self._growth, took_s * self._reads
        self.written += written
        self._held += written + read
        self._unread -= read
        for call in self._reading:
            call.read, read = min(call.prompt, call.read + read), read - (call.prompt - call.read)
            if read <= 0:
                break

    def _admit(self, at_s: float) -> None:
        """Admit waiting calls, and find the next event."""
        self._at_s = at_s
        reserve = self.headroom * self.kv_tokens
        while self.queue and len(self.running) < self.slots and self._unread < self.step_tokens - self._writing:
            call = self.queue[0]
            if self.running and self._held + self._unread + call.prompt + self._writing + reserve > self._full:
                break
            self.queue.popleft()
            self.running[call] = None
            call.state, call.read = CallState.READING, 0.0
            self._unread += call.prompt
            self._reading.append(call)
        self._plan()

    def _plan(self) -> None:
        """Set the speeds, and the next event."""
        self.due_s = math.inf
        self._decodes = self._reads = 0.0
        if not self.running or not self.slots:
            return
        alone = 1 + self._writing / self.half if self.half else 1.0
        if self._reading and (not self.prefill_tps or self._unread <= 0):
            self.due_s, self._event = self._at_s, self._begin
            return
        self._decodes = 1 / alone
        if self._reading:
            chunk = min(self._unread, max(self.step_tokens - self._writing, 1))
            step_s = chunk / self.prefill_tps + (self.token_s * alone if self._writing else 0.0)
            self._decodes, self._reads = self.token_s / step_s, chunk / step_s
            head = self._reading[0]
            self.due_s, self._event = self._at_s + (head.prompt - head.read) / self._reads, self._begin
        while self._ends and self._ends[0][1] != self._ends[0][2].number:
            heapq.heappop(self._ends)
        if self._ends and self._decodes:
            ends_s = self._at_s + max(self._ends[0][0] - self._clock_s, 0.0) / self._decodes
            if ends_s < self.due_s:
                self.due_s, self._event = ends_s, self._end
        grows = self._decodes * self._growth + self._reads
        if self._full < math.inf and len(self.running) > 1 and grows:
            full_s = self._at_s + max(self._full - self._held, 0.0) / grows
            if full_s < self.due_s:
                self.due_s, self._event = full_s, self._preempt

    def _begin(self, moved: dict[BatchedCall, None]) -> None:
        """Begin the answer of the call whose prompt is read."""
        call = self._reading.popleft()
        self._unread = max(self._unread - (call.prompt - call.read), 0.0) if self._reading else 0.0
        self._held += call.prompt - call.read
        self._number += 1
        call.state, call.number, call.ends_s = CallState.WRITING, self._number, self._clock_s + call.left_s
        heapq.heappush(self._ends, (call.ends_s, call.number, call))
        self._writing += 1
        self._growth += call.tokens_per_s
        moved[call] = None
        self._admit(self._at_s)

    def _end(self, moved: dict[BatchedCall, None]) -> None:
        call = heapq.heappop(self._ends)[2]
        self._clock_s = max(self._clock_s, call.ends_s)
        self._leave(call)
        call.state, call.left_s = CallState.ENDED, 0.0
        moved[call] = None
        self._admit(self._at_s)

    def _preempt(self, moved: dict[BatchedCall, None]) -> None:
        """Take the cache from the call that was admitted last. Nothing is admitted in that step."""
        call = next(reversed(self.running))
        self._leave(call)
        call.state = CallState.WAITING
        self.queue.appendleft(call)
        self.preemptions += 1
        self._plan()

    def _leave(self, call: BatchedCall) -> None:
        """Take a call out of the batch. Its prompt is then what has to be read to go on."""
        del self.running[call]
        if call.state is CallState.READING:
            self._reading.remove(call)
            self._unread = max(self._unread - (call.prompt - call.read), 0.0) if self._reading else 0.0
            self._held -= call.read
        else:
            left_s = call.ends_s - self._clock_s
            call.prompt += call.tokens_per_s * (call.left_s - left_s)
            call.left_s, call.number = left_s, 0
            self._held -= call.prompt
            self._growth -= call.tokens_per_s
            self._writing -= 1
        if not self.running:
            self._held = self._growth = self._unread = 0.0
