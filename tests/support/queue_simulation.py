"""Simulation of a job at a server that queues without bound, in a closed loop with the real policies.

Pure, in virtual time, determined by one seed. The server (vLLM, SGLang, llama.cpp) never refuses: it works on as many
calls as it has slots, and the others wait, first come first served. Slots are vLLM's `max_num_seqs`, `--parallel` of
llama.cpp, OLLAMA_NUM_PARALLEL; `half` is the batch whose steps take longer the more it holds. On our side are the pool's limit, the route's
breaker, the timeouts and the retries, fed as in a running system: each branch reports a few times a second, and grants
reach it a little later.

With `kv_tokens` or `prefill_tps` the server is a continuous batch as that of vLLM, in which prompts are read beside the
decoding of answers, and a full KV cache keeps calls waiting or preempts them (`actors.simulator.continuous_batch`).
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from actors.simulator.continuous_batch import STEP_TOKENS, BatchedCall, CallState, ContinuousBatch
from cortex.scheduler import pools
from cortex.scheduler.protocol import BreakerMoved, Command
from cortex.scheduler.reports import RouteSignals
from cortex.scheduler.state import PoolState, RouteState, SchedulerSettings, SchedulerState
from policies.failures import breaker as breakers
from policies.failures.breaker import BreakerState
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy, backoff_s, may_retry
from policies.failures.timeout import QUEUE_S, TimeoutPolicy, attempt_timeout_s, learned_patience, teaches_from_s
from policies.limits.limit import LimitPolicy, PoolAllowance, new

REPORT_S = 0.25
SOON_S = 0.04
GROWS_S = 0.25
MESSAGE_S = (0.002, 0.006)
TURN_S = (0.005, 0.03)
"""Seconds from an answer to the next call under its permit: messages, a turn of the channel with its commit, network."""
SWEEP_S = 0.25
SAMPLES_MAX = 16
METRICS_S = 1.0


class Server(msgspec.Struct, kw_only=True):
    """Server that queues. The time of a call is that of its prompt and its answer; see `mean_s`."""

    slots: int = 8
    mean_s: float = 10.0
    """Mean seconds of a call in its slot."""
    sigma: float = 0.4
    """Spread of the lognormal lengths of answers and prompts: .4 means that one in twenty is twice as long."""
    prompt_part: float = 0.2
    """Share of the time that the prompt takes."""
    aborts: bool = True
    """True if a call that its client gave up leaves queue or slot."""
    half: float = 0.0
    """Calls in slots at which each takes twice its time, as in a batch whose steps take longer the more it holds: n calls
    are worked on at 1 / (1 + n / half) of the speed. 0: at full speed, however many."""
    overhead_s: float = 0.0
    """Seconds of a call besides queue and slot."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a call's time in its slot that its tokens do not explain: decoding waits
    while prompts of other calls are read (Agrawal et al., Sarathi-Serve, OSDI 2024), and a call whose cache is taken
    begins again (preemption in https://docs.vllm.ai/en/stable/configuration/optimization.html)."""
    changes: tuple[tuple[float, int], ...] = ()
    """(time, slots): the number of slots from that time on; 0: nothing is worked on."""
    kv_tokens: int = 0
    """Tokens that the KV cache holds, `num_gpu_blocks * block_size` of vLLM; 0: no bound."""
    prefill_tps: float = 0.0
    """Tokens of prompts read per second, in the time of all calls; 0: `prompt_part` says what a prompt takes. Else
    `mean_s` is the time of a mean answer alone, without its prompt."""
    step_tokens: int = STEP_TOKENS
    """Most tokens of a step, `--max-num-batched-tokens` of vLLM."""
    long_prompts: tuple[float, float] = (0.0, 0.0)
    """Share of the calls whose prompt is a long one, and mean tokens of these; others have 1,000."""
    can_tps: float = 0.0
    """Tokens of answers per second that a continuous batch can write (`tests.support.server_capacity`)."""

    @property
    def is_batch(self) -> bool:
        """True for a continuous batch."""
        return bool(self.kv_tokens or self.prefill_tps)

    def batch(self) -> ContinuousBatch:
        """Return it."""
        return ContinuousBatch(
            self.slots, kv_tokens=self.kv_tokens, prefill_tps=self.prefill_tps, token_s=self.mean_s / 200,
            half=self.half, step_tokens=self.step_tokens,
        )  # fmt: skip

    def sizes(self, chance: random.Random) -> tuple[int, int]:
        """Return the tokens of a call's prompt and of its answer."""
        share, long = self.long_prompts
        prompt = long if share and chance.random() < share else 1_000.0
        return self._size(chance, prompt), self._size(chance, 200.0)

    def _size(self, chance: random.Random, mean: float) -> int:
        return max(1, round(chance.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)))

    def alone_s(self, prompt: int, answer: int, chance: random.Random) -> float:
        """Return the seconds of a call that is worked on alone; in a continuous batch, those of its answer."""
        part = 0.0 if self.is_batch else self.prompt_part
        seconds = self.mean_s * (part * prompt / 1_000 + (1 - part) * answer / 200)
        return seconds * chance.lognormvariate(-self.noise**2 / 2, self.noise) if self.noise else seconds


