"""Limit: what one pool may do, by tables. The figures over time are in the closed loop, beside."""

import math
from typing import Any

import msgspec
import pytest

from policies.limits import refill
from policies.limits.limit import (
    LimitPolicy,
    PoolCaps,
    PoolLimit,
    RateLimits,
    ReportedBucket,
    UsageSample,
    adopt,
    allowance,
    new,
    observe,
)
from policies.limits.limit_policy import PoolLoad, ProbeMode, inside
from policies.limits.probing import Probing, grow, judge, pace, silence_s

POLICY = LimitPolicy()


def sample(answered: int = 0, **told: Any) -> UsageSample:
    """A report of calls of a second each, of a pool that is used up and wants more."""
    whole = {"begun": answered, "latency_s": 1.0 * answered, "in_flight": 1_000, "binding": True}
    return UsageSample(answered=answered, **{**whole, **told})


def seen(*reports: tuple[float, UsageSample], policy: LimitPolicy = POLICY) -> PoolLimit:
    limit = new(policy)
    for at_s, report in reports:
        observe(policy, limit, at_s, report)
    return limit


def permits(limit: PoolLimit, at_s: float, caps: PoolCaps | None = None) -> int:
    return allowance(POLICY, limit, at_s, caps or PoolCaps()).concurrency


BEGINNING = (100.0, sample(0))


@pytest.mark.parametrize(
    ("report", "after"),
    [
        (sample(20), 40),  # a permit an answer
        (sample(7), 27),
        (sample(500), 40),  # no more than doubled by one report
        (sample(0), 20),
        (sample(20, binding=False), 20),  # nothing more was wanted
        (sample(20, begun=0, in_flight=3), 20),  # what is allowed was not used
        (sample(20, unwell=1), 36),  # the first bad answers slow it down
        (sample(20, unwell=3), 31),
        (sample(20, unwell=9), 20),
        (sample(20, unwell=40), 20),
        (sample(20, throttled=1), 20),
    ],
)
def test_what_one_report_adds(report: UsageSample, after: int) -> None:
    assert permits(seen(BEGINNING, (100.25, report)), 100.25) == after


def test_growth_ends_at_the_ceiling() -> None:
    policy = LimitPolicy(start=10, ceiling=25)
    limit = seen(BEGINNING, (100.25, sample(10)), (100.5, sample(20)), (100.75, sample(20)), policy=policy)
    assert allowance(policy, limit, 101.0).concurrency == 25


def test_bad_answers_of_long_ago_are_forgotten() -> None:
    limit = seen(BEGINNING, (100.25, sample(20, unwell=10)), (900.0, sample(20)))
    assert permits(limit, 900.0) == 40


# ------------------------------------------------------------------------------------------- episodes


@pytest.mark.parametrize(
    ("asked_s", "until_s"),
    [(0.0, 101.0), (0.3, 100.3), (1.0, 101.0), (2.0, 102.5), (30.0, 130.5)],
)
def test_nothing_begins_until_the_time_that_was_asked_for(asked_s: float, until_s: float) -> None:
    limit = seen((100.0, sample(3, throttled=1, retry_after_s=asked_s)))
    assert allowance(POLICY, limit, 100.0).held_until_s == pytest.approx(until_s)


def test_a_longer_wait_is_kept_and_a_shorter_one_shortens_nothing() -> None:
    limit = seen((100.0, sample(throttled=1, retry_after_s=9.0)), (100.1, sample(throttled=1, retry_after_s=1.0)))
    assert allowance(POLICY, limit, 100.1).held_until_s == pytest.approx(109.5)


def test_one_cut_an_episode_however_many_refusals_and_reporters() -> None:
    limit = seen(*((100.0 + turn * 0.05, sample(2, throttled=5, retry_after_s=1.0)) for turn in range(19)))
    assert permits(limit, 100.9) == 20  # nothing is judged before every count is in
    assert permits(limit, 101.95) == 10
    observe(POLICY, limit, 102.0, sample(0, binding=False))
    assert permits(limit, 102.0) == 10


