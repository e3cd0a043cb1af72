"""Search for a limit that the provider reports only by refusals.

A provider refuses two things: too many calls at once, and too many calls in a time (a token bucket). A refusal does not
say which, and the right reaction to one is wrong for the other. A pool paced at the rate that a concurrency limit came
to is refused whenever answers take longer; a pool held at the concurrency that a rate came to is refused whenever
answers come sooner. So both are hypotheses, each held until observations refute it.

**Slow start.** Until the first refusal each answer adds one permit: doubled with every round of answers (Jacobson,
Congestion Avoidance and Control, SIGCOMM 1988).

**One cut per episode.** After a refusal nothing begins until the provider's time is over (Retry-After; without it, one
second). Refusals of calls that were begun before all holders knew fall into that silence and count as the same episode.
When the silence ends every count is in, however late a reporter was.

**Concurrency** is the first hypothesis, and the cheaper to test: at half of the refused concurrency nothing must be
refused. If there is a refusal at once, and again at half of that, concurrency is not what was refused. Otherwise the
concurrency grows back as in CUBIC (RFC 9438): fast while far below the refused value, flat near it, faster and faster
beyond it. Well beyond it the former limit counts as gone, and slow start begins again. Calls that are refused although
one at a time is sent are refused by a rate.

**Rate.** Between two refusals a bucket went from empty to empty, so the calls accepted in between, divided by the time
in between, *are* its refill, whatever its capacity. The pool is paced at exactly that rate. The second of silence has
left a second's refill in the bucket, and a pace that rises with the cube of time uses it up within `settled_s`. Nothing
overflows, so nothing is lost, and a refill that has grown is found. A limit on tokens shows as a rate of requests too,
by their mean size.

**Doubt.** A concurrency limit that is paced looks like a rate that is always a little lower. So a settled rate is
doubted from time to time: for some seconds only concurrency bounds, just below the calls in flight at the last refusal.
If calls are refused nevertheless, the limit is a rate. If not, and no less work is done, the limit is concurrency.

**Charged late.** Output tokens are charged as they are produced, so the calls in flight when the bucket is empty put it
into debt. The sign is a refusal that comes before any call was accepted: at half of the calls that were in flight, such
a refusal cannot come from a concurrency limit either. Then the silence is doubled. The first estimate of the refill is
the calls in flight divided by the time that paying for them took; afterwards the calls *answered* between two refusals
count. A few calls in flight are no debt: then one call follows each silence.

**Strays and storms** are refusals that do not depend on what is sent (`strays`). They say nothing about the limit that
had been found before (`FoundLimit`): it holds again after them. After a storm that came before anything was known, in
which nothing was accepted, the search begins anew, once.

**Cost of probing.** A probe costs refusals, so the next probe waits until a hundred calls have gone well for each
refusal of the last one: 1 %, once a limit has settled. Slow buckets settle late (figures: `docs/decisions/0023`).
"""

from __future__ import annotations

import math

import msgspec

from policies.limits import cruise as cruising
from policies.limits import strays as independent
from policies.limits.cruise import CruiseEnd
from policies.limits.limit_policy import FoundLimit, LimitPolicy, PoolLoad, ProbeMode, inside
from policies.limits.strays import Strays


