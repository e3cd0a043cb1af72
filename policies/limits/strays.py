"""Refusals that do not depend on load: storms and strays.

A provider may refuse calls for reasons that have nothing to do with what this pool sends: an incident in which all or
half of the calls are refused for minutes, another tenant of the account, a faulty gateway. To slow down for such
refusals never ends, because they come at any load. What tells them from a limit is their dependence on load: of twice
the calls, a limit refuses more than twice as many; of half the calls, it refuses none.

**Climb.** The pool is paced at a level that doubles block by block, up to what it sustained before. Within a climb a
refusal holds nothing. Each block's share of refusals is compared with the share before: if it is higher, by more than
chance explains, a limit has been met, and what was accepted is its first estimate. If it is not, the pool has its
former rate back. A climb begins

- when calls are accepted again after silences that a debt to a token bucket does not explain (a storm), and
- when the rate that is accepted between two refusals has fallen further and further, episode after episode: the refill
  of a bucket, or what a concurrency limit lets through, is the same each time.

**Tolerance.** A share of refusals that a climb has found independent of load begins no episode until it grows.

**Check.** Refusals that a limit causes could look the same: as many as the tolerated share. So for some calls in twenty
times as many the pool sends half. A limit then refuses nothing, and the tolerance ends; strays are as frequent as
before.

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
    """Accepted rate of the latest judged episode, in requests per second."""
    fell_accepted: int = 0
    """Calls accepted since the first of these episodes."""
    fell_refused: int = 0
    """Calls refused since the first of these episodes."""
    accepted: int = 0
    """Calls accepted in the earlier blocks of a climb, or since the latest check of a tolerance."""
    refused: int = 0
    """Calls refused in that time."""
    climbs: bool = False
    """True during a climb."""
    level: float = 0.0
    """Pace of the present block, in requests per second."""
    target: float = 0.0
    """Pace at which the climb ends, in requests per second."""
    block_at_s: float = 0.0
    """Time at which the block began."""
    block_accepted: int = 0
    """Calls accepted in the block, or at half load in a check."""
    block_refused: int = 0
    """Calls refused in the block, or at half load in a check."""
    block_before: float = 0.0
    """Accepted rate of the climb's latest whole block, or before the climb, in requests per second."""
    next_s: float = 0.0
    """Time before which no climb begins but after a storm."""
    ended_at_s: float = 0.0
    """Time at which the latest climb ended that met no limit; 0: never."""
    wait_s: float = 0.0
    """Seconds from the latest climb that met a limit to the next one."""
    check_every: int = 1
    """Multiple of a check's calls until the next check: the first comes soon."""
    checked: int = 0
    """Calls in flight that are allowed during a check; 0: no check."""
    sustained: float = 0.0
    """Rate that was accepted before the current refusals, in requests per second, less what a full bucket may have
    lent; 0: unknown."""
    known: bool = False
    """True if `sustained` was measured over long enough, or by a limit that was met."""


def count(strays: Strays, accepted: int, refused: int) -> None:
    """Count calls of a report."""
    if strays.climbs or strays.checked:
        strays.block_accepted += accepted
        strays.block_refused += refused
    else:
        strays.accepted += accepted
        strays.refused += refused
        strays.fell_accepted += accepted
        strays.fell_refused += refused


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
    if strays.falls <= policy.falls_max or mean > policy.fall * strays.fell_from or at_s < strays.next_s:
        return False
    return strays.fell_accepted > 0


def climb(strays: Strays, rate: float, target: float, at_s: float) -> None:
    """Begin a climb from twice the rate that is accepted now, or three doublings below the target.

    Args:
        strays: State, changed.
        rate: Present rate, in requests per second.
        target: Rate at which the climb ends, in requests per second.
        at_s: Time from which calls begin.
    """
    strays.climbs = True
    strays.target = target
    strays.level = min(max(2 * rate, target / 8), target)
    strays.block_before = rate
    strays.falls = strays.accepted = strays.refused = 0
    _begin_block(strays, at_s)


