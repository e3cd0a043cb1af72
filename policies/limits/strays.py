"""Refusals that do not depend on load: storms and strays.

A provider may refuse calls for reasons that have nothing to do with what this pool sends: an incident in which all or
half of the calls are refused for minutes, another tenant of the account, a faulty gateway. To slow down for such
refusals never ends, because they come at any load. What tells them from a limit is their dependence on load: of twice
the calls, a limit refuses more than twice as many; of half the calls, it refuses none.

**Climb.** The pool is paced at a level that doubles block by block, up to what it sustained before. Within a climb a
refusal holds nothing. Each block's share of refusals is compared with the share before: if it is higher, by more than
chance explains, a limit has been met, and what was accepted is its first estimate. If it is not, the pool has its
former rate back. A climb begins

- when calls are accepted again after silences that a debt to a token bucket does not explain (a storm),
- when the rate that is accepted between two refusals has fallen further and further, episode after episode: the refill
  of a bucket, or what a concurrency limit lets through, is the same each time,
- after several episodes in a row with few calls between them: a limit is found in fewer, and met seldom from then on,
- when nothing was refused for some time at a guessed rate that is far below what a new pool begins with.

At twice a rate that is the limit every second call is refused, at any rate below the limit the same share as before.
So a climb tells the two apart by few calls, where half the load would need some `5 / share`: at 5 % a hundred.

**Tolerance.** A share of refusals that a climb has found independent of load begins no episode: the pool goes on in a
cruise (`cruise`).

**Cost.** A climb that met a limit cost refusals: until the next one a hundred calls go well for each of them.

Counts of refusals that do not depend on each other deviate by their square root (Poisson).
"""

from __future__ import annotations

import math

import msgspec

from policies.limits.limit_policy import LimitPolicy


class Strays(msgspec.Struct, array_like=True):
    """State of the search for refusals that do not depend on load. All times are times of events, in seconds."""

    tolerated: float = 0.0
    """Share of refusals that begins no episode; 0: none."""
    falls: int = 0
    """Consecutive episodes whose accepted rate fell."""
    fell_from: float = 0.0
    """Accepted rate before the first of these episodes, in requests per second."""
    lasting: float = 0.0
    """What of the first accepted rate was no burst for certain, in requests per second; 0: later."""
    fell_since_s: float = 0.0
    """Time of the first of these episodes."""
    latest: float = 0.0
    """Accepted rate of the latest judged episode, or of a cruise's latest block at its level, in requests per
    second."""
    fell_accepted: int = 0
    """Calls accepted since the first of these episodes."""
    fell_refused: int = 0
    """Calls refused since the first of these episodes."""
    accepted: int = 0
    """Calls accepted in the earlier blocks of a climb, or at the level of a cruise since it is what it is."""
    refused: int = 0
    """Calls refused in that time."""
    climbs: bool = False
    """True during a climb."""
    level: float = 0.0
    """Pace of the present block, in requests per second."""
    target: float = 0.0
    """Pace at which the climb ends, in requests per second."""
    block_at_s: float = 0.0
    """Time at which the block or the check began; ahead, the time from which it counts."""
    block_accepted: int = 0
    """Calls accepted in the block, or in the check."""
    block_refused: int = 0
    """Calls refused in the block, or in the check."""
    block_before: float = 0.0
    """Accepted rate of the climb's or cruise's latest whole block, or before the climb or the check, in requests per
    second."""
    next_s: float = 0.0
    """Time before which no climb begins but after a storm."""
    ended_at_s: float = 0.0
    """Time at which the latest climb ended that met no limit; 0: never."""
    wait_s: float = 0.0
    """Seconds from the latest climb that met a limit to the next one."""
    check_every: int = 1
    """Multiple of a check's refusals, and of its time, until the next check: the first comes soon."""
    checked: int = 0
    """1 during a check, in which `check_load` of what is accepted is sent; 0: no check."""
    sustained: float = 0.0
    """Rate that was accepted before the current refusals, in requests per second, less what a full bucket may have
    lent; 0: unknown."""
    known: bool = False
    """True if `sustained` was measured over long enough, or by a limit that was met."""
    frequent: int = 0
    """Episodes of late with few calls between them, less those with many."""
    seen: int = 0
    """Calls from which the tolerated share was estimated."""
    confirmed: bool = False
    """True if a check has found the tolerated share at less load, or a raised level at more."""
    unrefused: int = 0
    """Calls accepted since the latest refusal."""
    cruises: bool = False
    """True while calls are sent at `level` among refusals that no load causes."""
    gain: float = 1.0
    """Factor by which the level is raised for a block, in a cruise."""
    up: bool = False
    """True in a block of a cruise in which the level is raised."""
    up_at_s: float = 0.0
    """Time from which the next such block may begin."""
    check_at_s: float = 0.0
    """Time before which no check begins."""
    unchecked: int = 0
    """Calls refused in a cruise since the latest check."""
    evidence: float = 0.0
    """Logarithm of the odds, by the latest checks, that refusals do not depend on load; 0 or below."""
    lowered_from: float = 0.0
    """Level of a cruise before it was lowered, while it is not known whether a limit was the reason; else 0."""
    lowered_share: float = 0.0
    """Share of the calls that was refused before."""
    lowered_calls: int = 0
    """Calls of which it is the share."""
    lowered_limit: float = 0.0
    """Rate that was accepted before, in requests per second."""


