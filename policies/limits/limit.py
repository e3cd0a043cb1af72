"""How much of a pool may be used now?

A pool is what a provider limits together. One `Limit` is its whole state, a value: reports go in (`observe`), an
`Allowance` for all holders together comes out. Two sources of knowledge work side by side, and the smaller bound
holds:

- what the provider *tells* in its headers: the refill of each bucket and what remains in it (`policies.limits.refill`).
  The
  rate is right with the first answer, and concurrency follows by Little's law;
- what it *refuses* (`policies.limits.probing`): the way to a limit that nobody tells, of rate or of concurrency. A
  refusal
  that the headers explain teaches nothing here: an empty bucket, or, once, that it was used faster than it fills.

What growth always asks: was more wanted than was allowed, was what is allowed used, and is the provider well? Demand
below the limit, an idle pool and one that returns 5xx grow nothing. Caps by hand bound what comes out, never what is
learnt; headroom is a share of what the provider allows, told or found.

Reports come from several reporters, each a quarter of a second old (less while slow start goes up, when `observe` says
so), and cost a few microseconds.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import field

from policies.limits import probing as search
from policies.limits import refill
from policies.limits.limit_policy import LimitPolicy as LimitPolicy
from policies.limits.probing import Load, Mode, Probing
from policies.limits.refill import Refill

RATE_MEMORY_S: Final = 2.0
HEALTH_MEMORY_S: Final = 5.0
"""How fast the readings of use and of health fade."""
USED: Final = 0.9
"""Share of a rate that is in use where it is the rate that binds."""
STEP_MAX_S: Final = 2.0
"""A report teaches about this long at most: a pool that was idle for longer tried nothing."""


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """One limit as the provider last told it. None: not told."""

    limit: int | None = None
    remaining: int | None = None
    reset_after_s: float | None = None
    """Seconds from the answer until `remaining` is `limit` again, by the provider's own clock where it told it."""


class RateLimits(msgspec.Struct, frozen=True, array_like=True):
    """The four limits of the Messages API, each a minute's: requests, tokens, input tokens, output tokens."""

    requests: Bucket = Bucket()
    tokens: Bucket = Bucket()
    input_tokens: Bucket = Bucket()
    output_tokens: Bucket = Bucket()


