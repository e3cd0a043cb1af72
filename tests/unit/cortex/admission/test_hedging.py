"""Hedges: asked a second time, answered once, paid for honestly."""

from __future__ import annotations

import pytest

from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.state import Goal, Status
from cortex.values.limits import Limits
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import PRICE, Flat, Stage, fed, of, puppet


def hedged(*texts: str, permits: int = 8, **limits: object) -> Stage:
    """Every call is slow after ten seconds."""
    bound = Limits(hedge_after_s=10.0, output_tokens_max=10, **limits)  # type: ignore[arg-type]
    return Stage(Flat(texts=texts or ("a",)), bound, permits=permits, price=PRICE)


def both(stage: Stage) -> tuple[commands.Call, commands.Call]:
    """The first attempt at goal 1, and its hedge."""
    first = stage.call(1)
    second, *_ = of(stage.turn(events.Ticked(), at_s=stage.k.due_at_s()), commands.Call)
    assert (second.goal, second.attempt) == (1, 2)
    return first, second


def test_off_by_default():
    stage = Stage(Flat(texts=("a",)))
    assert (stage.k.due_at_s(), stage.k.unhedged) == (None, {})
    assert next(iter(stage.k.flights.values())).body == b""


def test_a_call_without_an_answer_is_asked_a_second_time_and_no_third():
    stage = hedged()
    assert stage.k.due_at_s() == stage.k.at_s + 10.0
    assert of(stage.turn(events.Ticked(), at_s=stage.k.at_s + 9.9), commands.Call) == []
    first, second = both(stage)
    assert (second.attempt, second.hash, second.body, second.sample) == (2, first.hash, first.body, first.sample)
    assert (second.prompt_tokens_max, second.output_tokens_max) == (first.prompt_tokens_max, first.output_tokens_max)
    assert (stage.k.due_at_s(), stage.k.tally.calls, len(stage.k.flights)) == (None, 1, 2)
    assert stage.k.ledger.reserved_nusd == 2 * stage.k.flights[1 << 20 | 1].charge.nusd


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("once", [True, False])
def test_the_first_answer_counts_and_the_other_attempt_is_abandoned(winner, once):
    stage = Stage(puppet(begin=lambda k: [Goal("x", "v")], asks_once=once), Limits(hedge_after_s=10.0), price=PRICE)
    pair = both(stage)
    won, lost = pair[winner], pair[1 - winner]
    out = stage.turn(stage.answered(won, "first"))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, lost.attempt)]
    assert (stage.emitted, stage.k.ledger.paid_again) == (["first"], 0)


@pytest.mark.parametrize("winner", [0, 1])
def test_the_loser_counts_as_paid_again_where_it_was_paid(winner):
    stage = hedged("a", "b")
    pair = both(stage)
    won, lost = pair[winner], pair[1 - winner]
    stage.turn(stage.answered(won, "first"))
    stage.turn(stage.answered(lost, "second"))
    assert (stage.goal(1).answer, stage.k.ledger.paid_again, stage.k.ledger.paid_calls) == ("first", 1, 2)
    assert stage.k.ledger.known_nusd == 2 * 60_000


def test_the_loser_that_was_stopped_in_time_costs_nothing():
    stage = hedged("a", "b")
    first, second = both(stage)
    stage.turn(stage.answered(first))
    stage.turn(stage.broke(second, "cancelled", sent=False))
    assert (stage.k.ledger.paid_again, stage.k.ledger.assumed_nusd, stage.k.shares[0].in_flight) == (0, 0, 2)


