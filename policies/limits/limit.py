"""Adaptive limit of a pool: concurrency and rates that all holders of the pool may use together now.

A pool is the unit in which a provider limits calls. `PoolLimit` is its whole state, a plain value: `observe` takes a
report in, and `allowance` returns the bounds. Three sources are used together, and the smaller bound holds:

- rate-limit headers of the provider: refill and remainder of each bucket (`policies.limits.refill`). The rate is right
  with the first answer, and concurrency follows by Little's law;
- refusals (`policies.limits.probing`): the search for a limit that no header names, of rate or of concurrency. A
  refusal that the headers explain is ignored by the search: an empty bucket, or, once, a bucket that was used faster
  than it fills;
- waiting (`policies.limits.queueing`): a server of the user's own that does neither may queue its calls. How many wait
  is told by its metrics (`policies.limits.told_queue`), or found in the durations of its answers.

A bound grows only if more was wanted than was allowed, if the allowed amount was used, and if the provider is healthy.
Demand below the limit, an idle pool and a pool that returns 5xx grow nothing. Caps set by an operator bound the result,
never what is learnt. Headroom is a share of what the provider allows, taken from headers or found by search.

Reports come from several reporters, each a quarter of a second old (less during slow start, when `observe` returns
True). `observe` costs a few microseconds.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import field

from policies.limits import probing as search
from policies.limits import queueing, refill, strays, told_queue
from policies.limits.limit_policy import LimitPolicy as LimitPolicy
from policies.limits.limit_policy import PoolLoad, ProbeMode, inside, relieve, take_back
from policies.limits.probing import Probing
from policies.limits.queueing import Queueing, QuickAnswers
from policies.limits.refill import ChargedSize, Refill
from policies.limits.told_queue import ToldQueue

RATE_MEMORY_S: Final = 2.0
"""Time constant with which the measured request rate fades, in seconds."""
STEADY_MEMORY_S: Final = 20.0
"""Time constant with which the rate that a pool sustains fades, in seconds."""
HEALTH_MEMORY_S: Final = 5.0
"""Time constant with which counts of good and bad answers fade, in seconds."""
SIZED_CALLS: Final = 50
"""Calls over which the mean size of a call is taken at least: the mean of the last few would be that of one or two."""
MOSTLY: Final = 0.5
"""Share of a call's charge beyond which it is mostly input: below it, pacing by input would correct too much."""
USED: Final = 0.9
"""Share of a rate that must be in use for the rate to count as the binding bound."""
TICK_S: Final = 1e-6
"""Duration of an answer that came before the clock had moved on, in seconds: shorter than any."""
STEP_MAX_S: Final = 2.0
"""Seconds; a longer gap between two reports counts as this long, because an idle pool tried nothing."""


class ReportedBucket(msgspec.Struct, frozen=True, array_like=True):
    """Rate limit as the provider last reported it. None: not reported."""

    limit: int | None = None
    remaining: int | None = None
    reset_after_s: float | None = None
    """Seconds from the answer until `remaining` equals `limit` again, by the provider's clock where the provider gives
    it."""


class RateLimits(msgspec.Struct, frozen=True, array_like=True):
    """The four limits of the Messages API, each per minute: requests, tokens, input tokens, output tokens."""

    requests: ReportedBucket = ReportedBucket()
    tokens: ReportedBucket = ReportedBucket()
    input_tokens: ReportedBucket = ReportedBucket()
    output_tokens: ReportedBucket = ReportedBucket()


