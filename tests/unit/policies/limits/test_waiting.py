"""Wait of calls as their answers tell it, and the number of calls in flight that follows from it."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from policies.limits import limit, queueing, waiting
from policies.limits.limit import LimitPolicy, PoolLimit, RateLimits, ReportedBucket, UsageSample
from policies.limits.waiting import Waiting

POLICY = LimitPolicy()


def answers(number: int, per_token_s: float, wait_s: float, seed: int = 1) -> tuple[list[tuple[float, int]], list[int]]:
    chance = random.Random(seed)
    lengths = [(chance.randint(50, 400), chance.randint(200, 2_000)) for _ in range(number)]
    return [(wait_s + per_token_s * (n + 0.05 * m), n) for n, m in lengths], [m for _, m in lengths]


@pytest.mark.parametrize(("per_token_s", "wait_s"), [(0.01, 0.0), (0.01, 2.0), (0.018, 0.0), (0.018, 2.0)])
def test_a_wait_is_told_from_a_batch_that_works_slower(per_token_s: float, wait_s: float) -> None:
    known = Waiting()
    waiting.take(known, 100.0, 20.0, *answers(100, 0.01, 0.0))
    waiting.settle(known, waiting.read(known, 20.0, 0.0).per_token_s, 0.0)
    waiting.begin_anew(known, 100.0, 4.0)
    known.heard_s = 199.0
    waiting.take(known, 200.0, 40.0, *answers(100, per_token_s, wait_s, 2))
    now = waiting.read(known, 40.0, 20.0)
    assert now.wait_s == pytest.approx(wait_s, abs=0.2)
    assert now.per_token_s == pytest.approx(per_token_s, rel=0.05)


@pytest.mark.parametrize("weight", [0.005, 0.05, 0.35])
def test_what_a_prompt_token_takes_is_learned_from_answers_that_did_not_wait(weight: float) -> None:
    chance, known = random.Random(1), Waiting()
    lengths = [(chance.randint(50, 400), chance.randint(200, 2_000)) for _ in range(64)]
    waiting.take(known, 100.0, 20.0, [(0.01 * (n + weight * m), n) for n, m in lengths], [m for _, m in lengths])
    now = waiting.read(known, 20.0, 0.0)
    assert now.share < 0.05
    waiting.settle(known, now.per_token_s, now.wait_s)
    assert known.prompt_weight == pytest.approx(weight, abs=0.01)
    assert known.per_token_s == pytest.approx(0.01, rel=0.05)


def test_few_answers_tell_how_wrong_they_may_be() -> None:
    few, many = Waiting(), Waiting()
    for known, number in ((few, 4), (many, 64)):
        waiting.take(known, 100.0, 20.0, *answers(number, 0.01, 1.0))
    assert waiting.read(few, 20.0, 10.0).error > 3 * waiting.read(many, 20.0, 10.0).error


def test_answers_of_many_calls_count_from_those_begun_after_the_change() -> None:
    known = Waiting(latency_s=10.0)
    waiting.take(known, 50.0, 64.0, *answers(20, 0.01, 0.0))
    for in_flight, counts in ((64.0, False), (8.0, True)):
        waiting.begin_anew(known, 100.0, in_flight)
        known.latency_s = 10.0
        known.heard_s = 103.0
        assert waiting.take(known, 104.0, in_flight, [(3.9, 200)], [0]) is counts


def test_answers_of_one_length_leave_the_time_of_a_token_as_it_was() -> None:
    known = Waiting()
    waiting.take(known, 100.0, 20.0, *answers(100, 0.01, 0.0))
    waiting.settle(known, 0.01, 0.0)
    waiting.begin_anew(known, 100.0, 4.0)
    known.heard_s = 199.0
    waiting.take(known, 200.0, 40.0, [(4.0, 200)] * 50, [0] * 50)
    now = waiting.read(known, 40.0, 20.0)
    assert now.even
    assert now.wait_s == pytest.approx(2.0, abs=0.1)


def test_calls_begun_before_a_change_do_not_count() -> None:
    known = Waiting()
    waiting.begin_anew(known, 100.0, 4.0)
    assert not waiting.take(known, 102.0, 4.0, [(3.0, 200)], [0])
    assert waiting.take(known, 104.0, 4.0, [(3.0, 200)], [0])


def test_what_waited_while_a_server_stood_still_tells_nothing() -> None:
    known = Waiting()
    waiting.take(known, 100.0, 20.0, *answers(20, 0.01, 0.0))
    samples, prompts = answers(20, 0.01, 30.0)
    assert not waiting.take(known, 132.0, 20.0, samples, prompts)


def gateway(number: int, spread_s: float, seed: int = 1) -> tuple[list[tuple[float, int]], list[int]]:
    """Answers after 5 s each, give or take, whatever their length."""
    chance = random.Random(seed)
    return [(5 + chance.uniform(-spread_s, spread_s), chance.randint(50, 400)) for _ in range(number)], [0] * number


def one_slot(number: int, seed: int = 1) -> tuple[list[tuple[float, int]], list[int]]:
    """Answers of a server that works on one call at a time, and has the next one waiting."""
    chance = random.Random(seed)
    lengths = [chance.randint(50, 400) for _ in range(number + 1)]
    return [(0.01 * (one + before), one) for before, one in pairwise(lengths)], [0] * number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lengths_explain_how_long_a_server_takes_and_not_how_long_a_gateway_does(seed: int) -> None:
    at_a_gateway, at_a_server = Waiting(), Waiting()
    waiting.take(at_a_gateway, 100.0, 2.0, *gateway(48, 2.0, seed))
    waiting.take(at_a_server, 100.0, 2.0, *one_slot(48, seed))
    assert waiting.read(at_a_gateway, 2.0, 0.0).explained < 0.12
    now = waiting.read(at_a_server, 2.0, 0.0)
    assert now.explained > 0.35
    assert not now.steady


def test_a_wait_that_hardly_varies_is_a_fixed_time() -> None:
    known = Waiting()
    waiting.take(known, 100.0, 2.0, *answers(24, 0.01, 2.0))
    assert waiting.read(known, 2.0, 0.0).steady


def test_a_fixed_time_is_never_longer_than_what_tokens_leave() -> None:
    known = Waiting(fixed_s=3.0)
    waiting.take(known, 100.0, 2.0, *answers(48, 0.01, 1.0))
    for _ in range(8):
        waiting.read(known, 2.0, 0.0)
    assert 0.5 < known.fixed_s < 1.2


def test_throughput_is_compared_at_one_size_of_calls() -> None:
    """Twice the calls in flight, no wait, and answers that are twice as long by chance: twice as much gets done."""
    known = Waiting()
    waiting.take(known, 100.0, 4.0, *answers(48, 0.01, 0.0))
    now = waiting.read(known, 4.0, 2.0)
    assert waiting.shortened(now, now.mean_s / 2, now.mean_size / 2) == pytest.approx(1.0, abs=0.05)


def sample(samples: list[tuple[float, int]], prompts: list[int], **more: object) -> UsageSample:
    told = UsageSample(
        begun=len(samples), answered=len(samples), latency_s=sum(s for s, _ in samples), in_flight=len(samples),
        binding=True, samples=tuple(samples), prompts=tuple(prompts),
    )  # fmt: skip
    return msgspec.structs.replace(told, **more)


def test_a_server_that_may_queue_begins_with_two_calls_and_others_with_twenty() -> None:
    assert limit.allowance(POLICY, limit.new(POLICY, True), 100.0).concurrency == queueing.START
    assert limit.allowance(POLICY, limit.new(POLICY), 100.0).concurrency == POLICY.start


def test_quick_answers_are_searched_for_no_queue() -> None:
    found = limit.new(POLICY, True)
    limit.observe(POLICY, found, 100.0, sample(*answers(2, 0.0001, 0.0)))
    assert limit.allowance(POLICY, found, 100.0).concurrency >= POLICY.start


def test_limits_in_headers_end_the_search() -> None:
    found = limit.new(POLICY, True)
    told = RateLimits(requests=ReportedBucket(6_000, 5_900))
    limit.observe(POLICY, found, 100.0, sample(*answers(2, 0.01, 0.0), rate=told))
    assert limit.allowance(POLICY, found, 100.0).concurrency > 100


def test_a_refusal_ends_the_search() -> None:
    found = limit.new(POLICY, True)
    limit.observe(POLICY, found, 100.0, sample(*answers(2, 0.01, 0.0), throttled=1))
    limit.allowance(POLICY, found, 110.0)
    before = msgspec.msgpack.encode(found.queue)
    limit.observe(POLICY, found, 111.0, sample(*answers(2, 0.01, 0.0)))
    assert msgspec.msgpack.encode(found.queue) == before


def test_the_state_is_the_same_after_writing_and_reading_it() -> None:
    found = limit.new(POLICY, True)
    for at_s in range(8):
        limit.observe(POLICY, found, 100.0 + 4 * at_s, sample(*answers(4, 0.01, 0.2 * at_s, at_s)))
    written = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(written, type=PoolLimit)) == written


def test_a_state_of_an_earlier_release_holds_what_it_has_and_goes_on() -> None:
    earlier = msgspec.msgpack.decode(msgspec.msgpack.encode(limit.new(POLICY)))[:-1]
    found = msgspec.convert(earlier, PoolLimit)
    limit.observe(POLICY, found, 100.0, sample(*answers(20, 0.01, 0.0)))
    before = limit.allowance(POLICY, found, 100.0).concurrency
    found = limit.queueing_too(POLICY, found)
    assert found.queue is not None
    assert limit.allowance(POLICY, found, 100.0).concurrency == before
