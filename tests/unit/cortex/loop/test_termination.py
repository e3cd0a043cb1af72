"""How a job ends, and how it goes on: every outcome, cancel, drain, resume."""

from __future__ import annotations

import pytest

from cortex.state import commands, events
from cortex.state.changes import Ask, Emit, Goal, Reopen, Resolve, Wait
from cortex.state.state import Status
from cortex.values.limits import Limits
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import PRICE, Flat, Stage, of, prompt, puppet


def flat(*texts: str, permits: int = 8, **limits: object) -> Stage:
    return Stage(Flat(texts=texts or ("a", "b")), Limits(**limits), permits=permits, price=PRICE)  # type: ignore[arg-type]


STOPS = {
    "node": events.Stopped(events.NODE_ENDED, "drain"), "cancel": events.Stopped("carl", "cancel"),
    "condemn": events.Stopped("the cortex", "condemn", "it dies"), "resumed": events.Resumed("ann"),
}  # fmt: skip


# -- outcomes ----------------------------------------------------------------------------------------------------------


def test_complete_when_no_goal_is_left():
    stage = flat()
    stage.answer_all()
    assert stage.ended == [commands.FinishJob("complete", "")]


def test_complete_at_once_where_there_is_nothing_to_do():
    stage = Stage(puppet(), permits=0)
    assert stage.ended == [commands.FinishJob("complete", "")]


def test_complete_as_soon_as_the_program_says_so():
    """What is under way is abandoned; it stays charged in full, and its goals stay as they are."""
    stage = Stage(
        puppet(begin=lambda k: [Goal("x", "a"), Goal("x", "b")], satisfied=lambda k: k.successes > 0), price=PRICE
    )
    worst = stage.k.flights[2 << 20 | 1].charge
    out = stage.answer(goal=1)
    assert of(out, commands.AbandonAttempt) == [commands.AbandonAttempt(2, 1)]
    assert out[-1] == commands.FinishJob("complete", "")
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.reserved_nusd) == (worst.nusd, 0)
    assert stage.statuses() == ["resolved", "open"]


def test_failed_when_nothing_is_left_to_do_and_the_goal_is_not_met():
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=lambda k: []))
    assert stage.ended == [commands.FinishJob("failed", "nothing is left to do and the goal is not met")]


def test_failed_where_all_that_select_asks_cannot_be_asked():
    """It asks for a goal that waits for nothing that will come, as often as there are permits."""

    def select(k):
        for goal in k.goals.values():
            if goal.status == Status.OPEN and goal.kind == "top":
                yield from (Goal("idle", parent=goal.id), Wait(goal))
            elif goal.kind == "top":
                yield Ask(goal, prompt("never"))

    stage = Stage(puppet(begin=lambda k: [Goal("top")], select=select), permits=1)
    assert stage.ended == [commands.FinishJob("failed", "nothing is left to do and the goal is not met")]


def test_no_verdict_before_there_are_permits():
    stage = Stage(puppet(begin=lambda k: [Goal("x")], select=lambda k: []), permits=0)
    assert stage.ended == []


def test_no_verdict_while_time_may_change_something():
    stage = Stage(puppet(begin=lambda k: [Goal("x", due_at_s=500.0)]))
    assert (stage.ended, stage.k.due_at_s()) == ([], 500.0)
    stage.turn(events.Ticked(), at_s=500.0)
    stage.answer()
    assert stage.k.outcome == "complete"


def test_partial_at_the_cap_and_on_again_with_a_higher_one():
    stage = flat("a", "b", permits=1, output_tokens_max=10, max_cost_nusd=600_000)
    assert len(stage.calls) == 1
    stage.turn(stage.broke(stage.call(), "timed_out"))
    for _ in range(3):
        if stage.k.outcome:
            break
        stage.turn(events.Ticked(), at_s=(stage.k.due_at_s() or 0.0) + 60)
    assert stage.ended == [commands.FinishJob("partial", "over_budget: the next call could pass the cap")]
    stage.turn(events.LimitsSet("someone", Limits(output_tokens_max=10)), events.Resumed("someone"))
    stage.answer_all()
    assert [end.outcome for end in stage.ended] == ["partial", "complete"]


def test_resumed_without_a_higher_cap_it_ends_partial_again_and_says_so():
    stage = flat("a", output_tokens_max=10, max_cost_nusd=1_000)
    assert stage.k.outcome == "partial"
    out = stage.turn(events.Resumed("someone"))
    assert of(out, commands.FinishJob) == [
        commands.FinishJob("partial", "over_budget: the next call could pass the cap")
    ]


def test_partial_by_a_cap_waits_for_what_is_under_way():
    one = flat("a", output_tokens_max=10).k.ledger.reserved_nusd
    stage = flat("a", "b", output_tokens_max=10, max_cost_nusd=one)
    assert (len(stage.calls), stage.k.short, stage.k.outcome) == (1, True, "")
    stage.answer()
    assert stage.k.outcome == "partial"


