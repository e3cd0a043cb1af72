"""How long calls take at the limits that there are, and by which road they go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.estimates.duration import (
    BucketRate,
    CallLimits,
    Duration,
    Workload,
    caps_together,
    duration,
    rate_together,
)
from policies.estimates.forecast import EstimatedTotal
from policies.estimates.transport_choice import BATCH_S, BATCHES, MIXED, NOW, TransportLimits, chosen, transport_options
from policies.limits.limit import PoolCaps

LATENCIES = (0.4, 0.8, 1.0, 1.2, 2.6)


def work(calls: float, input_tokens: float = 200.0, output_tokens: float = 50.0) -> Workload:
    return Workload(calls, input_tokens, output_tokens, LATENCIES)


def seconds(calls: float, **limits: object) -> float:
    return duration(work(calls), CallLimits(**limits)).seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "binds", "least", "most"),
    [
        (CallLimits(caps=PoolCaps(concurrency=100)), "concurrency", 120, 130),
        (CallLimits(caps=PoolCaps(concurrency=100, requests_per_min=3_000)), "requests_per_min", 200, 206),
        (CallLimits(caps=PoolCaps(concurrency=100, input_tokens_per_min=400_000)), "input_tokens_per_min", 300, 306),
        (CallLimits(caps=PoolCaps(concurrency=100, output_tokens_per_min=100_000)), "output_tokens_per_min", 300, 306),
        # the bucket lends a minute's worth at the start
        (CallLimits(requests=BucketRate(20, 1_200), caps=PoolCaps(concurrency=100)), "requests_per_min", 440, 465),
        (CallLimits(requests=BucketRate(20, 100), caps=PoolCaps(concurrency=100)), "requests_per_min", 495, 515),
        # headroom: nothing is lent, and a fifth is left to others
        (
            CallLimits(requests=BucketRate(20, 1_200), caps=PoolCaps(concurrency=100, headroom=0.2)),
            "requests_per_min",
            625,
            650,
        ),
    ],
)
def test_ten_thousand_calls(limits: CallLimits, binds: str, least: float, most: float) -> None:
    """A mean answer takes 1.2 s, so that 100 at once are 83 a second."""
    found = duration(work(10_000), limits)
    assert found.binds == binds
    assert least <= found.seconds <= most


def test_nothing_takes_no_time_and_one_call_its_own() -> None:
    assert duration(work(0), CallLimits()) == Duration(0.0, ())
    assert 2.6 <= seconds(1) <= 3.0


def test_a_pool_that_begins_small_takes_time_to_grow() -> None:
    """Twenty at once at first: 2,000 calls at up to a thousand at once are no two rounds of answers."""
    assert seconds(2_000, caps=PoolCaps(concurrency=1_000)) > 5


def test_days_are_told_without_being_played() -> None:
    found = duration(work(50_000_000), CallLimits(caps=PoolCaps(concurrency=100)))
    assert found.seconds == pytest.approx(50_000_000 * 1.2 / 100, rel=0.08)


def test_where_playing_ends_the_slowest_answer_is_waited_for_all_the_same() -> None:
    """One answer in five takes 500 s: the calls that no play shows end no sooner than those that it does."""
    limits = CallLimits(caps=PoolCaps(concurrency=1_000, requests_per_min=60))
    played, beyond = (duration(Workload(calls, 1, 1, (1.0, 1.0, 1.0, 1.0, 500.0)), limits) for calls in (2_000, 2_040))
    assert played.seconds > 2_000 + 480
    assert beyond.seconds > played.seconds + 30


def test_a_bucket_that_is_told_is_used_up_and_not_left_full() -> None:
    """What is lent at the start is taken slowly, so that little of it is left when the last calls come: more than the
    bucket's own bound, and less than without what it lends."""
    for calls in (2_000, 5_000):
        found = duration(work(calls), CallLimits(requests=BucketRate(20, 1_200), caps=PoolCaps(concurrency=1_000)))
        (bound,) = (each.seconds for each in found.bounds if each.name == "requests_per_min")
        assert bound + 5 < found.seconds < calls / 20


tolds = st.none() | st.builds(BucketRate, st.floats(0.5, 500), st.floats(1, 20_000))
caps = st.builds(
    PoolCaps, concurrency=st.none() | st.integers(1, 500), requests_per_min=st.none() | st.floats(30, 90_000),
    output_tokens_per_min=st.none() | st.floats(1_000, 900_000), headroom=st.sampled_from([0.0, 0.2]),
)  # fmt: skip


