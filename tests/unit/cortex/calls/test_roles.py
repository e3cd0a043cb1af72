"""Roles: several models in one job. Each route that roles have is a lane of its own: asked, paid, held up by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from cortex.calls import route_lanes
from cortex.calls.request import question_hash
from cortex.state import commands, events
from cortex.state.changes import Ask, Change, Fail, Resolve, Vote
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status
from cortex.values.limits import JobTerms, Limits
from cortex.values.reply import Reply, Usage
from policies.estimates.price import parse_price
from policies.failures.failure import Failure
from tests.support.state_machine_harness import PRICE, Flat, Stage, asked, of, other, prompt, terms

BOUND = Limits(output_tokens_max=10)
DEAR = parse_price("input=30,output=150")
JUDGE = other("big", price=DEAR, window=50_000, endpoint="far")


class Cast(Program, frozen=True):
    """Asks a call for each text; its role stands before a colon."""

    texts: tuple[str, ...] = ()

    def begin(self, k: State) -> Iterable[Change]:
        for text in self.texts:
            yield Goal("text", text)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("text"):
            role, _, text = goal.value.rpartition(":")
            yield Ask(goal, prompt(text), role=role)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        yield Resolve(goal, f"{goal.value}={reply.text}")


def stage_of(*texts: str, own: int = 0, judge: int = 0, limits: Limits = BOUND, **more: Any) -> Stage:
    """A job with a judge ten times as dear; so many permits of each lane."""
    more = {"role_routes": (JUDGE,), "roles": {"judge": 1}, **more}
    stage = Stage(Cast(texts), limits, permits=0, price=PRICE, **more)
    if own:
        stage.turn(events.PermitsGranted(own))
    if judge:
        stage.turn(events.PermitsGranted(judge, route=len(stage.k.terms.fallbacks) + 1))
    return stage


def under_way(stage: Stage) -> list[tuple[str, int]]:
    """Texts of the calls under way, with their routes."""
    return [(asked(call), call.route) for call in stage.calls.values()]


# -- which route -------------------------------------------------------------------------------------------------------


def test_a_role_is_asked_of_its_own_model_and_a_role_without_one_of_the_jobs():
    stage = stage_of("a", "judge:b", "writer:c", own=8, judge=8)
    assert sorted(under_way(stage)) == [("a", 0), ("b", 1), ("c", 0)]
    models = {asked(call): msgspec.json.decode(call.body)["model"] for call in stage.calls.values()}
    assert models == {"a": "m", "b": "big", "c": "m"}


def test_a_roles_question_is_its_own_routes():
    stage = stage_of("a", "judge:a", own=1, judge=1)
    own, judge = stage.calls.values()
    assert judge.hash == question_hash("far", judge.body, "0") != own.hash
    assert stage.goal(2).question == judge.hash, "no answer of the job's own model is taken for the judge's"


def test_the_same_question_of_two_roles_with_one_route_is_asked_once():
    stage = stage_of("judge:a", "critic:a", judge=4, roles={"judge": 1, "critic": 1})
    assert len(stage.calls) == 1
    stage.answer("yes")
    assert stage.emitted == ["judge:a=yes", "critic:a=yes"]


def test_a_role_with_the_jobs_own_model_falls_back_with_it():
    stage = stage_of("a", "critic:b", roles={"judge": 1, "critic": 0}, fallbacks=(other("n"),))
    stage.turn(events.PermitsGranted(2, route=1))
    assert sorted(under_way(stage)) == [("a", 1), ("b", 1)]


def test_a_role_with_a_route_of_its_own_goes_nowhere_else():
    stage = stage_of("judge:a", own=4, fallbacks=(other("n"),))
    stage.turn(events.PermitsGranted(2, route=1))
    assert not stage.calls
    stage.turn(events.PermitsGranted(1, route=2))
    assert under_way(stage) == [("a", 2)]


def test_m_is_that_of_the_roles_window():
    stage = stage_of("a", "judge:b", own=1, judge=1)
    assert [call.prompt_tokens_max for call in stage.calls.values()] == [199_990, 49_990]
    assert (stage.k.prompt_tokens_max(), stage.k.prompt_tokens_max(role="judge")) == (199_990, 49_990)
    assert stage.k.prompt_tokens_max(role="writer") == 199_990


def test_a_request_that_is_given_whole_names_the_roles_model():
    class Whole(Flat, frozen=True):
        def select(self, k: State) -> Iterable[Any]:
            for goal in k.open():
                yield Ask(goal, body=b'{"model":"its own","max_tokens":8,"messages":[]}', role="judge")

    stage = Stage(Whole(texts=("a",)), BOUND, permits=0, role_routes=(JUDGE,), roles={"judge": 1})
    stage.turn(events.PermitsGranted(1, route=1))
    assert msgspec.json.decode(stage.call().body)["model"] == "big"


# -- the money ---------------------------------------------------------------------------------------------------------


def test_a_role_is_reserved_and_paid_at_its_own_price():
    stage = stage_of("judge:a", judge=1)
    reserved = stage.k.ledger.reserved_nusd
    stage.turn(stage.answered(stage.call(), usage=Usage(10, 2)))
    assert stage.k.ledger.known_nusd == 10 * 30_000 + 2 * 150_000
    assert reserved > stage.k.ledger.known_nusd and stage.k.ledger.reserved_nusd == 0


def test_a_lost_call_of_a_role_is_assumed_and_settled_at_its_price():
    stage = stage_of("judge:a", judge=2)
    late = stage.call()
    stage.fail("timed_out")
    assert stage.k.ledger.assumed_nusd > 0
    stage.turn(stage.answered(late, usage=Usage(10, 2)))
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.known_nusd) == (0, 600_000)


# -- one lane holds up no other -----------------------------------------------------------------------------------------


def test_a_role_without_a_permit_holds_up_nobody_and_keeps_its_place():
    stage = stage_of("judge:a", "judge:b", "c", "d", own=2)
    assert sorted(under_way(stage)) == [("c", 0), ("d", 0)]
    stage.turn(events.PermitsGranted(1, route=1))
    assert under_way(stage)[-1] == ("a", 1)
    stage.answer(goal=1)
    assert under_way(stage)[-1] == ("b", 1)


def test_the_jobs_own_model_without_a_permit_holds_up_no_role():
    stage = stage_of(*"abcdef", "judge:x", judge=1)
    assert under_way(stage) == [("x", 1)]


def test_what_waited_for_its_lane_is_asked_before_what_came_later():
    stage = stage_of("a", "b", "c", judge=1)
    stage.turn(events.PermitsGranted(1))
    assert under_way(stage) == [("a", 0)]
    stage.answer(goal=1)
    assert under_way(stage) == [("b", 0)]


def test_so_many_are_looked_at_in_one_turn_and_the_rest_at_once_after(monkeypatch):
    monkeypatch.setattr(route_lanes, "LOOK_MAX", 3)
    stage = stage_of(*"abcdefg", "judge:x", judge=1)
    assert stage.k.looking and stage.k.due_at_s() == stage.k.at_s
    while stage.k.looking:
        stage.turn(events.Ticked(), at_s=stage.k.at_s)
    assert under_way(stage) == [("x", 1)]
    assert [len(ids) for ids in stage.k.parked.values()] == [7]
    assert stage.k.due_at_s() is None, "nothing is looked at twice"


def test_a_goal_that_waits_for_its_lane_may_end():
    class Once(Cast, frozen=True):
        def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
            for each in k.goals_of("text"):
                if each.status in (Status.OPEN, Status.ASKED):
                    yield Resolve(each, "done")

    stage = Stage(Once(("a", "judge:b", "judge:c")), BOUND, role_routes=(JUDGE,), roles={"judge": 1}, permits=0)
    stage.turn(events.PermitsGranted(1))
    assert stage.k.parked == {1: {2: None, 3: None}}
    stage.answer(goal=1)
    assert (stage.k.outcome, stage.k.parked, stage.k.called) == ("complete", {}, {})


def test_the_users_bound_holds_over_all_lanes():
    stage = stage_of(*"abc", "judge:x", "judge:y", own=9, judge=9, limits=Limits(concurrency=2, output_tokens_max=10))
    assert len(stage.calls) == 2
    stage.answer_all()
    assert len(stage.emitted) == 5


def test_a_role_without_a_permit_takes_no_place_among_those_that_the_user_allows():
    class Goes(Cast, frozen=True):
        def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
            yield Resolve(goal, reply.text)
            if goal.value == "first":
                yield from (Goal("text", "judge:a"), Goal("text", "b"))

    limits = Limits(concurrency=1, output_tokens_max=10)
    stage = Stage(Goes(("first",)), limits, permits=0, role_routes=(JUDGE,), roles={"judge": 1})
    stage.turn(events.PermitsGranted(1))
    stage.answer(goal=1)
    assert under_way(stage) == [("b", 0)]


def test_a_role_is_voted_on_its_own_route():
    class Elects(Cast, frozen=True):
        def select(self, k: State) -> Iterable[Any]:
            for goal in k.open("text"):
                yield Vote(goal, prompt(goal.value), k=2, role="judge")

    stage = Stage(Elects(("a",)), BOUND, permits=0, role_routes=(JUDGE,), roles={"judge": 1})
    stage.turn(events.PermitsGranted(4))
    assert not stage.calls
    stage.turn(events.PermitsGranted(1, route=1))
    assert [call.route for call in stage.calls.values()] == [1]
    stage.answer_all("yes")
    assert stage.emitted == ["a=yes"]


# -- what each lane asks the cortex for ----------------------------------------------------------------------------------


def test_what_each_lane_could_use_before_anything_is_granted():
    stage = stage_of("a", "b", "judge:c", "writer:d")
    assert route_lanes.demands(stage.k) == [3, 1] and stage.k.demand() == 4


def test_what_is_under_way_and_what_is_to_be_tried_again_counts_for_its_lane():
    stage = stage_of("a", "judge:b", "judge:c", own=1, judge=1)
    assert route_lanes.demands(stage.k) == [1, 2]
    stage.fail("overloaded", goal=2)
    assert stage.k.resting == 1 and route_lanes.demands(stage.k) == [1, 2]


@pytest.mark.parametrize("due", ["retry", "deadline"])
def test_what_is_due_when_the_last_permit_is_withdrawn_still_counts_for_its_lane(due):
    """A channel that stood still learns that its lease ran out before anything else. The job ended as failed."""

    class Limited(Cast, frozen=True):
        def begin(self, k: State) -> Iterable[Change]:
            yield Goal("text", "judge:a", deadline_at_s=180.0 if due == "deadline" else 0.0)

        def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
            yield Goal("text", "judge:b")
            yield Fail(goal, failure.message)

    stage = Stage(Limited(), BOUND, permits=0, role_routes=(JUDGE,), roles={"judge": 1})
    stage.turn(events.PermitsGranted(1, route=1))
    if due == "retry":
        stage.fail("overloaded", goal=1)
        assert stage.k.resting == 1
    stage.turn(events.PermitsGranted(0, why="the lease ran out", route=1), at_s=stage.k.at_s + 120.0)
    assert stage.k.outcome == "" and route_lanes.demands(stage.k) == [0, 1 + len(stage.k.flights)]
    stage.turn(events.PermitsGranted(2, route=1))
    assert [asked(call) for call in list(stage.calls.values())[-1:]] == ["a" if due == "retry" else "b"]


def test_nobody_asks_for_more_than_its_user_allows():
    stage = stage_of(*"abcdef", "judge:x", limits=Limits(concurrency=3, output_tokens_max=10))
    assert route_lanes.demands(stage.k) == [2, 1]
    stage = stage_of("a", "b", "judge:x", "judge:y", limits=Limits(concurrency=1, output_tokens_max=10))
    assert route_lanes.demands(stage.k) == [1, 1], "one in each lane: whichever comes next need not wait for its permit"
    stage.turn(events.PermitsGranted(1), events.PermitsGranted(1, route=1))
    assert len(stage.calls) == 1


def test_a_job_that_is_drained_asks_for_nothing_more():
    stage = stage_of("a", "b", "judge:c", "judge:d", own=1, judge=1)
    stage.turn(events.Stopped("ann", "drain"))
    assert route_lanes.demands(stage.k) == [1, 1]


# -- a route that is blocked, or held ------------------------------------------------------------------------------------


def test_while_a_role_is_blocked_the_rest_goes_on_and_then_the_job_is_paused():
    stage = stage_of("judge:a", "b", "c", own=1, judge=1)
    stage.fail("blocked", "no credit", goal=1, status=400)
    assert (stage.k.paused, stage.k.outcome) == (None, "")
    stage.answer(goal=2)
    stage.answer(goal=3)
    assert (stage.k.outcome, stage.k.why) == ("partial", "blocked: no credit")
    assert route_lanes.demands(stage.k)[0] == 0


def test_a_blocked_role_is_tried_with_one_call_when_the_job_is_resumed():
    stage = stage_of("judge:a", "judge:b", judge=2)
    for goal in (1, 2):
        stage.fail("blocked", "no credit", goal=goal, status=400)
    assert stage.k.outcome == "partial"
    stage.turn(events.Rejoined(2), events.Resumed("ann"), events.PermitsGranted(2, route=1))
    assert len(stage.calls) == 1
    stage.answer()
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_a_blocked_own_model_does_not_hold_up_a_role():
    stage = stage_of("a", "judge:b", "judge:c", own=1, judge=1)
    stage.fail("blocked", "no credit", goal=1, status=400)
    stage.answer(goal=2)
    stage.answer(goal=3)
    assert stage.emitted == ["judge:b=ok", "judge:c=ok"]
    assert (stage.k.outcome, stage.k.why) == ("partial", "blocked: no credit")


def test_a_job_whose_user_waits_for_a_blocked_role_gets_its_probe():
    limits = Limits(output_tokens_max=10, blocked_wait_s=600.0)
    stage = stage_of("judge:a", "b", own=1, judge=1, limits=limits)
    stage.fail("blocked", "no credit", goal=1, status=400)
    stage.answer(goal=2)
    assert (stage.k.outcome, bool(stage.k.paused), route_lanes.demands(stage.k)) == ("", True, [0, 1])
    stage.turn(events.PermitsGranted(1, route=1, starts=1))
    stage.answer()
    assert (stage.k.outcome, stage.k.paused) == ("complete", None)


def test_a_role_that_the_provider_holds_back_waits_alone():
    stage = stage_of("judge:a", "b", "c", own=1, judge=1)
    stage.fail("throttled", goal=1, retry_after_s=30.0)
    stage.answer(goal=2)
    stage.answer(goal=3)
    assert len(stage.emitted) == 2 and not stage.calls
    assert stage.k.outcome == "" and stage.k.due_at_s() > stage.k.at_s
    stage.turn(events.Ticked(), at_s=stage.k.at_s + 60.0)
    stage.answer(goal=1)
    assert stage.k.outcome == "complete"


def test_a_way_round_for_the_jobs_own_calls_hurries_no_role():
    stage = stage_of("a", "judge:b", own=1, judge=1, fallbacks=(other("n"),))
    stage.turn(*[stage.broke(stage.call(goal), "overloaded") for goal in (1, 2)])
    out = stage.turn(
        events.PermitsGranted(0, why="the breaker is open"), events.PermitsGranted(1, route=1), at_s=stage.k.at_s
    )
    assert [(asked(call), call.route) for call in of(out, commands.Call)] == [("a", 1)]


# -- what changes in the middle ------------------------------------------------------------------------------------------


def test_other_fallbacks_and_another_key_leave_roles_where_they_are():
    stage = stage_of("a", "judge:b", own=1, judge=1, fallbacks=(other("n"),))
    judge = msgspec.structs.replace(JUDGE, credential="new")
    stage.turn(events.LimitsSet("ann", BOUND, None, (other("x"), other("y")), (judge,)))
    assert [flight.route for flight in stage.k.flights.values()] == [0, 3]
    assert stage.k.terms.role_routes == (judge,) and stage.k.shares[3].permits == 1
    stage.answer(goal=2)
    assert stage.k.ledger.known_nusd == 600_000


BAD: dict[str, dict[str, Any]] = {
    "a route that no role has": {"role_routes": (JUDGE,), "roles": {}},
    "a role whose route is not there": {"role_routes": (), "roles": {"judge": 1}},
    "the same route twice": {"role_routes": (JUDGE, JUDGE), "roles": {"judge": 1, "critic": 2}},
}


@pytest.mark.parametrize("name", BAD)
def test_terms_that_make_no_sense(name):
    with pytest.raises(ValueError):
        terms(BOUND, **BAD[name])


def test_lanes_and_places():
    made: JobTerms = terms(BOUND, fallbacks=(other("n"),), role_routes=(JUDGE, other("z")), roles={"judge": 1, "z": 2})
    assert [list(made.lane_places(lane)) for lane in range(3)] == [[0, 1], [2], [3]]
    assert [made.lane_at(place) for place in range(4)] == [0, 0, 1, 2]
    assert made.with_routes(made.routes) == made