# -- cancel ------------------------------------------------------------------------------------------------------------


def nested() -> Stage:
    def select(k):
        for goal in k.open("top"):
            yield from (Goal("part", "p", parent=goal.id), Goal("part", "q", parent=goal.id), Wait(goal))
        yield from (Ask(goal, prompt(str(goal.value))) for goal in k.open("part"))

    return Stage(puppet(begin=lambda k: [Goal("top"), Goal("part", "alone")], select=select), price=PRICE)


def test_cancel_ends_every_goal_and_every_call_for_good():
    stage = nested()
    out = stage.turn(events.Stopped("ann", "cancel"))
    assert stage.statuses() == ["failed", "failed", "abandoned", "abandoned"]
    assert stage.goal(1).failure.kind == "cancelled"
    assert stage.goal(1).failure.message == "cancelled by ann"
    assert {(one.goal, one.attempt) for one in of(out, commands.AbandonAttempt)} == {(2, 1), (3, 1), (4, 1)}
    assert stage.ended == [commands.FinishJob("cancelled", "cancel: by ann")]
    stage.turn(events.Resumed("ann"))
    assert (stage.k.outcome, len(stage.ended)) == ("cancelled", 1)


@pytest.mark.parametrize("again", ["cancel", "drain"])
def test_cancelled_stays_cancelled(again):
    stage = nested()
    stage.turn(events.Stopped("ann", "cancel"), events.Resumed("ann"), events.Stopped("ann", again))
    assert (stage.k.outcome, len(stage.ended)) == ("cancelled", 1)


def test_cancel_is_not_talked_out_of_it():
    """A program may answer each goal's cancellation in its own way, and may not keep it alive."""

    def failed(k, goal, failure):
        yield Reopen(goal) if goal.value == "clings" else Emit("its line", failed=True)

    begin = lambda k: [Goal("x", "clings"), Goal("x", "lets go")]  # noqa: E731
    stage = Stage(puppet(begin=begin, failed=failed, satisfied=lambda k: True if k.at_s > 9e9 else k.live == 0))
    stage.turn(events.Stopped("ann", "cancel"))
    assert stage.statuses() == ["abandoned", "failed"]
    assert (stage.emitted, stage.k.outcome, stage.k.live) == (["its line"], "cancelled", 0)


def test_a_cancelled_job_is_not_complete_though_no_goal_is_left():
    stage = flat("a")
    stage.turn(events.Stopped("ann", "cancel"), stage.answered(stage.call()))
    assert (stage.k.outcome, stage.emitted) == ("cancelled", [])


def test_a_reply_in_the_turn_of_the_cancel_is_absorbed_if_it_came_first():
    stage = flat("a", "b")
    stage.turn(stage.answered(stage.call(1)), events.Stopped("ann", "cancel"))
    assert (stage.emitted, stage.k.outcome) == (["ok"], "cancelled")


def test_a_partial_job_can_be_cancelled_for_good():
    stage = flat("a", output_tokens_max=10, max_cost_nusd=1_000)
    stage.turn(events.Stopped("ann", "cancel"))
    assert [end.outcome for end in stage.ended] == ["partial", "cancelled"]
    assert stage.statuses() == ["failed"]


@pytest.mark.parametrize("how", ["cancel", "drain"])
def test_an_ended_job_is_not_stopped(how):
    stage = flat("a")
    stage.answer()
    stage.turn(events.Stopped("ann", how))
    assert (stage.k.outcome, len(stage.ended)) == ("complete", 1)


# -- drain and resume --------------------------------------------------------------------------------------------------


def test_drain_asks_nothing_more_and_takes_what_is_under_way():
    stage = flat("a", "b", "c", permits=2)
    out = stage.turn(events.Stopped("ctrl-c", "drain"))
    assert (of(out, commands.AbandonAttempt), stage.k.outcome) == ([], "")
    assert of(stage.answer(goal=1), commands.Call) == []
    stage.answer(goal=2)
    assert stage.emitted == ["ok", "ok"]
    assert stage.ended == [commands.FinishJob("partial", "drain: by ctrl-c")]
    stage.turn(events.Resumed("ann"))
    stage.answer()
    assert [end.outcome for end in stage.ended] == ["partial", "complete"]


@pytest.mark.parametrize("kind", ["transient", "rejected", "throttled", "blocked", "malformed"])
def test_what_fails_during_a_drain_is_asked_again_after_it(kind):
    stage = flat("a")
    stage.turn(events.Stopped("ctrl-c", "drain"))
    stage.fail(kind, status=400)
    assert (stage.statuses(), stage.k.outcome) == (["open"], "partial")
    stage.turn(events.Resumed("ann"))
    stage.answer()
    assert stage.k.outcome == "complete"


