"""A job that is resumed may fall back elsewhere: what it has of a route that stays, stays with that route."""

from __future__ import annotations

import pytest

from actors.errors import ClearError
from actors.opening import Opening, resuming_batch, this_owner
from cortex import events
from cortex.limits import Limits
from policies.price import parse_price
from tests.stage import PRICE, Flat, Stage, other, reply, terms

BOUND = Limits(output_tokens_max=10)
FAR, NEAR = other("n", price=parse_price("input=30,output=150"), endpoint="far"), other("o", price=PRICE)


def _stage(*texts: str) -> Stage:
    return Stage(Flat(texts=texts or ("a", "b")), BOUND, permits=0, price=PRICE, fallbacks=(FAR,))


def _set(stage: Stage, *fallbacks: object) -> None:
    stage.turn(events.LimitsSet("ann", BOUND, None, tuple(fallbacks)))  # type: ignore[arg-type]


def test_a_route_that_comes_has_nothing_and_one_that_stays_keeps_what_it_has():
    stage = _stage()
    stage.turn(events.Granted(1), events.Granted(1, route=1))
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
    stage.turn(events.Granted(1, route=1))
    _set(stage)
    assert stage.k.terms.fallbacks == (FAR,)
    assert len(stage.k.shares) == 2


def test_a_route_goes_when_nothing_is_out_there():
    stage = _stage()
    stage.turn(events.Granted(1), events.Granted(0, route=1))
    _set(stage)
    assert stage.k.terms.fallbacks == ()
    assert [share.permits for share in stage.k.shares] == [1]
    stage.turn(events.Granted(3, route=1))
    assert [share.permits for share in stage.k.shares] == [1]


def test_nothing_said_changes_nothing():
    stage = _stage()
    stage.turn(events.LimitsSet("ann", BOUND))
    assert stage.k.terms.fallbacks == (FAR,)


def test_a_run_that_resumes_brings_its_fallbacks():
    stage = _stage()
    stage.turn(events.Granted(1, route=1))
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
    with pytest.raises(ClearError, match="calls of its last run are still under way"):
        resuming_batch(again.k, opening, 2, ((1, 1),))


def _lost(stage: Stage) -> events.Answered:
    """An attempt at the fallback that was given up for lost; the reply that may come all the same."""
    stage.turn(events.Granted(1, route=1))
    call = stage.call()
    late = stage.answered(call, "late")
    stage.turn(stage.broke(call, "lost"), events.Granted(0, route=1))
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
