"""Cruises: calls sent at a level among refusals that no load causes, against providers whose counts are exact."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from policies.limits import cruise as cruising
from policies.limits import strays
from policies.limits.cruise import FREE_GAIN, CruiseEnd
from policies.limits.limit import (
    PoolLimit,
    RateLimits,
    ReportedBucket,
    UsageSample,
    adopt,
    allowance,
    new,
    observe,
)
from policies.limits.limit_policy import FoundLimit, LimitPolicy, PoolLoad, ProbeMode
from policies.limits.probing import Probing, cruise
from policies.limits.strays import Strays

POLICY = LimitPolicy()
REPORT_S = 0.25
LATENCY_S = 0.5


class Provider:
    """Bucket of one second's refill that refuses `share` of all calls besides; `limit` calls a second, 0: no limit."""

    def __init__(self, limit: float, share: float, seed: int = 1) -> None:
        self.limit, self.share, self.tokens, self.chance = limit, share, 0.0, random.Random(seed)
        self.due = 0.0
        self.accepted = self.refused = 0

    def serve(self, per_s: float) -> tuple[int, int]:
        """Return the calls accepted and refused in the time of a report."""
        self.tokens = min(self.tokens + self.limit * REPORT_S, max(self.limit, 1.0))
        self.due += per_s * REPORT_S
        calls, self.due = int(self.due), self.due % 1
        accepted = 0
        for _ in range(calls):
            if self.chance.random() >= self.share and (not self.limit or self.tokens >= 1):
                self.tokens -= 1
                accepted += 1
        self.accepted += accepted
        self.refused += calls - accepted
        return accepted, calls - accepted


def _cruising(level: float, share: float, seen: int = 100, met: bool = False) -> Strays:
    state = Strays(tolerated=share, seen=seen, check_every=1)
    cruising.begin(POLICY, state, level, LATENCY_S, 0.0, met)
    return state


def _run(
    state: Strays, provider: Provider, until_s: float, *, from_s: float = 0.0, wanted: float = 1_000.0,
    each: Callable[[float], None] = lambda at_s: None,
) -> tuple[float, CruiseEnd | None]:  # fmt: skip
    """Let a cruise go on, paced as an allowance paces it; return when it ended, and how."""
    at_s, steady_per_s = from_s, state.level
    while at_s < until_s:
        at_s, before = at_s + REPORT_S, provider.accepted
        per_s = POLICY.check_load * state.block_before if state.checked else cruising.per_s(state)
        strays.count(state, *provider.serve(min(per_s, wanted)))
        steady_per_s += REPORT_S / 20 * ((provider.accepted - before) / REPORT_S - steady_per_s)
        ended = cruising.follow(POLICY, state, LATENCY_S, steady_per_s, at_s)
        each(at_s)
        if ended is not None:
            return at_s, ended
    return at_s, None


@pytest.mark.parametrize(
    ("limit", "share", "least"),
    [
        *((limit, share, 0.95) for limit in (50.0, 400.0) for share in (0.05, 0.2, 0.5)),
        (20.0, 0.05, 0.95), (20.0, 0.2, 0.95), (20.0, 0.5, 0.85),
        (5.0, 0.05, 0.95), (5.0, 0.2, 0.9), (2.0, 0.05, 0.85),  # of few calls a share is hardly told
    ],
)  # fmt: skip
def test_a_cruise_finds_a_limit_among_refusals_and_keeps_to_it(limit: float, share: float, least: float) -> None:
    """From the second to the sixth minute nearly all of it is used, and a quarter of it more is refused than by chance."""
    state, provider = _cruising(max(limit / 8, 1.0), share), Provider(limit, share)
    assert _run(state, provider, 60.0)[1] is None
    provider.accepted = provider.refused = 0
    assert _run(state, provider, 360.0, from_s=60.0)[1] is None
    assert provider.accepted >= least * limit * 300
    assert provider.refused / (provider.accepted + provider.refused) < share + 0.25 * (1 - share)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_cruise_doubles_until_it_meets_a_limit_and_then_asks_for_a_quarter_more(share: float) -> None:
    state, levels, gains = _cruising(1.0, share), [], []
    _run(state, Provider(0.0, share), 60.0, wanted=500.0, each=lambda at_s: levels.append(state.level))
    assert max(levels) > 200 and state.gain == FREE_GAIN and state.confirmed, "each block shows the same share"
    state = _cruising(40.0, share)
    _run(state, Provider(50.0, share), 120.0, each=lambda at_s: gains.append(state.gain))
    assert state.gain < FREE_GAIN and POLICY.cruise_gain in gains