class Probing(msgspec.Struct, array_like=True):
    """State of the search for one pool. All times are times of events, in seconds."""

    concurrency: float
    """Calls in flight that may be tried now."""
    mode: ProbeMode = ProbeMode.SLOW_START
    """Current hypothesis."""
    clock_s: float = 0.0
    """Seconds since the last episode in which the pool was healthy and used what it was allowed."""
    settled: bool = False
    """True if the last two estimates agree."""
    strikes: int = 0
    """Consecutive episodes that spoke against the mode."""
    ceiling: float = 0.0
    """Concurrency at which calls were refused."""
    cut: float = 1.0
    """Share of `ceiling` that was kept after the refusal."""
    return_s: float = 1.0
    """Seconds of growth from the cut back to `ceiling`."""
    doubting: bool = False
    """True while concurrency is tried against a settled rate."""
    rate: float = 0.0
    """Latest estimate of the rate, in requests per second."""
    rise_s: float = 1.0
    """Seconds in which the pace doubles."""
    undoubted: int = 0
    """Settled estimates left until the next doubt."""

    episode: bool = False
    """True between a refusal and its judgement."""
    empty_at_s: float = 0.0
    """Time at which the current or latest episode began."""
    since_s: float = 0.0
    """Time at which the latest earlier episode began that was followed by an accepted call; 0: none."""
    barren: int = 0
    """Consecutive episodes since `since_s` without an accepted call before them."""
    accepted: int = 0
    """Calls accepted since `since_s`."""
    refused: int = 0
    """Calls refused since `since_s`."""
    under_way: int = 0
    """Calls in flight at `empty_at_s`."""
    inside: int = 0
    """Calls in flight at `since_s`."""
    charged_late: bool = False
    """True if calls are charged when they are answered, not when they begin."""

    strays: Strays = msgspec.field(default_factory=Strays)
    """Search for refusals that do not depend on load."""
    bound_at_s: float = 0.0
    """Time of the refusal from which on the pool was bound as it is now, without slow start in between; 0: none."""
    found: FoundLimit | None = None
    """Limit that was found, before the current refusals; None: none was."""
    late: int = 0
    """Calls refused in the latest silence, less those of them that had not been counted before it: so many of
    `under_way` were not accepted."""
    lent: int = 0
    """Calls of `inside` that were accepted: so many may have been charged late."""
    renewed_s: float = 0.0
    """Time at which the search began anew after a storm, since nothing had been known; 0: never."""


def pace(probing: Probing) -> float:
    """Return the pace of mode `RATE` in requests per second."""
    return probing.rate * (1 + (probing.clock_s / probing.rise_s) ** 3)


def floor(policy: LimitPolicy, probing: Probing) -> float:
    """Return the pace below which no guess goes, in requests per second: that of the longest silence where far more was
    sustained before, or nothing is accepted for long, since it may be a storm that has just ended."""
    per_s = 1 / (policy.hold_s * 2**policy.doublings_max)
    strays, found = probing.strays, probing.found
    sustained = strays.sustained if strays.known else 0.0
    if found is not None:
        sustained = max(sustained, found.amount if found.mode is ProbeMode.RATE else 1.0)
    return per_s if sustained * policy.fall >= per_s or probing.barren > policy.doublings_max + 1 else 0.0


def grow(
    policy: LimitPolicy, probing: Probing, load: PoolLoad, elapsed_s: float, answered: int, in_flight: int,
    free: float = 1.0,
) -> None:  # fmt: skip
    """Let the search grow after a report in which more was wanted than was allowed and nothing was refused.

    Nothing grows if the allowed amount, of which the pool takes the share `free`, was not used.
    """
    well = load.wellness(policy.unwell_share)
    if well == 0:
        return
    elapsed_s *= well
    if probing.mode is ProbeMode.RATE:
        allowed = policy.tried * free * pace(probing)
        # Below a call per second the fading rate is no measure: more was wanted than allowed, so the pace was used.
        if load.accepted_per_s >= allowed or allowed < 1:
            probing.clock_s += elapsed_s
            if probing.clock_s > 2 * probing.rise_s:  # nine times the rate that was refused
                probing.mode = ProbeMode.SLOW_START
                probing.concurrency = max(inside(policy, load, pace(probing)), float(policy.start))
        return
    under_way = max(in_flight, load.accepted_per_s * load.latency_s)
    if load.latency_s:  # a permit is held on the way to the provider and back as well
        under_way *= 1 + policy.overhead_s / load.latency_s
    if under_way < policy.tried * max(int(free * probing.concurrency), 1):
        return
    if probing.mode is ProbeMode.SLOW_START:
        more = min(answered, probing.concurrency) * well  # a report with many rounds of answers is one step
        probing.concurrency = min(probing.concurrency + more, float(policy.ceiling))
        return
    probing.clock_s += elapsed_s
    if probing.doubting and probing.clock_s > 3 and load.accepted_per_s < 0.9 * probing.rate:
        _believe(policy, probing, load)  # fewer calls at once cannot reach the rate
        return
    probing.concurrency = min(_cubic(policy, probing), float(policy.ceiling))
    if probing.concurrency > policy.gone * probing.ceiling + 2:
        probing.mode = ProbeMode.SLOW_START
        probing.settled = probing.doubting = False


