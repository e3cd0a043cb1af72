"""A call that met an open breaker at its branch was never sent: it is as if it had not been begun."""

from __future__ import annotations

import msgspec
import pytest

from cortex.calls.attempts import REST_LEAST_S, REST_S
from cortex.state import commands, events
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import PRICE, Flat, Stage, fed, of, other

LIMITS = Limits(output_tokens_max=10, retry=RetryPolicy(attempts_max=3, budget_floor=100))


def stage_of(*texts: str, permits: int = 3, limits: Limits = LIMITS, **more: object) -> Stage:
    return Stage(Flat(texts=texts), limits, permits=permits, price=PRICE, **more)


def test_it_uses_up_no_attempt_and_no_money():
    stage = stage_of("a")
    before = msgspec.structs.replace(stage.k.ledger)
    for generation in range(50):
        stage.turn(stage.given_back(stage.call(), generation + 1), at_s=stage.k.at_s)
        ledger, share = stage.k.ledger, stage.k.shares[0]
        assert (ledger.attempts, ledger.reserved_nusd, share.in_flight, stage.k.retries) == (0, 0, 0, 0)
        assert not stage.k.tally.failures
        stage.turn(events.PermitsGranted(3, generation=generation + 1), at_s=stage.k.at_s + REST_S)
    assert msgspec.structs.replace(stage.k.ledger) == before, "one call is under way, as at first"
    for _ in range(2):
        stage.fail(FailureKind.TRANSIENT)
        stage.turn(at_s=stage.k.at_s + 100.0)
    stage.answer()
    assert stage.ended[0].outcome == "complete", "all three attempts were left"
    assert (stage.k.ledger.attempts, stage.k.ledger.paid_calls) == (3, 1)


RESTS = {
    # (generation of the newest grant, of the breaker at the branch, seconds to its probe): seconds that the route rests
    "the grant that says so is not there yet": (0, 1, 8.0, REST_S),
    "the probe is near": (0, 1, 0.25, 0.25),
    "the branch does not know when": (0, 2, 0.0, REST_S),
    "the probe is due in less than a clock can tell": (0, 2, 1e-10, REST_LEAST_S),
    "the grant came first": (1, 1, 8.0, 0.0),
    "a later grant came first": (3, 1, 8.0, 0.0),
}


@pytest.mark.parametrize("name", RESTS)
def test_the_route_rests_until_the_grant_that_tells_of_the_breaker(name):
    granted, known, again_s, rest_s = RESTS[name]
    stage = stage_of("a")
    call = stage.call()
    happened = [events.PermitsGranted(3, generation=granted)] if granted else []
    out = stage.turn(*happened, stage.given_back(call, known, again_s), at_s=200.0)
    assert [(again.goal, again.attempt, again.generation) for again in of(out, commands.Call)] == (
        [] if rest_s else [(1, 2, granted)]
    )
    if rest_s:
        assert stage.k.due_at_s() == pytest.approx(200.0 + rest_s)
        assert of(stage.turn(at_s=200.0 + rest_s / 2), commands.Call) == []
        assert len(of(stage.turn(at_s=200.0 + rest_s), commands.Call)) == 1, "it never rests for ever"


def test_no_two_calls_go_to_and_fro_while_a_grant_is_lost():
    stage = stage_of(*"abcdefgh", permits=8)
    sent = 0
    for step in range(50):  # five seconds, the time of the next claim
        for call in list(stage.calls.values()):
            sent += 1
            stage.turn(stage.given_back(call, 1, 8.0), at_s=200.0 + step / 10)
        stage.turn(at_s=200.0 + step / 10)
    assert sent <= 8 * 6


def test_a_fallback_takes_it_at_once():
    stage = stage_of("a", "b", fallbacks=(other("n", price=PRICE),))
    one, two = stage.calls.values()
    stage.turn(stage.given_back(one, 1, 8.0), at_s=200.0)
    assert not stage.calls.get((one.goal, 2)), "its grant is still to come"
    out = stage.turn(
        events.PermitsGranted(0, starts=0, generation=1), events.PermitsGranted(3, route=1), stage.given_back(two, 1),
        at_s=200.1,
    )  # fmt: skip
    assert sorted((call.goal, call.route) for call in of(out, commands.Call)) == [(1, 1), (2, 1)]
    assert stage.k.retries == 0