class Row(msgspec.Struct, eq=False):
    """Row of the job, and its present attempt."""

    input_tokens: int
    output_tokens: int
    attempt: int = 0
    waits: int = 0
    generation: int = 0
    begun_s: float = 0.0
    timeout_s: float = 0.0
    served_s: float = 0.0
    """Seconds of its slot that the server still has to give."""
    node: int = 0
    mark: int = 0
    """Number of the attempt over all rows; 0: none."""
    call: BatchedCall | None = None
    """The call in a continuous batch."""


class Counts(msgspec.Struct):
    """Unreported counts of attempts of one generation of the breaker."""

    begun: int = 0
    answered: int = 0
    timed_out: int = 0
    slow: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    timed_out_s: float = 0.0
    samples: list[tuple[float, int]] = []
    prompts: list[int] = []


class Node(msgspec.Struct):
    """Branch and holder in one: its share of the permits, and its unreported counts."""

    permits: int = 0
    in_flight: int = 0
    report_at_s: float = 0.0
    generation: int = 0
    counts: dict[int, Counts] = {}

    def of(self, row: Row) -> Counts:
        """Return the counts to which a row's present attempt belongs."""
        return self.counts.setdefault(row.generation, Counts())


class Second(msgspec.Struct):
    """Measurements of one second: times are sums over calls."""

    busy_s: float = 0.0
    useful_s: float = 0.0
    """Time of the slots that could have been used."""
    waiting_s: float = 0.0
    waiting_max: int = 0
    timed_out: int = 0
    answered: int = 0
    permits: int = 0
    slots: int = 0
    running_s: float = 0.0
    preempted: int = 0