def _cubic(policy: LimitPolicy, probing: Probing) -> float:
    """Concurrency after `clock_s` seconds of growth: RFC 9438, section 4.2, with two changes.

    The time to return is given instead of the curvature, and growth beyond the ceiling is faster.
    """
    beyond_s = probing.clock_s - probing.return_s
    if beyond_s < 0:
        below = 1 - (1 - probing.cut) * (-beyond_s / probing.return_s) ** 3
        return max(min(probing.ceiling * below, probing.ceiling - 1), float(policy.floor))
    scale_s = policy.beyond_s * max(1.0, probing.return_s / policy.settled_return_s)
    return probing.ceiling * (1 + (beyond_s / scale_s) ** 3)


def silence_s(policy: LimitPolicy, probing: Probing, asked_s: float) -> float:
    """Return the seconds without a new call after a refusal with this Retry-After (`asked_s`; 0: none was named)."""
    if asked_s and not probing.barren:
        return asked_s
    return float(max(asked_s, policy.hold_s * 2 ** min(probing.barren, policy.doublings_max)))


def judge(policy: LimitPolicy, probing: Probing, load: PoolLoad, until_s: float, told: float = 0.0) -> None:
    """Decide which hypothesis an episode supports that is over, and set mode, concurrency and rate. Nothing has begun
    up to `until_s`, so all counts are in. `told` is as in `retry`."""
    probing.episode = False
    probing.strays.accepted = probing.strays.refused = 0  # refusals of the silence, of calls begun before it
    elapsed_s = probing.empty_at_s - probing.since_s
    judged = elapsed_s < policy.hold_s / 2  # a climb or a cruise has just judged the calls before
    if probing.since_s and probing.accepted <= 0 and not judged:
        _judge_barren(policy, probing, load, until_s)
        probing.clock_s = 0.0
        return
    probing.barren = 0
    if probing.since_s:
        probing.strays.lasting = 0.0
        independent.note_gap(policy, probing.strays, probing.accepted)
    if judged and probing.since_s:
        probing.since_s, probing.inside = probing.empty_at_s, probing.under_way
        probing.lent = max(probing.under_way - probing.late, 0)
        probing.accepted = probing.refused = 0
        return
    charged = max(probing.accepted + (probing.inside - probing.under_way if probing.charged_late else 0), 0)
    mean = charged / elapsed_s if probing.since_s and elapsed_s > 0 else 0.0
    if not _falls(policy, probing, load, mean, until_s, told):
        if probing.mode is ProbeMode.RATE:
            _judge_rate(policy, probing, load, mean)
        else:
            _judge_concurrency(policy, probing, load, mean)
        probing.since_s = probing.empty_at_s
        probing.accepted = probing.refused = 0
        probing.clock_s = 0.0
    probing.inside, probing.lent = probing.under_way, max(probing.under_way - probing.late, 0)


def _judge_barren(policy: LimitPolicy, probing: Probing, load: PoolLoad, until_s: float) -> None:
    """Judge a refusal before any call was accepted: the limit is a rate, and calls in flight are being charged."""
    probing.barren += 1
    probing.charged_late = True
    if probing.strays.lasting:  # a burst that is being paid for is no rate to return to
        probing.strays.fell_from = min(probing.strays.fell_from, probing.strays.lasting)
        probing.strays.lasting = 0.0
    inside = max(probing.inside, 1)
    least = 0.0 if in_debt(policy, probing) else 1 / silence_s(policy, probing, 0.0)
    if probing.doubting:
        _believe(policy, probing, load)
    elif probing.mode is not ProbeMode.RATE:
        rate = inside / (until_s - probing.since_s)
        _pace_at(policy, probing, load, max(rate, least), False)
    elif not probing.settled:
        took_s = probing.empty_at_s - probing.since_s
        most = inside / took_s if took_s > 0 else probing.rate
        _pace_at(policy, probing, load, max(min(most, probing.rate), least), False)


def in_debt(policy: LimitPolicy, probing: Probing) -> bool:
    """Return True if enough calls may have been charged late that a rate can be counted from them."""
    return probing.lent >= policy.debt_calls


