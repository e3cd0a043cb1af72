"""Cruise: calls sent at a level among refusals that no load causes.

A climb has shown a share of refusals that does not depend on load (`strays`). From then on none of them holds anything,
and the pool cruises (a word of BBR): it is paced at a level, in calls sent per second, that follows what is accepted.
What is compared is the share of refusals in a block of calls with the tolerated one, and whether chance explains the
difference (`strays.chance`).

**Up.** The level is doubled, and once it has met a limit raised by a quarter, for a block. If at least half as much
more is accepted, it stays, and the next raise is the square of this one, up to a doubling. If more is refused than
before, a limit was met: what was accepted is the limit (BBR probes so for bandwidth, draft-ietf-ccwg-bbr).

**Lower.** If more is refused at the level itself, it is lowered to what was accepted. There a limit refuses hardly any
more, and then it stays; strays are as frequent as before, and then the share has risen, and the level returns.

**Check.** Refusals that a limit causes could look the same. So from time to time three quarters of what is accepted are
sent, which a limit would not refuse, until so few are refused that it is no chance, or enough were sent. If too few are
refused, the whole level tells why: a limit refuses calls there, and otherwise the refusals have ended.

**End.** A cruise ends when nothing is refused any more, when a limit is told to cause the refusals, or in a storm, in
which nearly all is refused. Where a limit lets a call through once in seconds, too few tell anything: it ends, too.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

from policies.limits.limit_policy import LimitPolicy
from policies.limits.strays import Strays, begin_block, chance, end

FREE_GAIN: Final = 2.0
"""Factor by which a cruise is raised until it meets a limit, as in slow start."""

LOWER: Final = 0.8
"""Share of the level to which it is lowered at most: of about as many calls strays and a limit refuse alike."""
WANTED: Final = 0.8
"""Share of the calls that may be sent from which on they are wanted."""


class CruiseEnd(IntEnum):
    """End of a cruise."""

    CALM = 1
    """Nothing is refused any more."""
    LIMIT = 2
    """Less load was refused nothing, or nearly all: a limit causes the refusals."""
    STORM = 3
    """Nearly all is refused."""
    FEW = 4
    """Too few calls are accepted to tell."""


def begin(policy: LimitPolicy, strays: Strays, level: float, latency_s: float, at_s: float, met: bool) -> None:
    """Go on among refusals that no load causes, at this level. `met`: whether a climb has met a limit, which it is."""
    strays.cruises, strays.up, strays.unchecked, strays.evidence, strays.lowered_from = True, False, 0, 0.0, 0.0
    strays.accepted = strays.refused = 0
    strays.level, strays.gain = level, policy.cruise_gain if met else FREE_GAIN
    strays.up_at_s = at_s + _rest_s(policy, latency_s) if met else at_s
    strays.check_at_s = at_s
    begin_block(strays, at_s)


def per_s(strays: Strays, free: float = 1.0) -> float:
    """Return the calls that a cruise sends per second: the share `free` of the level, once that has met a limit."""
    if strays.up:
        return strays.level * strays.gain
    return strays.level * (free if strays.gain < FREE_GAIN else 1.0)


def follow(
    policy: LimitPolicy, strays: Strays, latency_s: float, steady_per_s: float, at_s: float, free: float = 1.0,
    well: bool = True,
) -> CruiseEnd | None:  # fmt: skip
    """Take a report of a cruise into account; return how it has ended, or None.

    Args:
        policy: Constants.
        strays: State, changed: `level` is the rate that is accepted once the cruise has ended.
        latency_s: Mean duration of an answer, in seconds.
        steady_per_s: Accepted calls per second over some time, which lags behind.
        at_s: Time of the report.
        free: Share of a limit that may be used.
        well: Whether the pool is so healthy that the level may rise.
    """
    told = strays.evidence < -math.log(policy.check_odds)  # a check was refused too few: the whole level tells why
    fills_s = max(1.0, latency_s) if told else 0.0  # what a check left free is taken
    whole = not strays.checked and at_s >= strays.block_at_s + fills_s
    if whole and _calm(strays) < policy.chance**2:  # each refusal begins the count anew: many looks
        # A climb that met a limit among refusals may have met them alone: what it cost puts off no other.
        strays.next_s = min(strays.next_s, at_s + max(strays.wait_s - policy.climb_wait_s, 0.0))
        return _finish(strays, CruiseEnd.CALM)
    if at_s < strays.block_at_s:  # calls of a higher level are in flight
        strays.block_accepted = strays.block_refused = 0
        return None
    if strays.checked:
        return _check(policy, strays, at_s)
    if told and whole and strays.block_refused:
        strays.latest = (strays.latest + strays.block_accepted / (at_s - strays.block_at_s)) / 2  # one lags
        return _finish(strays, CruiseEnd.LIMIT)
    few = max(strays.level, steady_per_s) * (1 - strays.tolerated) < policy.cruise_least_per_s
    if few and strays.gain < FREE_GAIN:  # a limit was met, so it stays so
        strays.latest = steady_per_s
        return _finish(strays, CruiseEnd.FEW)
    elapsed_s = at_s - strays.block_at_s
    # A limit on calls at once refuses some of those that come at random, below it as well (Erlang B).
    borne = strays.tolerated + policy.cruise_excess * (1 - strays.tolerated)
    if strays.lowered_from:
        return _judge_lowered(policy, strays, borne, latency_s, at_s)
    if _is_more(policy, strays, borne):
        if strays.up:
            _come_down(policy, strays, borne, latency_s, at_s, free)
        elif _sent(strays) and elapsed_s >= max(1.0, min(latency_s / 2, policy.cruise_settles_s)):
            _lower(policy, strays, borne, latency_s, at_s)
    elif strays.up:
        _go_up(policy, strays, latency_s, at_s, free, well)
    elif elapsed_s < 1:
        return None
    elif _is_due(policy, strays, at_s):
        if strays.block_accepted < policy.mostly_calls / 2 and elapsed_s < policy.block_max_s:
            return None  # what is accepted is not known yet
        few = strays.tolerated * strays.seen < policy.refused_few
        strays.check_every = policy.check_every // (2 if few else 1)
        strays.checked, strays.unchecked = 1, 0
        _end_block(strays, at_s, _settled_s(policy, latency_s, at_s))
        strays.block_before = min(strays.block_before, max(steady_per_s, strays.block_before / 2))
    elif well and at_s >= strays.up_at_s and _sent(strays) >= WANTED * per_s(strays, free) * elapsed_s:
        _begin_up(strays, steady_per_s, at_s, per_s(strays, free) / strays.level)
    elif _sent(strays) >= policy.cruise_calls:
        expected = strays.tolerated * _sent(strays)
        if strays.block_refused + 3 * math.sqrt(expected) < expected:
            strays.tolerated, strays.seen = max(strays.block_refused, 1) / _sent(strays), _sent(strays)
        _end_block(strays, at_s, at_s)
    return None


def _begin_up(strays: Strays, steady_per_s: float, at_s: float, used: float) -> None:
    """Begin a block at a raised level. `used`: share of the level that was sent before."""
    strays.up = True
    _end_block(strays, at_s, at_s)
    # A block's count is uncertain; what is accepted over some time may be that of another level.
    expected = min(steady_per_s / used, strays.level * (1 - strays.tolerated))
    strays.block_before = max(strays.block_before / used, expected)


def _sent(strays: Strays) -> int:
    return strays.block_accepted + strays.block_refused


def _is_more(policy: LimitPolicy, strays: Strays, share: float) -> bool:
    """Return True if more than this share is refused in the block, or at this level since it is what it is."""
    calls, refused, before = _sent(strays), strays.block_refused, share * strays.seen
    if chance(calls, refused, strays.seen, before, policy.chance) < policy.chance:
        return True
    if strays.up:
        return False
    calls, refused = calls + strays.accepted + strays.refused, refused + strays.refused
    return chance(calls, refused, strays.seen, before, policy.chance) < policy.chance


def _end_block(strays: Strays, at_s: float, next_s: float) -> None:
    """End a block at the level, and begin the next one at `next_s`."""
    strays.block_before = strays.latest = strays.block_accepted / (at_s - strays.block_at_s)
    strays.accepted += strays.block_accepted
    strays.refused += strays.block_refused
    begin_block(strays, next_s)


def _set_level(strays: Strays, level: float, at_s: float) -> None:
    """Count anew at another level."""
    strays.level, strays.accepted, strays.refused = level, 0, 0
    begin_block(strays, at_s)


def _calm(strays: Strays) -> float:
    """Return the chance that so many calls in a row are accepted, if the share of refusals is what it was: the first
    term of the distribution of `strays.chance`."""
    refused, calls, of = strays.tolerated * strays.seen + 0.5, strays.seen + 1.0, math.lgamma
    accepted = calls - refused
    return math.exp(of(accepted + strays.unrefused) + of(calls) - of(accepted) - of(calls + strays.unrefused))


def _come_down(
    policy: LimitPolicy, strays: Strays, borne: float, latency_s: float, at_s: float, free: float
) -> None:  # fmt: skip
    """Take in that a limit was met above the level."""
    accepted, elapsed_s, level = strays.block_accepted, at_s - strays.block_at_s, strays.level
    caused = strays.block_refused - strays.tolerated * _sent(strays)
    if elapsed_s >= 1 and accepted >= policy.mostly_calls:  # long enough to tell the limit
        level = min(max(accepted / elapsed_s / (1 - borne), 0.8 * level), strays.gain * level)
    rest_s = max(_rest_s(policy, latency_s, free), policy.cruise_calls_a_refusal * caused / level)
    strays.up, strays.gain, strays.up_at_s = False, policy.cruise_gain, at_s + min(rest_s, policy.cruise_rest_max_s)
    _set_level(strays, level, at_s)


def _lower(policy: LimitPolicy, strays: Strays, borne: float, latency_s: float, at_s: float) -> None:
    """Lower the level to what is accepted, since more is refused than was tolerated."""
    calls, level = _sent(strays), strays.level
    strays.lowered_from = strays.lowered_from or level
    strays.lowered_share, strays.lowered_calls = strays.block_refused / calls, calls
    strays.lowered_limit = strays.block_accepted / (at_s - strays.block_at_s)
    limit = strays.lowered_limit / (1 - borne)
    least = 0.0 if strays.block_accepted >= policy.mostly_calls else level / 4
    strays.gain = policy.cruise_gain
    lower = max(min(max(limit, least), LOWER * level), policy.least_per_s)
    _set_level(strays, lower, _settled_s(policy, latency_s, at_s))


def _settled_s(policy: LimitPolicy, latency_s: float, at_s: float) -> float:
    """Return the time until which calls of a higher level are in flight: what is refused until then is of that one."""
    return at_s + min(max(0.5, latency_s / 2), policy.cruise_settles_s)


def _judge_lowered(
    policy: LimitPolicy, strays: Strays, borne: float, latency_s: float, at_s: float
) -> CruiseEnd | None:
    """Decide why more was refused: what a limit accepts is hardly refused any more, strays are as frequent as before.

    Generalised likelihood ratio of both (S. S. Wilks, Annals of Mathematical Statistics 9(1), 1938). What fits neither
    is a limit that is lower still, as a bucket that was not empty yet, or the end of the refusals.
    """
    calls, refused, earlier = _sent(strays), strays.block_refused, strays.lowered_calls
    few = calls < 2 * policy.block_calls and at_s < strays.block_at_s + policy.block_max_s
    if few or not calls or at_s <= strays.block_at_s:
        return None
    share = max(strays.lowered_share, borne)
    if chance(calls, refused, earlier, share * earlier, policy.chance) < policy.chance:
        _lower(policy, strays, borne, latency_s, at_s)
        return None
    # A level that was not lowered as far exceeds the limit.
    caused = max(borne, min(1 - strays.lowered_limit / strays.level, policy.cruise_most))
    alike, from_level = (share * earlier + refused) / (earlier + calls), strays.lowered_from
    sure, enough = math.log(policy.cruise_odds), calls >= policy.block_calls_max
    if refused < caused * calls and _odds(refused, calls, refused / calls, caused) > sure:  # what refused is gone
        strays.lowered_from, strays.up_at_s, strays.gain = 0.0, at_s, FREE_GAIN
        return None
    # Those before were looked at since many of them were refused: strays refuse as many as in both together.
    odds = _odds(refused, calls, alike, caused) + _odds(share * earlier, earlier, alike, share)
    if odds < -sure or (odds <= sure / 2 and enough):
        strays.lowered_from, strays.up_at_s = 0.0, at_s + policy.cruise_rest_s
        return None
    if odds <= sure and not enough:
        return None
    apart = _odds(share * earlier, earlier, alike, share) + _odds(refused, calls, alike, refused / calls)
    if refused > strays.lowered_share * calls or apart < -sure:
        _lower(policy, strays, borne, latency_s, at_s)  # a limit that is lower than it seemed: a bucket was not empty
        return None
    share = alike
    strays.lowered_from = 0.0
    _set_level(strays, from_level, at_s)
    if share > policy.cruise_most:
        return _finish(strays, CruiseEnd.STORM)
    strays.tolerated, strays.seen, strays.confirmed = share, earlier + calls, True
    return None


def _odds(refused: float, calls: int, share: float, other: float) -> float:
    """Return the logarithm of the odds for a share of refusals against another one. None of them is certain."""
    share, other = (min(max(each, 0.001), 0.98) for each in (share, other))
    return refused * math.log(share / other) + (calls - refused) * math.log((1 - share) / (1 - other))


def _rest_s(policy: LimitPolicy, latency_s: float, free: float = 1.0) -> float:
    """Return the seconds between two blocks at a raised level, once a limit was met: they leave no share free."""
    rest_s = max(policy.cruise_rest_s, 4 * latency_s) if free == 1 else policy.cruise_rest_max_s
    return min(rest_s, policy.cruise_rest_max_s)


def _go_up(policy: LimitPolicy, strays: Strays, latency_s: float, at_s: float, free: float, well: bool) -> None:
    """Keep the raised level, if the block was long enough to show a limit, and as much more was sent and accepted."""
    calls, elapsed_s, raised = _sent(strays), at_s - strays.block_at_s, strays.gain * strays.level
    least, rounds_s, most_s = max(policy.block_calls, 3 / strays.tolerated), latency_s, policy.block_max_s
    least = min(least, policy.block_calls_max if strays.block_refused else policy.block_calls_clean)
    if strays.gain < FREE_GAIN:  # a quarter more is told by more calls than as many again
        least, rounds_s, most_s = policy.block_calls_max, 1.5 * latency_s, 3 * most_s
    left = free < 1 and strays.gain < FREE_GAIN  # what was left free is in a bucket by now
    if elapsed_s < max(1.0, rounds_s) or ((calls < least or left) and elapsed_s < max(most_s, rounds_s)):
        return
    per_s = strays.block_accepted / elapsed_s
    wanted = calls >= WANTED * raised * elapsed_s
    if wanted and well and per_s > 0 and per_s >= (1 + strays.gain) / 2 * strays.block_before:
        strays.gain = strays.gain if left else min(strays.gain**2, FREE_GAIN)
        strays.confirmed, strays.block_before = True, per_s
        _set_level(strays, raised, at_s)
        return
    if wanted:  # no more was accepted than by chance
        met = strays.gain < FREE_GAIN
        strays.up_at_s = at_s + (_rest_s(policy, latency_s, free) if met else policy.cruise_rest_s)
    else:  # less is wanted
        strays.level = max(strays.level, min(1.1 * calls / elapsed_s, raised))
        strays.up_at_s = at_s + policy.calm_s
    strays.up = False
    begin_block(strays, at_s)


def _is_due(policy: LimitPolicy, strays: Strays, at_s: float) -> bool:
    """Return True if the share is to be checked at less load: seldom where no limit was met."""
    every = strays.check_every if strays.gain < FREE_GAIN or strays.evidence else policy.check_every
    return strays.unchecked >= policy.check_refusals * every and at_s >= strays.check_at_s


def _check(policy: LimitPolicy, strays: Strays, at_s: float) -> CruiseEnd | None:
    """Take the share of refusals from the calls of a check, once there are enough; return how the cruise has ended.

    Probability ratio test (A. Wald, Sequential Tests of Statistical Hypotheses, Annals of Mathematical Statistics
    16(2), 1945) of the tolerated share against that share divided by `check_ratio`: a limit refuses no more at
    `check_load`. It ends at the bound for a limit, as early as the counts allow. Only what speaks for a limit is kept
    from one check to the next (E. S. Page, Continuous Inspection Schemes, Biometrika 41, 1954).
    """
    refused, elapsed_s = strays.block_refused, at_s - strays.block_at_s
    calls, evidence = strays.block_accepted + refused, _evidence(policy, strays)
    least = max(3.0 * policy.mostly_calls, min(3 / strays.tolerated, 2 * policy.block_calls_max))
    limit, slow = evidence < -math.log(policy.check_odds), elapsed_s >= policy.check_max_s
    if elapsed_s < 1 or not (limit or slow or calls >= least):
        return None
    strays.checked = 0
    strays.check_at_s = at_s + min(strays.check_every * elapsed_s, policy.probe_max_s)
    begin_block(strays, at_s)
    if calls < (policy.block_calls if limit or slow else least):
        return None
    share = strays.tolerated
    more = chance(calls, refused, strays.seen, share * strays.seen, policy.chance) < policy.chance
    if refused > policy.mostly * calls and more:
        return _finish(strays, CruiseEnd.STORM if calls - refused < policy.block_calls else CruiseEnd.LIMIT)
    error = math.sqrt(share * (1 - share) * calls * (1 + calls / strays.seen))
    most = max(share * calls / policy.check_ratio, 1)
    if limit and refused <= most:  # or nothing is refused any more: the whole level tells
        strays.evidence, strays.unrefused = evidence, 0
        return None
    # A climb that met a limit has counted what that refused, too.
    unsure = refused > 0 and strays.gain < FREE_GAIN and not strays.confirmed
    if limit or unsure or (refused > most and abs(refused - share * calls) > 3 * error):  # another share
        if refused > policy.cruise_most * calls:
            return _finish(strays, CruiseEnd.STORM)
        strays.tolerated, strays.seen, strays.evidence, strays.confirmed = refused / calls, calls, 0.0, True
        return None
    strays.evidence, strays.confirmed = min(evidence, 0.0), strays.confirmed or refused > 1
    _check_soon(policy, strays, at_s)
    strays.tolerated = max(share * strays.seen + refused, 0.5) / (strays.seen + calls)
    strays.seen = min(strays.seen + calls, policy.seen_max)
    few = strays.tolerated < policy.tolerable / 2 and strays.tolerated * strays.level * policy.hold_s < 1
    if not few or strays.seen < policy.seen_few:
        return None
    return _finish(strays, CruiseEnd.LIMIT if strays.gain < FREE_GAIN else CruiseEnd.CALM)


def _check_soon(policy: LimitPolicy, strays: Strays, at_s: float) -> None:
    """Let the next check follow soon, if it may decide."""
    if strays.evidence < -math.log(policy.check_odds) / 2:
        strays.check_every, strays.check_at_s = 1, at_s + policy.cruise_settles_s


def _evidence(policy: LimitPolicy, strays: Strays) -> float:
    """Return the logarithm of the odds for refusals that no load causes, after the calls of the block (Poisson)."""
    ratio, expected = policy.check_ratio, strays.tolerated * _sent(strays)
    return strays.evidence + strays.block_refused * math.log(ratio) - expected * (1 - 1 / ratio)


def _finish(strays: Strays, how: CruiseEnd) -> CruiseEnd:
    """End it, with the rate that is accepted as its level."""
    if how in (CruiseEnd.LIMIT, CruiseEnd.FEW):
        strays.level = strays.latest
    elif how is CruiseEnd.STORM:
        strays.level *= 1 - strays.tolerated
    end(strays)
    return how