class PoolCaps(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Bounds set by an operator. None: no bound. Raises ValueError, in one line, for a bound that makes no sense."""

    concurrency: int | None = None
    """Attempts in flight at once."""
    requests_per_min: float | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    headroom: float = 0.0
    """Share of the provider's limit that is left to other traffic, at least 0 and below 1."""
    who: str = ""
    """Operator or command that set the caps."""
    at_s: float = 0.0
    """Time at which the caps were set, in seconds since 1970."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_min", "input_tokens_per_min", "output_tokens_per_min"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, not {value}")
        if not 0 <= self.headroom < 1:
            raise ValueError(f"headroom must be 0 or more and below 1, not {self.headroom}")


class UsageSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Report about a pool: counts since the previous report of the same reporter."""

    begun: int = 0
    """Attempts begun."""
    answered: int = 0
    """Attempts answered."""
    throttled: int = 0
    """Attempts that the provider's rate limit refused."""
    unwell: int = 0
    """Attempts that ended OVERLOADED, TRANSIENT or TIMED_OUT."""
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    """Sum of the latencies of the answered attempts, in seconds."""
    retry_after_s: float = 0.0
    """The longest Retry-After among the refusals, in seconds; 0: none was named."""
    rate: RateLimits | None = None
    """Rate limits in the headers of the latest answer; None: no headers."""
    in_flight: int = 0
    """Attempts in flight in the whole pool, as far as is known."""
    binding: bool = False
    """True if more was wanted of the pool than was allowed."""
    timed_out: int = 0
    """Attempts among `unwell` that timed out although the server answered others meanwhile."""
    timed_out_s: float = 0.0
    """Duration of the shortest of them, in seconds."""
    samples: tuple[tuple[float, int], ...] = ()
    """(seconds, output tokens) of some of the answered attempts."""
    prompts: tuple[int, ...] = ()
    """Input tokens of the same attempts."""
    at_server: tuple[int, int] | None = None
    """Requests that the server works on, and requests that wait there, as it tells; None: it tells nothing new."""


class PoolLimit(msgspec.Struct, array_like=True):
    """Learnt state of one pool, sent and stored as msgpack. To continue it on another clock, call `adopt` first.

    Float fields stay floats, so that the encoded bytes are the same after decoding and encoding again.
    """

    probing: Probing
    load: PoolLoad = field(default_factory=PoolLoad)
    requests: Refill = field(default_factory=Refill)
    input_tokens: Refill = field(default_factory=Refill)
    output_tokens: Refill = field(default_factory=Refill)
    at_s: float = 0.0
    """Time of the latest observation, in seconds."""
    held_until_s: float = 0.0
    """No call may begin before this time, in seconds."""
    headroom: float = 0.0
    """Headroom of the latest `allowance`: what is left to other traffic does not count as unused."""
    relieved_until_s: float = 0.0
    """Time until which timeouts belong to the latest episode of congestion."""
    queue: Queueing | None = None
    """Search at a server that may queue, used while it names no limit and refuses nothing (`policies.limits.queueing`);
    None: a provider's service, of which slow start finds the limit."""
    tokens: Refill = field(default_factory=Refill)
    """Bucket of the tokens of both directions, where the provider reports no bucket of one of them (OpenAI)."""
    charged: ChargedSize = field(default_factory=ChargedSize)
    """Amount that a call takes of that bucket."""
    capped: bool = False
    """True if the caps of the latest `allowance` were below what was learnt. What is wanted beyond them is no demand:
    it would neither be met by more permits, nor does a bucket stay full because less was charged."""

    def buckets(self) -> tuple[tuple[Refill, float], ...]:
        """Return the buckets that headers reported, and what a call takes of each; 0: not known yet."""
        load = self.load
        both = (self.tokens, refill.size_of(self.charged, load.input_size + load.output_size))
        parts = (self.input_tokens, load.input_size), (self.output_tokens, load.output_size)
        return tuple(each for each in ((self.requests, 1.0), *parts, both) if each[0].per_s)


class PoolAllowance(msgspec.Struct, frozen=True, gc=False):
    """Bounds on all holders of a pool together."""

    concurrency: int
    """Attempts in flight at once, at least 1."""
    requests_per_s: float = 0.0
    """0: no bound, here and in the two token rates."""
    input_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    held_until_s: float = 0.0
    """No call may begin before this time. If it lies ahead, the other bounds are for afterwards and may change until
    then: ask again at that moment."""
    strays: bool = False
    """True while a share of refusals is tolerated that less load had too, or more: a Retry-After then holds the call
    that got it, and no other."""


NO_CAPS: Final = PoolCaps()
"""Caps that bound nothing."""


def new(policy: LimitPolicy, queues: bool = False) -> PoolLimit:
    """Return the state of a pool about which nothing is known: `policy.start` permits, slow start.

    `queues`: True for a server that may queue what it cannot serve yet, which begins with `queueing.START` permits.
    """
    if queues:
        return PoolLimit(Probing(float(queueing.START)), queue=Queueing())
    return PoolLimit(Probing(float(policy.start)))


def forgotten(policy: LimitPolicy, limit: PoolLimit) -> PoolLimit:
    """Return the state of a pool of which all that was learned is dropped. A wait that the provider asked for stays."""
    fresh = new(policy, limit.queue is not None)
    fresh.at_s, fresh.held_until_s = limit.at_s, limit.held_until_s
    return fresh


def queueing_too(policy: LimitPolicy, limit: PoolLimit) -> PoolLimit:
    """Return the state of a pool of which only now is known that its server may queue calls."""
    if not limit.load.from_s and not limit.buckets():
        return new(policy, True)
    limit.queue = Queueing(growing=False)
    return limit


def observe(policy: LimitPolicy, limit: PoolLimit, at_s: float, sample: UsageSample) -> bool:
    """Take in a report that was received at `at_s`. A clock that goes back counts as standing still.

    Returns True if these are the first answers, or if slow start allows more because of them: the next round of answers
    may double the concurrency, so report and ask again soon.
    """
    first = sample.answered > 0 and not limit.load.latency_s
    elapsed_s = at_s - limit.at_s if limit.at_s else 0.0
    if elapsed_s < 0:
        elapsed_s, at_s = 0.0, limit.at_s
    limit.at_s = at_s
    limit.load.from_s = limit.load.from_s or at_s
    probing = limit.probing
    if not sample.throttled and tells_nothing(limit):
        _take_back(limit, at_s)
        if sample.timed_out:
            _relieve(policy, limit, at_s, sample)
    if probing.episode and at_s >= limit.held_until_s:
        search.judge(policy, probing, limit.load, limit.held_until_s, _reported_requests_per_s(limit))
    _count(limit, elapsed_s, sample)
    binding = (sample.binding and not limit.capped) or _paced(limit)
    if sample.rate is not None:
        _take_readings(limit, at_s, sample.rate, binding)
    if probing.strays.climbs and search.ascend(policy, probing, limit.load, at_s):
        return False
    explained = sample.throttled > 0 and _explained(limit, at_s)
    if probing.strays.cruises:
        strays.uncount(probing.strays, sample.throttled * explained)
        strays.leave_out(probing.strays, elapsed_s - max(STEP_MAX_S, 4 / probing.strays.level), at_s)
        if not explained and search.cruise(policy, probing, limit.load, at_s, 1 - limit.headroom):
            return False
    if sample.throttled and _throttled(policy, limit, at_s, sample, explained):
        return False
    if probing.episode or at_s < limit.held_until_s:
        return False
    if limit.queue is not None and _told(policy, limit, limit.queue, at_s, sample, binding):
        return False
    if probing.barren and _proven(policy, limit, at_s, sample):
        search.revive(policy, probing, limit.load, at_s, limit.held_until_s)
    elif binding and not search.retry(policy, probing, limit.load, at_s, _reported_requests_per_s(limit)):
        return _grow(policy, limit, min(elapsed_s, STEP_MAX_S), sample) or first
    return False


def _proven(policy: LimitPolicy, limit: PoolLimit, at_s: float, sample: UsageSample) -> bool:
    """Return True if calls begun after the silences are accepted: one was not refused for long, or some have ended.

    Two must have ended, since a bucket of one call accepts one; a single one, if no call was accepted before.
    """
    accepted = limit.probing.accepted
    ended = accepted - sample.in_flight
    if ended > 0 and not search.in_debt(policy, limit.probing) and (ended > 1 or limit.load.sized <= accepted):
        return True
    return accepted > sample.begun and at_s >= limit.held_until_s + policy.proof_s


def _count(limit: PoolLimit, elapsed_s: float, sample: UsageSample) -> None:
    load, probing = limit.load, limit.probing
    accepted = sample.begun - sample.throttled  # below 0 for calls that an earlier report began, and counted
    probing.accepted = max(probing.accepted + accepted, 0)  # where the count has begun anew since then, too
    probing.refused += sample.throttled
    if probing.episode:
        probing.late -= accepted
    limit.charged.pending = max(limit.charged.pending + accepted, 0.0)
    keep = RATE_MEMORY_S / (RATE_MEMORY_S + elapsed_s)  # unbiased for any interval between two reports
    load.accepted_per_s = keep * max(load.accepted_per_s + accepted / RATE_MEMORY_S, 0.0)
    keep = STEADY_MEMORY_S / (STEADY_MEMORY_S + elapsed_s)
    load.steady_per_s = keep * max(load.steady_per_s + accepted / STEADY_MEMORY_S, 0.0)
    strays.count(probing.strays, accepted, sample.throttled)
    keep = math.exp(-elapsed_s / HEALTH_MEMORY_S)
    load.bad = keep * load.bad + sample.unwell
    load.good = keep * load.good + sample.answered
    answered = sample.answered
    if answered:
        weight = answered / (answered + load.good) if load.latency_s else 1.0
        load.latency_s += weight * (sample.latency_s / answered - load.latency_s)
        load.sized += answered
        weight = answered / max(answered + load.good, min(load.sized, SIZED_CALLS))
        load.input_size += weight * (sample.input_tokens / answered - load.input_size)
        load.output_size += weight * (sample.output_tokens / answered - load.output_size)


def _paced(limit: PoolLimit) -> bool:
    """True if the rate is the binding bound: then all of it is used, and permits may be left over."""
    least = _reported_requests_per_s(limit)
    if limit.probing.mode is ProbeMode.RATE:
        least = _least(least, search.pace(limit.probing) * _free(limit))
    return least > 0 and limit.load.accepted_per_s >= USED * least


def _take_readings(limit: PoolLimit, at_s: float, limits: RateLimits, binding: bool) -> None:
    load = limit.load
    for bucket, known, size in (
        (limits.requests, limit.requests, 1.0),
        (limits.input_tokens, limit.input_tokens, load.input_size),
        (limits.output_tokens, limit.output_tokens, load.output_size),
    ):
        if bucket.limit and bucket.remaining is not None:
            told = bucket.limit, bucket.remaining, size, load.latency_s, binding, bucket.reset_after_s
            refill.take_reading(known, at_s, *told)
    both = limits.tokens  # where the parts are reported too, as by Anthropic, it is their sum
    if both.limit and both.remaining is not None and not (limits.input_tokens.limit or limits.output_tokens.limit):
        used = load.input_size + load.output_size
        refill.measure(limit.charged, limit.tokens, at_s, both.remaining, used, binding)
        size = refill.size_of(limit.charged, used)
        told = both.limit, both.remaining, size, load.latency_s, binding, both.reset_after_s
        refill.take_reading(limit.tokens, at_s, *told)


def tells_nothing(limit: PoolLimit) -> bool:
    """Return True if the provider names no limit, by headers or by refusals: it may queue what it cannot serve yet."""
    return limit.probing.mode is ProbeMode.SLOW_START and not limit.buckets()


def _relieve(policy: LimitPolicy, limit: PoolLimit, at_s: float, sample: UsageSample) -> None:
    """Halve the calls in flight, since a queue at the server was longer than attempts may take.

    One cut per episode: attempts that were begun before the cut may take as long, and say nothing about it (as in TCP,
    which halves its window once a round trip: Jacobson, Congestion Avoidance and Control, SIGCOMM 1988). At a server
    that is searched for a queue, the cut is taken back if it was for a lost connection (`Relief`).
    """
    probing, queue, begins = limit.probing, limit.queue, at_s >= limit.relieved_until_s
    in_flight, cuts = min(probing.concurrency, float(sample.in_flight + sample.timed_out)), begins
    if queue is not None and not queue.left:
        late, latency_s, growing = sample.timed_out, limit.load.latency_s, queue.growing
        cuts = relieve(queue.relief, at_s, probing.concurrency, in_flight, late, begins, latency_s)
        if cuts:
            queueing.cut(queue, at_s)
            queue.relief.growing = growing
    if begins:
        limit.relieved_until_s = at_s + sample.timed_out_s
    if cuts:
        probing.concurrency = max(in_flight / 2, float(policy.floor))
        if queue is not None:
            queue.relief.cut_to = probing.concurrency


def _take_back(limit: PoolLimit, at_s: float) -> None:
    """Take a cut back, if it was for a lost connection."""
    queue = limit.queue
    if queue is not None and not queue.left and queue.relief.back:
        more = take_back(queue.relief, at_s, limit.probing.concurrency)
        if more > limit.probing.concurrency:
            limit.probing.concurrency, queue.growing = more, queue.relief.growing


def _explained(limit: PoolLimit, at_s: float) -> bool:
    """Return True if headers explain a refusal."""
    explained = False
    for each, _ in limit.buckets():
        explained |= refill.explains(each, at_s)
    return explained


def _throttled(policy: LimitPolicy, limit: PoolLimit, at_s: float, sample: UsageSample, explained: bool) -> bool:
    """Hold until the time the provider named is over. All refusals within the hold are one episode. Return True.

    `explained`: whether headers explain them; then they are none of the search.
    """
    probing = limit.probing
    if not explained and not probing.episode:
        if limit.queue is not None and not limit.queue.left and probing.mode is ProbeMode.SLOW_START:
            return _leave_queue(policy, limit, at_s, sample)
        search.remember(policy, probing, limit.load, sample.in_flight, at_s)
        probing.episode = True
        probing.empty_at_s = at_s
        probing.under_way, probing.late = sample.in_flight, 0
    asked_s = search.silence_s(policy, probing, sample.retry_after_s)
    until_s = at_s + asked_s + (policy.debt_s if asked_s >= 2 else 0.0)
    limit.held_until_s = max(limit.held_until_s, until_s)
    return True


def _leave_queue(policy: LimitPolicy, limit: PoolLimit, at_s: float, sample: UsageSample) -> bool:
    """Search from now on as at a provider's service, since the server refuses calls.

    The refusal came at the number of calls that the search for a queue had reached, which says nothing of a limit: it
    is obeyed, and not remembered.
    """
    probing = limit.probing
    if limit.queue is not None:
        limit.queue.left = True
    probing.concurrency = max(probing.concurrency, float(policy.start))
    asked_s = search.silence_s(policy, probing, sample.retry_after_s)
    limit.held_until_s = max(limit.held_until_s, at_s + asked_s)
    return True


def _grow(policy: LimitPolicy, limit: PoolLimit, elapsed_s: float, sample: UsageSample) -> bool:
    """Let the search grow; return whether slow start has grown."""
    probing, free = limit.probing, _free(limit)
    if free < 1:
        elapsed_s *= policy.settled_s / policy.headroom_s
    number = _reported_requests_per_s(limit) if probing.mode is ProbeMode.SLOW_START else 0.0
    if number:  # the headers give the rate: no search is needed
        enough = inside(policy, limit.load, number)
        probing.concurrency = float(min(max(enough, policy.start), policy.ceiling))
        return False
    slow_start, before = probing.mode is ProbeMode.SLOW_START, probing.concurrency
    if slow_start and limit.queue is not None and not limit.queue.left:
        probing.concurrency, quick = _follow_queue(policy, limit, limit.queue, sample)
        if quick is not QuickAnswers.GROW:
            return probing.concurrency > before
    search.grow(policy, probing, limit.load, elapsed_s, sample.answered, sample.in_flight, free)
    return slow_start and probing.concurrency > before


def _told(
    policy: LimitPolicy, limit: PoolLimit, queue: Queueing, at_s: float, sample: UsageSample, binding: bool
) -> bool:
    """Follow what the server tells of its queue; return False if it tells nothing, or a limit was found by refusals."""
    if not tells_nothing(limit):
        return False
    if sample.at_server is not None:
        running, waiting = sample.at_server
        before = limit.probing.concurrency
        wanted = told_queue.follow(queue.told, at_s, before, sample.in_flight, running, waiting, binding)
        limit.probing.concurrency = min(wanted, float(policy.ceiling))
    if told_queue.is_told(queue.told, at_s):
        return True
    if queue.told.heard_s:  # its metrics are gone: the search goes on from here
        queue.told = ToldQueue()
        queueing.cut(queue, at_s)
    return False


def _follow_queue(
    policy: LimitPolicy, limit: PoolLimit, queue: Queueing, sample: UsageSample
) -> tuple[float, QuickAnswers]:
    """Return the concurrency that the search for a queue asks for, and what it finds of quick answers."""
    before, least = limit.probing.concurrency, float(policy.start)
    # Clocks with ticks of 16 ms (Windows, https://docs.python.org/3/library/time.html) measure none for some answers.
    told = tuple((max(seconds, TICK_S), tokens) for seconds, tokens in sample.samples), sample.prompts
    quick = queueing.is_quick(queue, limit.at_s, before, *told, limit.load.latency_s)
    if quick:
        return max(before, least), quick
    if not limit.load.wellness(policy.unwell_share):
        queueing.note(queue, limit.at_s, before, *told)
        return before, quick
    wanted = queueing.observe(queue, limit.at_s, before, *told)
    return min(max(wanted, least) if queue.left else wanted, float(policy.ceiling)), quick


def _free(limit: PoolLimit) -> float:
    """Own share of what the search found. During the search the whole limit is used."""
    return 1 - limit.headroom if limit.probing.settled else 1.0


def _reported_requests_per_s(limit: PoolLimit) -> float:
    """The reported rates in requests per second, by the mean size of requests; 0 if no rate was reported."""
    least = math.inf
    for known, size in limit.buckets():
        if size:
            least = min(least, refill.rate(known, limit.headroom) / size)
    return least if least < math.inf else 0.0


def allowance(policy: LimitPolicy, limit: PoolLimit, at_s: float, caps: PoolCaps = NO_CAPS) -> PoolAllowance:
    """Return the bounds from `at_s` on, for all holders together, under the operator's `caps`.

    Changes `limit`: judges an episode that is over, and notes the headroom and whether the caps bind.
    """
    probing, headroom = limit.probing, caps.headroom
    limit.headroom = headroom
    if probing.episode and at_s >= limit.held_until_s:
        search.judge(policy, probing, limit.load, limit.held_until_s, _reported_requests_per_s(limit))
    free = _free(limit)
    both_requests_per_s, both_input_per_s = _both_per_s(limit, headroom)
    requests_per_s = _least(refill.rate(limit.requests, headroom), both_requests_per_s)
    concurrency = probing.concurrency * free
    if probing.mode is ProbeMode.RATE:
        guess = max(search.pace(probing), search.floor(policy, probing))
        requests_per_s = _least(requests_per_s, guess * free)
        concurrency = inside(policy, limit.load, requests_per_s)
        if probing.barren > 1 and not search.in_debt(policy, probing) and not probing.strays.climbs:
            # Call after a silence, at once: paced, it would come a second silence later.
            requests_per_s, concurrency = max(requests_per_s, 1 / policy.hold_s), 1.0
    elif probing.mode is ProbeMode.CONCURRENCY and limit.load.latency_s:
        # After a silence the permits are not let in all at once, which a bucket would refuse, but at nearly their usual
        # rate.
        rush = 2 if probing.settled else policy.spare
        requests_per_s = _least(requests_per_s, rush * concurrency / limit.load.latency_s)
    if probing.strays.checked:
        sent_per_s = policy.check_load * probing.strays.block_before
        requests_per_s = _least(requests_per_s, max(sent_per_s, policy.least_per_s))
    limit.capped = _capped(limit, caps, concurrency, requests_per_s)
    if caps.concurrency is not None:
        concurrency = min(concurrency, caps.concurrency)
    return PoolAllowance(
        max(int(concurrency), 1),
        _least(requests_per_s, (caps.requests_per_min or 0) / 60),
        _least(
            _least(refill.rate(limit.input_tokens, headroom), both_input_per_s), (caps.input_tokens_per_min or 0) / 60
        ),
        _least(refill.rate(limit.output_tokens, headroom), (caps.output_tokens_per_min or 0) / 60),
        limit.held_until_s,
        probing.strays.confirmed and not probing.strays.climbs and not probing.episode,
    )


def _capped(limit: PoolLimit, caps: PoolCaps, concurrency: float, requests_per_s: float) -> bool:
    """Return True if an operator's caps are below what was learnt: `concurrency`, and `requests_per_s` or the reported
    rates, by the mean size of calls."""
    if caps.concurrency is not None and caps.concurrency < int(concurrency):
        return True
    load, least = limit.load, math.inf
    for most, size in (
        (caps.requests_per_min, 1.0), (caps.input_tokens_per_min, load.input_size),
        (caps.output_tokens_per_min, load.output_size),
    ):  # fmt: skip
        if most is not None and size:
            least = min(least, most / 60 / size)
    if least == math.inf:
        return False
    learnt = _least(_reported_requests_per_s(limit), requests_per_s)
    return least < _least(learnt, concurrency / load.latency_s if load.latency_s else 0.0)


def _both_per_s(limit: PoolLimit, headroom: float) -> tuple[float, float]:
    """Return what the bucket of the tokens of both directions allows, as requests or as input tokens per second, the
    other being 0; both are 0 if it was not reported.

    What calls differ in is their input, since the longest answer is usually the same. Paced by input, each waits by its
    own size, times the mean ratio of charge and input: nearer to what it is charged than a mean size, if most of that
    is input.
    """
    if not limit.tokens.per_s:
        return 0.0, 0.0
    size = refill.size_of(limit.charged, limit.load.input_size + limit.load.output_size)
    if not size:
        return 0.0, 0.0
    per_s, of_input = refill.rate(limit.tokens, headroom), limit.load.input_size / size
    return (0.0, per_s * of_input) if of_input > MOSTLY else (per_s / size, 0.0)


def _least(one: float, other: float) -> float:
    """The smaller of two bounds, where 0 means no bound."""
    return min(one, other) if one and other else one or other


def adopt(limit: PoolLimit, at_s: float) -> None:
    """Continue a state that comes from another clock (an earlier scheduler): its latest observation counts as made at
    `at_s`. Counts below 0 of an earlier release become 0.
    """
    by_s = at_s - limit.at_s
    limit.at_s += by_s
    limit.held_until_s += by_s
    limit.relieved_until_s += by_s
    if limit.queue is not None:
        queueing.shift(limit.queue, by_s)
    probing = limit.probing
    load = limit.load
    load.accepted_per_s, load.steady_per_s = max(load.accepted_per_s, 0.0), max(load.steady_per_s, 0.0)
    probing.accepted, limit.charged.pending = max(probing.accepted, 0), max(limit.charged.pending, 0.0)
    strays.mend(probing.strays)
    probing.empty_at_s += by_s
    probing.bound_at_s += by_s
    probing.strays.block_at_s += by_s
    probing.strays.next_s += by_s
    probing.strays.up_at_s += by_s
    probing.strays.check_at_s += by_s
    probing.strays.ended_at_s += by_s
    probing.strays.fell_since_s += by_s
    limit.load.from_s += by_s
    if probing.renewed_s:
        probing.renewed_s += by_s
    if probing.since_s:
        probing.since_s += by_s
    if limit.charged.at_s:
        limit.charged.at_s += by_s
    for known in (limit.requests, limit.input_tokens, limit.output_tokens, limit.tokens):
        known.reported_at_s += by_s
        known.low_at_s += by_s
        known.cut_at_s += by_s