def count(strays: Strays, accepted: int, refused: int) -> None:
    """Count calls of a report.

    Args:
        strays: State, changed.
        accepted: Calls begun less those refused: below 0 for calls that an earlier report began. No count falls below
            0, since such calls may have been counted in an earlier block, or before a check.
        refused: Calls refused.
    """
    strays.unrefused = max(strays.unrefused + accepted, 0) if not refused else 0
    if strays.climbs or strays.cruises:
        strays.unchecked += 0 if strays.checked else refused
        strays.block_accepted = max(strays.block_accepted + accepted, 0)
        strays.block_refused += refused
    else:
        strays.accepted = max(strays.accepted + accepted, 0)
        strays.refused += refused
        strays.fell_accepted = max(strays.fell_accepted + accepted, 0)
        strays.fell_refused += refused


def uncount(strays: Strays, refused: int) -> None:
    """Take refusals back that headers explain."""
    strays.block_refused = max(strays.block_refused - refused, 0)
    strays.unchecked = max(strays.unchecked - refused, 0)


def leave_out(strays: Strays, idle_s: float, at_s: float) -> None:
    """Leave a time in which nothing was sent out of the block's."""
    if idle_s > 0 and strays.block_at_s < at_s:
        strays.block_at_s = min(strays.block_at_s + idle_s, at_s)


def mend(strays: Strays) -> None:
    """Set what an earlier release counted below 0 to 0: `count` did so, and every report of a climb failed of it."""
    for name in (
        "accepted", "fell_accepted", "block_accepted", "block_before", "latest", "fell_from", "lasting", "sustained",
        "level", "target",
    ):  # fmt: skip
        value = getattr(strays, name)
        setattr(strays, name, max(value, type(value)()))
    if strays.tolerated and not strays.cruises:  # tolerated by an earlier release, in any mode
        end(strays)


def falls(policy: LimitPolicy, strays: Strays, mean: float, sure: bool, empty_at_s: float, at_s: float) -> bool:
    """Take in the accepted rate of an episode; return True if a climb is due, since rates fall further and further.

    Args:
        policy: Constants.
        strays: State, changed.
        mean: Calls accepted between the last two refusals, per second.
        sure: Whether so many calls were accepted that two means that agree are no chance.
        empty_at_s: Time of the refusal.
        at_s: Time of the judgement.
    """
    before, strays.latest = strays.latest, mean
    same = sure and mean > 0 and abs(before / mean - 1) < policy.agree
    if same and strays.falls:
        strays.sustained = min(strays.sustained, mean)
        return False
    if not strays.falls or mean > 0.9 * strays.fell_from:
        strays.falls, strays.fell_from, strays.fell_since_s = 1, mean, empty_at_s
        strays.fell_accepted = strays.fell_refused = 0
        return False
    strays.falls += 1
    if at_s < strays.next_s or not strays.fell_accepted:
        return False
    fell = strays.falls > policy.falls_max and mean <= policy.fall * strays.fell_from
    return fell or strays.frequent > policy.frequent_max