def test_a_report_after_the_silence_judges_before_it_counts() -> None:
    limit = seen((100.0, sample(throttled=3)), (101.5, sample(7, binding=False)))
    assert (limit.probing.mode, limit.probing.concurrency, limit.probing.accepted) == (ProbeMode.CONCURRENCY, 10.0, 7)


def refused(limit: PoolLimit, at_s: float, times: int) -> float:
    """Refused at once each time it begins again."""
    for _ in range(times):
        observe(POLICY, limit, at_s, sample(3, begun=9, throttled=6))
        at_s = allowance(POLICY, limit, at_s).held_until_s + 0.02
        allowance(POLICY, limit, at_s)
    return at_s


@pytest.mark.parametrize(
    ("times", "mode", "concurrency"),
    [
        (0, ProbeMode.SLOW_START, 20),
        (1, ProbeMode.CONCURRENCY, 10),
        (2, ProbeMode.CONCURRENCY, 5),
        (3, ProbeMode.RATE, None),
    ],
)
def test_what_is_refused_at_half_and_at_a_quarter_is_no_concurrency(
    times: int, mode: ProbeMode, concurrency: int | None
) -> None:
    limit = new(POLICY)
    at_s = refused(limit, 100.0, times)
    assert limit.probing.mode is mode
    if concurrency is not None:
        assert permits(limit, at_s) == concurrency
    else:  # three were accepted between two refusals, 1.02 s apart
        assert limit.probing.rate == pytest.approx(3 / 1.02)
        assert allowance(POLICY, limit, at_s).requests_per_s == pytest.approx(3 / 1.02)


def rated(rate: float, **told: Any) -> Probing:
    """A pool paced at a rate, whose next episode is over: 20 s after the one before."""
    probing = Probing(20.0, ProbeMode.RATE, settled=True, rate=rate, rise_s=30.0, since_s=100.0, empty_at_s=120.0)
    probing.episode, probing.undoubted, probing.refused = True, 3, 1
    for name, value in told.items():
        setattr(probing, name, value)
    return probing


@pytest.mark.parametrize(
    ("told", "mode", "rate", "settled"),
    [
        ({"accepted": 1_000}, ProbeMode.RATE, 50.0, True),
        ({"accepted": 1_080}, ProbeMode.RATE, 54.0, True),
        ({"accepted": 800}, ProbeMode.RATE, 40.0, False),  # it has fallen: the mean says how far
        # risen: more than the mean, perhaps
        ({"accepted": 1_200, "clock_s": 30.0}, ProbeMode.RATE, math.sqrt(60 * 90), False),
        # but not at once to all of the pace
        ({"accepted": 1_200, "clock_s": 60.0}, ProbeMode.RATE, math.sqrt(60 * 120), False),
        ({"accepted": 300, "under_way": 60}, ProbeMode.CONCURRENCY, 50.0, False),  # so far: it is something else
        ({"accepted": 800, "strikes": 3, "under_way": 60}, ProbeMode.CONCURRENCY, 50.0, False),
        ({"accepted": 900, "inside": 200, "under_way": 100, "charged_late": True}, ProbeMode.RATE, 50.0, True),
        ({"accepted": 1_000, "undoubted": 0, "under_way": 60}, ProbeMode.CONCURRENCY, 50.0, True),  # in doubt
    ],
)
def test_what_an_episode_says_of_a_rate(told: dict[str, Any], mode: ProbeMode, rate: float, settled: bool) -> None:
    probing = rated(50.0, **told)
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 121.0)
    assert (probing.mode, probing.rate, probing.settled) == (mode, pytest.approx(rate), settled)
    assert (probing.episode, probing.accepted, probing.refused, probing.clock_s) == (False, 0, 0, 0.0)
    assert probing.since_s == 120.0


