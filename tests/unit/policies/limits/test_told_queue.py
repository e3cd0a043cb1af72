"""Number of calls in flight at a server that tells how many wait: single readings, and a closed loop in virtual time."""

from __future__ import annotations

import msgspec
import pytest

from policies.limits.limit import LimitPolicy, PoolLimit, RateLimits, ReportedBucket, UsageSample, adopt, new, observe
from policies.limits.queueing import Queueing
from policies.limits.told_queue import ToldQueue, follow, is_told
from tests.support.queue_simulation import Queues, Server


def reading(told: ToldQueue, at_s: float, allowed: float, running: int, waiting: int, **more: object) -> float:
    given = {"in_flight": running + waiting, "binding": True} | more
    return follow(told, at_s, allowed, given["in_flight"], running, waiting, given["binding"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allowed", "running", "waiting", "more", "expected"),
    [
        (16, 16, 0, {}, 32),  # nothing waits: twice as many
        (16, 16, 0, {"binding": False}, 16),  # no more is wanted
        (16, 16, 0, {"in_flight": 10}, 16),  # what is allowed is not used
        (16, 15, 1, {}, 16),
        (1, 1, 1, {}, 1),
        (16, 0, 16, {}, 16),  # the server stands still
        (16, 4, 0, {"in_flight": 16}, 32),  # one of four replicas
        (256, 60, 4, {"in_flight": 256}, 256),
    ],
)
def test_one_reading(allowed: int, running: int, waiting: int, more: dict[str, object], expected: int) -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0)
    assert reading(told, 100.0, float(allowed), running, waiting, **more) == expected


def test_too_many_that_wait_are_cut_at_once_when_the_number_is_held() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False)
    assert reading(told, 100.0, 128.0, 64, 64) == 68  # 64 and 7 % of them


def test_growth_ends_at_the_second_reading_in_a_row_in_which_too_many_wait() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0)
    assert reading(told, 100.0, 128.0, 64, 64) == 128
    assert reading(told, 100.5, 128.0, 64, 64) == 128
    assert reading(told, 101.0, 128.0, 64, 64) == 68
    assert not told.growing


def test_a_moment_in_which_new_calls_wait_does_not_end_growth() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0)
    assert reading(told, 100.0, 128.0, 64, 64) == 128
    assert reading(told, 101.0, 128.0, 128, 0) == 256
    assert told.growing and not told.odd_s


def test_a_reading_from_before_a_change_does_not_count() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=99.5)
    assert reading(told, 100.0, 128.0, 128, 0) == 128  # within a second
    assert reading(told, 102.0, 128.0, 64, 0, in_flight=128) == 128  # half of the calls are not in it
    assert reading(told, 105.0, 128.0, 64, 0, in_flight=128) == 256  # it is that of one of two replicas


def test_the_first_reading_after_a_silence_does_not_count() -> None:
    told = ToldQueue(heard_s=10.0, changed_s=5.0)
    assert not is_told(told, 20.0)
    assert reading(told, 20.0, 16.0, 16, 0) == 16
    assert reading(told, 21.0, 16.0, 16, 0) == 32


@pytest.mark.parametrize(
    ("allowed", "expected"), [(2.0, 4), (4.0, 8), (20.0, 32), (32.0, 32), (40.0, 32), (4_000.0, 41)]
)
def test_beside_others_that_let_calls_wait_a_job_has_half_of_what_is_worked_on(allowed: float, expected: int) -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False)
    assert reading(told, 100.0, allowed, 64, 5_000, in_flight=min(int(allowed), 3_000)) == expected


def test_after_three_steps_up_growth_begins_again() -> None:
    told, allowed = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False), 100.0
    seen = []
    for at_s in range(100, 108):
        allowed = reading(told, float(at_s), allowed, int(allowed), 0)
        seen.append(allowed)
    assert seen == [100, 110, 110, 121, 121, 133, 266, 532]