def test_a_probe_that_comes_back_leaves_a_blocked_route_blocked():
    stage = stage_of("a", "b")
    one, two = stage.calls.values()
    stage.turn(stage.broke(one, FailureKind.BLOCKED, "no credit"), stage.broke(two, FailureKind.BLOCKED, "no credit"))
    assert stage.k.shares[0].blocked is not None
    stage.turn(events.Resumed("ann"))
    stage.turn(events.PermitsGranted(1, starts=1, generation=2))
    (probe,) = stage.calls.values()
    stage.turn(stage.given_back(probe, 3, 8.0))
    assert (stage.k.shares[0].probing, stage.k.shares[0].in_flight) == (0, 0)
    assert stage.k.shares[0].blocked is not None
    stage.turn(events.PermitsGranted(1, starts=1, generation=4), at_s=stage.k.at_s + REST_S)
    stage.answer()
    assert stage.k.shares[0].blocked is None


def test_a_hedge_that_was_not_sent_is_none():
    limits = msgspec.structs.replace(LIMITS, hedge_after_s=5.0)
    stage = stage_of("a", limits=limits)
    (first,) = stage.calls.values()
    stage.turn(at_s=stage.k.at_s + 6.0)
    hedge = stage.calls[first.goal, 2]
    assert (stage.k.tally.hedges, stage.k.retries) == (1, 1)
    stage.turn(stage.given_back(hedge, 1))
    assert (stage.k.tally.hedges, stage.k.retries, stage.k.ledger.attempts) == (0, 0, 1)
    stage.turn(stage.answered(first))
    assert (stage.ended[0].outcome, stage.k.ledger.paid_again) == ("complete", 0)


@pytest.mark.parametrize("stops", [events.Stopped("ann", "drain"), events.Stopped("ann", "cancel")])
def test_a_stopping_job_does_not_wait_for_it(stops):
    stage = stage_of("a")
    stage.turn(stops)
    stage.turn(stage.given_back(stage.call(), 1))
    assert len(stage.ended) == 1


def test_one_that_comes_late_or_twice_changes_nothing():
    stage = stage_of("a", "b")
    one, two = stage.calls.values()
    stage.turn(stage.answered(one))
    attempts = stage.k.ledger.attempts
    stage.turn(stage.given_back(one, 1), events.GivenBack(77, "0", 1, 1), at_s=300.0)
    assert (stage.k.ledger.attempts, stage.k.shares[0].hold_until_s) == (attempts, 0.0)
    back = stage.given_back(two, 1, 8.0)
    stage.turn(back, back, at_s=300.0)
    assert stage.k.ledger.attempts == attempts - 1
    stage.turn(at_s=300.0 + REST_S)
    stage.turn(back, at_s=302.0)
    assert stage.call().attempt == 2, "it is about the first attempt, which is none any more"


def test_equal_questions_that_shared_it_are_asked_again():
    stage = stage_of("a", "a")
    (call,) = stage.calls.values()
    stage.turn(stage.given_back(call, 1), events.PermitsGranted(3, generation=1), at_s=200.0)
    stage.turn(at_s=200.0 + REST_S)
    stage.answer_all()
    assert stage.ended[0].outcome == "complete"
    assert stage.k.ledger.attempts == 1


def test_rows_that_came_back_have_their_results():
    from cortex.programs.batch import Batch

    stage = Stage(Batch(), LIMITS, permits=2, price=PRICE, streams=True)
    stage.turn(fed("a", "b", ended=True))
    for call in list(stage.calls.values()):
        stage.turn(stage.given_back(call, 1))
    stage.turn(events.PermitsGranted(2, generation=3), at_s=stage.k.at_s + REST_S)
    stage.answer_all()
    assert len(stage.emitted) == 2 and stage.ended[0].outcome == "complete"