def _begin_block(strays: Strays, at_s: float) -> None:
    strays.block_at_s = at_s
    strays.block_accepted = strays.block_refused = 0


def ascend(policy: LimitPolicy, strays: Strays, latency_s: float, at_s: float) -> float | None:
    """Take in the counts of the present block. Return the first estimate of a limit that was met, in requests per
    second; None if none was met. `climbs` is False when the climb is over.
    """
    accepted, refused = strays.block_accepted, strays.block_refused
    calls = accepted + refused
    refused_before = strays.refused + strays.fell_refused
    before = strays.accepted + strays.fell_accepted + refused_before
    share = min((refused_before + 0.1) / (before + 2), 1.0)
    variance = calls * share * (1 - share) * (1 + calls / (before + 2))
    elapsed_s = at_s - strays.block_at_s
    if refused > calls * share + 3 * math.sqrt(variance) + 1:
        found = max(strays.block_before, min(accepted / max(elapsed_s, 1.0), strays.level))
        wait(policy, strays, at_s, policy.probe_max_s)
        strays.sustained, strays.known = found, True
        _end_climb(strays)
        return found
    if elapsed_s < max(1.0, latency_s / 2, policy.block_calls / strays.level):
        return None
    strays.accepted += accepted
    strays.refused += refused
    strays.block_before = accepted / elapsed_s
    demanded = calls >= 0.5 * strays.level * elapsed_s
    if strays.level < strays.target and demanded:
        strays.level = min(2 * strays.level, strays.target)
        _begin_block(strays, at_s)
        return None
    _end_climb(strays)
    return None


def wait(policy: LimitPolicy, strays: Strays, at_s: float, most_s: float) -> None:
    """Let no climb begin for some time but after a storm: each time twice as long, up to `most_s`."""
    again = at_s < strays.next_s + 10 * strays.wait_s
    strays.wait_s = min(2 * strays.wait_s if again else policy.climb_wait_s, most_s)
    strays.next_s = at_s + strays.wait_s


def _end_climb(strays: Strays) -> None:
    strays.climbs = False
    calls = strays.accepted + strays.refused
    refused = strays.fell_refused + strays.refused
    share = refused / max(strays.fell_accepted + strays.fell_refused + calls, 1)
    if strays.refused or (share * calls < 3 and refused):  # not refuted by the climb
        strays.check_every = 1
        strays.tolerated = max(share + math.sqrt(refused) / max(refused, 1) * share, 0.01)
    else:
        strays.tolerated = 0.0
    strays.accepted = strays.refused = 0


def tolerates(policy: LimitPolicy, strays: Strays, in_flight: int) -> bool:
    """Return True if the refusals so far are no more than the tolerated share explains: they begin no episode."""
    if not strays.tolerated:
        return False
    if strays.checked:
        return True
    calls = strays.accepted + strays.refused
    expected = strays.tolerated * calls
    if strays.refused > expected + 3 * math.sqrt(expected) + 1:
        strays.accepted = strays.refused = 0
        return False
    if strays.refused >= policy.check_refusals * strays.check_every:
        strays.check_every = min(4 * strays.check_every, policy.check_every)
        strays.tolerated += 0.5 * min(strays.refused / calls - strays.tolerated, 0.0)
        strays.checked = max(in_flight // 2, 1)
        _begin_block(strays, 0.0)
    return True


def check(policy: LimitPolicy, strays: Strays) -> bool:
    """End a check once its counts decide; return True if they end the tolerance."""
    calls = strays.block_accepted + strays.block_refused
    if not strays.checked or calls * strays.tolerated < policy.check_refusals:
        return False
    few = strays.block_refused <= policy.check_refusals / 8
    strays.checked = strays.accepted = strays.refused = 0
    if few:
        end(strays)
    return few


def end(strays: Strays) -> None:
    """Tolerate nothing from now on."""
    strays.tolerated = 0.0
    strays.falls = strays.checked = strays.accepted = strays.refused = 0