def test_a_slot_that_is_free_for_a_moment_changes_nothing() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False)
    assert reading(told, 100.0, 9.0, 8, 0) == 9
    assert reading(told, 101.0, 9.0, 8, 1) == 9
    assert reading(told, 102.0, 9.0, 8, 0) == 9
    assert not told.growing and not told.calm


def turns(*readings: tuple[float, int, int]) -> ToldQueue:
    """Return the state after readings (time, running, waiting) of a number that is held."""
    told, allowed = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False), 100.0
    for at_s, running, waiting in readings:
        allowed = reading(told, at_s, allowed, running, waiting, in_flight=round(allowed))
    return told


UP, DOWN, UP_AGAIN = ((100.0, 100, 0), (101.0, 100, 0)), ((103.0, 80, 30),), ((105.0, 80, 0), (106.0, 80, 0))


@pytest.mark.parametrize(
    ("readings", "window_s"),
    [
        (UP, 0.0),
        (DOWN, 0.0),
        ((*UP, *DOWN), 2.0),
        ((*DOWN, *UP_AGAIN), 2.0),
        ((*UP, *DOWN, *UP_AGAIN), 2.0),  # too early for a mean over two seconds
        ((*UP, *DOWN, *[(104.5 + each / 2, 80, 0) for each in range(8)]), 4.0),
    ],
)
def test_readings_count_the_longer_the_more_often_the_number_turns(
    readings: tuple[tuple[float, int, int], ...], window_s: float
) -> None:
    assert turns(*readings).window_s == window_s


@pytest.mark.parametrize("window_s", [0.0, 2.0, 4.0, 16.0])
def test_a_server_that_has_more_slots_is_found_whatever_the_window(window_s: float) -> None:
    """Steps up in a row halve the window; then growth begins again."""
    told, allowed, at_s = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False, window_s=window_s), 100.0, 100.0
    while not told.growing:
        at_s += 0.5
        allowed = reading(told, at_s, allowed, int(allowed), 0)
    assert at_s < 160.0 and told.window_s == 0.0 and allowed <= 200


def test_a_moment_in_which_a_long_prompt_keeps_others_waiting_cuts_nothing() -> None:
    told = ToldQueue(heard_s=99.0, changed_s=90.0, growing=False, window_s=8.0)
    for second in range(20):
        assert reading(told, 100.0 + second, 64.0, 58, 6) == 64
    assert reading(told, 120.0, 64.0, 46, 18) == 64
    seen = [reading(told, 121.0 + second, 64.0, 32, 32, in_flight=64) for second in range(4)]
    assert min(seen) < 64, "half of the slots are gone"


# ------------------------------------------------------------------------------------------------- in the pool's limit


def pool() -> PoolLimit:
    return new(LimitPolicy(), queues=True)


def told(limit: PoolLimit, at_s: float, running: int, waiting: int, **more: object) -> None:
    given = {"in_flight": running + waiting, "binding": True, "at_server": (running, waiting)} | more
    observe(LimitPolicy(), limit, at_s, UsageSample(**given))  # type: ignore[arg-type]


def test_what_is_told_takes_the_place_of_the_search() -> None:
    limit = pool()
    for at_s, expected in ((100.0, 2), (101.0, 4), (102.0, 8)):
        told(limit, at_s, int(limit.probing.concurrency), 0, answered=8, samples=((9.0, 5),) * 8, prompts=(5,) * 8)
        assert limit.probing.concurrency == expected
    assert limit.queue is not None and not limit.queue.waiting.lengths.count


def test_where_the_metrics_are_gone_the_search_goes_on() -> None:
    limit = pool()
    for at_s in (100.0, 101.0):
        told(limit, at_s, int(limit.probing.concurrency), 0)
    observe(LimitPolicy(), limit, 120.0, UsageSample(answered=4, in_flight=4, binding=True, samples=((9.0, 5),), prompts=(5,)))
    assert limit.queue is not None and limit.queue.told == ToldQueue()
    assert limit.queue.waiting.heard_s == 120.0