def _falls(policy: LimitPolicy, probing: Probing, load: PoolLoad, mean: float, until_s: float, told: float) -> bool:
    """Return True if a climb begins after this episode, in which `mean` calls per second were accepted."""
    strays = probing.strays
    elapsed_s = probing.empty_at_s - (probing.since_s or load.from_s)
    if not probing.since_s:
        mean = load.accepted_per_s
        strays.lasting = independent.lasting(policy, probing.accepted - probing.under_way, elapsed_s)
    elif elapsed_s < policy.hold_s:  # few calls in no time say nothing of a rate
        mean *= elapsed_s / policy.hold_s
    if mean * elapsed_s + 2 < 0.4 * _allowed(policy, probing, load) * (elapsed_s - 2 * policy.hold_s):
        return False  # it was idle
    agrees = probing.accepted >= policy.calls_sure
    if not independent.falls(policy, strays, mean, agrees, probing.empty_at_s, until_s):
        return False
    mean = strays.fell_accepted / max(probing.empty_at_s - strays.fell_since_s, policy.hold_s)
    _begin_climb(policy, probing, load, mean, max(strays.fell_from, 2 * min(mean, load.steady_per_s), told), until_s)
    return True


def _allowed(policy: LimitPolicy, probing: Probing, load: PoolLoad) -> float:
    """Return the rate that the latest judgement allowed, in requests per second; 0 in slow start."""
    if probing.mode is ProbeMode.RATE:
        return probing.rate
    if probing.mode is ProbeMode.CONCURRENCY:
        return probing.cut * probing.ceiling / (load.latency_s + policy.overhead_s)
    return 0.0


def _begin_climb(
    policy: LimitPolicy, probing: Probing, load: PoolLoad, rate: float, target: float, at_s: float, sure: bool = True
) -> None:
    target = max(target, policy.least_per_s)  # each block takes time in which its calls are due
    independent.climb(probing.strays, rate, target, at_s, sure)
    _pace_at(policy, probing, load, probing.strays.level, False)
    probing.clock_s, probing.doubting = 0.0, False


def ascend(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float) -> bool:
    """Take a report of a climb into account; return True unless the climb has met a limit."""
    strays = probing.strays
    limit = independent.ascend(policy, strays, load.latency_s, at_s)
    probing.rate, probing.clock_s = strays.level, 0.0
    if strays.climbs:
        return True
    probing.accepted = probing.refused = probing.barren = 0
    probing.since_s = at_s
    if limit is not None:
        limit = max(limit, policy.least_per_s)
    else:
        strays.ended_at_s = at_s
    if strays.tolerated:
        level = limit / (1 - strays.tolerated) if limit is not None else strays.level
        cruising.begin(policy, strays, level, load.latency_s, at_s, limit is not None)
        _pace_at(policy, probing, load, level, False)
    elif limit is not None:
        _pace_at(policy, probing, load, limit, False)
        return False
    elif strays.level < strays.target:  # less was wanted
        _pace_at(policy, probing, load, strays.level, False)
    elif not restore(policy, probing, load, 0.8 * strays.level):
        if strays.known:
            _pace_at(policy, probing, load, strays.level, False)
        else:
            _start_slowly(policy, probing, policy.spare * strays.level * load.latency_s)
    return True


def cruise(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float, free: float = 1.0) -> bool:
    """Take a report of a cruise into account (`policies.limits.cruise`); return False if it is over."""
    strays, well = probing.strays, load.wellness(policy.unwell_share) > 0
    ended = cruising.follow(policy, strays, load.latency_s, load.steady_per_s, at_s, free, well)
    probing.rate, probing.clock_s = cruising.per_s(strays, free), 0.0
    probing.accepted = probing.refused = probing.barren = 0
    probing.since_s = at_s
    if ended is None:
        return True
    strays.level = max(strays.level, policy.least_per_s)
    strays.next_s = max(strays.next_s, at_s + (policy.calm_s if ended is not CruiseEnd.CALM else 0.0))
    most = strays.level / 0.8 if ended is CruiseEnd.LIMIT else math.inf
    if ended is CruiseEnd.STORM:
        strays.sustained, strays.known = strays.level, True
        _pace_at(policy, probing, load, strays.level, False)
    elif ended is CruiseEnd.FEW or not restore(policy, probing, load, 0.8 * strays.level, most):
        target = max(strays.target, policy.start / (load.latency_s + policy.overhead_s))  # what a new pool begins with
        if ended is CruiseEnd.CALM and strays.level < policy.tried * target:
            _begin_climb(policy, probing, load, strays.level, target, at_s)
        elif ended is CruiseEnd.CALM and strays.gain >= cruising.FREE_GAIN:
            _start_slowly(policy, probing, policy.spare * strays.level * load.latency_s)
        else:
            _pace_at(policy, probing, load, strays.level, ended is CruiseEnd.LIMIT)
        if ended is CruiseEnd.LIMIT and load.latency_s:  # of calls at once, unless they are refused nevertheless
            _cut(policy, probing, strays.level * load.latency_s + 1, policy.found_cut, policy.found_return_s)
            probing.strikes = policy.trials_max
    return False