class Queues:
    """Whole loop: one job of `rows` rows (None: without end) at one server.

    `queues`: False for a pool that looks for no queue, as at a provider's service. `told`: seconds after which the
    server's metrics count anew, which each branch reads once a second; 0: it has none. `replicas`: servers behind the
    address, of which each reading shows one.
    """

    def __init__(
        self, server: Server, *, rows: int | None = None, concurrency: int = 100_000, seed: int = 1, nodes: int = 2,
        output_tokens_max: int = 300, queues: bool = True, told: float = 0.0, replicas: int = 1, policy: LimitPolicy | None = None, timeouts: TimeoutPolicy | None = None,
    ) -> None:  # fmt: skip
        self.server, self.left, self.concurrency = server, rows, concurrency
        self.told_s, self.replicas = told, replicas
        self._metrics, self._metrics_s, self._read_s = (0, 0), -math.inf, [0.0] * nodes
        self.output_tokens_max, self.retry = output_tokens_max, RetryPolicy()
        self.timeouts = timeouts or (TimeoutPolicy(first_byte_s=QUEUE_S) if queues else TimeoutPolicy())
        self.chance = random.Random(seed)
        settings = SchedulerSettings(limit=policy or LimitPolicy())
        self.state = SchedulerState(settings)
        self.pool = self.state.pools["p"] = PoolState(new(settings.limit, queues))
        self.route = self.state.routes["r"] = RouteState("p")
        self.pool.routes["r"] = True
        self.patience = 1.0
        self.now_s = self.zero_s = 1_000.0
        self.nodes = [Node() for _ in range(nodes)]
        self.seconds: list[Second] = []
        self.slots = server.slots
        self.queue: deque[Row] = deque()
        self.serving: dict[Row, int] = {}
        """Rows in a slot: number of the attempt."""
        self.batch = server.batch() if server.is_batch else None
        self._at_batch: dict[BatchedCall, tuple[Row, int]] = {}
        self._clock_s = self._clocked_s = 0.0
        """Seconds that each call in a slot was worked on, and when that was counted."""
        self._ends: list[tuple[float, int, Row]] = []
        self._turn = 0
        self.again: deque[Row] = deque()
        self.out: set[Row] = set()
        self.moves: list[BreakerMoved] = []
        self.done = self.failed = self.attempts = 0
        self.ended_s = math.inf
        self._shared: PoolAllowance | None = None
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = self._marks = 0
        for at_s, slots in server.changes:
            self._at(at_s, self._resized, slots)
        for place, _ in enumerate(self.nodes):
            self._at(REPORT_S * self.chance.random(), self._report_due, place)
        self._share()

    # ------------------------------------------------------------------------------------------- running

    def run(self, until_s: float) -> Queues:
        """Continue until `until_s` after the beginning, or until all rows have ended."""
        end_s = self.zero_s + until_s
        while self._events and self._events[0][0] <= end_s and self.ended_s == math.inf:
            at_s, _, act, entries = heapq.heappop(self._events)
            self._pass(at_s)
            act(*entries)
        return self

    def _pass(self, at_s: float) -> None:
        while self.now_s < at_s:
            place = int(self.now_s - self.zero_s)
            while place >= len(self.seconds):
                self.seconds.append(Second(slots=self.slots))
            second, until_s = self.seconds[place], min(at_s, self.zero_s + place + 1)
            if until_s <= self.now_s:
                until_s = at_s
            took_s = until_s - self.now_s
            running, waiting = self.load
            if self.batch is None:
                second.busy_s += self._work(running) * took_s
                second.useful_s += self._work(self.slots) * took_s
            else:
                second.busy_s += self.batch.writes_tps * took_s
                second.useful_s += self.server.can_tps * took_s
            second.running_s += running * took_s
            second.waiting_s += waiting * took_s
            second.waiting_max = max(second.waiting_max, waiting)
            second.permits = self._shared.concurrency if self._shared else 0
            self.now_s = until_s

    def _at(self, delay_s: float, act: Callable[..., None], *told: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, act, told))

    def _draw(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)

    # ------------------------------------------------------------------------------------------ the job

    def _begin(self, place: int) -> None:
        node = self.nodes[place]
        share = self.concurrency // len(self.nodes) + (place < self.concurrency % len(self.nodes))
        while node.in_flight < min(node.permits, share) and (self.again or self.left != 0):
            if self.again:
                row = self.again.popleft()
            else:
                row = Row(*self.server.sizes(self.chance))
                if self.left is not None:
                    self.left -= 1
            row.attempt += 1
            row.node, row.generation = place, node.generation
            self._marks += 1
            row.mark = self._marks
            row.timeout_s = attempt_timeout_s(
                self.timeouts, self.output_tokens_max, 4 * row.input_tokens, self.patience, row.waits
            )
            node.in_flight += 1
            self.attempts += 1
            self.out.add(row)
            self._at(self._draw(TURN_S), self._sent, row, row.mark)

    def _sent(self, row: Row, mark: int) -> None:
        self.nodes[row.node].of(row).begun += 1
        row.begun_s = self.now_s
        row.served_s = self.server.alone_s(row.input_tokens, row.output_tokens, self.chance)
        self._at(math.ceil(row.timeout_s / SWEEP_S) * SWEEP_S, self._time_up, row, mark)
        if self.batch is not None:
            self._step()
            row.call = self.batch.add(self.now_s, row.input_tokens, row.output_tokens, row.served_s)
            self._at_batch[row.call] = row, mark
            self._step()
            return
        self.queue.append(row)
        self._serve()

    def _answered(self, row: Row, mark: int) -> None:
        if row.mark != mark:
            return
        node, took_s = self.nodes[row.node], self.now_s - row.begun_s
        row.mark = 0
        self.out.discard(row)
        node.in_flight -= 1
        counts = node.of(row)
        counts.answered += 1
        counts.slow += took_s > row.timeout_s / 2
        if len(counts.samples) < SAMPLES_MAX:
            counts.samples.append((took_s, row.output_tokens))
            counts.prompts.append(row.input_tokens)
        counts.latency_s += took_s
        counts.input_tokens += row.input_tokens
        counts.output_tokens += row.output_tokens
        if took_s > teaches_from_s(self.timeouts, self.patience):
            self.patience = learned_patience(
                self.timeouts, self.patience, took_s, self.output_tokens_max, 4 * row.input_tokens
            )
        self.done += 1
        self._begin(row.node)
        self._over()

    def _time_up(self, row: Row, mark: int) -> None:
        if row.mark != mark:
            return
        node = self.nodes[row.node]
        row.mark = 0
        row.waits += 1
        self.out.discard(row)
        node.in_flight -= 1
        counts = node.of(row)
        counts.timed_out += 1
        counts.slow += 1
        counts.timed_out_s = min(counts.timed_out_s or row.timeout_s, row.timeout_s)
        if self.seconds:
            self.seconds[-1].timed_out += 1
        if self.batch is not None:
            if self.server.aborts and row.call in self._at_batch:
                self._step()
                self.batch.drop(self.now_s, row.call)
                self._at_batch.pop(row.call, None)
                self._step()
        elif self.server.aborts:
            if self.serving.pop(row, None) is None and row in self.queue:
                self.queue.remove(row)
            self._serve()
        elif row in self.queue:  # the server works on it all the same
            self.queue[self.queue.index(row)] = Row(0, 0, served_s=row.served_s)
        elif row in self.serving:
            self.serving[row] = 0
        failure = Failure(FailureKind.TIMED_OUT, "")
        decision = may_retry(self.retry, failure, row.attempt, 0, self.done, paid=row.waits)
        if decision.again:
            wait_s = backoff_s(self.retry, row.attempt, failure.kind, None, self.chance.random(), decision.deferred)
            self._at(wait_s, self._ask_again, row)
        else:
            self.failed += 1
            self._over()
        self._begin(row.node)

    def _ask_again(self, row: Row) -> None:
        self.again.append(row)
        self._begin(row.node)

    def _over(self) -> None:
        if self.left == 0 and not self.out and not self.again and not any(self.load):
            self.ended_s = self.now_s - self.zero_s

    # ---------------------------------------------------------------------------------------- the server

    @property
    def load(self) -> tuple[int, int]:
        """Calls that the server works on, and calls that wait there."""
        if self.batch is not None:
            return len(self.batch.running), self.batch.waiting
        return len(self.serving), len(self.queue)

    def _step(self) -> None:
        """Continue a continuous batch until now, and come back at its next event."""
        assert self.batch is not None
        before = self.batch.preemptions
        for call in self.batch.advance(self.now_s):
            if call.state is CallState.ENDED:
                row, mark = self._at_batch.pop(call)
                self._at(self._draw(MESSAGE_S) + self.server.overhead_s, self._answered, row, mark)
        if self.seconds:
            self.seconds[-1].preempted += self.batch.preemptions - before
        self._turn += 1
        if self.batch.due_s < math.inf:
            self._at(max(self.batch.due_s - self.now_s, 0.0), self._stepped, self._turn)

    def _stepped(self, turn: int) -> None:
        if turn == self._turn:
            self._step()

    def _work(self, n: int) -> float:
        """Return the work that n calls in slots get done a second, in seconds of a call alone."""
        return n / (1 + n / self.server.half) if self.server.half else float(n)

    def _clock(self) -> float:
        """Return the seconds that a call was worked on that has been in its slot since the beginning."""
        n = len(self.serving)
        if n:
            self._clock_s += (self.now_s - self._clocked_s) * self._work(n) / n
        self._clocked_s = self.now_s
        return self._clock_s

    def _serve(self) -> None:
        clock_s = self._clock()
        while self.queue and len(self.serving) < self.slots:
            row = self.queue.popleft()
            self.serving[row] = row.mark
            self._number += 1
            row.served_s += clock_s
            heapq.heappush(self._ends, (row.served_s, self._number, row))
        self._turn += 1
        while self._ends and self._ends[0][2] not in self.serving:
            heapq.heappop(self._ends)
        if self._ends:
            n = len(self.serving)
            self._at(max(0.0, self._ends[0][0] - clock_s) * n / self._work(n), self._served, self._turn)

    def _served(self, turn: int) -> None:
        if turn != self._turn:
            return
        _, _, row = heapq.heappop(self._ends)
        self._clock()
        mark = self.serving.pop(row)
        if mark:
            self._at(self._draw(MESSAGE_S) + self.server.overhead_s, self._answered, row, mark)
        self._serve()

    def _resized(self, slots: int) -> None:
        if self.batch is not None:
            self.slots = slots
            self._step()
            self.batch.resize(self.now_s, slots)
            self._step()
            return
        clock_s = self._clock()
        self.slots = slots
        if not slots:  # what is in a slot waits
            for row in reversed(list(self.serving)):
                row.served_s -= clock_s
                self.queue.appendleft(row)
            self.serving.clear()
            self._ends.clear()
        self._serve()

    def reset(self) -> None:
        """Restart the server: the connections of all calls are reset, and the calls are asked again."""
        for place, node in enumerate(self.nodes):
            rows = sorted((row for row in self.out if row.node == place), key=lambda row: row.mark)
            for row in rows:
                row.mark = 0
                self._at(self._draw((2.0, 4.0)), self._ask_again, row)
            node.in_flight -= len(rows)
            failed = {FailureKind.TRANSIENT.value: len(rows)}
            self._heard(place, RouteSignals("r", "p", node.generation, 0, 0, failed, 0, 0, 0, 0.0, in_flight=0))
        self.out.clear()
        self.queue.clear()
        self.serving.clear()
        if self.batch is not None:
            self._at_batch.clear()
            self.batch = self.server.batch()
            self._step()
            return
        self._serve()

    def lose(self) -> None:
        """Lose the connection of a call in a slot: nothing comes of it until its time is up."""
        self._clock()
        self.serving.pop(next(iter(self.serving)))
        self._serve()

    # ------------------------------------------------------------------------------------------ the cortex

    def _report_due(self, place: int) -> None:
        node = self.nodes[place]
        if self.now_s < node.report_at_s:
            return
        node.report_at_s = self.now_s + REPORT_S
        self._at(REPORT_S, self._report_due, place)
        in_flight = node.in_flight
        told, node.counts = node.counts, {}
        for generation, c in (told or {node.generation: Counts()}).items():
            failed = {FailureKind.TIMED_OUT.value: c.timed_out} if c.timed_out else {}
            signals = RouteSignals(
                "r", "p", generation, c.begun, c.answered, failed, c.slow, c.input_tokens, c.output_tokens, c.latency_s,
                samples=tuple(c.samples), in_flight=in_flight, timed_out_s=c.timed_out_s, prompts=tuple(c.prompts),
                at_server=self._read_metrics(place),
            )  # fmt: skip
            self._at(self._draw(MESSAGE_S), self._heard, place, signals)

    def _read_metrics(self, place: int) -> tuple[int, int] | None:
        if not self.told_s or self.now_s < self._read_s[place] + METRICS_S:
            return None
        self._read_s[place] = self.now_s
        if self.now_s >= self._metrics_s + self.told_s:
            self._metrics_s = self.now_s
            share = 1 / self.replicas
            self._metrics = tuple(round(share * each) for each in self.load)
        return self._metrics

    def _heard(self, place: int, signals: RouteSignals) -> None:
        state, pool = self.state, self.pool
        state.at_s = self.now_s
        out: list[Command] = []
        pool.in_flight = len(self.out)
        wanted = len(self.out) + len(self.again) + (10**9 if self.left is None else self.left)
        pool.wanted = min(wanted, self.concurrency)
        was = breakers.passed(state.settings.breaker, self.route.breaker, self.now_s)
        if was is not None:
            pools.moved(state, "r", was, out)
        pools.record_signals(state, signals, out)
        self.moves += [move for move in out if isinstance(move, BreakerMoved)]
        if self.now_s - pool.grew_s < GROWS_S:
            self.nodes[place].report_at_s = self.now_s + SOON_S
            self._at(SOON_S, self._report_due, place)
        self._share()

    def _share(self) -> None:
        self.state.at_s = self.now_s
        shared = pools.allowed(self.state, self.pool)
        own = self.route.breaker
        if own.state is BreakerState.OPEN:
            shared = msgspec.structs.replace(shared, concurrency=0)
        elif own.state is BreakerState.HALF_OPEN:
            wanted = breakers.probes_wanted(self.state.settings.breaker, own, self.now_s)
            if wanted:
                breakers.probe_out(self.state.settings.breaker, own, self.now_s, self.now_s + 100.0, wanted)
            shared = msgspec.structs.replace(shared, concurrency=len(self.out) + wanted)
        if shared != self._shared or own.generation != self.nodes[0].generation:
            self._shared = self.pool.allowed = shared
            for place, _ in enumerate(self.nodes):
                self._at(self._draw(MESSAGE_S), self._granted, place, shared, own.generation)

    def _granted(self, place: int, shared: PoolAllowance, generation: int) -> None:
        if shared is not self._shared:
            return  # overtaken by a newer grant
        node, n = self.nodes[place], len(self.nodes)
        node.permits = shared.concurrency // n + (place < shared.concurrency % n)
        node.generation = generation
        self._begin(place)

    # ------------------------------------------------------------------------------------------ readings

    def _some(self, from_s: float, until_s: float) -> list[Second]:
        return self.seconds[int(from_s) : max(int(until_s), int(from_s) + 1)]

    def used(self, from_s: float, until_s: float) -> float:
        """Return the share of the server's time that was used."""
        some = self._some(from_s, until_s)
        return sum(s.busy_s for s in some) / max(sum(s.useful_s for s in some), 1e-9)

    def waiting(self, from_s: float, until_s: float) -> float:
        """Return the mean number of calls that waited at the server."""
        some = self._some(from_s, until_s)
        return sum(s.waiting_s for s in some) / max(len(some), 1)

    def running(self, from_s: float, until_s: float) -> float:
        """Return the mean number of calls that the server worked on."""
        some = self._some(from_s, until_s)
        return sum(s.running_s for s in some) / max(len(some), 1)

    def preempted(self, from_s: float, until_s: float) -> int:
        """Return the number of preemptions."""
        return sum(s.preempted for s in self._some(from_s, until_s))

    def waiting_max(self, from_s: float, until_s: float) -> int:
        """Return the largest number of calls that waited at once."""
        return max((s.waiting_max for s in self._some(from_s, until_s)), default=0)

    @property
    def timed_out(self) -> int:
        """Attempts that timed out."""
        return sum(s.timed_out for s in self.seconds)

    @property
    def opened(self) -> int:
        """Openings of the breaker."""
        return sum(move.new == BreakerState.OPEN for move in self.moves)
