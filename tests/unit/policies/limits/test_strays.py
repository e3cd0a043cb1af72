"""Refusals that do not depend on load, in closed loop with a simulated provider: storms end, shares are tolerated, and
no limit is taken for them.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.limits import strays
from policies.limits.limit import PoolCaps, allowance, new
from policies.limits.limit_policy import LimitPolicy, PoolLoad, ProbeMode
from policies.limits.probing import Probing, ascend, retry, revive
from policies.limits.strays import Strays
from tests.support.pool_simulation import Pool, Provider

POLICY = LimitPolicy()
LATENCY_S = 0.6
UNLIMITED = {"latency_s": LATENCY_S}
BUCKET = {"latency_s": LATENCY_S, "requests_per_s": 50, "capacity_s": 10}
PLACES = {"latency_s": LATENCY_S, "concurrency": 20}
PROVIDERS = {"unlimited": UNLIMITED, "bucket": BUCKET, "places": PLACES}
BACK = {"unlimited": 0.9, "bucket": 0.9, "places": 0.6}
"""Least share of the rate from 30 s to 60 s after a storm. A limit of concurrency is still searched for then."""


def _pool(provider: dict[str, float], headers: bool, retry_after: bool) -> tuple[Pool, float]:
    """Return a pool and the rate that the provider or the demand allows, in requests per second."""
    wanted = 20 if provider is UNLIMITED else 1e9
    rate = 50.0 if provider is BUCKET else 20 / (LATENCY_S + 0.01)
    return Pool(Provider(headers=headers, retry_after=retry_after, **provider), demand=lambda at_s: wanted), rate


STORMS = [
    (name, share, storm_s, start_s, told)
    for name, share, storm_s, start_s, told in itertools.product(BACK, (0.5, 1.0), (10, 60, 300), (1, 70), (False, True))
    if not (told and share == 0.5)
    and not (name != "unlimited" and share == 0.5 and start_s == 1)  # not reached: the search begins from nothing
]
"""Provider, share of all calls that is refused, length, time before, and whether headers and a Retry-After are sent."""


@pytest.mark.parametrize(("name", "share", "storm_s", "start_s", "told"), STORMS)
def test_a_pool_has_its_rate_back_within_30_s_of_a_storm(
    name: str, share: float, storm_s: int, start_s: int, told: bool
) -> None:
    pool, rate = _pool(PROVIDERS[name], told, told)
    pool.run(start_s)
    pool.provider.stray_share = share
    pool.run(start_s + storm_s)
    pool.provider.stray_share = 0.0
    end_s = start_s + storm_s
    pool.run(end_s + 60)
    accepted = sum(second.accepted for second in pool.seconds[end_s + 30 : end_s + 60])
    assert accepted >= BACK[name] * 30 * rate


def _recovered_s(seed: int, start_s: int, storm_s: int) -> int:
    """Return the seconds from the end of a storm, which refuses 70 % of all calls, until a hundred calls are answered."""
    caps = PoolCaps(concurrency=8)
    pool = Pool(Provider(latency_s=0.1, retry_after=False), seed=seed, nodes=1, caps=caps, queues=True).run(start_s)
    pool.provider.stray_share = 0.7
    end_s = start_s + storm_s
    pool.run(end_s).provider.stray_share = 0.0
    for after_s in range(1, 120):
        pool.run(end_s + after_s)
        if sum(second.accepted for second in pool.seconds[end_s:]) >= 100:
            return after_s
    return 120


@pytest.mark.parametrize(("start_s", "storm_s"), [(2, 4), (2, 8), (5, 8), (5, 16), (12, 12)])
def test_a_storm_soon_after_the_beginning_is_over_soon_after_its_end(start_s: int, storm_s: int) -> None:
    """What was answered before it proves a least rate, at which the climb begins. Without it up to 16 of 40 take longer."""
    late = [took_s for seed in range(40) if (took_s := _recovered_s(seed, start_s, storm_s)) > 20]
    assert len(late) <= 1, late


@pytest.mark.parametrize(
    ("provider", "share", "storm_s", "start_s"),
    [(BUCKET, 0.5, 60, 1), (BUCKET, 1.0, 60, 70), ({"latency_s": LATENCY_S, "requests_per_s": 20, "capacity_s": 60}, 1.0, 300, 70)],
)  # fmt: skip
def test_a_rate_that_headers_tell_is_back_whatever_was_guessed_in_a_storm(
    provider: dict[str, float], share: float, storm_s: int, start_s: int
) -> None:
    pool = Pool(Provider(headers=True, **provider)).run(start_s)
    pool.provider.stray_share = share
    end_s = start_s + storm_s
    pool.run(end_s).provider.stray_share = 0.0
    pool.run(end_s + 60)
    accepted = sum(second.accepted for second in pool.seconds[end_s + 30 : end_s + 60])
    assert accepted >= 0.9 * 30 * provider["requests_per_s"]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.35, 0.5])
def test_a_share_of_refusals_that_no_load_causes_starves_no_job(share: float) -> None:
    """Measured after a minute, over five."""
    pool, rate = _pool(UNLIMITED, False, True)
    pool.provider.stray_share = share
    pool.run(360)
    accepted = sum(second.accepted for second in pool.seconds[60:]) / 300
    assert accepted >= 0.9 * rate * (1 - share)


def _climbing() -> Strays:
    state = Strays(fell_accepted=80, fell_refused=20)
    strays.climb(state, 5.0, 40.0, 100.0)
    return state


def test_a_climb_doubles_its_level_up_to_the_target() -> None:
    state, levels = _climbing(), []
    at_s = 100.0
    while state.climbs:
        levels.append(state.level)
        calls = round(state.level)
        strays.count(state, calls - calls // 5, calls // 5)
        at_s += 1.0
        assert strays.ascend(POLICY, state, 0.5, at_s) is None
    assert list(dict.fromkeys(levels)) == [10.0, 20.0, 40.0], "the first one twice: ten calls do not show a fifth"
    assert levels.count(10.0) == 2
    assert 0.15 <= state.tolerated <= 0.3, "the share that did not depend on the level"


@pytest.mark.parametrize(("accepted", "refused", "met"), [(9, 1, False), (8, 2, False), (2, 8, True), (0, 10, True)])
def test_a_climb_meets_a_limit_where_the_share_of_refusals_grows(accepted: int, refused: int, met: bool) -> None:
    state = _climbing()
    strays.count(state, accepted, refused)
    assert (strays.ascend(POLICY, state, 0.5, 101.0) is not None) is met
    assert state.climbs is not met


def test_climbs_that_meet_a_limit_again_and_again_become_rare() -> None:
    policy = msgspec.structs.replace(POLICY, calls_a_refusal=1)
    state, at_s, waits = Strays(), 0.0, []
    for _ in range(8):
        strays.climb(state, 5.0, 40.0, at_s)
        strays.count(state, 2, 30)
        assert strays.ascend(policy, state, 0.5, at_s + 1.0) == 5.0
        waits.append(state.next_s - at_s - 1.0)
        at_s = state.next_s
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]


@pytest.mark.parametrize(("refused", "wait_s"), [(5, 100), (30, 600)])
def test_a_climb_that_meets_a_limit_is_paid_for_by_a_hundred_calls_for_each_refusal(refused: int, wait_s: int) -> None:
    state = Strays()
    strays.climb(state, 5.0, 40.0, 0.0)
    strays.calm(state, 1_000)
    strays.count(state, 2, refused)
    assert strays.ascend(POLICY, state, 0.5, 1.0) == 5.0
    assert state.next_s - 1.0 == wait_s


@pytest.mark.parametrize(
    ("calls", "refused", "before", "refused_before", "met"),
    [
        (9, 9, 41, 20, True),  # all of nine, of which half were refused before
        (12, 7, 5, 0, False),  # few calls were refused by none before
        (16, 7, 30, 0, True),
        (40, 20, 30, 15, False),
        (2_000, 1_010, 30, 15, False),
        (100_000, 99_999, 30, 29.9, False),
        (10, 0, 30, 0, False),
    ],
)
def test_a_limit_is_met_where_chance_does_not_explain_the_refusals(
    calls: int, refused: int, before: float, refused_before: float, met: bool
) -> None:
    chance = strays.chance(calls, refused, before, refused_before, POLICY.chance)
    assert (chance < POLICY.chance) is met


@given(st.integers(1, 300), st.integers(0, 300), st.floats(0, 60), st.floats(0, 1))
def test_the_chance_of_refusals_is_the_tail_of_the_predictive_distribution(
    calls: int, refused: int, before: float, share: float
) -> None:
    refused, refused_before = min(refused, calls), share * before
    a, b = refused_before + 0.5, before - refused_before + 0.5
    weights = [_beta_binomial(calls, k, a, b) for k in range(calls + 1)]
    tail = sum(weights[refused:]) if refused * (before + 1) > calls * a else 1.0
    assert sum(weights) == pytest.approx(1.0)
    assert strays.chance(calls, refused, before, refused_before, 2.0) == pytest.approx(tail, abs=1e-9)


def _beta_binomial(calls: int, refused: int, a: float, b: float) -> float:
    of = math.lgamma
    ways = of(calls + 1) - of(refused + 1) - of(calls - refused + 1)
    return math.exp(ways + of(a + refused) + of(b + calls - refused) - of(a + b + calls) - of(a) - of(b) + of(a + b))


def test_a_climb_from_nothing_known_tolerates_nothing() -> None:
    """A limit of half of its calls looks as a share of a half does."""
    state = Strays()
    strays.climb(state, 5.0, 10.0, 0.0)
    strays.count(state, 10, 12)
    assert strays.ascend(POLICY, state, 0.5, 3.0) is None and not state.climbs
    assert state.tolerated == 0.0


def test_a_climb_towards_a_guess_begins_at_the_least_refill() -> None:
    """A rate that was measured is none: a limit may be lower by now."""
    for known, level in ((False, 6.0), (True, 2.0)):
        state = Strays(sustained=6.0, known=known)
        strays.climb(state, 1.0, 90.0, 0.0, sure=False)
        assert state.level == level


@pytest.mark.parametrize(("known", "sustained", "next_s"), [(False, 6.0, 21.0), (True, 2.0, 611.0)])
def test_a_climb_that_meets_less_than_the_least_refill_has_met_a_storm(known: bool, sustained: float, next_s: float) -> None:
    state = Strays(sustained=6.0, known=known)
    strays.climb(state, 1.0, 90.0, 10.0, sure=False)
    strays.count(state, 4, 30)
    assert strays.ascend(POLICY, state, 0.5, 11.0) is not None
    assert (state.sustained, state.next_s, state.known) == (sustained, next_s, known)


def test_a_second_climb_that_meets_less_than_the_least_refill_refutes_it() -> None:
    """A limit may have been lowered, or a bucket may hold more than a minute's calls."""
    state = Strays(sustained=6.0)
    for at_s, known in ((10.0, False), (60.0, True)):
        strays.climb(state, 1.0, 90.0, at_s, sure=False)
        strays.count(state, 4, 30)
        assert strays.ascend(POLICY, state, 0.5, at_s + 1) is not None
        assert state.known is known
    assert state.sustained < 6.0