def _start_slowly(policy: LimitPolicy, probing: Probing, concurrency: float) -> None:
    probing.mode, probing.settled, probing.doubting, probing.strikes = ProbeMode.SLOW_START, False, False, 0
    probing.concurrency = max(concurrency, float(policy.start))


def retry(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float, told: float = 0.0) -> bool:
    """Begin a climb if the pool is far below what it sustained, and refusals are some time ago. Return True if so.

    A rate that is a guess is measured against what a new pool begins with, too. `told`: rate that headers tell, in
    requests per second; 0: none.
    """
    strays = probing.strays
    if probing.mode is ProbeMode.SLOW_START or strays.climbs or strays.cruises or probing.barren:
        return False
    allowed, target = _allowed(policy, probing, load), strays.sustained if strays.known else 0.0
    calm_s = policy.calm_s if allowed >= independent.certain(strays) else policy.proven_calm_s
    if at_s < max(strays.next_s, probing.empty_at_s + calm_s):
        return False
    if not strays.known and allowed < policy.fall * _found_per_s(policy, probing, load):
        return _try_found(policy, probing, load, at_s)
    if probing.mode is ProbeMode.RATE:
        target = max(target, told)
    if allowed < policy.fall * target:
        independent.calm(strays, probing.accepted)
        _begin_climb(policy, probing, load, load.steady_per_s, target, at_s)
        return True
    if probing.mode is not ProbeMode.RATE or not load.latency_s or probing.settled:
        return False
    guess = policy.start / (load.latency_s + policy.overhead_s)  # what a new pool begins with
    if allowed >= policy.fall * guess:
        return False
    independent.calm(strays, probing.accepted)
    rate = max(min(load.steady_per_s, allowed), min(0.5 / policy.hold_s, guess / 16))  # or the first block takes long
    _begin_climb(policy, probing, load, rate, guess, at_s, False)
    return True


def remember(policy: LimitPolicy, probing: Probing, load: PoolLoad, in_flight: int, at_s: float) -> None:
    """Remember the rate that the pool sustained up to a refusal at `at_s`."""
    if probing.barren:
        return
    calm_s = at_s - (probing.since_s or load.from_s)
    if calm_s >= policy.calm_s and not probing.doubting:
        _note(policy, probing, load, in_flight, calm_s)
    strays = probing.strays
    strays.sustained = max(strays.sustained, independent.lasting(policy, probing.accepted - in_flight, calm_s))
    strays.known |= calm_s >= policy.reserve_s


def _found_per_s(policy: LimitPolicy, probing: Probing, load: PoolLoad) -> float:
    """Return the rate of the limit that had been found, in requests per second; 0: none had been."""
    found = probing.found
    if found is None or found.mode is ProbeMode.RATE:
        return found.amount if found is not None else 0.0
    return found.amount / (load.latency_s + policy.overhead_s)


def _note(policy: LimitPolicy, probing: Probing, load: PoolLoad, in_flight: int, calm_s: float) -> None:
    """Note the limit that holds, or the calls in flight that were reached without one."""
    if probing.mode is ProbeMode.SLOW_START:
        if calm_s < policy.reserve_s:
            return  # a full bucket may have allowed it
        amount = min(probing.concurrency, max(float(in_flight), load.accepted_per_s * load.latency_s))
    elif not probing.settled or probing.strays.frequent > 1:
        return
    else:
        amount = probing.ceiling if probing.mode is ProbeMode.CONCURRENCY else probing.rate
    probing.found = FoundLimit(probing.mode, amount)


