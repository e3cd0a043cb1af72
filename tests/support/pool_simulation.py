"""Simulation of a pool in a closed loop: a provider with limits, holders that share the allowance, delayed reports.

Pure, in virtual time, determined by one seed. The policy gets the same information at the same times as in a running
system: each reporter sends its counts every quarter of a second, and at once (but at most each 20 ms) after a throttled
answer; the allowance reaches the holders a little later.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import Any

import msgspec

from policies.limits.limit import (
    LimitPolicy,
    PoolAllowance,
    PoolCaps,
    PoolLimit,
    RateLimits,
    ReportedBucket,
    UsageSample,
    allowance,
    new,
    observe,
)
from policies.limits.pace import Pace, correct, due_at_s, put_off, set_rates, take

REPORT_S = 0.25
SOON_S = 0.04
REPORT_AT_ONCE_S = 0.02
WAKE_S = 0.1
"""Seconds between two wake-ups of a holder that its pace holds back: it begins all calls due by then."""
MESSAGE_S = (0.002, 0.006)
NETWORK_S = (0.002, 0.010)
SAMPLES_MAX = 16
"""Answers of a report whose durations are told."""


class Provider(msgspec.Struct, kw_only=True):
    """Limits of the provider, and its throttling responses.

    Token buckets as at the provider: they fill continuously; input tokens count when a request is accepted, output
    tokens when they are generated.
    """

    requests_per_s: float = 0.0
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Tokens of both directions, as at OpenAI: prompt and `output_tokens_max` count when a request is accepted."""
    output_tokens_max: int = 400
    capacity_s: float = 60.0
    """Capacity of a bucket, in seconds of its rate."""
    concurrency: int = 0
    latency_s: float = 1.0
    jitter: float = 0.3
    """Sigma of the lognormal latency, whose mean is `latency_s`."""
    refusal_s: float = 0.0
    """Seconds that a refusal takes beyond the network."""
    retry_after: bool = True
    """True if refusals have Retry-After: whole seconds, rounded up, at least 1."""
    headers: bool = False
    openai: bool = False
    """True for OpenAI's headers, which know requests and the tokens of both directions together. False for those of the
    Messages API."""
    resets: bool = True
    """True if headers have the time until each bucket is full: by the millisecond in OpenAI's, to the next whole second
    in those of the Messages API, beside a Date of whole seconds."""
    other_share: float = 0.0
    """Share of each rate that other traffic uses."""
    stray_share: float = 0.0
    """Share of requests that are refused whatever the limits."""
    stray_retry_after_s: float = 1.0
    """Retry-After of these refusals, in seconds, if refusals have any."""
    unwell_share: float = 0.0
    """Share of accepted requests that fail."""
    input_tokens: tuple[float, float] = (1_000.0, 1.0)
    """Mean and sigma of the lognormal sizes."""
    output_tokens: tuple[float, float] = (200.0, 1.0)


class Call(msgspec.Struct):
    """Attempt."""

    node: int
    input_tokens: int
    output_tokens: int


class Node(msgspec.Struct):
    """Branch and holder in one: its share, its pace, and its unreported counts."""

    pace: Pace
    permits: int = 0
    in_flight: int = 0
    told_in_flight: int = 0
    report_at_s: float = 0.0
    wake_at_s: float = math.inf
    held: bool = False
    """True while the provider asks to wait."""
    begun: int = 0
    answered: int = 0
    throttled: int = 0
    unwell: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    retry_after_s: float = 0.0
    rate: RateLimits | None = None
    samples: list[tuple[float, int]] = []
    prompts: list[int] = []


class Second(msgspec.Struct):
    """Measurements at the provider in one second."""

    accepted: int = 0
    throttled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tokens: int = 0
    busy_s: float = 0.0
    """Requests under way, summed over time."""
    permits: int = 0