@pytest.mark.parametrize(("known", "sustained"), [(False, 6.0), (True, 0.25)])
def test_silences_soon_after_a_climb_refute_what_it_reached_and_no_certain_rate(known: bool, sustained: float) -> None:
    state = Strays(sustained=6.0, known=known, ended_at_s=18.0)
    probing = Probing(4.0, mode=ProbeMode.RATE, rate=1.0, barren=2, since_s=20.0, strays=state)
    revive(POLICY, probing, PoolLoad(latency_s=0.1), 25.0, 24.0)
    assert (state.sustained, state.climbs, probing.barren) == (sustained, False, 0)


@pytest.mark.parametrize(("level", "calls"), [(2.0, 4), (4.0, 8), (8.0, 16), (16.0, 16)])
@pytest.mark.parametrize("refused", [0, 1])
def test_a_block_that_has_no_share_to_show_is_short(refused: int, level: float, calls: int) -> None:
    state = Strays(fell_accepted=20 - refused, fell_refused=refused)
    strays.climb(state, level / 2, 90.0, 0.0, sure=False)
    strays.count(state, calls - 1, 0)
    strays.ascend(POLICY, state, 0.1, 2.0)
    assert state.level == level
    strays.count(state, 1, 0)
    strays.ascend(POLICY, state, 0.1, 2.0)
    assert (state.level > level) is (not refused)