@pytest.mark.parametrize(
    ("probing", "mode", "rate", "settled"),
    [
        # what is under way is charged still: no news of a rate that has settled
        (rated(50.0), ProbeMode.RATE, 50.0, True),
        # no more than was under way by the time since then
        (rated(50.0, settled=False), ProbeMode.RATE, 200 / 20, False),
        (rated(7.0, settled=False), ProbeMode.RATE, 7.0, False),
        # at half of it, that is no concurrency
        (rated(50.0, mode=ProbeMode.CONCURRENCY), ProbeMode.RATE, 200 / 21, False),
        (rated(50.0, mode=ProbeMode.CONCURRENCY, doubting=True), ProbeMode.RATE, 50.0, True),
    ],
)
def test_what_a_refusal_says_before_which_nothing_was_accepted(
    probing: Probing, mode: ProbeMode, rate: float, settled: bool
) -> None:
    probing.inside, probing.under_way = 200, 9
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 121.0)
    assert (probing.mode, probing.rate, probing.settled) == (mode, pytest.approx(rate), settled)
    assert (probing.since_s, probing.inside, probing.barren, probing.charged_late) == (100.0, 200, 1, True)


@pytest.mark.parametrize(
    ("in_flight", "refused_late", "rate"),
    [
        (20, 0, 20 / 80),  # all were charged late
        (20, 4, 20 / 80),
        (20, 5, 0.5),  # fewer than 16 of them were accepted: one call in the next silence, of two seconds
        (2, 0, 0.5),
        (0, 0, 0.5),
    ],
)
def test_silences_after_a_few_calls_are_no_debt(in_flight: int, refused_late: int, rate: float) -> None:
    probing = rated(50.0, mode=ProbeMode.CONCURRENCY, under_way=in_flight, late=refused_late, accepted=1_000)
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 121.0)
    probing.episode, probing.empty_at_s = True, 199.0
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 200.0)
    assert (probing.mode, probing.barren) == (ProbeMode.RATE, 1)
    assert probing.rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("barren", "asked_s", "silence"),
    [(0, 0.0, 1.0), (0, 0.3, 0.3), (1, 0.3, 2.0), (3, 0.0, 8.0), (3, 30.0, 30.0), (9, 0.0, 8.0)],
)
def test_a_silence_that_was_too_short_is_doubled(barren: int, asked_s: float, silence: float) -> None:
    assert silence_s(POLICY, Probing(20.0, barren=barren), asked_s) == silence


@pytest.mark.parametrize(("accepted", "until_s"), [(1_000, 80.0), (800, 16.0)])
def test_what_is_charged_late_shows_as_late(accepted: int, until_s: float) -> None:
    probing = rated(50.0, accepted=accepted)
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=4.0), 121.0)
    assert probing.rise_s == pytest.approx((until_s**4 / 4) ** (1 / 3))


@pytest.mark.parametrize(
    ("refusals", "rate", "until_s"), [(1, 50.0, 20.0), (10, 50.0, 20.0), (3, 1.0, 300.0), (90, 1.0, 600.0)]
)
def test_the_next_probe_waits_for_a_hundred_calls_a_refusal(refusals: int, rate: float, until_s: float) -> None:
    probing = rated(rate, accepted=round(20 * rate), refused=refusals)
    judge(POLICY, probing, PoolLoad(accepted_per_s=rate, latency_s=1.0), 121.0)
    probing.clock_s = until_s
    used = (
        probing.rise_s / 4 * (until_s / probing.rise_s) ** 4
    )  # what the rise has used beyond the rate, in seconds of it
    assert used == pytest.approx(1.0)
    assert pace(probing) == pytest.approx(rate * (1 + 4 / until_s))


def found(**told: Any) -> Probing:
    probing = Probing(60.0, ProbeMode.CONCURRENCY, ceiling=60.0, cut=0.96, return_s=27.0, clock_s=26.0)
    probing.since_s, probing.empty_at_s, probing.episode, probing.accepted, probing.refused = (
        100.0,
        128.0,
        True,
        1_600,
        2,
    )
    for name, value in told.items():
        setattr(probing, name, value)
    return probing