def test_the_loser_that_is_told_to_wait_holds_its_route_back():
    stage = hedged("a", "b")
    first, second = both(stage)
    stage.turn(stage.answered(first))
    stage.turn(stage.broke(second, "throttled", status=429, retry_after_s=30.0), at_s=200.0)
    assert stage.k.shares[0].hold_until_s == 230.0


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kind", ["lost", "timed_out", "throttled", "transient", "rejected", "blocked"])
def test_one_that_fails_leaves_the_goal_to_the_other(which, kind):
    stage = hedged(blocked_wait_s=100.0)
    pair = both(stage)
    out = stage.turn(stage.broke(pair[which], kind, status=0 if kind in ("lost", "timed_out") else 429))
    assert (of(out, commands.Call), stage.statuses(), stage.goal(1).broken) == ([], ["asked"], 0)
    assert (stage.k.paused is not None) == (kind == "blocked")
    stage.turn(stage.answered(pair[1 - which], "the other"))
    assert stage.emitted == ["the other"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_when_both_have_failed_it_is_tried_again_as_any_call(order):
    stage = hedged()
    pair = both(stage)
    stage.turn(stage.broke(pair[order[0]], "lost"))
    (third,) = of(stage.turn(stage.broke(pair[order[1]], "lost")), commands.Call)
    assert (third.attempt, stage.goal(1).hedge) == (3, 0)
    assert stage.k.due_at_s() == stage.k.at_s + 10.0, "and may be hedged in its turn"
    stage.turn(stage.answered(third))
    assert stage.k.outcome == "complete"


@pytest.mark.parametrize("winner", [0, 1])
def test_those_who_share_the_question_share_the_first_answer(winner):
    stage = hedged("same", "same")
    pair = both(stage)
    out = stage.turn(stage.answered(pair[winner], "one"))
    assert (stage.emitted, len(of(out, commands.AbandonAttempt))) == (["one", "one"], 1)


@pytest.mark.parametrize("kept", [0, 1])
def test_those_who_share_it_keep_the_attempt_that_is_left(kept):
    stage = hedged("same", "same")
    pair = both(stage)
    stage.turn(stage.broke(pair[1 - kept], "lost"))
    assert stage.statuses() == ["asked", "asked"]
    stage.turn(stage.answered(pair[kept], "one"))
    assert stage.emitted == ["one", "one"]


def test_a_late_reply_of_the_one_that_was_lost_ends_the_other():
    stage = hedged()
    first, second = both(stage)
    stage.turn(stage.broke(first, "lost"))
    out = stage.turn(stage.answered(first, "late"))
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(1, second.attempt)]
    assert stage.emitted == ["late"]


def test_within_permits_money_and_the_retry_budget():
    tight = hedged("a", "b", permits=1)
    assert of(tight.turn(events.Ticked(), at_s=200.0), commands.Call) == [], "no permit"
    (hedge,) = of(tight.turn(events.PermitsGranted(2)), commands.Call)
    assert hedge.goal == 1, "before what has not begun: it has waited longest"
    worst = hedged().k.ledger.reserved_nusd
    poor = hedged(max_cost_nusd=2 * worst - 1)
    assert of(poor.turn(events.Ticked(), at_s=200.0), commands.Call) == []
    assert (poor.k.outcome, poor.k.short) == ("", False), "and that is no end of the money for the call itself"
    mean = hedged("a", "b", retry=RetryPolicy(budget_floor=1, budget_share=0.0))
    assert len(of(mean.turn(events.Ticked(), at_s=200.0), commands.Call)) == 1
    narrow = hedged("a", concurrency=1)
    assert of(narrow.turn(events.Ticked(), at_s=200.0), commands.Call) == []
    paced = hedged("a", requests_per_min=1.0)
    assert of(paced.turn(events.Ticked(), at_s=130.0), commands.Call) == []
    assert len(of(paced.turn(events.Ticked(), at_s=170.0), commands.Call)) == 1


def test_nothing_is_hedged_in_a_job_that_stops_or_is_paused():
    stage = hedged()
    stage.turn(events.Stopped("ann", "drain"))
    assert of(stage.turn(events.Ticked(), at_s=200.0), commands.Call) == []
    blocked = hedged("a", "b", blocked_wait_s=1e6)
    blocked.fail("blocked", goal=2, status=400)
    assert of(blocked.turn(events.PermitsGranted(3, starts=2), at_s=200.0), commands.Call) != []
    assert len([key for key in blocked.k.flights if key >> 20 == 1]) == 1


def test_the_end_of_a_job_ends_both():
    stage = hedged("a", "b")
    both(stage)
    out = stage.turn(events.Stopped("ann", "cancel"))
    assert {(one.goal, one.attempt) for one in of(out, commands.AbandonAttempt)} == {(1, 1), (1, 2), (2, 1), (2, 2)}
    drained = hedged()
    both(drained)
    drained.turn(events.Rejoined(2, ()))
    assert (drained.k.flights, drained.statuses()) == ({}, ["open"])
    drained.turn(events.PermitsGranted(1))
    assert drained.goal(1).status == Status.ASKED and drained.goal(1).hedge == 0


def test_a_row_of_a_batch_is_hedged_under_its_own_name():
    stage = Stage(Batch(), Limits(hedge_after_s=10.0), streams=True)
    stage.turn(fed("row-1", ended=True))
    first, second = both(stage)
    assert (second.sample, second.body) == ("row-1", first.body)
    stage.turn(stage.answered(second))
    assert (len(stage.emitted), stage.k.outcome) == (1, "complete")


def test_quick_answers_leave_nothing_behind():
    stage = hedged(*map(str, range(50)), permits=5)
    stage.answer_all()
    assert (stage.k.unhedged, stage.k.due_at_s()) == ({}, None)