@pytest.mark.parametrize(("sustained", "known", "from_s"), [(6.0, False, 25.0), (0.5, False, 30.0), (6.0, True, 30.0)])
def test_a_rate_below_the_least_refill_is_given_up_sooner(sustained: float, known: bool, from_s: float) -> None:
    for at_s in (from_s - 0.1, from_s):
        state = Strays(sustained=sustained, known=known)
        probing = Probing(4.0, mode=ProbeMode.RATE, rate=1.0, empty_at_s=20.0, strays=state)
        assert retry(POLICY, probing, PoolLoad(latency_s=0.1), at_s) is (at_s == from_s)


def test_a_climb_towards_a_guess_that_met_nothing_has_measured_nothing() -> None:
    state = Strays()
    strays.climb(state, 8.0, 10.0, 0.0, sure=False)
    probing = Probing(4.0, mode=ProbeMode.RATE, rate=10.0, strays=state)
    strays.count(state, 20, 0)
    assert ascend(POLICY, probing, PoolLoad(latency_s=0.1), 2.0)
    assert (probing.mode, state.climbs, state.known) == (ProbeMode.SLOW_START, False, False)


def test_a_storm_that_refuses_all_of_a_climb_says_nothing_of_a_limit() -> None:
    state = Strays(sustained=30.0, known=True)
    strays.climb(state, 5.0, 40.0, 0.0)
    strays.count(state, 0, 40)
    assert strays.ascend(POLICY, state, 0.5, 1.0) is not None
    assert (state.sustained, state.tolerated) == (30.0, 0.0)


