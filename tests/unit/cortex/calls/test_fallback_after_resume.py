"""A job that is resumed may fall back elsewhere: what it has of a route that stays, stays with that route."""

from __future__ import annotations

import pytest

from actors.common.errors import UserError
from actors.common.process_owner import this_owner
from actors.jobs.opening import Opening, resuming_batch
from cortex.state import events
from cortex.values.limits import Limits
from policies.estimates.price import parse_price
from policies.failures.failure import Failure, FailureKind
from tests.support.state_machine_harness import PRICE, Flat, Stage, other, reply, terms

BOUND = Limits(output_tokens_max=10)
FAR, NEAR = other("n", price=parse_price("input=30,output=150"), endpoint="far"), other("o", price=PRICE)


def _stage(*texts: str) -> Stage:
    return Stage(Flat(texts=texts or ("a", "b")), BOUND, permits=0, price=PRICE, fallbacks=(FAR,))


def _set(stage: Stage, *fallbacks: object) -> None:
    stage.turn(events.LimitsSet("ann", BOUND, None, tuple(fallbacks)))  # type: ignore[arg-type]


def test_a_route_that_comes_has_nothing_and_one_that_stays_keeps_what_it_has():
    stage = _stage()
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(1, route=1))
    assert [flight.route for flight in stage.k.flights.values()] == [0, 1]
    _set(stage, NEAR, FAR)
    assert [share.permits for share in stage.k.shares] == [1, 0, 1]
    assert [share.in_flight for share in stage.k.shares] == [1, 0, 1]
    assert [flight.route for flight in stage.k.flights.values()] == [0, 2]
    assert stage.k.terms.fallbacks == (NEAR, FAR)
    for goal, attempt in list(stage.calls):
        stage.turn(events.Answered(goal, "0", attempt, stage.calls[goal, attempt].hash, reply("x")))
    assert stage.k.outcome == "complete"


def test_a_route_that_calls_are_out_on_does_not_go():
    stage = _stage()
    stage.turn(events.PermitsGranted(1, route=1))
    _set(stage)
    assert stage.k.terms.fallbacks == (FAR,)
    assert len(stage.k.shares) == 2


def test_a_route_goes_when_nothing_is_out_there():
    stage = _stage()
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(0, route=1))
    _set(stage)
    assert stage.k.terms.fallbacks == ()
    assert [share.permits for share in stage.k.shares] == [1]
    stage.turn(events.PermitsGranted(3, route=1))
    assert [share.permits for share in stage.k.shares] == [1]


def test_nothing_said_changes_nothing():
    stage = _stage()
    stage.turn(events.LimitsSet("ann", BOUND))
    assert stage.k.terms.fallbacks == (FAR,)


def test_a_run_that_resumes_brings_its_fallbacks():
    stage = _stage()
    stage.turn(events.PermitsGranted(1, route=1))
    owner = this_owner("inline")
    same = Opening(terms=stage.k.terms, owner=owner, who="ann")
    batch, anew = resuming_batch(stage.k, same, 2, ((1, 1),))
    assert (batch, anew) == ([events.Rejoined(2, ((1, 1),))], False)
    now = terms(BOUND, price=PRICE, fallbacks=(NEAR,))
    opening = Opening(terms=now, owner=owner, who="ann")
    batch, _ = resuming_batch(stage.k, opening, 2, ())
    assert batch == [events.Rejoined(2), events.LimitsSet("ann", BOUND, now.route, (NEAR,))]
    stage.turn(*batch)
    assert stage.k.terms.fallbacks == (NEAR,)
    again = _stage()
    with pytest.raises(UserError, match="calls of its last run are still in flight"):
        resuming_batch(again.k, opening, 2, ((1, 1),))


def _lost(stage: Stage) -> events.Answered:
    """An attempt at the fallback that was given up for lost; the reply that may come all the same."""
    stage.turn(events.PermitsGranted(1, route=1))
    call = stage.call()
    late = stage.answered(call, "late")
    stage.turn(stage.broke(call, "lost"), events.PermitsGranted(0, route=1))
    return late


def test_a_late_reply_of_a_route_that_moved_is_paid_at_its_price():
    stage = _stage("a")
    late = _lost(stage)
    _set(stage, NEAR, FAR)
    stage.turn(late)
    assert (stage.goal(1).answer, stage.k.ledger.known_nusd, stage.k.ledger.assumed_nusd) == ("late", 600_000, 0)


def test_a_late_reply_of_a_route_that_has_gone_is_taken_and_stays_charged_as_assumed():
    stage = _stage("a")
    late = _lost(stage)
    assumed = stage.k.ledger.assumed_nusd
    _set(stage)
    stage.turn(late)
    assert (stage.goal(1).answer, stage.k.ledger.known_nusd, stage.k.ledger.assumed_nusd) == ("late", 0, assumed)


OVERLOADED = Failure(FailureKind.OVERLOADED, "busy", status=529)


def _fail(stage: Stage) -> None:
    """All that is out on the job's own route fails."""
    flights = [flight for flight in stage.k.flights.values() if not flight.route]
    stage.turn(
        *(events.AttemptFailed(each.goal, each.sample, each.attempt, OVERLOADED) for each in flights), at_s=stage.k.at_s
    )


def _routes(stage: Stage) -> list[int]:
    return [flight.route for flight in stage.k.flights.values()]


def test_work_that_moves_does_not_sit_out_its_waits():
    stage = _stage("a", "b", "c")
    stage.turn(events.PermitsGranted(3))
    _fail(stage)
    assert not stage.k.flights  # all wait before they are tried again
    at_s = stage.k.at_s
    stage.turn(events.PermitsGranted(0, why="the breaker is open"), events.PermitsGranted(2, route=1), at_s=at_s)
    assert _routes(stage) == [1, 1]
    stage.turn(events.PermitsGranted(9, route=1), at_s=at_s)
    assert _routes(stage) == [1, 1, 1]


def test_nor_do_calls_that_fail_on_the_old_route_afterwards_and_probes_there():
    stage = _stage("a", "b", "c")
    stage.turn(events.PermitsGranted(2))
    retries = stage.k.retries
    stage.turn(
        events.PermitsGranted(0, why="the breaker is open"), events.PermitsGranted(5, route=1), at_s=stage.k.at_s
    )
    assert _routes(stage) == [0, 0, 1]
    _fail(stage)
    assert _routes(stage) == [1, 1, 1]
    assert stage.k.retries == retries
    probe = _stage("a")
    probe.turn(
        events.PermitsGranted(0, why="open"),
        events.PermitsGranted(1, route=1),
        events.PermitsGranted(1, starts=1, why="half open"),
    )
    assert _routes(probe) == [0]
    _fail(probe)
    assert _routes(probe) == [1]


def test_on_the_fallback_itself_and_back_home_waits_are_waited():
    stage = _stage("a", "b", "c")
    stage.turn(events.PermitsGranted(0, why="open"), events.PermitsGranted(1, route=1))
    (flight,) = stage.k.flights.values()
    stage.turn(events.AttemptFailed(flight.goal, "0", flight.attempt, OVERLOADED), at_s=stage.k.at_s)
    assert stage.k.goals[flight.goal].due_at_s > stage.k.at_s
    assert stage.k.retries == 1, "the fallback's own failures are for the budget to bear"
    stage.turn(events.PermitsGranted(2), events.PermitsGranted(0, route=1), at_s=stage.k.at_s)
    assert not stage.k.moved
    assert _routes(stage) == [1, 0]
    _fail(stage)
    assert (_routes(stage), stage.k.retries) == ([1], 2)