@pytest.mark.parametrize(
    ("told", "mode", "concurrency", "strikes"),
    [
        ({}, ProbeMode.CONCURRENCY, 57.6, 0),  # as late as it should be
        ({"strikes": 2}, ProbeMode.CONCURRENCY, 57.6, 0),
        ({"clock_s": 4.0, "concurrency": 58.0}, ProbeMode.CONCURRENCY, 29.0, 1),  # too soon
        ({"clock_s": 4.0, "concurrency": 58.0, "strikes": 2}, ProbeMode.RATE, 58.0, 0),
        ({"cut": 0.5, "return_s": 8.0, "concurrency": 50.0}, ProbeMode.CONCURRENCY, 45.0, 0),  # it had grown back
        ({"cut": 0.5, "return_s": 8.0, "concurrency": 31.0}, ProbeMode.CONCURRENCY, 15.5, 1),  # it had not
        ({"concurrency": 6.0}, ProbeMode.CONCURRENCY, 5.0, 0),  # a permit less at least
        ({"concurrency": 1.0, "under_way": 2}, ProbeMode.CONCURRENCY, 1.0, 0),  # but one
        ({"concurrency": 1.0}, ProbeMode.RATE, 1.0, 0),  # a single call is refused by no limit on calls at once
        ({"doubting": True, "clock_s": 9.0, "rate": 50.0}, ProbeMode.RATE, 60.0, 0),
        ({"doubting": True, "clock_s": 22.0, "rate": 50.0}, ProbeMode.CONCURRENCY, 57.6, 0),
    ],
)
def test_what_an_episode_says_of_a_concurrency(
    told: dict[str, Any], mode: ProbeMode, concurrency: float, strikes: int
) -> None:
    probing = found(**told)
    judge(POLICY, probing, PoolLoad(accepted_per_s=57.0, latency_s=1.0), 121.0)
    assert (probing.mode, probing.strikes) == (mode, strikes)
    assert probing.concurrency == pytest.approx(concurrency)


def test_a_costly_refusal_puts_the_next_probe_off() -> None:
    probing = found(refused=50)
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 121.0)
    assert probing.return_s == pytest.approx(0.8 * 50 * 100 / 50)


def test_a_rate_that_settles_again_is_nearer_to_its_next_doubt() -> None:
    probing = rated(50.0, accepted=1_000)
    judge(POLICY, probing, PoolLoad(accepted_per_s=50.0, latency_s=1.0), 121.0)
    assert probing.undoubted == 2


@pytest.mark.parametrize(
    ("probing", "load", "in_flight", "mode", "concurrency"),
    [
        (found(clock_s=33.0), PoolLoad(60.0, 1.0), 60, ProbeMode.CONCURRENCY, 60 * (1 + (7 / 25) ** 3)),
        (found(clock_s=33.0), PoolLoad(1.0, 1.0), 20, ProbeMode.CONCURRENCY, 60.0),  # not used: not more
        # what refused is gone
        (found(clock_s=50.0), PoolLoad(60.0, 1.0), 60, ProbeMode.SLOW_START, 60 * (1 + (24 / 25) ** 3)),
        # the rest is on its way
        (found(clock_s=33.0), PoolLoad(60.0, 0.02), 10, ProbeMode.CONCURRENCY, 60 * (1 + (7 / 25) ** 3)),
        # not even the rate
        (found(doubting=True, clock_s=3.5, rate=50.0), PoolLoad(40.0, 1.0), 60, ProbeMode.RATE, 60.0),
        # nine times as much, and no refusal
        (rated(50.0, clock_s=59.5), PoolLoad(500.0, 1.0), 600, ProbeMode.SLOW_START, None),
        (rated(50.0, clock_s=59.5), PoolLoad(20.0, 1.0), 20, ProbeMode.RATE, 20.0),
    ],
)
def test_what_is_tried_while_nothing_is_refused(
    probing: Probing, load: PoolLoad, in_flight: int, mode: ProbeMode, concurrency: float | None
) -> None:
    grow(POLICY, probing, load, 1.0, 10, in_flight)
    assert probing.mode is mode
    expected = inside(POLICY, load, pace(probing)) if concurrency is None else concurrency
    assert probing.concurrency == pytest.approx(expected)
    assert probing.undoubted == (
        POLICY.doubt_every if probing.ceiling and mode is ProbeMode.RATE else 3 * (not probing.ceiling)
    )


@pytest.mark.parametrize(("cut", "settled", "free", "rush"), [(0.96, True, 0.75, 2.0), (0.5, False, 1.0, 1.25)])
def test_a_found_concurrency_comes_out_less_the_headroom_and_is_not_rushed_at(
    cut: float, settled: bool, free: float, rush: float
) -> None:
    limit = new(POLICY)
    limit.probing = found(cut=cut, settled=settled, episode=False)
    limit.load.latency_s = 2.0
    bounds = allowance(POLICY, limit, 200.0, PoolCaps(headroom=0.25))
    assert bounds.concurrency == int(60 * free)
    assert bounds.requests_per_s == pytest.approx(rush * 60 * free / 2.0)