class Caps(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Bounds by hand. None: none. Raises ValueError, one line, for a bound that makes no sense."""

    concurrency: int | None = None
    requests_per_min: float | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    """Share of what the provider allows that is left to other traffic."""
    who: str = ""
    at_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_min", "input_tokens_per_min", "output_tokens_per_min"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, not {value}")
        if not 0 <= self.headroom < 1:
            raise ValueError(f"headroom must be 0 or more and below 1, not {self.headroom}")


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one report told of a pool: counts since that reporter's last one."""

    begun: int = 0
    answered: int = 0
    throttled: int = 0
    unwell: int = 0
    """Attempts that were OVERLOADED, TRANSIENT or TIMED_OUT."""
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    """Sum over the answered attempts."""
    retry_after_s: float = 0.0
    """The longest wait that was asked for; 0 where none was."""
    rate: RateLimits | None = None
    in_flight: int = 0
    """Attempts under way in the whole pool, as far as is known."""
    binding: bool = False
    """Was more wanted of the pool than was allowed?"""


class Limit(msgspec.Struct, array_like=True):
    """What is known of one pool. Travels and is kept as msgpack; on another clock, `adopt` comes first.

    What is a float stays one, so that its bytes are the same after a journey.
    """

    probing: Probing
    load: Load = field(default_factory=Load)
    requests: Refill = field(default_factory=Refill)
    input_tokens: Refill = field(default_factory=Refill)
    output_tokens: Refill = field(default_factory=Refill)
    at_s: float = 0.0
    """Of the latest observation."""
    held_until_s: float = 0.0
    headroom: float = 0.0
    """As last allowed for: what is left to others is not missing from what is used."""


class Allowance(msgspec.Struct, frozen=True, gc=False):
    """What all holders of a pool together may do now."""

    concurrency: int
    """Attempts in flight at once."""
    requests_per_s: float = 0.0
    """0: no bound; so for tokens."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    held_until_s: float = 0.0
    """Nothing may begin before. Where this is ahead, the other bounds are for afterwards and may change until then: ask
    again at that moment."""


NO_CAPS: Final = Caps()


def new(policy: LimitPolicy) -> Limit:
    """A pool of which nothing is known."""
    return Limit(Probing(float(policy.start)))


def observe(policy: LimitPolicy, limit: Limit, at_s: float, sample: Sample) -> bool:
    """Take in a report that was heard at `at_s`. A clock that goes back stands still.

    True: these are the first answers, or slow start allows more by them; the next round may double it.
    """
    first = sample.answered > 0 and not limit.load.latency_s
    elapsed_s = at_s - limit.at_s if limit.at_s else 0.0
    if elapsed_s < 0:
        elapsed_s, at_s = 0.0, limit.at_s
    limit.at_s = at_s
    probing = limit.probing
    if probing.episode and at_s >= limit.held_until_s:
        search.judge(policy, probing, limit.load, limit.held_until_s)
    _count(limit, elapsed_s, sample)
    binding = sample.binding or _paced(limit)
    if sample.rate is not None:
        _hear(limit, at_s, sample.rate, binding)
    if sample.throttled:
        _throttled(policy, limit, at_s, sample)
    elif binding and not probing.episode and at_s >= limit.held_until_s:
        return _grow(policy, limit, min(elapsed_s, STEP_MAX_S), sample) or first
    return False


def _count(limit: Limit, elapsed_s: float, sample: Sample) -> None:
    load, probing = limit.load, limit.probing
    accepted = sample.begun - sample.throttled
    probing.accepted += accepted
    probing.refused += sample.throttled
    keep = RATE_MEMORY_S / (RATE_MEMORY_S + elapsed_s)  # without bias, however far apart the reports are
    load.accepted_per_s = keep * (load.accepted_per_s + accepted / RATE_MEMORY_S)
    keep = math.exp(-elapsed_s / HEALTH_MEMORY_S)
    load.bad = keep * load.bad + sample.unwell
    load.good = keep * load.good + sample.answered
    answered = sample.answered
    if answered:
        weight = answered / (answered + load.good) if load.latency_s else 1.0
        load.latency_s += weight * (sample.latency_s / answered - load.latency_s)
        load.input_size += weight * (sample.input_tokens / answered - load.input_size)
        load.output_size += weight * (sample.output_tokens / answered - load.output_size)


def _paced(limit: Limit) -> bool:
    """Is it the rate that binds? Then all of it is used, and there may be permits left."""
    least = _told_requests_per_s(limit)
    if limit.probing.mode is Mode.RATE:
        least = _least(least, search.pace(limit.probing) * _free(limit))
    return least > 0 and limit.load.accepted_per_s >= USED * least


def _hear(limit: Limit, at_s: float, told: RateLimits, binding: bool) -> None:
    load = limit.load
    for bucket, known, size in (
        (told.requests, limit.requests, 1.0),
        (told.input_tokens, limit.input_tokens, load.input_size),
        (told.output_tokens, limit.output_tokens, load.output_size),
    ):
        if bucket.limit and bucket.remaining is not None:
            refill.hear(known, at_s, bucket.limit, bucket.remaining, size, load.latency_s, binding)


def _throttled(policy: LimitPolicy, limit: Limit, at_s: float, sample: Sample) -> None:
    """Hold until the provider's time is over; one episode, however many refusals fall into it."""
    probing = limit.probing
    explained = False
    for each in (limit.requests, limit.input_tokens, limit.output_tokens):
        explained |= refill.explains(each, at_s)
    if not explained and not probing.episode:
        probing.episode = True
        probing.empty_at_s = at_s
        probing.under_way = sample.in_flight
    asked_s = search.silence_s(policy, probing, sample.retry_after_s)
    until_s = at_s + asked_s + (policy.debt_s if asked_s >= 2 else 0.0)
    limit.held_until_s = max(limit.held_until_s, until_s)


def _grow(policy: LimitPolicy, limit: Limit, elapsed_s: float, sample: Sample) -> bool:
    """Whether slow start has grown."""
    probing, free = limit.probing, _free(limit)
    if free < 1:
        elapsed_s *= policy.settled_s / policy.headroom_s
    told = _told_requests_per_s(limit) if probing.mode is Mode.SLOW_START else 0.0
    if told:  # no need to search for what the headers say
        enough = search.inside(policy, limit.load, told)
        probing.concurrency = float(min(max(enough, policy.start), policy.ceiling))
        return False
    slow_start, before = probing.mode is Mode.SLOW_START, probing.concurrency
    search.grow(policy, probing, limit.load, elapsed_s, sample.answered, sample.in_flight, free)
    return slow_start and probing.concurrency > before


def _free(limit: Limit) -> float:
    """Our share of what was found. Finding out takes all of it."""
    return 1 - limit.headroom if limit.probing.settled else 1.0


def _told_requests_per_s(limit: Limit) -> float:
    """What the told rates come to in requests, by the size that they have; 0 where nothing was told."""
    load, least = limit.load, math.inf
    for known, size in (
        (limit.requests, 1.0),
        (limit.input_tokens, load.input_size),
        (limit.output_tokens, load.output_size),
    ):
        if known.per_s and size:
            least = min(least, refill.rate(known, limit.headroom) / size)
    return least if least < math.inf else 0.0


def allowance(policy: LimitPolicy, limit: Limit, at_s: float, caps: Caps = NO_CAPS) -> Allowance:
    """What may be used from `at_s` on, by all holders together.

    Not a mere reading: it judges an episode that is over, and notes the headroom.
    """
    probing, headroom = limit.probing, caps.headroom
    limit.headroom = headroom
    if probing.episode and at_s >= limit.held_until_s:
        search.judge(policy, probing, limit.load, limit.held_until_s)
    free = _free(limit)
    requests_per_s = refill.rate(limit.requests, headroom)
    concurrency = probing.concurrency * free
    if probing.mode is Mode.RATE:
        requests_per_s = _least(requests_per_s, search.pace(probing) * free)
        concurrency = search.inside(policy, limit.load, requests_per_s)
    elif probing.mode is Mode.CONCURRENCY and limit.load.latency_s:
        # After a silence its calls are not let in at once, which a bucket would refuse, but at nearly their usual rate.
        rush = 2 if probing.settled else policy.spare
        requests_per_s = _least(requests_per_s, rush * concurrency / limit.load.latency_s)
    if caps.concurrency is not None:
        concurrency = min(concurrency, caps.concurrency)
    return Allowance(
        max(int(concurrency), 1),
        _least(requests_per_s, (caps.requests_per_min or 0) / 60),
        _least(refill.rate(limit.input_tokens, headroom), (caps.input_tokens_per_min or 0) / 60),
        _least(refill.rate(limit.output_tokens, headroom), (caps.output_tokens_per_min or 0) / 60),
        limit.held_until_s,
    )


def _least(one: float, other: float) -> float:
    """The smaller of two bounds, of which 0 is none."""
    return min(one, other) if one and other else one or other


def adopt(limit: Limit, at_s: float) -> None:
    """Go on with a state from another clock, that of a cortex before: its latest observation was now, at `at_s`."""
    by_s = at_s - limit.at_s
    limit.at_s += by_s
    limit.held_until_s += by_s
    probing = limit.probing
    probing.empty_at_s += by_s
    if probing.since_s:
        probing.since_s += by_s
    for known in (limit.requests, limit.input_tokens, limit.output_tokens):
        known.heard_at_s += by_s
        known.low_at_s += by_s