def restore(policy: LimitPolicy, probing: Probing, load: PoolLoad, least: float, most: float = math.inf) -> bool:
    """Return to the limit that had been found, since refusals that do not depend on load say nothing about it.

    Returns False if none had been, or if it is forgotten: below `least`, a rate in requests per second that was
    accepted, since it was found in such refusals; above `most`, where a limit was met."""
    found = probing.found
    if found is None or not least <= _found_per_s(policy, probing, load) <= most:
        probing.found = None
        return False
    probing.strikes, probing.doubting, probing.clock_s = 0, False, 0.0
    if found.mode is ProbeMode.CONCURRENCY:
        _cut(policy, probing, found.amount, policy.settled_cut, policy.settled_return_s)
    elif found.mode is ProbeMode.RATE:
        _pace_at(policy, probing, load, found.amount, True)
        probing.undoubted = policy.doubt_every
    else:
        _start_slowly(policy, probing, found.amount)
    return True


def _try_found(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float) -> bool:
    """Return to the limit that had been found, though no storm was noticed."""
    found = probing.found
    most = 1 if found is not None and found.mode is ProbeMode.SLOW_START else policy.restores_max
    _restore_again(policy, probing, load, 0.0, most)
    independent.end(probing.strays)
    independent.wait(policy, probing.strays, at_s, policy.restore_max_s)
    return True


def _restore_again(policy: LimitPolicy, probing: Probing, load: PoolLoad, least: float, most: int) -> bool:
    """Return to the limit that had been found, as `restore` does, `most` times while it is refused."""
    if not restore(policy, probing, load, least):
        return False
    if (found := probing.found) is not None:
        kept = FoundLimit(found.mode, found.amount, found.tried + 1)
        probing.found = kept if kept.tried < most else None
    return True


def revive(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float, held_until_s: float) -> None:
    """Take in that calls are accepted again, after silences that ended at `held_until_s`.

    If the calls in flight at the first refusal had to be paid for (`charged_late`), their number divided by the time is
    the refill. If that is far less than the pool sustained before, or than a new pool begins with, the silence was no
    debt but a storm, which says nothing about a limit. That a debt looks so where nothing is known cannot be told by
    one silence: a second one, soon after the search began anew, refutes the storm.
    """
    silent_s, silences = probing.since_s, probing.barren
    debt = max(probing.inside, 1) / max(held_until_s - silent_s, 1.0)
    strays = probing.strays
    target = strays.sustained if strays.known else max(strays.sustained, policy.start / (load.latency_s or 1.0))
    if probing.found is not None:
        target = max(target, _found_per_s(policy, probing, load))
    probing.barren = probing.refused = 0
    probing.since_s = held_until_s
    probing.inside = 0
    refuted = strays.ended_at_s > max(at_s - policy.restored_s, 0.0)
    if probing.renewed_s and silent_s - probing.renewed_s < policy.restored_s:
        refuted |= in_debt(policy, probing)  # as many calls at once as before, and as long a silence: they are paid for
    if refuted:  # what a climb reached, not what the refill is at least
        strays.sustained = max(debt, independent.certain(strays))
    if refuted or debt >= policy.debt_share * target:
        return
    probing.charged_late = False
    strays.fell_accepted = strays.fell_refused = 0
    known = strays.known or probing.found is not None
    # Three silences in a row follow each other by chance once in eight where half of the calls are refused.
    long = silences >= policy.doublings_max or held_until_s - silent_s >= policy.reserve_s
    if not known and not probing.renewed_s and long:
        _begin_anew(policy, probing, load, at_s)
    elif not _restore_again(policy, probing, load, policy.debt_share * target, policy.revivals_max):
        _begin_climb(policy, probing, load, load.accepted_per_s, target, at_s)


def _begin_anew(policy: LimitPolicy, probing: Probing, load: PoolLoad, at_s: float) -> None:
    """Search as a new pool does, once: a storm that came before anything was known teaches nothing.

    Refusals of the storm tell of no limit, and a climb towards a guess would take a limit on calls at once for a rate,
    and find it slowly.
    """
    _start_slowly(policy, probing, 0.0)
    probing.clock_s, probing.accepted, probing.refused = 0.0, 0, 0
    probing.since_s, load.from_s, probing.renewed_s = 0.0, at_s, at_s
    independent.end(probing.strays)