def test_the_level_stays_where_less_is_wanted() -> None:
    state = _cruising(10.0, 0.1)
    _run(state, Provider(0.0, 0.1), 120.0, wanted=30.0)
    assert 28.0 <= state.level <= 40.0


@pytest.mark.parametrize("limit", [3.0, 40.0])
def test_a_limit_alone_is_told_by_less_load_and_kept(limit: float) -> None:
    """A bucket refuses a share of what is sent too fast, and nothing of three quarters of what it accepts."""
    state, provider = _cruising(3 * limit, 0.6, seen=33), Provider(limit, 0.0)
    at_s, ended = _run(state, provider, 120.0)
    assert ended is CruiseEnd.LIMIT and at_s < 60.0
    assert 0.7 * limit <= state.level <= 2.0 * limit and not state.tolerated, "a second's refill may be a part of it"


def test_refusals_that_have_ended_end_the_cruise() -> None:
    state = _cruising(20.0, 0.2)
    at_s, ended = _run(state, Provider(0.0, 0.0), 60.0, wanted=500.0)
    assert ended is CruiseEnd.CALM and at_s < 10.0 and not state.cruises
    assert state.level >= 20.0


def test_a_run_of_luck_ends_no_cruise_whose_share_was_seen_in_few_calls() -> None:
    """Eleven in a row are accepted once in two thousand times at .5, and a share of .6 may be one of .5."""
    state = _cruising(20.0, 0.6, seen=20)
    strays.count(state, 11, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 10.0, 1.0) is None
    state = _cruising(20.0, 0.6, seen=2_000)
    strays.count(state, 12, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 10.0, 1.0) is CruiseEnd.CALM


@pytest.mark.parametrize(("share", "ended"), [(0.6, None), (1.0, CruiseEnd.STORM)])
def test_refusals_that_grow_whatever_is_sent_are_more_strays_or_a_storm(share: float, ended: CruiseEnd | None) -> None:
    """At a lower level as much less is accepted, so no limit refuses them: the level returns to what it was."""
    state, provider = _cruising(40.0, 0.05, met=True), Provider(0.0, 0.05)
    _run(state, provider, 2.0)
    before, provider.share = state.level, share
    at_s, how = _run(state, provider, 40.0, from_s=2.0)
    assert how is ended and (at_s < 10.0 or not ended)
    assert state.level >= 0.9 * before * (1 - 0.05 if ended else 1)
    assert ended or state.tolerated == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0])
def test_a_limit_that_changes_is_followed(factor: float) -> None:
    state, provider = _cruising(100.0, 0.1), Provider(100.0, 0.1)
    _run(state, provider, 60.0)
    provider.limit *= factor
    _run(state, provider, 120.0, from_s=60.0)
    provider.accepted = provider.refused = 0
    assert _run(state, provider, 180.0, from_s=120.0)[1] is None
    assert provider.accepted >= 0.85 * provider.limit * 60
    assert provider.refused < 0.35 * (provider.accepted + provider.refused)


def test_a_share_that_was_too_high_is_corrected_by_a_check() -> None:
    """A climb that met a limit has seen what that refused, too."""
    state, provider = _cruising(60.0, 0.3, met=True), Provider(50.0, 0.1)
    _run(state, provider, 240.0)
    assert state.tolerated == pytest.approx(0.1, abs=0.06)


def _checking(share: float, per_s: float = 20.0, evidence: float = 0.0) -> Strays:
    state = _cruising(30.0, share, met=True)
    state.checked, state.block_before, state.latest, state.evidence, state.check_every = 1, per_s, per_s, evidence, 4
    state.confirmed = True
    return state


@pytest.mark.parametrize(
    ("share", "calls", "refused", "evidence", "ended"),
    [
        (0.05, 60, 3, 0.0, None),
        (0.05, 60, 1, 0.0, None),  # by chance once in five
        (0.5, 60, 55, 0.0, CruiseEnd.LIMIT),  # nearly all
        (0.5, 60, 58, 0.0, CruiseEnd.STORM),  # all
        (0.05, 59, 3, 0.0, None),  # three of 5 % are 60 calls: too few
    ],
)
def test_a_check_takes_the_share_from_its_calls(
    share: float, calls: int, refused: int, evidence: float, ended: CruiseEnd | None
) -> None:
    state = _checking(share, evidence=evidence)
    strays.count(state, calls - refused, refused)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0) is ended
    assert bool(state.checked) is (calls < 60)
    if not ended and calls >= 60:
        assert state.check_at_s == 3.0 + 4 * 3.0
        assert state.confirmed