def note_gap(policy: LimitPolicy, strays: Strays, accepted: int) -> None:
    """Take in the calls accepted since the episode before."""
    if accepted < policy.calls_sure:
        strays.frequent += 1
    else:
        strays.frequent = max(strays.frequent - 2, 0)


def lasting(policy: LimitPolicy, charged: int, elapsed_s: float) -> float:
    """Return the least refill of a bucket that allowed `charged` calls in the last seconds.

    Those accepted, less those in flight, which may not be charged yet. A bucket of `b` seconds of its refill R allows
    R(t + b) calls in t seconds.
    """
    return max(charged, 0) / (elapsed_s + policy.reserve_s)


def certain(strays: Strays) -> float:
    """Return the least refill by the calls before the refusals, in requests per second (`lasting`).

    So much is refilled if the limit is a bucket of a minute at most, and is still what it was. 0 if `sustained` is no
    such bound, since it was measured: a limit may be lower by now.
    """
    return 0.0 if strays.known else strays.sustained


def climb(strays: Strays, rate: float, target: float, at_s: float, sure: bool = True) -> None:
    """Begin a climb from twice the rate that is accepted now, or three doublings below the target.

    Args:
        strays: State, changed.
        rate: Present rate, in requests per second.
        target: Rate at which the climb ends, in requests per second.
        at_s: Time from which calls begin.
        sure: Whether the target was measured. A target that is a guess is approached from the present rate, or from
            the least refill, if that is more.
    """
    strays.climbs, strays.checked, strays.cruises = True, 0, False
    strays.target = target
    strays.level = min(max(2 * rate, target / 8 if sure else certain(strays)), target)
    strays.block_before = rate
    strays.falls = strays.frequent = strays.accepted = strays.refused = 0
    begin_block(strays, at_s)


def calm(strays: Strays, accepted: int) -> None:
    """Count from now on against a time in which no call was refused. `accepted`: calls accepted in that time."""
    strays.fell_accepted, strays.fell_refused = max(accepted, 0), 0


def begin_block(strays: Strays, at_s: float) -> None:
    """Count the calls of a block from `at_s` on, in a climb or in a cruise."""
    strays.block_at_s = at_s
    strays.block_accepted = strays.block_refused = 0


def ascend(policy: LimitPolicy, strays: Strays, latency_s: float, at_s: float) -> float | None:
    """Take in the counts of the present block. Return the first estimate of a limit that was met, in requests per
    second; None if none was met. `climbs` is False when the climb is over.
    """
    accepted, refused = strays.block_accepted, strays.block_refused
    calls = accepted + refused
    before, refused_before = _before(policy, strays)
    share = (refused_before + 0.5) / (before + 1)  # Jeffreys' prior: nothing is known before the first calls
    elapsed_s = at_s - strays.block_at_s
    sent = calls + strays.accepted + strays.refused
    mostly = sent >= policy.mostly_calls and (
        strays.refused + refused > policy.mostly * sent or refused > max(policy.mostly * calls, policy.mostly_calls)
    )
    if mostly or chance(calls, refused, before, refused_before, policy.chance) < policy.chance:
        found = max(strays.block_before, min(accepted / max(elapsed_s, 1.0), strays.level))
        wait(policy, strays, at_s, policy.probe_max_s)
        # Otherwise it is a storm: nothing was accepted, or less than the least refill. Where a second climb meets less
        # as well, the least refill does not hold: a limit was lowered, or a bucket holds more than a minute's calls.
        again = strays.wait_s > policy.climb_wait_s
        if (accepted or strays.accepted) and (again or found >= certain(strays)):
            strays.sustained, strays.known = found, True
            cost_s = policy.calls_a_refusal * refused / max(found, policy.least_per_s)
            strays.next_s = max(strays.next_s, at_s + min(cost_s, policy.probe_max_s))
        _end_climb(policy, strays, strays.refused > 0)
        return found
    least = min(max(policy.block_calls, 3 / share), policy.block_calls_max)  # calls that show the share before
    if not refused and not refused_before:  # there is no share to show, and the next block shows a limit sooner
        least = min(least, policy.block_calls_clean, max(policy.block_calls, policy.block_clean_s * strays.level))
    if elapsed_s < max(1.0, latency_s / 2, min(policy.block_calls / strays.level, policy.block_max_s)) or (
        calls < least and elapsed_s < policy.block_max_s
    ):
        return None
    strays.accepted += accepted
    strays.refused += refused
    strays.block_before = accepted / elapsed_s
    demanded = calls >= 0.5 * strays.level * elapsed_s
    if strays.level < strays.target and demanded:
        strays.level = min(2 * strays.level, strays.target)
        begin_block(strays, at_s)
        return None
    if not demanded:
        strays.next_s = max(strays.next_s, at_s + policy.calm_s)
    _end_climb(policy, strays, before >= policy.block_calls)
    return None