def test_permits_follow_littles_law_where_a_rate_binds() -> None:
    mean = 50 * 2.1
    assert inside(POLICY, PoolLoad(latency_s=2.0), 50.0) == pytest.approx(1.25 * mean + 3 * math.sqrt(mean) + 2)


# ------------------------------------------------------------------------------------------- headers


def told(limit: int, remaining: int) -> RateLimits:
    return RateLimits(requests=ReportedBucket(limit, remaining))


def test_an_empty_bucket_explains_a_refusal_by_another_clock_too() -> None:
    limit = seen(BEGINNING, (100.25, sample(20, rate=told(6_000, 0))))
    adopt(limit, 5_000.0)
    assert refill.is_low(limit.requests, 5_001.0) and not refill.is_low(limit.requests, 5_002.0)


def test_concurrency_follows_the_told_rate_at_once() -> None:
    limit = seen(BEGINNING, (101.0, sample(2, rate=told(6_000, 5_900))))
    assert (
        permits(limit, 101.0) == int(inside(POLICY, limit.load, allowance(POLICY, limit, 101.0).requests_per_s)) > 300
    )


@pytest.mark.parametrize(
    ("remaining", "modes"),
    [
        (0, [ProbeMode.SLOW_START, ProbeMode.SLOW_START]),  # it is empty
        (2_000, [ProbeMode.SLOW_START, ProbeMode.CONCURRENCY]),  # it was used faster than it fills: that explains one
    ],
)
def test_a_refusal_that_the_headers_explain_cuts_nothing(remaining: int, modes: list[ProbeMode]) -> None:
    limit = seen(BEGINNING, (100.25, sample(20, rate=told(6_000, 5_000))))
    assert allowance(POLICY, limit, 100.25).requests_per_s > 100
    for at_s, mode in zip((100.5, 102.5), modes, strict=True):
        observe(POLICY, limit, at_s, sample(20, throttled=3, retry_after_s=1.0, rate=told(6_000, remaining)))
        assert allowance(POLICY, limit, at_s + 1.1).held_until_s == at_s + 1
        assert limit.probing.mode is mode
        assert allowance(POLICY, limit, at_s + 1.1).requests_per_s <= 100


def test_slow_start_is_cut_to_what_was_under_way_not_to_half_of_what_headers_would_allow() -> None:
    limit = seen(BEGINNING, (101.0, sample(2, rate=told(6_000, 1_200))))
    assert permits(limit, 101.0) > 200
    for at_s in (101.25, 102.5):
        observe(POLICY, limit, at_s, sample(2, in_flight=40, throttled=3, retry_after_s=1.0))
    assert permits(limit, 103.6) == 40