@pytest.mark.parametrize(("refused", "ended"), [(1, CruiseEnd.LIMIT), (0, CruiseEnd.CALM)])
@pytest.mark.parametrize(
    ("share", "calls", "evidence"),
    [
        (0.3, 60, 0.0),
        (0.3, 27, 0.0),  # .3 times 27 times 7/8 is above the logarithm of 1,000: fewer decide
        (0.05, 60, -5.3),  # after two others that were refused nothing
    ],
)
def test_a_check_that_nothing_explains_but_a_limit_or_an_end_is_decided_at_the_level(
    share: float, calls: int, evidence: float, refused: int, ended: CruiseEnd
) -> None:
    state = _checking(share, evidence=evidence)
    strays.count(state, calls, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0) is None and not state.checked
    strays.count(state, 40 if refused else 600, refused)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 4.0) is ended
    assert state.level == (30.0 if refused or ended is CruiseEnd.CALM else 20.0), "the mean of 20 and 40, or the level"


def test_a_check_goes_on_while_too_few_calls_decide() -> None:
    state = _checking(0.3)
    strays.count(state, 26, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0) is None and state.checked


def test_a_check_that_may_be_decided_by_another_one_is_followed_by_it_soon() -> None:
    """One of 60 is refused where three are expected: .55 of what decides."""
    state = _checking(0.05, evidence=-3.4)
    strays.count(state, 59, 1)
    cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0)
    assert state.evidence < -3.5 and (state.check_every, state.check_at_s) == (1, 3.0 + POLICY.cruise_settles_s)


@pytest.mark.parametrize(("refused", "share", "seen"), [(0, 0.1 * 100 / 160, 160), (1, 1 / 60, 60), (6, 0.1, 60)])
def test_the_first_check_after_a_limit_was_met_counts_alone(refused: int, share: float, seen: int) -> None:
    """A climb that met a limit has counted what that refused, too. A check that is refused nothing may be the limit."""
    state = _checking(0.1)
    state.confirmed = False
    strays.count(state, 60 - refused, refused)
    cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0)
    assert (state.tolerated, state.seen) == (pytest.approx(share), seen)


@pytest.mark.parametrize("believed", [0.1, 0.3])
def test_a_share_that_was_believed_to_be_another_ends_no_cruise(believed: float) -> None:
    """Of forty runs few end: where a tenth is refused a check seldom shows as little as a limit does."""
    ended = [_run(_cruising(60.0, believed, met=True), Provider(50.0, 0.1, seed), 240.0)[1] for seed in range(1, 41)]
    assert sum(each is not None for each in ended) <= (2 if believed == 0.1 else 6)


def test_a_limit_that_is_far_below_the_level_is_no_storm() -> None:
    """What it accepts of a quarter of the level shows it, where too few calls were accepted to tell how low it is."""
    state, provider = _cruising(120.0, 0.1, seen=400, met=True), Provider(120.0, 0.1)
    _run(state, provider, 4.0)
    provider.limit, provider.tokens = 10.0, 0.0
    assert _run(state, provider, 64.0, from_s=4.0)[1] is not CruiseEnd.STORM
    assert state.level < 15.0


def test_a_cruise_ends_where_too_few_calls_tell_anything_and_is_a_guess_from_then_on() -> None:
    """While no limit was met the level may rise."""
    state = _cruising(0.6, 0.4)
    strays.count(state, 1, 0)
    assert cruising.follow(POLICY, state, 7.0, 0.3, 2.0) is None
    state = _cruising(0.6, 0.4, met=True)
    strays.count(state, 1, 0)
    assert cruising.follow(POLICY, state, 7.0, 0.3, 2.0) is CruiseEnd.FEW and not state.cruises
    probing = Probing(20.0, mode=ProbeMode.RATE, rate=0.6, strays=_cruising(0.6, 0.4, met=True))
    assert not cruise(POLICY, probing, PoolLoad(latency_s=7.0, steady_per_s=0.3), 2.0)
    assert (probing.mode, probing.rate, probing.settled) == (ProbeMode.RATE, 0.3, False), "no limit was met"