def test_a_drain_that_finds_all_done_is_complete():
    stage = flat("a")
    stage.turn(events.Stopped("ctrl-c", "drain"))
    stage.answer()
    assert stage.k.outcome == "complete"


def test_a_condemned_job_ends_at_once_with_the_story_and_can_be_resumed():
    """What is under way may be what kills its channel: it is not waited for, and stays charged in full."""
    stage = flat("a", "b")
    out = stage.turn(events.Stopped("the cortex", "condemn", "its channel died 5 times in 120 s without progress"))
    assert out[-1] == commands.FinishJob("partial", "condemned: its channel died 5 times in 120 s without progress")
    assert (stage.statuses(), len(stage.k.flights), stage.k.ledger.assumed_tokens > 0) == (["open", "open"], 0, True)
    assert stage.turn(events.Stopped("the cortex", "condemn", "again")) == []
    stage.turn(events.Resumed("ann"))
    stage.answer_all()
    assert [end.outcome for end in stage.ended] == ["partial", "complete"]


def test_drain_then_cancel():
    stage = flat("a")
    stage.turn(events.Stopped("ctrl-c", "drain"))
    stage.turn(events.Stopped("ctrl-c", "cancel"))
    assert stage.k.outcome == "cancelled"


@pytest.mark.parametrize(
    ("asked", "outcome", "why"),
    [
        ("ann", "partial", "drain: by ann"), ("node", "partial", f"drain: by {events.NODE_ENDED}"),
        ("ann node", "partial", "drain: by ann"), ("node ann", "partial", "drain: by ann"),
        ("ann node node", "partial", "drain: by ann"), ("node ann node", "partial", "drain: by ann"),
        ("node node", "partial", f"drain: by {events.NODE_ENDED}"), ("ann bob node", "partial", "drain: by bob"),
        ("ctrl-c node", "partial", "drain: by ctrl-c"), ("node ctrl-c", "partial", "drain: by ctrl-c"),
        ("ann resumed node", "partial", f"drain: by {events.NODE_ENDED}"), ("node resumed ann", "partial", "drain: by ann"),
        ("ann cancel", "cancelled", "cancel: by carl"), ("node cancel", "cancelled", "cancel: by carl"),
        ("cancel node", "cancelled", "cancel: by carl"), ("cancel ann", "cancelled", "cancel: by carl"),
        ("condemn node", "partial", "condemned: it dies"), ("ann condemn node", "partial", "condemned: it dies"),
    ],
)  # fmt: skip
def test_the_end_of_a_node_takes_no_drain_from_a_user(asked: str, outcome: str, why: str) -> None:
    stage = flat("a", "b", "c", permits=2)
    for word in asked.split():
        stage.turn(STOPS.get(word) or events.Stopped(word, "drain"))
    while not stage.k.outcome:
        stage.answer()
    assert (stage.k.outcome, stage.k.why) == (outcome, why)


def test_what_the_end_of_its_node_has_put_to_rest_a_user_may_still_drain() -> None:
    """Only what no user has drained is continued without one."""
    stage = flat("a", "b", permits=1)
    stage.turn(STOPS["node"])
    stage.answer()
    rests = (stage.k.outcome, stage.k.why, len(stage.ended))
    assert stage.turn(STOPS["node"]) == [] and stage.k.stopped_by == events.NODE_ENDED
    assert stage.turn(events.Stopped("ann", "drain")) == []
    assert stage.turn(STOPS["node"]) == [] and stage.k.stopped_by == "ann"
    assert (stage.k.outcome, stage.k.why, len(stage.ended)) == rests


def test_resume_is_idempotent_and_harmless_where_nothing_stopped():
    stage = flat("a")
    stage.turn(events.Resumed("ann"))
    assert stage.statuses() == ["asked"]
    stage.answer()
    stage.turn(events.Resumed("ann"))
    assert stage.k.outcome == "complete"


# -- a new incarnation -------------------------------------------------------------------------------------------------


def test_what_no_branch_holds_is_lost_and_asked_again_under_new_permits():
    stage = flat("a", "b")
    first = dict(stage.calls)
    out = stage.turn(events.Rejoined(2, ((2, 1),)))
    assert (of(out, commands.Call), stage.k.permits, stage.k.epoch) == ([], 0, 2)
    out = stage.turn(events.PermitsGranted(8))
    (again,) = of(out, commands.Call)
    assert (again.goal, again.attempt, again.hash) == (1, 2, first[1, 1].hash)
    stage.turn(stage.answered(first[2, 1]), stage.answered(first[1, 1], "late"))
    assert [stage.goal(i).answer for i in (1, 2)] == ["late", "ok"]
    assert stage.k.outcome == "complete"