# ------------------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("caps", "expected"),
    [
        (PoolCaps(), (20, 100.0, 0.0, 0.0)),
        (PoolCaps(concurrency=5), (5, 100.0, 0.0, 0.0)),
        (PoolCaps(concurrency=500), (20, 100.0, 0.0, 0.0)),
        (PoolCaps(requests_per_min=600), (20, 10.0, 0.0, 0.0)),
        (PoolCaps(requests_per_min=60_000), (20, 100.0, 0.0, 0.0)),
        (PoolCaps(input_tokens_per_min=600, output_tokens_per_min=60), (20, 100.0, 10.0, 1.0)),
        (PoolCaps(headroom=0.25), (20, 75.0, 0.0, 0.0)),
        (PoolCaps(headroom=0.25, requests_per_min=600), (20, 10.0, 0.0, 0.0)),
    ],
)
def test_caps_bound_what_comes_out(caps: PoolCaps, expected: tuple[float, float, float, float]) -> None:
    limit = new(POLICY)
    for remaining in [6_000] + 40 * [1_200]:  # of 100 a second, at its reserve
        refill.take_reading(limit.requests, 100.0, 6_000, remaining, 1.0, 0.5, False)
    bounds = allowance(POLICY, limit, 100.0, caps)
    rates = (bounds.requests_per_s, bounds.input_tokens_per_s, bounds.output_tokens_per_s)
    assert (bounds.concurrency, *rates) == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": -3},
        {"requests_per_min": 0.0},
        {"input_tokens_per_min": float("nan")},
        {"output_tokens_per_min": float("inf")},
        {"headroom": 1.0},
        {"headroom": -0.1},
    ],
)
def test_caps_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PoolCaps(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor": 0},
        {"start": 5, "floor": 9},
        {"ceiling": 19},
        {"hold_s": 0.0},
        {"trial_cut": 0.97},
        {"spare": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"floor|cut|must be above 0"):
        LimitPolicy(**wrong)


# ------------------------------------------------------------------------------------------- as a value


def test_a_limit_travels_and_goes_on_by_another_clock() -> None:
    reports = [
        (100.0 + turn * 0.25, sample(9, throttled=turn == 9, rate=told(600, 600 - 9 * turn))) for turn in range(12)
    ]
    limit = seen(*reports)
    other = msgspec.msgpack.decode(msgspec.msgpack.encode(limit), type=PoolLimit)
    assert other == limit
    adopt(other, 5_000.0)
    assert other != limit
    for later_s in (0.0, 0.25, 1.0, 30.0):
        one = allowance(POLICY, limit, reports[-1][0] + later_s)
        two = allowance(POLICY, other, 5_000.0 + later_s)
        assert two.held_until_s - one.held_until_s == pytest.approx(5_000.0 - reports[-1][0])
        assert msgspec.structs.replace(two, held_until_s=0.0) == msgspec.structs.replace(one, held_until_s=0.0)
        for clock_s, state in ((reports[-1][0], limit), (5_000.0, other)):
            observe(POLICY, state, clock_s + later_s, sample(4, throttled=later_s == 1.0, rate=told(600, 300)))


def test_a_clock_that_goes_back_stands_still() -> None:
    limit = seen(BEGINNING, (100.25, sample(20)), (3.0, sample(20, throttled=1)), (3.25, sample(20)))
    assert limit.at_s == 100.25
    assert allowance(POLICY, limit, 3.25).held_until_s == 101.25


# -- congestion ------------------------------------------------------------------------------------------------------


def _late(n: int, **told: Any) -> UsageSample:
    return sample(0, unwell=n, timed_out=n, timed_out_s=70.0, in_flight=76, **told)


def test_timeouts_without_a_refusal_halve_the_concurrency_once_an_episode() -> None:
    limit = new(msgspec.structs.replace(POLICY, start=100))
    observe(POLICY, limit, 100.0, sample(1))
    seen = []
    for at_s in (101.0, 102.0, 170.0, 172.0, 173.0):  # attempts of 70 s: an episode is as long
        observe(POLICY, limit, at_s, _late(4))
        seen.append(permits(limit, at_s))
    assert seen == [40, 40, 40, 20, 20]


def test_timeouts_never_take_the_last_permit() -> None:
    limit = new(msgspec.structs.replace(POLICY, start=2))
    for at_s in range(100, 1_000, 100):
        observe(POLICY, limit, float(at_s), _late(1))
    assert permits(limit, 1_000.0) == 1


@pytest.mark.parametrize(
    "told",
    [
        {"throttled": 1, "retry_after_s": 5.0},
        {"rate": RateLimits(requests=ReportedBucket(6_000, 5_000, 30.0))},
    ],
)
def test_timeouts_are_no_congestion_where_the_provider_names_limits(told: dict[str, Any]) -> None:
    limit = new(msgspec.structs.replace(POLICY, start=100))
    for at_s in (100.0, 101.0, 102.0):
        observe(POLICY, limit, at_s, sample(1, **told))
    observe(POLICY, limit, 103.0, _late(4, **told))
    assert not limit.relieved_until_s


def test_an_episode_of_congestion_goes_on_on_another_clock() -> None:
    limit = new(msgspec.structs.replace(POLICY, start=100))
    observe(POLICY, limit, 100.0, _late(4))
    adopt(limit, 5_000.0)
    assert limit.relieved_until_s == 5_070.0
