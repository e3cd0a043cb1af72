"""Settings by which a pool's limit is found and kept, and the load from which it is (`policies.limits.limit`,
`policies.limits.probing`).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import msgspec


class LimitPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the adaptive limit. Raises ValueError, in one line, for a value that makes no sense.

    A value without a source was tuned in the closed loop of the tests: four reporters and a simulated provider.
    """

    start: int = 20
    """Calls in flight at the beginning, over all jobs of the pool."""
    floor: int = 1
    """Lower bound of the concurrency: no cut goes below it."""
    ceiling: int = 100_000
    """Upper bound of the concurrency: no growth goes above it."""
    hold_s: float = 1.0
    """Seconds without a new call after a refusal that names no time. The shortest time that a Retry-After can name."""
    debt_s: float = 0.5
    """Seconds added to a Retry-After of two seconds or more: such a bucket is in debt and will be just above empty.
    After a Retry-After of one second, which may be rounded up from nothing, most of a second's refill is in the
    bucket."""
    trial_cut: float = 0.5
    """Share of the concurrency that is kept after the first refusal, or after one that came at once."""
    found_cut: float = 0.9
    """Share of the concurrency that is kept after a refusal that came when the concurrency had grown back."""
    settled_cut: float = 0.96
    """Share of the concurrency that is kept after a refusal that came as late as expected."""
    trial_return_s: float = 8.0
    """Seconds in which the concurrency grows back to the refused value after a `trial_cut`."""
    found_return_s: float = 14.0
    """Seconds in which the concurrency grows back to the refused value after a `found_cut`."""
    settled_return_s: float = 27.0
    """Seconds in which the concurrency grows back to the refused value after a `settled_cut`."""
    beyond_s: float = 25.0
    """Seconds of growth from the refused concurrency to twice that value."""
    gone: float = 1.03
    """Factor of the refused concurrency at which, plus two permits, the old limit counts as gone and slow start begins
    again."""
    trials_max: int = 2
    """Number of refusals at once after which concurrency is given up as the explanation."""
    doublings_max: int = 3
    """Number of times, at most, that a silence which was too short is doubled. After a storm of refusals without a
    Retry-After the next call is eight seconds away at most."""
    unsettled_max: int = 3
    """Number of consecutive rate estimates that disagree, after which rate is given up as the explanation."""
    settled_s: float = 18.0
    """Seconds in which the pace uses up one second's reserve when the last two estimates agree."""
    unsettled_s: float = 5.0
    """Seconds in which the pace uses up one second's reserve when the last two estimates disagree."""
    settled_latencies: int = 20
    """Lower bound of that time in answer latencies when the estimates agree: a charge made with the answer shows as
    late as the answer."""
    unsettled_latencies: int = 4
    """Lower bound of that time in answer latencies when the estimates disagree."""
    overrun: float = 2.0
    """Upper bound of an estimated refill, as a multiple of the accepted rate; the estimate rises at most by its square
    root at once."""
    agree: float = 0.1
    """Relative difference within which two estimates agree, beyond one and a half calls of chance."""
    settled_calls: int = 4
    """Calls between two refusals from which an estimate that agrees with the last one is settled: of two or three calls
    nearly any two agree."""
    doubt_every: int = 8
    """Number of settled estimates until the rate is doubted again."""
    doubt_s: float = 20.0
    """Seconds; a refusal within this time settles the doubt in favour of the rate."""
    calls_a_refusal: int = 100
    """Calls that must go well for each refusal that the last probe cost, before the next probe."""
    probe_max_s: float = 600.0
    """Seconds after which the next probe begins at the latest, whatever the last one cost."""
    headroom_s: float = 600.0
    """Seconds before a settled pool with headroom for other traffic is probed: probing uses the headroom."""
    falls_max: int = 3
    """Number of consecutive episodes with few refusals each before the refusals can count as strays."""
    fall: float = 0.25
    """Share of the formerly accepted rate: refusals count as strays when no more than this share is still accepted."""
    frequent_max: int = 5
    """Episodes with fewer than `calls_sure` calls between them after which the refusals can count as strays: a limit is
    found in fewer, and met seldom from then on."""
    calls_sure: int = 50
    """Calls accepted between two refusals from which two estimates that agree are no chance."""
    calm_s: float = 10.0
    """Seconds without a refusal after which a pool far below what it sustained climbs."""
    proven_calm_s: float = 5.0
    """The same where the pool is below the least refill by earlier calls."""
    block_calls: int = 4
    """Calls of a block at least: a block of fewer says nothing of demand."""
    block_calls_max: int = 60
    """Upper bound of the calls of a block that is to show a share of refusals: three of 5 %."""
    block_calls_clean: int = 16
    """Upper bound of the calls of a block that has no share to show, since nothing was refused."""
    block_clean_s: float = 2.0
    """Seconds of such a block while that takes fewer calls."""
    earlier_max: int = 30
    """Upper bound of the weight of calls before a climb, in calls."""
    block_max_s: float = 8.0
    """Seconds of a block in which fewer calls than that must do."""
    tolerable: float = 0.02
    """Share of refusals below which none is tolerated, unless there is one in each `hold_s`: they cost less than the
    checks."""
    chance: float = 0.006
    """Chance of so many refusals in a block, if their share is as before, below which the block has met a limit."""
    mostly: float = 0.8
    """Share of a climb's calls, or of a block's, whose refusal ends the climb, whatever was refused before."""
    mostly_calls: int = 16
    """Calls from which that share counts: of half the calls refused it is reached by chance once in 100."""
    least_per_s: float = 0.1
    """Lowest first estimate of a limit that a climb has met, in requests per second."""
    guess_max_s: float = 20.0
    """Upper bound of the time that twenty calls give to an estimate that disagrees with the last one."""
    climb_wait_s: float = 10.0
    """Seconds from the first climb that met a limit to the next; doubled each time."""
    restores_max: int = 3
    """Number of times that a limit which had been found is tried again while it is refused."""
    revivals_max: int = 6
    """Number of times that it is returned to after silences, while nothing holds at it."""
    restore_max_s: float = 40.0
    """Upper bound of the time from one return to an earlier limit to the next."""
    check_refusals: int = 8
    """Refusals until the first check, once a limit was met; `check_every` times as many before another one."""
    check_load: float = 0.75
    """Share of what is accepted that is sent in a check. What a limit accepts it accepts also when that is sent alone;
    the quarter is the error (1/√n, Poisson) of a rate counted from 16 calls."""
    check_ratio: float = 8.0
    """Factor by which a limit refuses fewer calls in a check than the tolerated share, at least."""
    check_odds: float = 1_000.0
    """Odds at which checks decide for a limit."""
    seen_few: int = 300
    """Calls from which a small share is known well enough to believe that it is small."""
    refused_few: int = 20
    """Refusals up to which a share is known so little that it is checked twice as often: their error is a fifth."""
    seen_max: int = 1_000
    """Upper bound of the calls that count for the tolerated share: it may change."""
    check_every: int = 20
    """Multiple of `check_refusals`, and of a check's time, between two checks; half of it while the share is little
    known."""
    check_max_s: float = 40.0
    """Seconds of a check at most."""
    cruise_gain: float = 1.25
    """Factor by which the level of a cruise is raised for a block to see whether more is accepted, once it has met a
    limit. As in BBR (draft-ietf-ccwg-bbr)."""
    cruise_most: float = 0.8
    """Share of refusals above which none is tolerated: what is left is little, and it is hardly told from a limit."""
    cruise_least_per_s: float = 0.5
    """Accepted calls per second below which there is no cruise: too few calls tell anything."""
    cruise_excess: float = 0.06
    """Share of the calls that a limit may refuse in a cruise."""
    cruise_odds: float = 100.0
    """Odds at which a lower level tells a limit from refusals that no load causes."""
    cruise_rest_s: float = 2.0
    """Seconds between two blocks at a raised level at least."""
    cruise_rest_max_s: float = 60.0
    """Seconds between two blocks at a raised level at most."""
    cruise_calls_a_refusal: int = 25
    """Calls between two blocks at a raised level for each refusal that the last one caused."""
    cruise_calls: int = 200
    """Calls after which the refusals of a cruise are counted anew."""
    cruise_settles_s: float = 4.0
    """Seconds after which calls of a higher level count as over at the latest, and a check that may decide is
    repeated."""
    reserve_s: float = 60.0
    """Seconds of its refill that a token bucket holds at most: limits are named by the minute."""
    proof_s: float = 1.0
    """Seconds after a silence in which a call must not be refused to count as accepted. Refusals come sooner than
    answers."""
    restored_s: float = 30.0
    """Seconds after a climb within which silences refute it."""
    debt_calls: int = 16
    """Calls charged late from which their number divided by the time is an estimate of the refill. Counted from n
    calls, a rate has a relative error of 1/√n (Poisson): from 16 it is told from half of itself (`debt_share`) at two
    errors."""
    debt_share: float = 0.5
    """Share of the sustained rate below which calls charged late do not explain a silence; the rest is for
    measurement."""
    unwell_share: float = 0.3
    """Share of bad answers at which growth stops; growth slows down before. A circuit breaker opens at one half."""
    spare: float = 1.25
    """Permits for each call in flight while a rate is the bound, so that concurrency does not bind."""
    overhead_s: float = 0.1
    """Seconds for which a permit is held beyond the call itself: messages, queues and the commit."""
    tried: float = 0.8
    """Share of the allowed amount that must be in use before more is allowed."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.start <= self.ceiling:
            raise ValueError(
                f"floor, start and ceiling must satisfy 1 <= floor <= start <= ceiling, "
                f"not {self.floor}, {self.start}, {self.ceiling}"
            )
        if not 0 < self.trial_cut < self.found_cut < self.settled_cut < 1:
            raise ValueError("the cuts must satisfy 0 < trial_cut < found_cut < settled_cut < 1")
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


class ProbeMode(StrEnum):
    """Hypothesis about what the provider refuses."""

    SLOW_START = "slow start"
    """Nothing was refused yet, or an earlier limit is gone."""
    CONCURRENCY = "concurrency"
    """A limit on calls in flight."""
    RATE = "rate"
    """A limit on calls, or tokens, per time."""


class FoundLimit(msgspec.Struct, frozen=True, array_like=True):
    """Limit that held while nothing else was refused."""

    mode: ProbeMode
    amount: float
    """Concurrency, or requests per second; in slow start, the calls in flight that were reached."""
    tried: int = 0
    """Number of times that it was tried again, after refusals that may have been a limit."""


class PoolLoad(msgspec.Struct, array_like=True):
    """Use and health of the pool, as fading means."""

    accepted_per_s: float = 0.0
    """Accepted calls per second."""
    latency_s: float = 0.0
    """Mean latency of an answered call, in seconds; 0: no answer yet."""
    good: float = 0.0
    """Fading count of answered attempts."""
    bad: float = 0.0
    """Fading count of attempts that ended OVERLOADED, TRANSIENT or TIMED_OUT."""
    input_size: float = 0.0
    """Mean input tokens of a call."""
    output_size: float = 0.0
    """Mean output tokens of a call."""
    steady_per_s: float = 0.0
    """Accepted calls per second, over a longer time."""
    from_s: float = 0.0
    """Time of the first report, in seconds."""
    sized: int = 0
    """Calls answered so far, of which the mean sizes are."""

    def wellness(self, unwell_share: float) -> float:
        """Return the health from 1 (no bad answers) down to 0 (a share of `unwell_share` or more of bad answers)."""
        if not self.bad:
            return 1.0
        return max(0.0, 1 - self.bad / (unwell_share * (self.good + self.bad)))


def inside(policy: LimitPolicy, load: PoolLoad, per_s: float) -> float:
    """Return permits with which concurrency does not bind at the rate `per_s`.

    Little's law, N = rate · time, times `policy.spare`, plus three standard deviations of a Poisson number.
    """
    mean = per_s * (load.latency_s + policy.overhead_s)
    return policy.spare * mean + 3 * math.sqrt(mean) + 2


LATE_LEAST: Final = 0.07
"""Share of the calls in flight that time out from which a queue is too long: so many wait at a server that is used well
(`policies.limits.told_queue.QUEUE`)."""
BACK_S: Final = 1.0
"""Seconds until a cut is taken back, at least: some reports of all branches."""


class Relief(msgspec.Struct, array_like=True):
    """Cut of the calls in flight after an attempt that timed out, at a server that is searched for a queue.

    At first a lost connection looks like a queue that has become too long, and the number is halved at once: what is
    cut late is cut in vain. If so many attempts had waited too long, more would time out soon: at the pace of the calls
    that end (Little's law), `LATE_LEAST` of those in flight within this share of their mean duration. If fewer do in
    twice that time, the cut is taken back, as TCP takes back what it did after a spurious timeout (RFC 4015, RFC 5682).
    For the rest of the episode as many within as long a time cut it again, and no fewer.
    """

    late: int = 0
    """Attempts that timed out within the time in which they are counted together."""
    of: float = 0.0
    """Calls in flight at the first of them."""
    until_s: float = 0.0
    """End of that time, in seconds."""
    back: float = 0.0
    """Number before the cut, to which it returns at that time; 0: it does not."""
    cut_to: float = 0.0
    """Number after the cut. A lower one has another reason, and stays."""
    growing: bool = False
    """Whether the number was growing before the cut, and nothing else has ended that."""
    undone: bool = False
    """True once it has returned in this episode."""


def relieve(
    relief: Relief, at_s: float, now: float, in_flight: float, late: int, begins: bool, latency_s: float
) -> bool:
    """Return whether the calls in flight are to be halved, since `late` of `in_flight` timed out.

    Args:
        relief: State, changed.
        at_s: Time of the report.
        now: Calls that may be in flight.
        in_flight: Calls in flight, those that timed out included.
        late: Attempts that timed out.
        begins: Whether they begin an episode, which is as long as they took.
        latency_s: Mean duration of an answer, in seconds.
    """
    if begins:
        relief.undone = False
    if begins or (relief.undone and at_s >= relief.until_s):
        relief.late, relief.of, relief.until_s = 0, in_flight, at_s + max(BACK_S, 2 * LATE_LEAST * latency_s)
    relief.late += late
    many = relief.late >= LATE_LEAST * relief.of
    cuts = begins or (relief.undone and many)
    if many:
        relief.back = 0.0
    elif cuts:
        relief.back = max(relief.back, now)  # the cut before may still be in force
    if cuts:
        relief.undone = False
    return cuts


def take_back(relief: Relief, at_s: float, now: float) -> float:
    """Return the calls that may be in flight: more than `now` if the cut is taken back at this time."""
    if not relief.back or at_s < relief.until_s:
        return now
    back, relief.back, relief.undone = relief.back, 0.0, True
    return back if now >= relief.cut_to else now