@pytest.mark.parametrize(("gaps", "frequent"), [([3] * 6, 6), ([3, 3, 200, 3], 1), ([200] * 6, 0), ([49, 50], 0)])
def test_episodes_with_few_calls_between_them_are_counted(gaps: list[int], frequent: int) -> None:
    state = Strays()
    for accepted in gaps:
        strays.note_gap(POLICY, state, accepted)
    assert state.frequent == frequent


def test_only_a_confirmed_share_lets_a_retry_after_hold_its_own_call_alone() -> None:
    """Not in a climb, which may meet a limit, nor in an episode, in which more is refused than was tolerated."""
    limit = new(POLICY)
    limit.probing.strays = Strays(tolerated=0.2)
    assert not allowance(POLICY, limit, 100.0).strays
    limit.probing.strays.confirmed = True
    assert allowance(POLICY, limit, 100.0).strays
    limit.probing.strays.climbs = True
    assert not allowance(POLICY, limit, 100.0).strays
    limit.probing.strays.climbs, limit.probing.episode, limit.held_until_s = False, True, 200.0
    assert not allowance(POLICY, limit, 100.0).strays


@pytest.mark.parametrize(("barren", "lent", "at_once"), [(2, 0, True), (5, 3, True), (1, 0, False), (5, 20, False)])
def test_one_call_follows_a_silence_at_once_unless_calls_are_still_paid_for(
    barren: int, lent: int, at_once: bool
) -> None:
    limit = new(POLICY)
    limit.load.latency_s = 0.6
    limit.probing = Probing(20.0, mode=ProbeMode.RATE, rate=0.125, barren=barren, lent=lent, since_s=10.0)
    allowed = allowance(POLICY, limit, 100.0)
    assert (allowed.concurrency == 1 and allowed.requests_per_s == 1.0) is at_once