def test_a_block_is_compared_with_what_the_level_can_give_not_with_what_was_accepted_long_before() -> None:
    """The mean over some time is still that of a rate before a storm."""
    state, provider = _cruising(4.0, 0.1), Provider(0.0, 0.1)
    for report in range(1, 60):
        strays.count(state, *provider.serve(cruising.per_s(state)))
        cruising.follow(POLICY, state, LATENCY_S, 50.0, report * REPORT_S)
    assert state.level >= 8.0


def test_the_end_of_refusals_is_told_once_what_a_check_left_free_is_taken() -> None:
    """Places that a check leaves free accept some calls, however many are refused afterwards."""
    state = _checking(0.5)
    strays.count(state, 60, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0) is None and not state.checked
    strays.count(state, 60, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.9) is None
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 4.0) is CruiseEnd.CALM


def test_a_level_that_was_lowered_in_a_storm_goes_up_at_once_when_the_storm_is_over() -> None:
    """A level that is far too low is compared with a limit that is lower still: neither explains that none is refused."""
    state = _cruising(2.0, 0.05, met=True)
    state.lowered_from, state.lowered_share, state.lowered_calls, state.lowered_limit = 40.0, 0.9, 20, 0.3
    strays.count(state, 8, 0)
    assert cruising.follow(POLICY, state, LATENCY_S, 10.0, 4.0) is None
    assert not state.lowered_from and state.gain == FREE_GAIN and state.up_at_s == 4.0
    _run(state, Provider(0.0, 0.0), 16.0, from_s=4.0)
    assert state.level >= 30.0


def test_an_interval_of_no_calls_lowers_nothing() -> None:
    """`_lower` divides by the block's calls and its time; both may be 0 where earlier blocks show more refusals."""
    state = _cruising(40.0, 0.05, met=True)
    state.accepted, state.refused, state.block_at_s = 10, 40, 0.0
    assert cruising.follow(POLICY, state, LATENCY_S, 10.0, 5.0) is None and state.level == 40.0
    state.lowered_from, state.lowered_share, state.lowered_calls = 40.0, 0.0, 50
    strays.count(state, 4, 40)
    assert cruising.follow(POLICY, state, LATENCY_S, 10.0, 0.0) is None


@pytest.mark.parametrize(("refused", "share", "seen"), [(6, 0.1, 160), (24, 0.4, 60)])
def test_a_share_that_a_check_confirms_is_averaged_and_another_takes_its_place(
    refused: int, share: float, seen: int
) -> None:
    state = _checking(0.1)
    strays.count(state, 60 - refused, refused)
    cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0)
    assert (state.tolerated, state.seen) == (pytest.approx(share), seen)


def test_a_check_of_a_slow_pool_ends_all_the_same() -> None:
    """At a call in eight seconds fifty took seven minutes, at three quarters of what is possible."""
    state = _checking(0.3, per_s=0.1)
    strays.count(state, 2, 1)
    assert cruising.follow(POLICY, state, 8.0, 0.1, POLICY.check_max_s - 0.1) is None and state.checked
    assert cruising.follow(POLICY, state, 8.0, 0.1, POLICY.check_max_s) is None and not state.checked
    assert (state.tolerated, state.seen) == (0.3, 100), "three calls tell nothing"


def test_a_check_counts_once_the_calls_of_the_whole_load_have_ended() -> None:
    state, provider, began = _cruising(60.0, 0.2, met=True), Provider(50.0, 0.2), []

    def look(at_s: float) -> None:
        if state.checked and not began:
            began.append(at_s)
            assert state.block_at_s == at_s + 0.5
            strays.count(state, 10, 40)
            assert cruising.follow(POLICY, state, LATENCY_S, 50.0, at_s + 0.25) is None
            assert not state.block_refused

    _run(state, provider, 60.0, each=look)
    assert began


def test_what_headers_explain_is_no_refusal_of_the_cruise() -> None:
    empty = RateLimits(ReportedBucket(60, 0, 60.0))
    limit = _cruising_pool(0.2)
    observe(POLICY, limit, 100.25, UsageSample(begun=10, answered=5, latency_s=2.5, in_flight=5, rate=empty))
    before = limit.probing.strays.block_refused
    observe(POLICY, limit, 100.5, UsageSample(begun=3, throttled=3, in_flight=5, retry_after_s=2.0, rate=empty))
    assert limit.probing.strays.block_refused == before and limit.probing.strays.cruises
    assert limit.held_until_s > limit.at_s, "it is obeyed"