@given(
    st.builds(CallLimits, requests=tolds, output_tokens=tolds, caps=caps), st.integers(1, 30_000), st.integers(1, 5_000)
)
@settings(max_examples=40, deadline=None)
def test_more_rows_are_never_done_sooner_and_no_limit_is_beaten(limits: CallLimits, calls: int, more: int) -> None:
    fewer, all_ = duration(work(calls), limits), duration(work(calls + more), limits)
    assert fewer.seconds <= all_.seconds + 0.5
    assert all(all_.seconds >= bound.seconds for bound in all_.bounds)


# -- roads ---------------------------------------------------------------------------------------------------------

DEAR, CHEAP = EstimatedTotal(9e9, 10e9, 11e9), EstimatedTotal(4.5e9, 5e9, 5.5e9)
HOUR_S = 3_600.0


@pytest.mark.parametrize(
    ("wanted", "road"),
    [
        (TransportLimits(), NOW),
        (TransportLimits(12_000_000_000), NOW),
        (TransportLimits(12_000_000_000, 2 * HOUR_S), NOW),
        (TransportLimits(10_500_000_000), MIXED),  # expected to cost 10, but up to 11
        (TransportLimits(8_000_000_000), MIXED),
        (TransportLimits(8_000_000_000, 30 * HOUR_S), MIXED),
        (TransportLimits(8_000_000_000, BATCH_S), BATCHES),
        (TransportLimits(5_500_000_000), BATCHES),
        (TransportLimits(8_000_000_000, 2 * HOUR_S), None),  # money says batches, time says now
        (TransportLimits(5_000_000_000), None),
        (TransportLimits(None, 0.5 * HOUR_S), None),
        (TransportLimits(None, -1.0), None),
    ],
)
def test_the_road_that_meets_cap_and_deadline(wanted: TransportLimits, road: str | None) -> None:
    found = transport_options(1_000, DEAR, HOUR_S, CHEAP, wanted)
    best = chosen(found)
    assert (best.name if best else None) == road
    for each in found:
        assert each.meets == (each.over_nusd == 0 == each.over_s)
        assert each.cost_nusd is not None and each.cost_nusd.low <= each.cost_nusd.expected <= each.cost_nusd.high


def test_a_mixed_road_pays_for_as_many_now_as_the_cap_has_room_for() -> None:
    mixed = next(
        each
        for each in transport_options(1_000, DEAR, HOUR_S, CHEAP, TransportLimits(8_000_000_000))
        if each.name == MIXED
    )
    assert mixed.rows_now == 454  # 11 x + 5.5 (1 - x) = 8
    assert mixed.cost_nusd is not None and mixed.cost_nusd.high == pytest.approx(8e9, rel=2e-3)
    assert mixed.seconds == pytest.approx(BATCH_S + 0.454 * HOUR_S)


def test_the_road_that_was_asked_for_comes_first() -> None:
    found = transport_options(1_000, DEAR, HOUR_S, CHEAP, TransportLimits())
    assert chosen(found, BATCHES).name == BATCHES  # type: ignore[union-attr]


def test_what_the_last_call_sets_aside_must_fit_under_the_cap_too() -> None:
    assert transport_options(10, DEAR, HOUR_S, CHEAP, TransportLimits(11_000_000_000), 1e9)[0].over_nusd == 1e9


def test_without_a_price_money_decides_nothing_and_a_model_may_take_no_batches() -> None:
    assert [each.name for each in transport_options(10, None, 5.0, None, TransportLimits(None, 10.0))] == [NOW, BATCHES]
    assert [
        each.name for each in transport_options(10, DEAR, 5.0, None, TransportLimits(8_000_000_000), batches=False)
    ] == [NOW]


TOGETHER = {
    "of one": ([(1.0, 60.0)], (1.0, 60.0)),
    "added": ([(1.0, 60.0), (3.0, 20.0)], (4.0, 80.0)),
    "one that is not known counts as the mean": ([(1.0, 60.0), None, (3.0, 20.0)], (6.0, 120.0)),
    "none is known": ([None, None], None),
    "there is none": ([], None),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_buckets_of_servers_that_share_the_work_are_added(name: str) -> None:
    buckets, found = TOGETHER[name]
    together = rate_together([each and BucketRate(*each) for each in buckets])  # type: ignore[misc]
    assert (together and (together.per_s, together.capacity)) == found


def test_a_bound_that_one_of_several_servers_lacks_bounds_nothing() -> None:
    one, two = PoolCaps(concurrency=4, requests_per_min=60.0, headroom=0.1), PoolCaps(concurrency=8, headroom=0.3)
    assert caps_together([one, two]) == PoolCaps(concurrency=12, headroom=0.3)
    assert caps_together([one, one]) == PoolCaps(concurrency=8, requests_per_min=120.0, headroom=0.1)
    assert caps_together([one]) == one
    assert caps_together([]) == PoolCaps()