def chance(calls: int, refused: int, before: float, refused_before: float, least: float) -> float:
    """Return the chance that so many of `calls` are refused, or more, if their share is as before.

    Beta-binomial tail: predictive distribution under Jeffreys' prior (Gelman and others, Bayesian Data Analysis, 2.4).
    Of few calls a normal approximation is wrong: all of nine refused would be within three of its errors of a half.
    From `least` on it is summed no further.
    """
    if refused * (before + 1) <= calls * (refused_before + 0.5):
        return 1.0
    a, b = refused_before + 0.5, max(before - refused_before, 0.0) + 0.5
    of = math.lgamma
    chosen = of(calls + 1) - of(refused + 1) - of(calls - refused + 1)
    term = math.exp(chosen + of(a + refused) + of(b + calls - refused) - of(a + b + calls) - of(a) - of(b) + of(a + b))
    tail = term
    for k in range(refused, calls):
        if tail >= least:
            break
        term *= (calls - k) / (k + 1) * (a + k) / (b + calls - k - 1)
        tail += term
    return tail


def _before(policy: LimitPolicy, strays: Strays) -> tuple[float, float]:
    """Return the calls before the present block of a climb, and those of them that were refused.

    Calls before the climb count as `earlier_max` at most: many of their refusals came together, when a limit was met.
    """
    earlier = strays.fell_accepted + strays.fell_refused
    weight = min(1.0, policy.earlier_max / earlier) if earlier else 0.0
    calls = strays.accepted + strays.refused
    return calls + weight * earlier, strays.refused + weight * strays.fell_refused


def wait(policy: LimitPolicy, strays: Strays, at_s: float, most_s: float) -> None:
    """Let no climb begin for some time but after a storm: each time twice as long, up to `most_s`."""
    again = strays.wait_s > 0 and at_s < strays.next_s + max(10 * strays.wait_s, policy.probe_max_s)
    strays.wait_s = min(2 * strays.wait_s if again else policy.climb_wait_s, most_s)
    strays.next_s = at_s + strays.wait_s


def _end_climb(policy: LimitPolicy, strays: Strays, shown: bool) -> None:
    strays.climbs = strays.confirmed = False
    calls = strays.accepted + strays.refused
    before, refused = _before(policy, strays)
    share = refused / max(before, 1.0)
    if shown and (strays.refused or (share * calls < 3 and refused)):  # not refuted by the climb
        strays.check_every = 1
        dear = share >= policy.tolerable or share * strays.level * policy.hold_s >= 1
        strays.tolerated = share if dear and share <= policy.cruise_most else 0.0
        strays.seen = round(before)
    else:
        strays.tolerated = 0.0
    strays.accepted = strays.refused = 0


def end(strays: Strays) -> None:
    """Tolerate nothing from now on."""
    strays.tolerated, strays.confirmed, strays.cruises = 0.0, False, False
    strays.falls = strays.checked = strays.accepted = strays.refused = 0