def test_an_incarnation_that_is_over_changes_nothing():
    stage = flat("a")
    stage.turn(events.Rejoined(3, ((1, 1),)), events.PermitsGranted(4))
    for epoch in (1, 2, 3):
        stage.turn(events.Rejoined(epoch))
    assert (stage.k.epoch, stage.k.permits, stage.statuses()) == (3, 4, ["asked"])


def test_a_late_reply_to_an_ended_partial_job_is_kept():
    """It was paid: resumed, the job needs no second one."""
    stage = flat("a", retry=RetryPolicy(patience_s=5.0), permits=1)
    first = stage.call()
    stage.turn(stage.broke(first, "timed_out"), events.Stopped("ann", "drain"))
    assert stage.k.outcome == "partial"
    assumed = stage.k.ledger.assumed_nusd
    stage.turn(stage.answered(first, "late"))
    assert (stage.goal(1).status, stage.emitted) == (Status.RESOLVED, ["late"])
    assert assumed > stage.k.ledger.assumed_nusd == 0
    stage.turn(events.Resumed("ann"))
    assert stage.k.outcome == "complete"


def test_what_was_under_way_when_a_job_failed_may_still_be_told():
    """The end leaves it charged in full; its bill, when it comes, takes that place."""
    begin = lambda k: [Goal("x", "bad"), Goal("x", "good")]  # noqa: E731

    def absorb(k, goal, reply):
        if goal.value == "bad":
            raise KeyError("no")
        yield Resolve(goal, reply.text)

    stage = Stage(puppet(begin=begin, absorb=absorb), Limits(faulty_in_row_max=1), price=PRICE)
    late = stage.call(2)
    stage.answer(goal=1)
    assert (stage.k.outcome, stage.k.ledger.reserved_nusd) == ("failed", 0)
    assert stage.k.ledger.assumed_nusd > 60_000
    stage.turn(stage.answered(late, "late"))
    assert (stage.k.ledger.assumed_nusd, stage.k.ledger.known_nusd) == (0, 120_000)
    assert (stage.emitted, len(stage.ended)) == (["late"], 1)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_an_operators_limits_hold_from_the_next_decision_on():
    stage = flat("a", "b", permits=1, output_tokens_max=10)
    stage.turn(events.LimitsSet("ann", Limits(output_tokens_max=20)))
    stage.answer()
    assert stage.call().output_tokens_max == 20
    assert stage.k.terms.limits.output_tokens_max == 20


def test_a_raised_cap_wakes_a_running_job():
    one = flat("a", output_tokens_max=10).k.ledger.reserved_nusd
    stage = flat("a", "b", output_tokens_max=10, max_cost_nusd=one)
    assert (len(stage.calls), stage.k.short) == (1, True)
    out = stage.turn(events.LimitsSet("ann", Limits(output_tokens_max=10, max_cost_nusd=2 * one)))
    assert [call.goal for call in of(out, commands.Call)] == [2]


def test_a_lowered_cap_stops_what_has_not_begun():
    stage = flat("a", "b", permits=1, output_tokens_max=10)
    stage.turn(events.LimitsSet("ann", Limits(output_tokens_max=10, max_cost_nusd=1)))
    stage.answer()
    assert (stage.k.outcome, stage.emitted) == ("partial", ["ok"])


def test_deadline_and_concurrency_change_in_a_running_job():
    stage = flat("a", "b", "c", "d", permits=4, concurrency=1)
    assert len(stage.calls) == 1
    out = stage.turn(events.LimitsSet("ann", Limits(concurrency=3)))
    assert len(of(out, commands.Call)) == 2
    stage.turn(events.LimitsSet("ann", Limits(concurrency=3, deadline_at_s=stage.k.at_s)))
    stage.answer_all()
    assert stage.k.why.startswith("deadline: ")


def test_a_higher_bound_on_failures_lets_a_job_that_winds_down_go_on():
    stage = flat("a", "b", "c", permits=2, max_failed=1.0)
    stage.fail("rejected", goal=1, status=400)
    assert (stage.k.halted[:10], len(stage.calls)) == ("max_failed", 1)
    assert len(of(stage.turn(events.LimitsSet("ann", Limits(max_failed=2.0))), commands.Call)) == 1
    assert of(stage.turn(events.LimitsSet("ann", Limits(max_failed=1.0))), commands.Call) == []
    assert stage.k.closing


def test_a_new_route_keeps_the_limits_apart():
    from cortex.values.limits import Route

    stage = flat("a", "b", permits=1)
    stage.turn(events.LimitsSet("ann", Limits(), Route(endpoint="sim", model="m", credential="another")))
    assert stage.k.terms.route.credential == "another"
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_time_never_goes_back():
    stage = flat("a")
    stage.turn(events.Ticked(), at_s=500.0)
    stage.turn(events.Ticked(), at_s=400.0)
    assert stage.k.at_s == 500.0