def _cruising_pool(share: float) -> PoolLimit:
    limit = new(POLICY)
    observe(POLICY, limit, 100.0, UsageSample(begun=20, answered=20, latency_s=10.0, in_flight=10))
    limit.probing.mode, limit.probing.rate = ProbeMode.RATE, 40.0
    limit.probing.strays = _cruising(40.0, share, met=True)
    limit.probing.strays.block_at_s = 100.0
    return limit


def test_refusals_of_a_cruise_hold_nothing() -> None:
    limit = _cruising_pool(0.2)
    for report in range(1, 9):
        observe(POLICY, limit, 100.0 + report / 4, UsageSample(begun=10, throttled=2, in_flight=8))
    assert not limit.probing.episode and limit.held_until_s == 0.0
    assert allowance(POLICY, limit, 102.0).requests_per_s >= 0.75 * 32 / 2


def test_refusals_of_calls_that_the_cruise_had_sent_are_no_debt() -> None:
    """They follow its end before any call is accepted; as a debt they set the rate to a call in some seconds."""
    limit = _cruising_pool(0.2)
    limit.probing.strays.evidence, limit.probing.strays.latest = -8.0, 16.0
    observe(POLICY, limit, 101.25, UsageSample(begun=40, throttled=24, in_flight=16))
    assert limit.probing.episode and not limit.probing.strays.cruises
    observe(POLICY, limit, 101.5, UsageSample(throttled=4, in_flight=8))
    allowance(POLICY, limit, limit.held_until_s)
    assert limit.probing.mode is ProbeMode.CONCURRENCY and not limit.probing.barren


def test_a_check_sends_three_quarters_of_what_is_accepted() -> None:
    limit = _cruising_pool(0.2)
    limit.probing.strays.checked, limit.probing.strays.block_before = 1, 20.0
    assert allowance(POLICY, limit, 100.0).requests_per_s == 15.0


@pytest.mark.parametrize(
    ("share", "found", "mode"),
    [
        (0.0, None, ProbeMode.SLOW_START),  # no limit was met
        (0.0, FoundLimit(ProbeMode.CONCURRENCY, 30.0), ProbeMode.CONCURRENCY),
        (1.0, None, ProbeMode.RATE),
    ],
)
def test_a_cruise_that_is_over_hands_on_what_it_has_found(share: float, found: FoundLimit | None, mode: ProbeMode) -> None:
    state = _cruising(40.0, 0.3)
    probing = Probing(20.0, mode=ProbeMode.RATE, rate=40.0, strays=state, found=found)
    provider, at_s, goes_on = Provider(0.0, share), 0.0, True
    while goes_on and at_s < 60:
        at_s += REPORT_S
        strays.count(state, *provider.serve(min(cruising.per_s(state), 60.0)))
        goes_on = cruise(POLICY, probing, PoolLoad(latency_s=LATENCY_S), at_s)
    assert not goes_on and probing.mode is mode
    if share:
        assert state.known and state.sustained >= 0.9 * 40.0 * 0.7, "a storm is followed by a climb back to it"


def test_a_share_that_an_earlier_release_tolerated_is_found_anew() -> None:
    """It knew no cruise, and any mode went on beside the share."""
    limit = new(POLICY)
    limit.probing.strays = Strays(tolerated=0.3, seen=100, confirmed=True, checked=3)
    adopt(limit, 50.0)
    assert not (limit.probing.strays.tolerated or limit.probing.strays.confirmed or limit.probing.strays.checked)
    limit = _cruising_pool(0.2)
    adopt(limit, 200.0)
    strayed = limit.probing.strays
    assert strayed.cruises and (strayed.up_at_s, strayed.check_at_s) == (100.0 + 2.0, 100.0)


