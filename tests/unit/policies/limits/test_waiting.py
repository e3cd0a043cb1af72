"""Wait of calls as their answers tell it, and the number of calls in flight that follows from it."""

from __future__ import annotations

import random

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
    waiting.settle(known, waiting.read(known, 20.0, 0.0).per_token_s)
    waiting.begin_anew(known, 100.0)
    known.heard_s = 199.0
    waiting.take(known, 200.0, 40.0, *answers(100, per_token_s, wait_s, 2))
    now = waiting.read(known, 40.0, 20.0)
    assert now.wait_s == pytest.approx(wait_s, abs=0.2)
    assert now.per_token_s == pytest.approx(per_token_s, rel=0.05)


def test_answers_of_one_length_leave_the_time_of_a_token_as_it_was() -> None:
    known = Waiting()
    waiting.take(known, 100.0, 20.0, *answers(100, 0.01, 0.0))
    waiting.settle(known, 0.01)
    waiting.begin_anew(known, 100.0)
    known.heard_s = 199.0
    waiting.take(known, 200.0, 40.0, [(4.0, 200)] * 50, [0] * 50)
    now = waiting.read(known, 40.0, 20.0)
    assert now.even
    assert now.wait_s == pytest.approx(2.0, abs=0.1)


def test_calls_begun_before_a_change_do_not_count() -> None:
    known = Waiting()
    waiting.begin_anew(known, 100.0)
    assert not waiting.take(known, 102.0, 4.0, [(3.0, 200)], [0])
    assert waiting.take(known, 104.0, 4.0, [(3.0, 200)], [0])


def test_what_waited_while_a_server_stood_still_tells_nothing() -> None:
    known = Waiting()
    waiting.take(known, 100.0, 20.0, *answers(20, 0.01, 0.0))
    samples, prompts = answers(20, 0.01, 30.0)
    assert not waiting.take(known, 132.0, 20.0, samples, prompts)


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