class Pool:
    """Whole loop. `demand(at_s)` is the number of calls that the jobs could have in flight.

    `queues`: True for a server of the user's own, which could queue calls.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        seed: int = 1,
        nodes: int = 4,
        demand: Callable[[float], float] = lambda at_s: 1e9,
        caps: PoolCaps | None = None,
        policy: LimitPolicy | None = None,
        begins_at_s: float = 1_000.0,
        queues: bool = False,
    ) -> None:
        self.provider, self.demand, self.caps = provider, demand, caps or PoolCaps()
        self.policy = policy or LimitPolicy()
        self.limit: PoolLimit = new(self.policy, queues)
        self.chance = random.Random(seed)
        self.zero_s = self.now_s = begins_at_s
        self.nodes = [Node(Pace()) for _ in range(nodes)]
        self.seconds: list[Second] = []
        self.busy = 0
        self.out = 0
        self._levels = [math.inf] * 4
        self._filled_at_s = self.now_s
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._shared: PoolAllowance | None = None
        self._grew_s = -math.inf
        for place, _ in enumerate(self.nodes):
            self._at(REPORT_S * self.chance.random(), self._report_due, place)
        self._share()

    # ------------------------------------------------------------------------------------------- running

    def run(self, until_s: float) -> Pool:
        """Continue until `until_s` after the beginning."""
        end_s = self.zero_s + until_s
        while self._events and self._events[0][0] <= end_s:
            at_s, _, act, entries = heapq.heappop(self._events)
            self._pass(at_s)
            act(*entries)
        self._pass(end_s)
        return self

    def recap(self, caps: PoolCaps) -> Pool:
        """Set an operator's caps from now on."""
        self.caps = caps
        self._share()
        return self

    def _pass(self, at_s: float) -> None:
        while int(at_s - self.zero_s) >= len(self.seconds):
            self.seconds.append(Second())
        self.seconds[-1].busy_s += self.out * (at_s - self.now_s)
        self.seconds[-1].permits = self._shared.concurrency if self._shared else 0
        self.now_s = at_s

    def _at(self, delay_s: float, act: Callable[..., None], *told: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, act, told))

    def _draw(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)

    # ------------------------------------------------------------------------------------------ a holder

    def _begin(self, place: int) -> None:
        node = self.nodes[place]
        if node.wake_at_s <= self.now_s:
            node.wake_at_s = math.inf
        share = max(1.0, self.demand(self.now_s - self.zero_s) / len(self.nodes))
        if self.demand(self.now_s - self.zero_s) <= 0:
            share = 0
        while node.in_flight < min(node.permits, share) and self._free():
            due_s = due_at_s(node.pace)
            if due_s > self.now_s:
                wake_s = math.ceil(due_s / WAKE_S) * WAKE_S
                if wake_s < node.wake_at_s:
                    node.wake_at_s = wake_s
                    self._at(max(wake_s - self.now_s, 0.0), self._begin, place)
                return
            call = Call(place, self._size(self.provider.input_tokens), self._size(self.provider.output_tokens))
            take(node.pace, self.now_s, call.input_tokens, self.provider.output_tokens[0])
            node.in_flight += 1
            self.out += 1
            node.begun += 1
            self._at(self._draw(NETWORK_S), self._arrive, call)

    def _free(self) -> bool:
        """Return whether a permit is free: calls above a holder's new share still use the permits of others."""
        assert self._shared is not None
        return self.out < self._shared.concurrency

    def _size(self, about: tuple[float, float]) -> int:
        mean, sigma = about
        return max(1, round(self.chance.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))

    def _ended(self, call: Call, took_s: float, good: bool) -> None:
        node = self.nodes[call.node]
        node.in_flight -= 1
        self.out -= 1
        if node.permits <= node.in_flight:
            for place in range(len(self.nodes)):  # its excess permits are free for the others
                self._begin(place)
        if good:
            node.answered += 1
            node.latency_s += took_s
            if len(node.samples) < SAMPLES_MAX:
                node.samples.append((took_s, call.output_tokens))
                node.prompts.append(call.input_tokens)
            node.input_tokens += call.input_tokens
            node.output_tokens += call.output_tokens
            correct(node.pace, 0, call.output_tokens - self.provider.output_tokens[0])
        else:
            node.unwell += 1
        if self.provider.headers:
            node.rate = self._headers()
        self._begin(call.node)

    def _refused(self, call: Call, retry_after_s: float) -> None:
        node = self.nodes[call.node]
        node.in_flight -= 1
        self.out -= 1
        node.throttled += 1
        node.retry_after_s = max(node.retry_after_s, retry_after_s)
        if self.provider.headers:
            node.rate = self._headers()
        if node.report_at_s > self.now_s + REPORT_AT_ONCE_S:
            node.report_at_s = self.now_s + REPORT_AT_ONCE_S
            self._at(REPORT_AT_ONCE_S, self._report_due, call.node)
        self._begin(call.node)

    # ---------------------------------------------------------------------------------------- the provider

    def _rates(self) -> tuple[float, float, float, float]:
        own = self.provider
        return own.requests_per_s, own.input_tokens_per_s, own.output_tokens_per_s, own.tokens_per_s

    def _fill(self) -> None:
        elapsed_s, self._filled_at_s = self.now_s - self._filled_at_s, self.now_s
        for place, rate in enumerate(self._rates()):
            if rate:
                full = rate * self.provider.capacity_s
                level = self._levels[place] + rate * elapsed_s * (1 - self.provider.other_share)
                self._levels[place] = min(full, level)

    def _arrive(self, call: Call) -> None:
        self._fill()
        second = self.seconds[-1]
        wanted = (1.0, float(call.input_tokens), 1.0, float(call.input_tokens + self.provider.output_tokens_max))
        short_s = 0.0
        for level, rate, want in zip(self._levels, self._rates(), wanted, strict=True):
            if rate and level < want:
                short_s = max(short_s, (want - level) / rate)
        stray = self.provider.stray_share and self.chance.random() < self.provider.stray_share
        if stray or short_s or (self.provider.concurrency and self.busy >= self.provider.concurrency):
            second.throttled += 1
            least_s = self.provider.stray_retry_after_s if stray else 1.0
            wait_s = max(least_s, math.ceil(short_s)) if self.provider.retry_after else 0.0
            self._at(self.provider.refusal_s + self._draw(NETWORK_S), self._refused, call, wait_s)
            return
        second.accepted += 1
        second.input_tokens += call.input_tokens
        second.tokens += int(wanted[3])
        self.busy += 1
        self._levels[0] -= 1
        self._levels[1] -= call.input_tokens
        self._levels[3] -= wanted[3]
        mean_s, sigma = self.provider.latency_s, self.provider.jitter
        took_s = self.chance.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)
        good = self.chance.random() >= self.provider.unwell_share
        self._at(took_s, self._done, call, took_s, good)

    def _done(self, call: Call, took_s: float, good: bool) -> None:
        self._fill()
        self.busy -= 1
        self.seconds[-1].output_tokens += call.output_tokens
        self._levels[2] -= call.output_tokens
        self._at(self._draw(NETWORK_S), self._ended, call, took_s + 0.01, good)

    def _headers(self) -> RateLimits:
        self._fill()
        entries = [
            ReportedBucket(round(60 * rate), max(0, int(level)), self._reset_s(level, rate)) if rate else ReportedBucket()
            for level, rate in zip(self._levels, self._rates(), strict=True)
        ]
        if not self.provider.openai:
            return RateLimits(requests=entries[0], input_tokens=entries[1], output_tokens=entries[2])
        both = entries[1:3] if any(each.limit for each in entries[1:3]) else entries[3:]
        limit, left = sum(each.limit or 0 for each in both), sum(each.remaining or 0 for each in both)
        resets = [each.reset_after_s for each in both if each.reset_after_s is not None]
        tokens = ReportedBucket(limit, left, max(resets, default=None)) if limit else ReportedBucket()
        return RateLimits(requests=entries[0], tokens=tokens)

    def _reset_s(self, level: float, rate: float) -> float | None:
        wait_s = (rate * self.provider.capacity_s - level) / rate
        if not self.provider.resets:
            return None
        if self.provider.openai:
            return round(wait_s, 3)
        return float(math.ceil(self.now_s + wait_s) - math.floor(self.now_s))

    # ------------------------------------------------------------------------------------------ the cortex

    def _report_due(self, place: int) -> None:
        node = self.nodes[place]
        if self.now_s < node.report_at_s:
            return
        node.report_at_s = self.now_s + REPORT_S
        self._at(REPORT_S, self._report_due, place)
        anything = (node.begun, node.answered, node.throttled, node.unwell, node.in_flight, node.told_in_flight)
        if not any(anything):
            self._begin(place)  # demand may have risen
            return
        counts = UsageSample(
            begun=node.begun,
            answered=node.answered,
            throttled=node.throttled,
            unwell=node.unwell,
            input_tokens=node.input_tokens,
            output_tokens=node.output_tokens,
            latency_s=node.latency_s,
            retry_after_s=node.retry_after_s,
            rate=node.rate,
            samples=tuple(node.samples),
            prompts=tuple(node.prompts),
        )
        node.samples, node.prompts = [], []
        node.begun = node.answered = node.throttled = node.unwell = node.input_tokens = node.output_tokens = 0
        node.latency_s, node.retry_after_s, node.rate = 0.0, 0.0, None
        self._at(self._draw(MESSAGE_S), self._heard, place, counts, node.in_flight)

    def _heard(self, place: int, counts: UsageSample, in_flight: int) -> None:
        self.nodes[place].told_in_flight = in_flight
        known = sum(node.told_in_flight for node in self.nodes)
        allowed = self._shared.concurrency if self._shared else 0
        binding = self.demand(self.now_s - self.zero_s) > allowed
        sample = msgspec.structs.replace(counts, in_flight=known, binding=binding)
        if observe(self.policy, self.limit, self.now_s, sample):
            self._grew_s = self.now_s
        if self.now_s - self._grew_s < REPORT_S:  # see ``cortex.scheduler.step.report_after_s``
            self.nodes[place].report_at_s = self.now_s + SOON_S
            self._at(SOON_S, self._report_due, place)
        self._share()

    def _share(self) -> None:
        shared = allowance(self.policy, self.limit, self.now_s, self.caps)
        if shared != self._shared or 0.0 <= self.now_s - shared.held_until_s < 0.001:
            self._shared = shared
            if shared.held_until_s > self.now_s:
                self._at(shared.held_until_s - self.now_s, self._share)
            for place, _ in enumerate(self.nodes):
                self._at(self._draw(MESSAGE_S), self._granted, place, shared)

    def _granted(self, place: int, shared: PoolAllowance) -> None:
        node, n = self.nodes[place], len(self.nodes)
        if shared is not self._shared:
            return  # overtaken by a newer grant
        held, node.held = node.held, shared.held_until_s > self.now_s
        node.permits = shared.concurrency // n + (place < shared.concurrency % n)
        if node.held:
            node.permits = 0
        part, phase = node.permits / shared.concurrency or 1e-9, place / n if self.limit.requests.per_s else 0.0
        set_rates(
            node.pace,
            self.now_s,
            shared.requests_per_s * part,
            shared.input_tokens_per_s * part,
            shared.output_tokens_per_s * part,
            phase,
        )
        if held and not node.held:
            put_off(node.pace, self.now_s, phase)
        self._begin(place)

    # ------------------------------------------------------------------------------------------ readings

    def used(self, from_s: float, until_s: float) -> float:
        """Return the share of the provider's limits that was used: of the most used resource, or of the concurrency."""
        some = self.seconds[int(from_s) : int(until_s)]
        elapsed_s = int(until_s) - int(from_s)
        free = 1 - self.provider.other_share
        sums = [
            sum(s.accepted for s in some),
            sum(s.input_tokens for s in some),
            sum(s.output_tokens for s in some),
            sum(s.tokens for s in some),
            sum(s.busy_s for s in some),
        ]
        bounds = (*(rate * free for rate in self._rates()), self.provider.concurrency)
        return max(total / (bound * elapsed_s) for total, bound in zip(sums, bounds, strict=True) if bound)

    def throttled(self, from_s: float, until_s: float) -> float:
        """Return the share of requests that were throttled."""
        some = self.seconds[int(from_s) : int(until_s)]
        bad = sum(s.throttled for s in some)
        return bad / max(1, bad + sum(s.accepted for s in some))