@pytest.mark.parametrize("idle_s", [30.0, 120.0, 600.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_time_in_which_nothing_was_sent_is_not_the_blocks(idle_s: float, seed: int) -> None:
    """Its calls divided by it looked like a call in seconds, and a check sent a tenth of a call a second for 40 s."""
    limit = _cruising_pool(0.2)
    limit.probing.strays.gain, limit.probing.strays.level = FREE_GAIN, 20.0
    provider, at_s = Provider(0.0, 0.2, seed), 100.0

    def send(until_s: float) -> int:
        nonlocal at_s
        before = provider.accepted + provider.refused
        while at_s < until_s:
            at_s += REPORT_S
            per_s = min(allowance(POLICY, limit, at_s).requests_per_s, 15.0)
            accepted, refused = provider.serve(per_s)
            held = UsageSample(
                begun=accepted + refused, throttled=refused, answered=accepted, latency_s=LATENCY_S * accepted, in_flight=8
            )
            observe(POLICY, limit, at_s, held)
        return provider.accepted + provider.refused - before

    send(130.0)
    limit.probing.strays.unchecked = 1_000  # a check is due
    at_s += idle_s
    assert send(at_s + 40.0) >= 0.5 * 15.0 * 40


def test_a_short_check_that_is_refused_all_ends_as_a_storm() -> None:
    """As a share of 1 it let the level double for ever: of none accepted none more was accepted."""
    state = _checking(0.3, per_s=0.1)
    strays.count(state, 0, 12)
    assert cruising.follow(POLICY, state, 8.0, 0.1, POLICY.check_max_s) is CruiseEnd.STORM
    state = _checking(0.75)
    state.confirmed, state.seen = False, 20
    strays.count(state, 6, 54)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 3.0) is CruiseEnd.STORM, "the first check counts alone"


@pytest.mark.parametrize("found", [FoundLimit(ProbeMode.RATE, 100.0), FoundLimit(ProbeMode.CONCURRENCY, 50.0)])
@pytest.mark.parametrize("limit", [True, False])
def test_a_cruise_that_met_a_limit_returns_to_no_limit_that_is_far_above(found: FoundLimit, limit: bool) -> None:
    """It would have been found when the provider allowed more."""
    state = _cruising(12.0 if limit else 0.3, 0.2, met=True)
    state.evidence, state.latest = -8.0 * limit, 10.0
    probing = Probing(20.0, mode=ProbeMode.RATE, rate=12.0, strays=state, found=found)
    strays.count(state, 10, 4)
    assert not cruise(POLICY, probing, PoolLoad(latency_s=LATENCY_S, steady_per_s=0.3), 1.0)
    assert probing.rate <= 12.0 and probing.concurrency <= 20.0
    assert (probing.found is None) is limit, "few calls say nothing of a limit"


def test_a_pool_that_is_not_well_is_not_sent_more() -> None:
    state = _cruising(5.0, 0.2)
    for report in range(1, 80):
        strays.count(state, int(cruising.per_s(state) * REPORT_S * 0.8) + 1, 1)
        cruising.follow(POLICY, state, LATENCY_S, 5.0, report * REPORT_S, well=False)
    assert state.level == 5.0


def test_headroom_is_left_free_once_a_limit_was_met() -> None:
    state = _cruising(40.0, 0.2, met=True)
    assert (cruising.per_s(state, 0.7), cruising.per_s(_cruising(40.0, 0.2), 0.7)) == (28.0, 40.0)
    provider = Provider(32.0, 0.2)
    for report in range(1, 1_200):
        if report == 400:
            provider.accepted = provider.refused = 0
        per_s = POLICY.check_load * state.block_before if state.checked else cruising.per_s(state, 0.7)
        strays.count(state, *provider.serve(per_s))
        assert cruising.follow(POLICY, state, LATENCY_S, 22.0, report * REPORT_S, 0.7) is None
    assert 0.6 * 32.0 <= provider.accepted / 200.0 <= 0.85 * 32.0


@pytest.mark.parametrize("latency_s", [60.0, 120.0])
def test_a_level_is_lowered_within_seconds_also_where_calls_take_long(latency_s: float) -> None:
    state = _cruising(10.0, 0.2, met=True)
    for report in range(1, 24):
        strays.count(state, 0, 2)
        if cruising.follow(POLICY, state, latency_s, 8.0, report * REPORT_S) or state.level < 10.0:
            break
    assert state.level < 10.0


def test_a_new_cruise_is_checked_soon_whatever_the_last_one_had_put_off() -> None:
    state = _cruising(20.0, 0.2, met=True)
    state.check_at_s = 600.0
    cruising.begin(POLICY, state, 20.0, LATENCY_S, 5.0, True)
    assert state.check_at_s == 5.0


@pytest.mark.parametrize(("gain", "ended"), [(FREE_GAIN, CruiseEnd.CALM), (POLICY.cruise_gain, CruiseEnd.LIMIT)])
def test_strays_that_became_rare_end_the_cruise(gain: float, ended: CruiseEnd) -> None:
    state = _checking(0.004, per_s=20.0)
    state.level, state.seen, state.gain = 80.0, 400, gain
    strays.count(state, 119, 1)
    assert cruising.follow(POLICY, state, LATENCY_S, 20.0, 6.0) is ended
