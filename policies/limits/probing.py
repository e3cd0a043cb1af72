"""How much does a provider allow that tells nothing but no?

Two things are refused: too many calls at once, and too many in a time (a token bucket). A refusal does not say which,
and what is right for the one is wrong for the other: a pool paced at the rate that a limit of concurrency came to is
refused whenever answers take longer, one held at the concurrency that a rate came to whenever they come sooner. So
both are explanations, held until they are refuted by what happens.

**Slow start.** Until something is refused, each answer brings one permit more: doubled with every round of answers
(Jacobson, Congestion Avoidance and Control, SIGCOMM 1988).

**One cut an episode.** After a refusal nothing begins until the provider's time is over (Retry-After), else a second.
Refusals of calls begun before the news was round fall into that silence and are not news; and when it ends every count
is in, whichever reporter was late.

**Concurrency** is the first explanation, and the cheaper to test: at half of it nothing must be refused. If it is, at
once, and again at half of that, too many at once is not what was refused. Else it grows back as CUBIC does (RFC 9438):
fast while far below what was refused, flat when near it, faster and faster beyond it; and well beyond it what was
refused before is gone, and slow start begins again.

**Rate.** Between two refusals a bucket went from empty to empty, so what was accepted in between by the time in between
*is* its refill, whatever its capacity. Pace at exactly that: the second of silence has left a second's worth in the
bucket, and a pace that rises by the cube of time uses it up within `settled_s`. Nothing overflows, so nothing is lost,
and a refill that has grown is found. A limit on tokens shows as a rate of requests too, their mean size being what it
is.

**Doubt.** A limit of concurrency, paced, looks like a rate that is always a little less. So a rate that has settled is
doubted once in a while: for some seconds concurrency alone bounds, just below what was under way at the last refusal.
Refused nevertheless: it is the rate. Not refused, and no less done: it is the concurrency.

**Charged late.** Output tokens are charged when they are made, so what is under way when the bucket is empty puts it
into debt. It shows in a refusal that comes before anything at all was accepted: at half of what was under way that is
no matter of concurrency either. Then the silence is doubled. The first guess of the refill is what was under way by the
time that it took to be paid for; from then on it is what was *answered* between two refusals that counts.

**Strays.** What is accepted between two refusals is the same each time a limit is met. Where it comes down and down,
though few calls are refused in each episode, the refusals do not depend on what is sent, and slowing down for them
would go on for ever. Then the pool goes back to where most was accepted, and that share of refusals is put up with
until it grows.

**A price for asking.** Finding out costs refusals, so the next probe waits until a hundred calls have gone well for
each refusal that the last one cost: 1 % at most, at any rate.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from policies.limits.limit_policy import LimitPolicy


class Mode(StrEnum):
    """What is thought to be refused."""

    SLOW_START = "slow start"
    CONCURRENCY = "concurrency"
    RATE = "rate"


class Probing(msgspec.Struct, array_like=True):
    """What was found out about one pool by asking. Times are those of the events."""

    concurrency: float
    mode: Mode = Mode.SLOW_START
    clock_s: float = 0.0
    """Time since the last episode in which the pool was well and used what it was allowed."""
    settled: bool = False
    strikes: int = 0
    """Episodes in a row that spoke against the mode."""
    ceiling: float = 0.0
    """The concurrency that was refused."""
    cut: float = 1.0
    return_s: float = 1.0
    doubting: bool = False
    """Is concurrency tried against a rate that has settled?"""
    rate: float = 0.0
    """Requests a second, as last estimated."""
    rise_s: float = 1.0
    """The pace doubles in it."""
    undoubted: int = 0
    """Settled estimates since the last doubt."""

    episode: bool = False
    empty_at_s: float = 0.0
    """When it began."""
    since_s: float = 0.0
    """When the one before it began after which something was accepted; 0: there was none."""
    barren: int = 0
    """Episodes in a row since then, before which nothing was."""
    accepted: int = 0
    refused: int = 0
    """Since then."""
    under_way: int = 0
    """Calls under way then."""
    inside: int = 0
    """Calls under way at `since_s`."""
    charged_late: bool = False
    """Do calls count when they are answered, not when they are begun?"""

    falls: int = 0
    """Episodes since the one that followed the most accepted requests a second."""
    fell_from: float = 0.0
    """Those requests a second, and the calls that were under way."""
    fell_at: float = 0.0
    fell_accepted: int = 0
    fell_refused: int = 0
    """Since the first of them."""
    tolerated: float = 0.0
    """Share of refusals that are taken for strays; 0: none."""


class Load(msgspec.Struct, array_like=True):
    """How the pool is used and how it fares: fading means."""

    accepted_per_s: float = 0.0
    latency_s: float = 0.0
    good: float = 0.0
    bad: float = 0.0
    input_size: float = 0.0
    output_size: float = 0.0

    def wellness(self, unwell_share: float) -> float:
        """1 without a bad answer, 0 from this share of them on."""
        if not self.bad:
            return 1.0
        return max(0.0, 1 - self.bad / (unwell_share * (self.good + self.bad)))


def pace(probing: Probing) -> float:
    """Requests a second, in the mode of a rate."""
    return probing.rate * (1 + (probing.clock_s / probing.rise_s) ** 3)


def inside(policy: LimitPolicy, load: Load, per_s: float) -> float:
    """Permits with which concurrency does not bind at this rate: Little's law, N = rate x time, with some to spare and
    three standard deviations of a Poisson number."""
    mean = per_s * (load.latency_s + policy.overhead_s)
    return policy.spare * mean + 3 * math.sqrt(mean) + 2


def grow(
    policy: LimitPolicy,
    probing: Probing,
    load: Load,
    elapsed_s: float,
    answered: int,
    in_flight: int,
    free: float = 1.0,
) -> None:
    """More was wanted than was allowed, and nothing was refused: what may be tried now? No more where what is allowed,
    of which we take the share `free`, was not used."""
    well = load.wellness(policy.unwell_share)
    if well == 0:
        return
    elapsed_s *= well
    if probing.mode is Mode.RATE:
        if load.accepted_per_s >= policy.tried * free * pace(probing):
            probing.clock_s += elapsed_s
            if probing.clock_s > 2 * probing.rise_s:  # nine times what was refused once
                probing.mode = Mode.SLOW_START
                probing.concurrency = inside(policy, load, pace(probing))
        return
    under_way = max(in_flight, load.accepted_per_s * load.latency_s)
    if load.latency_s:  # a permit is also held on the way there and back
        under_way *= 1 + policy.overhead_s / load.latency_s
    if under_way < policy.tried * free * probing.concurrency:
        return
    if probing.mode is Mode.SLOW_START:
        more = min(answered, probing.concurrency) * well  # a report with many rounds of answers is one step
        probing.concurrency = min(probing.concurrency + more, float(policy.ceiling))
        return
    probing.clock_s += elapsed_s
    if probing.doubting and probing.clock_s > 3 and load.accepted_per_s < 0.9 * probing.rate:
        _believe(policy, probing, load)  # fewer at once cannot even make the rate
        return
    probing.concurrency = min(_cubic(policy, probing), float(policy.ceiling))
    if probing.concurrency > policy.gone * probing.ceiling + 2:
        probing.mode = Mode.SLOW_START
        probing.settled = probing.doubting = False


def _cubic(policy: LimitPolicy, probing: Probing) -> float:
    """RFC 9438, 4.2, but that the time to return is given and not the curvature, and that it rises faster beyond."""
    beyond_s = probing.clock_s - probing.return_s
    if beyond_s < 0:
        below = 1 - (1 - probing.cut) * (-beyond_s / probing.return_s) ** 3
        return max(min(probing.ceiling * below, probing.ceiling - 1), float(policy.floor))
    scale_s = policy.beyond_s * max(1.0, probing.return_s / policy.settled_return_s)
    return probing.ceiling * (1 + (beyond_s / scale_s) ** 3)


def silence_s(policy: LimitPolicy, probing: Probing, asked_s: float) -> float:
    """How long nothing begins after a refusal with this Retry-After; 0: none was named."""
    if asked_s and not probing.barren:
        return asked_s
    return float(max(asked_s, policy.hold_s * 2 ** min(probing.barren, policy.doublings_max)))


def judge(policy: LimitPolicy, probing: Probing, load: Load, until_s: float) -> None:
    """An episode is over: nothing has begun up to `until_s`, so all counts are in. What was refused?"""
    probing.episode = False
    if probing.since_s and probing.accepted <= 0:
        _judge_barren(policy, probing, load, until_s)
        probing.clock_s = 0.0
        return
    probing.barren = 0
    if not _stray(policy, probing):
        elapsed_s = probing.empty_at_s - probing.since_s
        charged = max(probing.accepted + (probing.inside - probing.under_way if probing.charged_late else 0), 0)
        mean = charged / elapsed_s if probing.since_s and elapsed_s > 0 else 0.0
        if probing.mode is Mode.RATE:
            _judge_rate(policy, probing, load, mean)
        else:
            _judge_concurrency(policy, probing, load, mean)
        probing.since_s = probing.empty_at_s
        probing.accepted = probing.refused = 0
        probing.clock_s = 0.0
    probing.inside = probing.under_way


def _judge_barren(policy: LimitPolicy, probing: Probing, load: Load, until_s: float) -> None:
    """Refused again before anything was accepted: it is a rate, and what was under way is charged still."""
    probing.barren += 1
    probing.charged_late = True
    inside = max(probing.inside, 1)
    if probing.doubting:
        _believe(policy, probing, load)
    elif probing.mode is not Mode.RATE:
        _pace_at(policy, probing, load, inside / (until_s - probing.since_s), False)
    elif not probing.settled:
        most = inside / (probing.empty_at_s - probing.since_s)
        _pace_at(policy, probing, load, min(most, probing.rate), False)


def _stray(policy: LimitPolicy, probing: Probing) -> bool:
    """Does this episode say nothing of a limit, since so many refusals come whatever is sent?

    A count of refusals that do not depend on each other has its own square root as deviation (Poisson).
    """
    calls = max(probing.accepted, 0) + probing.refused
    if probing.tolerated:
        expected = probing.tolerated * calls
        if probing.refused <= expected + 3 * math.sqrt(expected) + 1:
            if calls > 1_000:
                probing.accepted, probing.refused = probing.accepted // 2, probing.refused // 2
            return True
        probing.tolerated, probing.falls = 0.0, 0
        return False
    elapsed_s = probing.empty_at_s - probing.since_s
    few = policy.stray_share * calls
    if not probing.since_s or elapsed_s <= 0:
        return False
    if probing.refused > few + 2 * math.sqrt(few):
        if probing.refused > max(calls // 4, 3):
            probing.falls = 0  # that was a limit
        return False
    mean = max(probing.accepted, 0) / elapsed_s
    if not probing.falls or mean > 0.9 * probing.fell_from:
        probing.falls, probing.fell_from, probing.fell_at = 1, mean, float(probing.under_way)
        probing.fell_accepted = probing.fell_refused = 0
        return False
    probing.falls += 1
    probing.fell_accepted += max(probing.accepted, 0)
    probing.fell_refused += probing.refused
    if probing.falls <= policy.falls_max or mean > policy.fall * probing.fell_from:
        return False
    share = probing.fell_refused / max(probing.fell_accepted + probing.fell_refused, 1)
    probing.tolerated, probing.falls = max(share, 0.01), 0
    probing.mode, probing.settled, probing.doubting = Mode.SLOW_START, False, False
    probing.concurrency = max(probing.fell_at, probing.concurrency)
    probing.strikes = probing.accepted = probing.refused = 0
    probing.since_s = probing.empty_at_s
    return True


def _judge_concurrency(policy: LimitPolicy, probing: Probing, load: Load, mean: float) -> None:
    if probing.doubting and probing.clock_s < policy.doubt_s:
        _believe(policy, probing, load)
        return
    probing.doubting = False
    if probing.mode is Mode.SLOW_START:
        at_once = True
        under_way = max(probing.under_way, load.accepted_per_s * load.latency_s, policy.floor)
        probing.concurrency = min(probing.concurrency, 2 * under_way)  # what headers told may never have been used
    elif probing.cut == policy.trial_cut:
        at_once = probing.concurrency < 1.15 * probing.cut * probing.ceiling
    else:
        at_once = probing.clock_s < 0.3 * probing.return_s
    if at_once:
        probing.strikes += 1
        if mean and probing.strikes > policy.trials_max:
            _pace_at(policy, probing, load, mean, False)
        else:
            _cut(policy, probing, probing.concurrency, policy.trial_cut, policy.trial_return_s)
    elif probing.cut == policy.trial_cut:
        _cut(policy, probing, probing.concurrency, policy.found_cut, policy.found_return_s)
    else:
        if probing.cut == policy.settled_cut:
            probing.strikes = 0
        wait_s = policy.settled_return_s
        if load.accepted_per_s:
            cost_s = policy.calls_a_refusal * probing.refused / load.accepted_per_s
            wait_s = min(max(wait_s, 0.8 * cost_s), policy.probe_max_s)
        _cut(policy, probing, probing.concurrency, policy.settled_cut, wait_s)


def _judge_rate(policy: LimitPolicy, probing: Probing, load: Load, mean: float) -> None:
    agree = policy.agree + 1.5 / max(probing.accepted, 1)
    settled = abs(mean / probing.rate - 1) < agree
    probing.strikes = 0 if settled else probing.strikes + 1
    if mean < 0.4 * probing.rate or probing.strikes > policy.unsettled_max:
        probing.strikes = 1
        _cut(policy, probing, float(max(probing.under_way, policy.floor)), policy.trial_cut, policy.trial_return_s)
    elif not settled:
        if mean > probing.rate:  # the bucket may have run over in between: the refill is between the mean and the pace
            mean = math.sqrt(mean * min(max(mean, 0.9 * pace(probing)), policy.overrun * mean))
        _pace_at(policy, probing, load, mean, False)
    elif probing.undoubted == 0:
        probing.rate = mean
        probing.doubting = True
        _cut(policy, probing, float(max(probing.under_way, policy.floor)), policy.settled_cut, policy.settled_return_s)
    else:
        probing.undoubted -= 1
        _pace_at(policy, probing, load, mean, True)


def _cut(policy: LimitPolicy, probing: Probing, ceiling: float, cut: float, return_s: float) -> None:
    probing.mode = Mode.CONCURRENCY
    probing.settled = cut == policy.settled_cut
    probing.ceiling, probing.cut, probing.return_s = ceiling, cut, return_s
    probing.clock_s = 0.0
    probing.concurrency = _cubic(policy, probing)


def _pace_at(policy: LimitPolicy, probing: Probing, load: Load, rate: float, settled: bool) -> None:
    """Pace at r(1 + (t/T)^3). It has used up one second's reserve when t^4 = 4 T^3."""
    if probing.mode is not Mode.RATE:
        probing.strikes = 0
        probing.undoubted = 0
    probing.mode = Mode.RATE
    probing.settled = settled
    probing.rate = rate
    if settled:
        until_s = max(policy.settled_s, policy.settled_latencies * load.latency_s)
        until_s = min(max(until_s, policy.calls_a_refusal * probing.refused / rate), policy.probe_max_s)
    else:
        until_s = max(policy.unsettled_s, policy.unsettled_latencies * load.latency_s, 20 / rate)
    probing.rise_s = (until_s**4 / 4) ** (1 / 3)


def _believe(policy: LimitPolicy, probing: Probing, load: Load) -> None:
    """The doubt is settled: it is the rate."""
    probing.doubting = False
    _pace_at(policy, probing, load, probing.rate, True)
    probing.undoubted = policy.doubt_every
    probing.clock_s = 0.0
