"""A breaker as a value: when it trips, how long it stays open, and what it never counts."""

import random

import msgspec
import pytest

from policies.failures import breaker as b
from policies.failures.breaker import NODE, ROUTE, Breaker, BreakerPolicy, BreakerState
from tests.support.breaker_states import CLOSED, HALF_OPEN, OPEN, P, blocked, half_open, opened, told

# --------------------------------------------------------------------------------------------- tripping


@pytest.mark.parametrize(
    ("good", "bad", "slow", "state"),
    [
        (0, 4, 0, CLOSED),
        (0, 5, 0, OPEN),  # nothing else is in the window
        (1, 18, 0, CLOSED),  # too few to say anything
        (0, 20, 0, OPEN),
        (10, 10, 0, OPEN),
        (11, 9, 0, CLOSED),
        (1_000, 999, 0, CLOSED),
        (20, 0, 17, CLOSED),
        (20, 0, 18, OPEN),  # nine in ten were slow
        (19, 1, 18, OPEN),
    ],
)
def test_shares_and_volume(good: int, bad: int, slow: int, state: BreakerState) -> None:
    breaker = Breaker()
    moved = told(breaker, 5.0, good, bad, slow)
    assert breaker.state is state
    assert (moved is None) == (state is CLOSED)
    if moved:
        assert (moved.old, moved.new) == (CLOSED, OPEN)
        assert f"of {good + bad} in 0 s" in moved.why
        assert breaker.generation == 1


@pytest.mark.parametrize("seed", range(20))
def test_sixty_per_cent_failures_open_within_one_window(seed: int) -> None:
    rng = random.Random(seed)
    breaker = Breaker()
    for _ in range(5):
        told(breaker, 0.0, good=20)  # a window full of health lies behind it
    for n in range(P.window_count + 1):
        if told(breaker, 0.02 * n, **{"bad" if rng.random() < 0.6 else "good": 1}):
            return
    pytest.fail("a window of failures has passed, and it is closed")


@pytest.mark.parametrize("report", [1, 7, 40])
def test_ninety_per_cent_failures_open_though_every_tenth_call_is_good(report: int) -> None:
    breaker = Breaker()
    told(breaker, 0.0, good=P.window_count)
    seen = 0
    while breaker.state is CLOSED and seen <= P.window_count:
        good = sum(n % 10 == 0 for n in range(seen, seen + report))
        seen += report
        told(breaker, 0.1 * seen, good, report - good)
    assert breaker.state is OPEN
    assert seen <= P.window_count


@pytest.mark.parametrize("seed", range(20))
def test_a_fifth_of_mixed_faults_does_not_open(seed: int) -> None:
    rng = random.Random(seed)
    breaker = Breaker()
    for n in range(1, 2_001):
        bad = sum(rng.random() < 0.2 for _ in range(10))
        told(breaker, n * 0.25, 10 - bad, bad)
        assert breaker.state is CLOSED


def test_what_is_older_than_the_window_is_forgotten() -> None:
    breaker = Breaker()
    told(breaker, 0.0, good=1, bad=18)
    told(breaker, 29.9, good=1)
    assert breaker.state is OPEN

    breaker = Breaker()
    told(breaker, 0.0, good=1, bad=18)
    told(breaker, 30.0, good=1)
    assert breaker.state is CLOSED
    assert sum(tally.total for tally in breaker.window) == 1


def test_the_window_stays_small_whatever_comes() -> None:
    rng = random.Random(3)
    breaker = Breaker()
    largest = 0
    for n in range(20_000):
        told(breaker, n * rng.choice([0.001, 0.001, 0.01]), good=rng.choice([1, 1, 2, 9, 400]))
        largest = max(largest, len(breaker.window))
    assert largest <= 40