def _judge_concurrency(policy: LimitPolicy, probing: Probing, load: PoolLoad, mean: float) -> None:
    if probing.doubting and probing.clock_s < policy.doubt_s:
        _believe(policy, probing, load)
        return
    probing.doubting = False
    if probing.mode is ProbeMode.CONCURRENCY and probing.concurrency < 2 and probing.under_way <= 1 and mean:
        return _pace_at(policy, probing, load, mean, False)  # there is no concurrency below one
    if probing.mode is ProbeMode.SLOW_START:
        at_once = True
        if probing.accepted >= policy.calls_sure * max(probing.strikes, 1):
            probing.strikes = 0
        under_way = max(probing.under_way, load.accepted_per_s * load.latency_s, policy.floor)
        # a concurrency derived from headers may never have been used
        probing.concurrency = min(probing.concurrency, 2 * under_way)
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


def _judge_rate(policy: LimitPolicy, probing: Probing, load: PoolLoad, mean: float) -> None:
    agree = policy.agree + 1.5 / max(probing.accepted, 1)
    agrees = abs(mean / probing.rate - 1) < agree
    settled = agrees and probing.accepted >= policy.settled_calls
    probing.strikes = 0 if agrees else probing.strikes + 1
    if mean < 0.4 * probing.rate or probing.strikes > policy.unsettled_max:
        probing.strikes = 1
        _cut(policy, probing, float(max(probing.under_way, policy.floor)), policy.trial_cut, policy.trial_return_s)
    elif not settled:
        if mean > probing.rate:  # the bucket may have overflowed in between: the refill lies between mean and pace
            mean = math.sqrt(mean * min(max(mean, 0.9 * pace(probing)), policy.overrun * mean))
        _pace_at(policy, probing, load, mean, False)
    elif probing.undoubted == 0:
        probing.rate = mean
        probing.doubting = True
        _cut(policy, probing, float(max(probing.under_way, policy.floor)), policy.settled_cut, policy.settled_return_s)
    else:
        probing.undoubted -= 1
        if probing.accepted >= policy.calls_sure:
            probing.strays.sustained, probing.strays.known = mean, True
        _pace_at(policy, probing, load, mean, True)


def _cut(policy: LimitPolicy, probing: Probing, ceiling: float, cut: float, return_s: float) -> None:
    if probing.mode is ProbeMode.SLOW_START:
        probing.bound_at_s = probing.empty_at_s
    probing.mode = ProbeMode.CONCURRENCY
    probing.settled = cut == policy.settled_cut
    probing.ceiling, probing.cut, probing.return_s = ceiling, cut, return_s
    probing.clock_s = 0.0
    probing.concurrency = _cubic(policy, probing)


def _pace_at(policy: LimitPolicy, probing: Probing, load: PoolLoad, rate: float, settled: bool) -> None:
    """Pace at r(1 + (t/T)^3), which has used up one second's reserve when t^4 = 4 T^3."""
    if probing.mode is ProbeMode.SLOW_START:
        probing.bound_at_s = probing.empty_at_s
    if probing.mode is not ProbeMode.RATE:
        probing.strikes = 0
        probing.undoubted = 0
    probing.mode = ProbeMode.RATE
    probing.settled = settled
    probing.rate = rate
    if settled:
        until_s = max(policy.settled_s, policy.settled_latencies * load.latency_s)
        until_s = min(max(until_s, policy.calls_a_refusal * probing.refused / rate), policy.probe_max_s)
    else:
        calls_s = min(20 / rate, policy.guess_max_s)
        until_s = max(policy.unsettled_s, policy.unsettled_latencies * load.latency_s, calls_s)
    probing.rise_s = (until_s**4 / 4) ** (1 / 3)


def _believe(policy: LimitPolicy, probing: Probing, load: PoolLoad) -> None:
    """Settle the doubt in favour of the rate."""
    probing.doubting = False
    _pace_at(policy, probing, load, probing.rate, True)
    probing.undoubted = policy.doubt_every
    probing.clock_s = 0.0