@pytest.mark.parametrize("how", ["headers", "refusals"])
def test_a_limit_that_the_server_names_or_shows_wins(how: str) -> None:
    limit = pool()
    if how == "headers":
        rate = RateLimits(requests=ReportedBucket(600, 590, 1.0))
        observe(LimitPolicy(), limit, 100.0, UsageSample(begun=9, answered=9, latency_s=9.0, in_flight=9, rate=rate))
    else:
        for at_s in (98.0, 99.0):
            observe(LimitPolicy(), limit, at_s, UsageSample(begun=9, throttled=5, in_flight=9, binding=True))
    before = limit.probing.concurrency
    for at_s in (110.0, 112.0):
        told(limit, at_s, int(before), 0, binding=False)
    assert limit.queue is not None and limit.queue.told == ToldQueue()


def test_the_state_is_the_same_after_encoding_and_on_another_clock() -> None:
    limit = pool()
    for at_s in (100.0, 101.0, 102.0):
        told(limit, at_s, int(limit.probing.concurrency), 0)
    encoded = msgspec.msgpack.encode(limit)
    again = msgspec.msgpack.decode(encoded, type=PoolLimit)
    assert msgspec.msgpack.encode(again) == encoded
    adopt(again, 1_102.0)
    assert again.queue is not None and limit.queue is not None
    assert (again.queue.told.heard_s, again.queue.told.changed_s) == (1_102.0, limit.queue.told.changed_s + 1_000)


def test_a_state_of_an_earlier_release_is_read() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(pool()))
    queue = fields[PoolLimit.__struct_fields__.index("queue")]
    del queue[Queueing.__struct_fields__.index("told") :]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=PoolLimit)
    assert again.queue is not None and again.queue.told == ToldQueue()


# ------------------------------------------------------------------------------------------------------ closed loop


@pytest.mark.parametrize("told_s", [0.05, 2.0], ids=["at once", "every two seconds"])
@pytest.mark.parametrize(
    ("slots", "mean_s", "half"),
    [(1, 0.2, 0), (1, 20.0, 0), (8, 0.2, 0), (8, 10.0, 0), (64, 2.0, 0), (64, 85.0, 0), (256, 2.0, 0), (1_024, 30.0, 0),
     (64, 2.0, 16), (256, 2.0, 16)],
)  # fmt: skip
def test_the_server_is_used_and_few_wait(slots: int, mean_s: float, half: float, told_s: float) -> None:
    from_s = max(60.0, 8 * mean_s)
    until_s = from_s + max(60.0, 4 * mean_s)
    found = Queues(Server(slots=slots, mean_s=mean_s, half=half), told=told_s).run(until_s)
    assert found.used(from_s, until_s) >= 0.97
    assert found.waiting(from_s, until_s) <= max(0.15 * slots, 1.25)
    assert found.waiting_max(0, from_s) <= max(1.1 * slots, 2)
    assert (found.timed_out, found.failed, found.opened) == (0, 0, 0)


def test_it_is_used_within_fifteen_seconds() -> None:
    found = Queues(Server(slots=1_024, mean_s=30.0), told=0.05).run(40)
    assert found.used(15, 40) >= 0.97


def test_a_server_that_changes_is_followed() -> None:
    changes = ((60.0, 128), (140.0, 32), (200.0, 0), (230.0, 64))
    found = Queues(Server(slots=64, mean_s=2.0, changes=changes), told=0.5).run(330)
    for from_s, until_s in ((30, 60), (75, 140), (145, 200), (240, 330)):
        assert found.used(from_s, until_s) >= 0.97
    assert found.waiting_max(150, 200) <= 8
    assert (found.timed_out, found.opened) == (0, 0)


def test_replicas_behind_one_address_are_used_as_one_server() -> None:
    found = Queues(Server(slots=256, mean_s=2.0), told=0.5, replicas=4).run(180)
    assert found.used(100, 180) >= 0.97
    assert found.waiting(100, 180) <= 0.15 * 256