def test_of_the_oldest_report_its_share_is_forgotten() -> None:
    breaker = Breaker()
    told(breaker, 0.0, good=55, bad=45)
    told(breaker, 1.0, good=75, bad=5)
    assert breaker.state is CLOSED
    assert sum(tally.total for tally in breaker.window) == P.window_count
    assert sum(tally.bad for tally in breaker.window) == pytest.approx(20 * 0.45 + 5)


# ------------------------------------------------------------------------------- what counts for nothing


def test_void_results_count_for_nothing() -> None:
    breaker = Breaker()
    assert told(breaker, 1.0, void=10_000) is None
    assert breaker.window == []
    told(breaker, 2.0, good=1, bad=18, void=500)
    assert breaker.state is CLOSED  # they are no volume either


def test_late_results_of_an_earlier_state_count_for_nothing() -> None:
    breaker = half_open()
    late = msgspec.msgpack.encode(breaker)
    assert told(breaker, 10.1, bad=50, generation=0) is None
    assert told(breaker, 10.1, good=50, generation=0) is None
    assert told(breaker, 10.1, good=50, generation=1) is None
    assert b.block(P, breaker, 10.1, 0, "credit", 0.0) is None
    assert msgspec.msgpack.encode(breaker) == late
    told(breaker, 10.2, good=3)
    assert breaker.state is CLOSED
    assert told(breaker, 10.3, bad=500, generation=2) is None
    assert b.block(P, breaker, 10.3, 0, "credit", 0.0) is None
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    ("whose", "answered", "failed", "expected"),
    [
        ("route", 7, {}, (7, 0, 0)),
        ("route", 1, {"overloaded": 2, "transient": 3, "timed_out": 4}, (1, 9, 0)),
        ("route", 0, {"throttled": 1, "cancelled": 2, "rejected": 3, "too_large": 4, "lost": 5}, (0, 0, 15)),
        ("route", 0, {"blocked": 2, "unauthorised": 1}, (0, 0, 3)),  # told to block()
        ("route", 1, {"refused": 2, "malformed": 3}, (6, 0, 0)),  # whole answers, and paid for
        ("route", 0, {"unreadable": 4}, (4, 0, 0)),  # the server answers
        ("tool", 1, {"faulty": 2, "timed_out": 3, "cancelled": 4, "lost": 5}, (1, 5, 9)),
        ("node", 0, {"lost": 1}, (0, 1, 0)),
    ],
)
def test_good_bad_and_void(
    whose: b.Whose, answered: int, failed: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert b.sorted_out(whose, answered, failed) == expected


# --------------------------------------------------------------------------------------------- open


@pytest.mark.parametrize(("draw", "until_s"), [(0.0, 1.0), (0.5, 0.875), (0.999, 0.75025)])
def test_the_stay_is_jittered(draw: float, until_s: float) -> None:
    assert opened(draw=draw).until_s == pytest.approx(until_s)


def test_the_stay_grows_to_its_bound_and_begins_anew_after_a_whole_window() -> None:
    breaker = opened()
    stays = [breaker.until_s]
    at_s = 0.0
    for _ in range(40):
        at_s = breaker.until_s
        assert b.passed(P, breaker, at_s - 0.001) is None
        assert b.passed(P, breaker, at_s) is not None
        told(breaker, at_s, bad=1)
        stays.append(breaker.until_s - at_s)
    assert stays[:5] == [1.0, 2.0, 4.0, 8.0, 8.0] and stays[-1] == 8.0

    at_s = breaker.until_s
    b.passed(P, breaker, at_s)
    told(breaker, at_s, good=3)
    told(breaker, at_s + P.window_s - 0.1, bad=20)  # closed, but for less than a window
    assert breaker.until_s == pytest.approx(at_s + P.window_s - 0.1 + 8.0)

    at_s = breaker.until_s
    b.passed(P, breaker, at_s)
    told(breaker, at_s, good=3)
    told(breaker, at_s + P.window_s, bad=20)
    assert breaker.until_s == pytest.approx(at_s + P.window_s + 1.0)


@pytest.mark.parametrize(
    ("retry_after_s", "until_s"), [(0.5, 1.0), (40.0, 40.0), (1e9, P.retry_after_max_s), (float("inf"), 900.0)]
)
def test_retry_after_is_respected(retry_after_s: float, until_s: float) -> None:
    assert opened(retry_after_s=retry_after_s).until_s == until_s


def test_a_retry_after_told_before_it_opened_is_respected_too() -> None:
    breaker = Breaker()
    told(breaker, 0.0, bad=5, retry_after_s=30.0)
    told(breaker, 1.0, bad=15)
    assert breaker.until_s == 30.0


def test_the_wait_of_good_answers_is_none() -> None:
    breaker = Breaker()
    told(breaker, 0.0, good=5, retry_after_s=30.0)  # a throttled neighbour's in the same report
    told(breaker, 1.0, bad=20)
    assert breaker.until_s == 2.0


# --------------------------------------------------------------------------------------- nodes, values


def test_a_node_whose_actors_keep_dying_is_left_out_and_tried_with_one() -> None:
    breaker = Breaker()
    moves = [told(breaker, 10.0 * n, bad=1, policy=NODE) for n in range(4)]
    assert [moved is None for moved in moves] == [True, True, True, False]
    b.passed(NODE, breaker, breaker.until_s)
    assert b.probes_wanted(NODE, breaker, breaker.until_s) == 1
    told(breaker, 70.0, good=1, policy=NODE)
    assert breaker.state is CLOSED


def test_due_at_is_when_time_alone_changes_something() -> None:
    assert b.due_at_s(Breaker(), 5.0) == float("inf")
    assert b.due_at_s(opened(), 0.5) == 1.0
    assert b.due_at_s(half_open(), 10.0) == float("inf")  # until somebody wants to probe: no timer
    waits = blocked()
    assert b.due_at_s(waits, 1.0) == 60.0
    b.passed(P, waits, 60.0)
    assert b.due_at_s(waits, 60.0) == float("inf")
    b.probe_out(P, waits, 60.0, 80.0)
    assert b.due_at_s(waits, 61.0) == 80.0
    told(waits, 61.0, void=1)
    assert b.due_at_s(waits, 61.0) == 120.0


def test_it_is_kept_as_bytes_and_carried_to_another_clock() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 2)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(breaker), type=Breaker)
    assert read == breaker
    carried = b.shifted(read, 1_000.0)
    assert (carried.state, carried.generation) == (HALF_OPEN, breaker.generation)
    assert b.probes_wanted(P, carried, 1_010.0) == 1
    assert b.probes_wanted(P, carried, 1_090.0) == 3
    b.passed(P, carried, 1_090.0)
    assert read == breaker  # the one it was made from keeps its own


@pytest.mark.parametrize(
    "changed",
    [
        {"window_count": 0}, {"volume_min": 0}, {"probes": 0}, {"window_s": 0.0}, {"open_s": -1.0},
        {"open_max_s": float("inf")}, {"failure_share": 0.0}, {"failure_share": 1.1}, {"slow_share": float("nan")},
        {"jitter": 1.0}, {"open_growth": 0.5}, {"probe_failures_max": 3}, {"blocked_open_s": 0.0},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changed))} must be .*, not "):
        BreakerPolicy(**changed)  # type: ignore[arg-type]


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"open_s \(9\.0\) is above open_max_s \(8\.0\)"):
        BreakerPolicy(open_s=9.0)
    with pytest.raises(ValueError, match=r"volume_min \(20\) is above window_count \(10\)"):
        BreakerPolicy(window_count=10)


def test_the_route_s_policy_reaches_its_figures() -> None:
    """The longest stay leaves half of the 15 s to full rate for probes and for handing out shares."""
    assert ROUTE.open_max_s <= 8.0
    assert ROUTE.blocked_open_s >= 60.0
